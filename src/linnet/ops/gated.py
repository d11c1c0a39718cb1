"""The gated activation of a GLU: `silu(gate) * value` from one joint tensor.

Legend: `F` hidden width. The joint tensor's gradient is written once, without a copy to join the halves.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def gated_silu_reference(joint: Tensor) -> Tensor:
    """The definition: `[..., 2F] -> [..., F]`, the first half is the gate."""
    gate, value = joint.chunk(2, dim=-1)
    return F.silu(gate) * value


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joint: Tensor) -> Tensor:
        ctx.save_for_backward(joint)
        gate, value = joint.chunk(2, dim=-1)
        return F.silu(gate).mul_(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (joint,) = ctx.saved_tensors
        gate, value = joint.chunk(2, dim=-1)
        gradient = torch.empty_like(joint)
        of_gate, of_value = gradient.chunk(2, dim=-1)
        torch.mul(upstream, F.silu(gate), out=of_value)
        torch.ops.aten.silu_backward.grad_input(upstream * value, gate, grad_input=of_gate)
        return gradient


def gated_silu(joint: Tensor) -> Tensor:
    """The same, fast: `[..., 2F] -> [..., F]`."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return gated_silu_reference(joint)
    out: Tensor = _GatedSilu.apply(joint)  # type: ignore[no-untyped-call]
    return out
