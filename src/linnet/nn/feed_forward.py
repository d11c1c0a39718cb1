"""Feed-forward layers: what a block does to each token by itself.

Shapes: `x_BTD` -> `[B, T, D]`; `F` is the hidden width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, Union

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from linnet.core.spec import Spec
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear, in_one_piece
from linnet.ops.gated import gated_silu
from linnet.ops.gated_feed_forward import gated_feed_forward

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class FeedForwardSpec(Spec, ABC):
    """The description of a feed-forward layer, chosen by `kind`."""

    hidden: PositiveInt
    bias: bool = False

    @abstractmethod
    def build(self, d_model: int) -> nn.Module:
        """The layer `[B, T, d_model] -> [B, T, d_model]`."""

    @abstractmethod
    def cost(self, d_model: int) -> Cost:
        """Exact parameters, forward FLOPs, and what is kept for the backward pass."""


class GatedSpec(FeedForwardSpec):
    """`(activation(x W1 + b1) * (x W2 + b2)) W3 + b3` (Shazeer, "GLU variants improve transformer", 2020)."""

    kind: Literal["glu"] = "glu"
    activation: Activation = "silu"

    def build(self, d_model: int) -> "GatedFeedForward":
        """Build the layer."""
        return GatedFeedForward(d_model, self.hidden, self.bias, self.activation)

    def cost(self, d_model: int) -> Cost:
        """Two maps up, one down; kept are gate and value, and but for silu (`ops.gated_feed_forward`) two more."""
        up = linear_cost(d_model, self.hidden, self.bias)
        kept = Cost(kept_per_token=d_model + (2 if self.activation == "silu" else 4) * self.hidden)
        return up.repeated(2) + linear_cost(self.hidden, d_model, self.bias) + kept


class PlainSpec(FeedForwardSpec):
    """`activation(x W1 + b1) W2 + b2` (Vaswani et al., 2017)."""

    kind: Literal["mlp"] = "mlp"
    activation: Activation = "gelu"

    def build(self, d_model: int) -> "PlainFeedForward":
        """Build the layer."""
        return PlainFeedForward(d_model, self.hidden, self.bias, self.activation)

    def cost(self, d_model: int) -> Cost:
        """One map up, one down; kept is what the activation reads, but for relu, and what it gives."""
        up, down = linear_cost(d_model, self.hidden, self.bias), linear_cost(self.hidden, d_model, self.bias)
        return up + down + Cost(kept_per_token=d_model + (1 if self.activation == "relu" else 2) * self.hidden)


if TYPE_CHECKING:
    AnyFeedForward = FeedForwardSpec
else:
    AnyFeedForward = Annotated[Union[GatedSpec, PlainSpec], Field(discriminator="kind")]  # noqa: UP007


class GatedFeedForward(nn.Module):
    """A gated feed-forward layer; gate and value are one matrix product.

    recompute: where the fused form serves, the backward pass makes gate and value again: less memory, more time.
    """

    def __init__(
        self, d_model: int, hidden: int, bias: bool, activation: Activation = "silu", recompute: bool = False
    ) -> None:
        super().__init__()
        self.up = FusedLinear(d_model, (hidden, hidden), bias)
        self.down = Linear(hidden, d_model, bias=bias)
        self.activation, self.recompute = activation, recompute

    def forward(self, x: Tensor) -> Tensor:
        """`[..., d_model] -> [..., d_model]`."""
        if self.activation == "silu" and in_one_piece(x, self.up, self.down):
            up, down = self.up, self.down
            return gated_feed_forward(x, up.weight, up.bias, down.weight, down.bias, self.recompute)
        out: Tensor = self.down(self._gate(self.up(x)))
        return out

    def _gate(self, joint: Tensor) -> Tensor:
        if self.activation == "silu":
            return gated_silu(joint)
        gate, value = self.up.split(joint)
        return ACTIVATIONS[self.activation](gate) * value


class PlainFeedForward(nn.Module):
    """A two-layer perceptron."""

    def __init__(self, d_model: int, hidden: int, bias: bool, activation: Activation) -> None:
        super().__init__()
        self.up = Linear(d_model, hidden, bias=bias)
        self.down = Linear(hidden, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x_BTD: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        out_BTD: Tensor = self.down(self.activation(self.up(x_BTD)))
        return out_BTD
