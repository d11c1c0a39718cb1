"""Channel mixing of RWKV version 7: a token shift and a squared ReLU, `W_v max(W_k x_k, 0)^2`, without a gate.

Peng et al., 2025 (arXiv 2503.14456), section 4: `x_k` is a mix, with a weight for each channel, of the token and the
previous one. Names are those of the published parameters.

Shapes: `B` batch, `T` tokens, `D` width, `F` hidden width.
"""

from typing import Literal, Self

from torch import Tensor, nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import FeedForwardSpec, Place
from linnet.layers.state import State
from linnet.layers.token_shift import LastTokenState, ShiftedFeedForward, layers_left, rising
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.gates import ACTIVATIONS
from linnet.nn.linear import Linear
from linnet.nn.neighbors import token_mixes, token_shift_cost

RELU_SQUARED = ACTIVATIONS["relu_squared"]


class Rwkv7ChannelSpec(FeedForwardSpec):
    """`hidden`: the hidden width; in the published models 4 times the width."""

    kind: Literal["rwkv7_channel"] = "rwkv7_channel"

    @classmethod
    def examples(cls) -> list[Self]:
        """Two widths."""
        return [cls(hidden=24), cls(hidden=12)]

    def build(self, place: Place) -> "Rwkv7Channel":
        return Rwkv7Channel(place, self.hidden)

    def cost(self, place: Place) -> Cost:
        """A mix and two maps; the input and output of the square are kept for backward."""
        maps = linear_cost(place.width, self.hidden, False) + linear_cost(self.hidden, place.width, False)
        return token_shift_cost(place.width, 1) + maps + Cost(activations_per_token=2 * self.hidden)


class Rwkv7Channel(ShiftedFeedForward):
    """A feed-forward of one mix of each token with the previous one."""

    def __init__(self, place: Place, hidden: int) -> None:
        super().__init__(place.width)
        self.x_k = nn.Parameter(1 - rising(place.width) ** layers_left(place) ** 4)
        self.key = Linear(place.width, hidden, bias=False)
        self.value = Linear(hidden, place.width, bias=False)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, LastTokenState)
        (mixed_BTD,) = token_mixes(x_BTD, [self.x_k.flatten()], state)
        out_BTD: Tensor = self.value(RELU_SQUARED(self.key(mixed_BTD)))
        return out_BTD
