"""Gated maps for training, with less memory and fewer passes: the activation, a whole feed-forward, an output gate.

- `gated_silu(joint) = silu(gate) * value`: the gradient of the joint tensor is written once, without a copy that joins
  its halves.
- `gated_feed_forward(x) = (silu(x W1 + b1) * (x W2 + b2)) W3 + b3`: the product between the two matrices is not saved
  but recomputed in the backward pass from its factors. With `recompute` gate and value are recomputed too, which costs
  the first product again. They are separate tensors: in narrow rows, as in the net that computes PLDR-LLM's
  operator, a pass over one half of a joint tensor takes up to twice as long.
- `gated_output(o) = (silu(o) W^T) * gate`, the end of a mixer: `silu(o)` is recomputed.

Legend: `R` rows, `I` inputs, `F` hidden width, `O` outputs. `W1` and `W2` are the halves of one matrix `[2F, I]`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.linear import addmm_, linear_product, matmul
from linnet.ops.low_rank import LowRankParts, low_rank_gated_feed_forward, low_rank_gated_output
from linnet.ops.support import to_autocast_dtype


def gated_silu_reference(joint: Tensor) -> Tensor:
    """The definition: `[..., 2F] -> [..., F]`, the first half is the gate."""
    gate, value = joint.chunk(2, dim=-1)
    return F.silu(gate) * value


def gated_silu(joint: Tensor) -> Tensor:
    """`gated_silu_reference`, fast."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return gated_silu_reference(joint)
    out: Tensor = _GatedSilu.apply(joint)  # type: ignore[no-untyped-call]
    return out


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
        grad_gate, grad_value = gradient.chunk(2, dim=-1)
        torch.mul(upstream, F.silu(gate), out=grad_value)
        torch.ops.aten.silu_backward.grad_input(upstream * value, gate, grad_input=grad_gate)
        return gradient


def gated_feed_forward_reference(
    x: Tensor, up_2FI: Tensor, up_bias_2F: Tensor | None, down_OF: Tensor, down_bias_O: Tensor | None
) -> Tensor:
    """The definition: `[..., I] -> [..., O]`."""
    return F.linear(gated_silu_reference(F.linear(x, up_2FI, up_bias_2F)), down_OF, down_bias_O)


def gated_feed_forward(
    x: Tensor,
    up_2FI: Tensor | LowRankParts,
    up_bias_2F: Tensor | None,
    down_OF: Tensor | LowRankParts,
    down_bias_O: Tensor | None,
    recompute: bool = False,
) -> Tensor:
    """`gated_feed_forward_reference`, fast with gradients; all in one precision, autocast's included.

    Of a matrix that is given as parts, and of one beside it, no gradient is computed.
    """
    if isinstance(up_2FI, LowRankParts) or isinstance(down_OF, LowRankParts):
        up, down = (
            each if isinstance(each, LowRankParts) else LowRankParts(each.detach()) for each in (up_2FI, down_OF)
        )
        return low_rank_gated_feed_forward(x, up, up_bias_2F, down, down_bias_O, recompute)
    arguments = to_autocast_dtype(x, up_2FI, up_bias_2F, down_OF, down_bias_O)
    out: Tensor = _GatedFeedForward.apply(*arguments, recompute)  # type: ignore[no-untyped-call]
    return out


class _GatedFeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up_2FI: Tensor,
        up_bias_2F: Tensor | None,
        down_OF: Tensor,
        down_bias_O: Tensor | None,
        recompute: bool,
    ) -> Tensor:
        x_RI = x.reshape(-1, x.shape[-1])
        gate_RF, value_RF = _gate_and_value(x_RI, up_2FI, up_bias_2F)
        saved = () if recompute else (gate_RF, value_RF)
        ctx.save_for_backward(x_RI, up_2FI, up_bias_2F, down_OF, *saved)
        ctx.shape, ctx.has_down_bias = x.shape, down_bias_O is not None
        out_RO = linear_product(F.silu(gate_RF).mul_(value_RF), down_OF, down_bias_O)
        return out_RO.view(*x.shape[:-1], down_OF.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(upstream.device.type, enabled=False):  # the forward pass was in one precision
            x_RI, up_2FI, up_bias_2F, down_OF, *saved = ctx.saved_tensors
            gate_RF, value_RF = saved or _gate_and_value(x_RI, up_2FI, up_bias_2F)
            grad_out_RO = upstream.reshape(-1, upstream.shape[-1])
            silu_RF = F.silu(gate_RF)
            grad_down_OF = grad_out_RO.t() @ (silu_RF * value_RF) if ctx.needs_input_grad[3] else None
            grad_hidden_RF = matmul(grad_out_RO, down_OF)
            grad_gate_RF = torch.ops.aten.silu_backward(grad_hidden_RF * value_RF, gate_RF)
            grad_value_RF = grad_hidden_RF.mul_(silu_RF)
            grad_up_2FI = torch.empty_like(up_2FI) if ctx.needs_input_grad[1] else None
            grad_halves = (None, None) if grad_up_2FI is None else grad_up_2FI.chunk(2)
            grad_x_RI = None
            halves = zip(up_2FI.chunk(2), grad_halves, (grad_gate_RF, grad_value_RF), strict=True)
            for weight_FI, grad_weight_FI, grad_half_RF in halves:
                if grad_weight_FI is not None:
                    torch.mm(grad_half_RF.t(), x_RI, out=grad_weight_FI)
                if ctx.needs_input_grad[0]:
                    product = grad_half_RF, weight_FI
                    grad_x_RI = matmul(*product) if grad_x_RI is None else addmm_(grad_x_RI, *product)
            return (
                None if grad_x_RI is None else grad_x_RI.view(ctx.shape),
                grad_up_2FI,
                None if up_bias_2F is None else torch.cat([grad_gate_RF.sum(0), grad_value_RF.sum(0)]),
                grad_down_OF,
                grad_out_RO.sum(0) if ctx.has_down_bias else None,
                None,
            )


def _gate_and_value(x_RI: Tensor, up_2FI: Tensor, up_bias_2F: Tensor | None) -> tuple[Tensor, Tensor]:
    gate_FI, value_FI = up_2FI.chunk(2)
    gate_bias_F, value_bias_F = (None, None) if up_bias_2F is None else up_bias_2F.chunk(2)
    return linear_product(x_RI, gate_FI, gate_bias_F), linear_product(x_RI, value_FI, value_bias_F)


def gated_output_reference(o: Tensor, weight_OI: Tensor, gate: Tensor) -> Tensor:
    """The definition: `[..., I]` and `[..., O]` -> `[..., O]`."""
    return F.linear(F.silu(o), weight_OI) * gate


def gated_output(o: Tensor, weight_OI: Tensor | LowRankParts, gate: Tensor) -> Tensor:
    """`gated_output_reference` with less saved for the backward pass; in one precision, autocast's included."""
    if isinstance(weight_OI, LowRankParts):
        return low_rank_gated_output(o, weight_OI, gate)
    out: Tensor = _GatedOutput.apply(*to_autocast_dtype(o, weight_OI, gate))  # type: ignore[no-untyped-call]
    return out


class _GatedOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, o: Tensor, weight_OI: Tensor, gate: Tensor) -> Tensor:
        mapped = linear_product(F.silu(o), weight_OI)
        ctx.save_for_backward(o, weight_OI, gate, mapped)
        return mapped * gate

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        o, weight_OI, gate, mapped = ctx.saved_tensors
        with torch.autocast(upstream.device.type, enabled=False):  # the forward pass was in one precision
            grad_mapped = upstream * gate
            grad_mapped_RO = grad_mapped.flatten(0, -2)
            grad_weight_OI = grad_mapped_RO.t() @ F.silu(o).flatten(0, -2) if ctx.needs_input_grad[1] else None
            grad_o = torch.ops.aten.silu_backward(matmul(grad_mapped_RO, weight_OI).view_as(o), o)
            return grad_o, grad_weight_OI, upstream * mapped
