"""A whole gated feed-forward map, `(silu(x W1 + b1) * (x W2 + b2)) W3 + b3`, for training: less memory, fewer passes.

What lies between the two products is not kept but made again in the backward pass from its two factors, which costs one
product of elements; with `recompute` gate and value are made again too, which costs the first product once more. They
are two tensors of their own: in rows of one tensor, as narrow as those of the net behind PLDR-LLM's operator, a pass
over one half takes up to twice as long.

Legend: `R` rows, `I` inputs, `F` hidden width, `O` outputs. `W1` and `W2` are the halves of one matrix `[2F, I]`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.gated import gated_silu_reference
from linnet.ops.linear import addmm_, linear_product, matmul
from linnet.ops.support import to_autocast_dtype


def gated_feed_forward_reference(
    x: Tensor, up_2FI: Tensor, up_bias_2F: Tensor | None, down_OF: Tensor, down_bias_O: Tensor | None
) -> Tensor:
    """The definition: `[..., I] -> [..., O]`."""
    return F.linear(gated_silu_reference(F.linear(x, up_2FI, up_bias_2F)), down_OF, down_bias_O)


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
        kept = () if recompute else (gate_RF, value_RF)
        ctx.save_for_backward(x_RI, up_2FI, up_bias_2F, down_OF, *kept)
        ctx.shape, ctx.down_bias = x.shape, down_bias_O is not None
        out_RO = linear_product(F.silu(gate_RF).mul_(value_RF), down_OF, down_bias_O)
        return out_RO.view(*x.shape[:-1], down_OF.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(upstream.device.type, enabled=False):  # the forward pass was in one precision
            return _backward(ctx, upstream)


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    x_RI, up_2FI, up_bias_2F, down_OF, *kept = ctx.saved_tensors
    gate_RF, value_RF = kept or _gate_and_value(x_RI, up_2FI, up_bias_2F)
    of_out_RO = upstream.reshape(-1, upstream.shape[-1])
    silu_RF = F.silu(gate_RF)
    of_down_OF = of_out_RO.t() @ (silu_RF * value_RF)
    of_hidden_RF = matmul(of_out_RO, down_OF)
    of_gate_RF = torch.ops.aten.silu_backward(of_hidden_RF * value_RF, gate_RF)
    of_value_RF = of_hidden_RF.mul_(silu_RF)
    of_up_2FI = torch.empty_like(up_2FI)
    of_x_RI = None
    for part_FI, of_part_FI, of_half_RF in zip(
        up_2FI.chunk(2), of_up_2FI.chunk(2), (of_gate_RF, of_value_RF), strict=True
    ):
        torch.mm(of_half_RF.t(), x_RI, out=of_part_FI)
        if ctx.needs_input_grad[0]:
            of_x_RI = matmul(of_half_RF, part_FI) if of_x_RI is None else addmm_(of_x_RI, of_half_RF, part_FI)
    return (
        None if of_x_RI is None else of_x_RI.view(ctx.shape),
        of_up_2FI,
        None if up_bias_2F is None else torch.cat([of_gate_RF.sum(0), of_value_RF.sum(0)]),
        of_down_OF,
        of_out_RO.sum(0) if ctx.down_bias else None,
        None,
    )


def _gate_and_value(x_RI: Tensor, up_2FI: Tensor, up_bias_2F: Tensor | None) -> tuple[Tensor, Tensor]:
    gate_FI, value_FI = up_2FI.chunk(2)
    gate_bias_F, value_bias_F = (None, None) if up_bias_2F is None else up_bias_2F.chunk(2)
    return linear_product(x_RI, gate_FI, gate_bias_F), linear_product(x_RI, value_FI, value_bias_F)


def gated_feed_forward(
    x: Tensor,
    up_2FI: Tensor,
    up_bias_2F: Tensor | None,
    down_OF: Tensor,
    down_bias_O: Tensor | None,
    recompute: bool = False,
) -> Tensor:
    """The same, fast where gradients are wanted, all in one precision, autocast's too: `[..., I] -> [..., O]`."""
    arguments = to_autocast_dtype(x, up_2FI, up_bias_2F, down_OF, down_bias_O)
    out: Tensor = _GatedFeedForward.apply(*arguments, recompute)  # type: ignore[no-untyped-call]
    return out
