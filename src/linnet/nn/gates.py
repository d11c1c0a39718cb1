"""Activations by name, and a gate on the output of attention heads.

`relu_squared` is Primer's (So et al., arXiv 2109.08668). The gate is the sigmoid of a linear layer of the input (Qiu et
al., arXiv 2505.06708, G1), as in Qwen3-Next: with it a token can ignore all earlier ones.

Shapes: `B` batch, `T` tokens, `D` model width, `N` heads, `K` head width, `F = N K`, `G` gates: `N` or `F`.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import Linear

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu_squared"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
}


GateKind = Literal["head", "channel"]


class OutputGate(nn.Module):
    """A gate for each head, or for each of its channels."""

    def __init__(self, kind: GateKind, d_model: int, heads: int, head_dim: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.to_gates = Linear(d_model, heads * head_dim if kind == "channel" else heads, bias=bias)

    def forward(self, read_BTF: Tensor, x_BTD: Tensor) -> Tensor:
        """The gated output of the heads, `[B, T, F]`, from their output and the input of the layer."""
        return self._gated(read_BTF, self.to_gates(x_BTD))

    def _gated(self, read_F: Tensor, gates_G: Tensor) -> Tensor:
        by_head = torch.unflatten(read_F, -1, (self.heads, -1))
        return (by_head * torch.unflatten(gates_G.sigmoid(), -1, (self.heads, -1))).flatten(-2)


def output_gate_cost(kind: GateKind, d_model: int, heads: int, head_dim: int, bias: bool) -> Cost:
    """The cost of the map; the gates and their input are kept for the backward pass."""
    gates = heads * head_dim if kind == "channel" else heads
    return linear_cost(d_model, gates, bias) + Cost(activations_per_token=gates + heads * head_dim)
