"""Channel mixing of RWKV version 4: a token shift, squared ReLU, and a gate, the receptance.

Peng et al., 2023 (arXiv 2305.13048), section 3.1: `sigmoid(W_r x_r) * W_v max(W_k x_k, 0)^2`, where `x_r` and `x_k` are
mixes of the token and the previous one. Names are those of the published parameters.

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


class Rwkv4ChannelSpec(FeedForwardSpec):
    """`hidden`: the hidden width; in the published models 4 times the width."""

    kind: Literal["rwkv4_channel"] = "rwkv4_channel"

    @classmethod
    def examples(cls) -> list[Self]:
        """Two widths."""
        return [cls(hidden=24), cls(hidden=12)]

    def build(self, place: Place) -> "Rwkv4Channel":
        return Rwkv4Channel(place, self.hidden)

    def cost(self, place: Place) -> Cost:
        """Two mixes and three maps; the input and output of the square and of the gate are kept for backward."""
        width, hidden = place.width, self.hidden
        maps = linear_cost(width, hidden, False) + linear_cost(hidden, width, False) + linear_cost(width, width, False)
        kept = Cost(activations_per_token=2 * hidden + 2 * width, activation_memory=(lambda *_: 2 * width,))
        return token_shift_cost(width, 2) + maps + kept


class Rwkv4Channel(ShiftedFeedForward):
    """Two mixes of each token with the previous one: the input of the hidden layer, and the input of the gate."""

    def __init__(self, place: Place, hidden: int) -> None:
        super().__init__(place.width)
        self.time_mix_key = nn.Parameter(rising(place.width) ** layers_left(place))
        self.time_mix_receptance = nn.Parameter(rising(place.width) ** layers_left(place))
        self.key = Linear(place.width, hidden, bias=False)
        self.receptance = nn.Linear(place.width, place.width, bias=False)
        self.value = Linear(hidden, place.width, bias=False)
        nn.init.zeros_(self.receptance.weight)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, LastTokenState)
        key_BTD, receptance_BTD = token_mixes(x_BTD, self._shift_weights(), state)
        out_BTD: Tensor = self.receptance(receptance_BTD).sigmoid() * self.value(RELU_SQUARED(self.key(key_BTD)))
        return out_BTD

    def _shift_weights(self) -> list[Tensor]:
        """The weights of the previous token."""
        return [1 - mix.flatten() for mix in (self.time_mix_key, self.time_mix_receptance)]
