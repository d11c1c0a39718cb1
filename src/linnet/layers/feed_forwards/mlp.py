"""The plain feed-forward, a perceptron of two layers: `activation(x W1 + b1) W2 + b2` (Vaswani et al., 2017).

Shapes: `B` batch, `T` tokens, `D` width.
"""

from typing import Literal, Self

from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import FeedForward, FeedForwardSpec, Place, Traits
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.gates import ACTIVATIONS, Activation
from linnet.nn.linear import Linear


class PlainSpec(FeedForwardSpec):
    """`hidden`: the hidden width; `bias`: whether the linear maps have biases."""

    kind: Literal["mlp"] = "mlp"
    bias: bool = False
    activation: Activation = "gelu"

    @classmethod
    def examples(cls) -> list[Self]:
        """Activations that keep different tensors for the backward pass; biases."""
        relu = cls(hidden=12, bias=True, activation="relu")
        return [cls(hidden=24), relu, cls(hidden=12, activation="relu_squared")]

    def build(self, place: Place) -> "PlainFeedForward":
        return PlainFeedForward(place.width, self.hidden, self.bias, self.activation)

    def cost(self, place: Place) -> Cost:
        up, down = linear_cost(place.width, self.hidden, self.bias), linear_cost(self.hidden, place.width, self.bias)
        # The output of the activation is kept; for activations other than relu also its input, or the root of a square.
        hidden_tensors = 1 if self.activation == "relu" else 2
        return up + down + Cost(activations_per_token=place.width + hidden_tensors * self.hidden)


class PlainFeedForward(FeedForward):
    """A two-layer perceptron."""

    traits = Traits(constant_state=True, window=1)

    def __init__(self, d_model: int, hidden: int, bias: bool, activation: Activation) -> None:
        super().__init__()
        self.up = Linear(d_model, hidden, bias=bias)
        self.down = Linear(hidden, d_model, bias=bias)
        self.activation, self.inner = activation, ACTIVATIONS[activation]

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        out_BTD: Tensor = self.down(self.inner(self.up(x_BTD)))
        return out_BTD
