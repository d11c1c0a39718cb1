"""The gated feed-forward: `(activation(x W1 + b1) * (x W2 + b2)) W3 + b3`.

Shazeer, "GLU variants improve transformer", 2020 (arXiv 2002.05202).

Shapes: `B` batch, `T` tokens, `D` width, `F` hidden width.
"""

from typing import Literal, Self

from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import FeedForward, FeedForwardSpec, Place, Traits
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.gates import ACTIVATIONS, Activation
from linnet.nn.linear import FusedLinear, Linear, uses_fused_backward
from linnet.ops.gated_feed_forward import gated_feed_forward, gated_silu


class GatedSpec(FeedForwardSpec):
    """`hidden`: the hidden width; `activation`: that of the gate; `bias`: whether the linear maps have biases."""

    kind: Literal["glu"] = "glu"
    bias: bool = False
    activation: Activation = "silu"

    @classmethod
    def examples(cls) -> list[Self]:
        """The fused form without and with biases, and other activations."""
        return [
            cls(hidden=24),
            cls(hidden=12, bias=True),
            cls(hidden=12, activation="gelu_tanh"),
            cls(hidden=12, activation="relu_squared"),
        ]

    def build(self, place: Place) -> "GatedFeedForward":
        return GatedFeedForward(place.width, self.hidden, self.bias, self.activation)

    def cost(self, place: Place) -> Cost:
        up = linear_cost(place.width, self.hidden, self.bias)
        down = linear_cost(self.hidden, place.width, self.bias)
        # Gate and value are kept; without the fused form of silu (`ops.gated_feed_forward`), two or three more tensors.
        hidden_tensors = {"silu": 2, "relu_squared": 5}.get(self.activation, 4)
        return up.repeated(2) + down + Cost(activations_per_token=place.width + hidden_tensors * self.hidden)


class GatedFeedForward(FeedForward):
    """The gate and the value are computed by one matrix product.

    recompute: the backward pass of the fused form computes gate and value again: less memory, more time.
    """

    traits = Traits(constant_state=True, window=1)

    def __init__(
        self, d_model: int, hidden: int, bias: bool, activation: Activation = "silu", recompute: bool = False
    ) -> None:
        super().__init__()
        self.up = FusedLinear(d_model, (hidden, hidden), bias)
        self.down = Linear(hidden, d_model, bias=bias)
        self.activation, self.recompute = activation, recompute

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        """`[..., D] -> [..., D]`."""
        if self.activation == "silu" and uses_fused_backward(x_BTD, self.up, self.down):
            up, down = self.up, self.down
            return gated_feed_forward(x_BTD, up.factors(), up.bias, down.factors(), down.bias, self.recompute)
        out_BTD: Tensor = self.down(self.inner(self.up(x_BTD)))
        return out_BTD

    def inner(self, joint: Tensor) -> Tensor:
        """From gate and value to the input of the last map, `[..., 2F] -> [..., F]`."""
        if self.activation == "silu":
            return gated_silu(joint)
        gate, value = self.up.split(joint)
        return ACTIVATIONS[self.activation](gate) * value
