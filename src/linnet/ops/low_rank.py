"""Products with a matrix that is not trained, plain or of few bits, to which a low-rank part that is trained is added.

    y = x (W + s U D)^T + b        dU = s dy^T (x D^T)        dD = s (dy U)^T x

No gradient of `W` is computed (LoRA, Hu et al., arXiv 2106.09685). The sum is made for one product at a time, and again
in the backward pass, so that nothing of the size of `W` is saved; where `W` is of few bits only they stay in memory
(QLoRA, Dettmers et al., arXiv 2305.14314). For `R` rows the sum costs `r / R` of a product, and less than two further
products with all rows.

Legend: `R` rows, `I` inputs, `O` outputs, `F` hidden width, `r` rank.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops import int4_linear, int8_linear
from linnet.ops.int4_linear import Int4Weight
from linnet.ops.int8_linear import Int8Weight
from linnet.ops.linear import linear, linear_product, matmul
from linnet.ops.support import to_autocast_dtype

FrozenMatrix = Tensor | Int8Weight | Int4Weight
"""`[O, I]`, of which no gradient is computed."""


class LowRankParts(NamedTuple):
    """What `W + s U D` is the sum of: `W [O, I]`, `U [O, r]`, `D [r, I]` and `s`. No `U` and `D`: `W` alone."""

    weight: FrozenMatrix
    up_Or: Tensor | None = None
    down_rI: Tensor | None = None
    scale: float = 0.0


def dense(weight: FrozenMatrix) -> Tensor:
    """The matrix `[O, I]`; of few bits in float32."""
    if isinstance(weight, Int8Weight):
        return int8_linear.dequantize(weight)
    return int4_linear.dequantize(weight) if isinstance(weight, Int4Weight) else weight


def low_rank_sum(parts: LowRankParts) -> Tensor:
    """`W + s U D`, `[O, I]`, in the precision of `U`, also under autocast; with gradients.

    In half precision most of a small `s U D` would be lost: it is less than the distance of two neighbors of `W`.
    """
    weight_OI = dense(parts.weight)
    if parts.up_Or is None or parts.down_rI is None:
        return weight_OI
    with torch.autocast(weight_OI.device.type, enabled=False):
        return torch.addmm(weight_OI.to(parts.up_Or.dtype), parts.up_Or, parts.down_rI, alpha=parts.scale)


def low_rank_linear(x: Tensor, parts: LowRankParts, bias_O: Tensor | None = None) -> Tensor:
    """`x (W + s U D)^T + b`, `[..., I] -> [..., O]`; differentiable once, without a gradient of `W`."""
    up_Or, down_rI = parts.up_Or, parts.down_rI
    if torch.is_grad_enabled():
        found: Tensor = _LowRankLinear.apply(*to_autocast_dtype(x, bias_O), up_Or, down_rI, parts)  # type: ignore[no-untyped-call]
        return found
    rows, sizes = x[..., 0].numel(), (0, 0) if up_Or is None or down_rI is None else (len(up_Or), down_rI.shape[1])
    if rows * sum(sizes) >= sizes[0] * sizes[1]:
        return linear(x, low_rank_sum(parts).to(x.dtype), bias_O)
    assert up_Or is not None and down_rI is not None
    added = linear(linear(x, down_rI.to(x.dtype)), up_Or.to(x.dtype))
    return linear(x, dense(parts.weight).to(x.dtype), bias_O).add_(added, alpha=parts.scale)


class _LowRankLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias_O: Tensor | None, up_Or: Tensor | None, down_rI: Tensor | None, parts: LowRankParts
    ) -> Tensor:
        x_RI, sum_OI = x.reshape(-1, x.shape[-1]), low_rank_sum(parts).to(x.dtype)
        ctx.save_for_backward(x_RI, up_Or, down_rI)
        ctx.frozen, ctx.scale, ctx.shape = parts.weight, parts.scale, x.shape
        return linear_product(x_RI, sum_OI, bias_O).view(*x.shape[:-1], len(sum_OI))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x_RI, up_Or, down_rI = ctx.saved_tensors
        parts, grad_RO = LowRankParts(ctx.frozen, up_Or, down_rI, ctx.scale), upstream.reshape(-1, upstream.shape[-1])
        with torch.autocast(upstream.device.type, enabled=False):  # the forward pass was in one precision
            grad_x = None
            if ctx.needs_input_grad[0]:
                grad_x = matmul(grad_RO, low_rank_sum(parts).to(grad_RO.dtype)).view(ctx.shape)
            grad_bias_O = grad_RO.sum(0) if ctx.needs_input_grad[1] else None
            return grad_x, grad_bias_O, *_part_gradients(parts, x_RI, grad_RO), None


def _part_gradients(parts: LowRankParts, x_RI: Tensor, grad_RO: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of `U` and `D` for an input and the gradient of the product with it.

    The rank comes first in every product: rows of it are long, and take a fifth of the time of short columns.
    """
    if parts.up_Or is None or parts.down_rI is None:
        return None, None
    up_Or, down_rI = (part.to(x_RI.dtype) for part in (parts.up_Or, parts.down_rI))
    grad_up_rO = (down_rI @ x_RI.t()).mul_(parts.scale) @ grad_RO
    grad_down_rI = (up_Or.t().contiguous() @ grad_RO.t()).mul_(parts.scale) @ x_RI
    return grad_up_rO.t().contiguous().to(parts.up_Or.dtype), grad_down_rI.to(parts.down_rI.dtype)


def low_rank_gated_feed_forward(
    x: Tensor,
    up: LowRankParts,
    up_bias_2F: Tensor | None,
    down: LowRankParts,
    down_bias_O: Tensor | None,
    recompute: bool = False,
) -> Tensor:
    """`ops.gated_feed_forward` with low-rank sums: the product between the two matrices is not saved.

    With `recompute` gate and value are not either.
    """
    factors = up.up_Or, up.down_rI, down.up_Or, down.down_rI
    found: Tensor = _LowRankGatedFeedForward.apply(  # type: ignore[no-untyped-call]
        *to_autocast_dtype(x, up_bias_2F, down_bias_O), *factors, up, down, recompute
    )
    return found


class _LowRankGatedFeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up_bias_2F: Tensor | None, down_bias_O: Tensor | None, *rest: Any) -> Tensor:
        *factors, up, down, recompute = rest
        x_RI, down_OF = x.reshape(-1, x.shape[-1]), low_rank_sum(down).to(x.dtype)
        gate_RF, value_RF = _gate_and_value(x_RI, up, up_bias_2F)
        saved = () if recompute else (gate_RF, value_RF)
        ctx.save_for_backward(x_RI, up_bias_2F, *factors, *saved)
        ctx.up, ctx.down, ctx.shape = (up.weight, up.scale), (down.weight, down.scale), x.shape
        return linear_product(F.silu(gate_RF).mul_(value_RF), down_OF, down_bias_O).view(*x.shape[:-1], len(down_OF))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x_RI, up_bias_2F, *factors = ctx.saved_tensors[:6]
        up = LowRankParts(ctx.up[0], factors[0], factors[1], ctx.up[1])
        down = LowRankParts(ctx.down[0], factors[2], factors[3], ctx.down[1])
        grad_RO = upstream.reshape(-1, upstream.shape[-1])
        with torch.autocast(upstream.device.type, enabled=False):  # the forward pass was in one precision
            gate_RF, value_RF = ctx.saved_tensors[6:] or _gate_and_value(x_RI, up, up_bias_2F)
            silu_RF = F.silu(gate_RF)
            of_down = _part_gradients(down, silu_RF * value_RF, grad_RO)
            grad_hidden_RF = matmul(grad_RO, low_rank_sum(down).to(grad_RO.dtype))
            grad_gate_RF = torch.ops.aten.silu_backward(grad_hidden_RF * value_RF, gate_RF)
            grad_joint_R2F = torch.cat([grad_gate_RF, grad_hidden_RF.mul_(silu_RF)], dim=1)
            of_up = _part_gradients(up, x_RI, grad_joint_R2F)
            grad_x = None
            if ctx.needs_input_grad[0]:
                grad_x = matmul(grad_joint_R2F, low_rank_sum(up).to(grad_RO.dtype)).view(ctx.shape)
            of_biases = [
                grad.sum(0) if needs else None
                for grad, needs in zip((grad_joint_R2F, grad_RO), ctx.needs_input_grad[1:3], strict=True)
            ]
            return grad_x, *of_biases, *of_up, *of_down, None, None, None


def _gate_and_value(x_RI: Tensor, up: LowRankParts, bias_2F: Tensor | None) -> tuple[Tensor, Tensor]:
    """Separate tensors, as in `ops.gated_feed_forward`."""
    gate_FI, value_FI = low_rank_sum(up).to(x_RI.dtype).chunk(2)
    gate_bias_F, value_bias_F = (None, None) if bias_2F is None else bias_2F.chunk(2)
    return linear_product(x_RI, gate_FI, gate_bias_F), linear_product(x_RI, value_FI, value_bias_F)


def low_rank_gated_output(o: Tensor, parts: LowRankParts, gate: Tensor) -> Tensor:
    """`ops.gated_feed_forward.gated_output` with a low-rank sum: `silu(o)` is not saved."""
    found: Tensor = _LowRankGatedOutput.apply(  # type: ignore[no-untyped-call]
        *to_autocast_dtype(o, gate), parts.up_Or, parts.down_rI, parts
    )
    return found


class _LowRankGatedOutput(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, o: Tensor, gate: Tensor, up_Or: Tensor | None, down_rI: Tensor | None, parts: LowRankParts
    ) -> Tensor:
        mapped = linear_product(F.silu(o), low_rank_sum(parts).to(o.dtype))
        ctx.save_for_backward(o, gate, mapped, up_Or, down_rI)
        ctx.frozen, ctx.scale = parts.weight, parts.scale
        return mapped * gate

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        o, gate, mapped, up_Or, down_rI = ctx.saved_tensors
        parts = LowRankParts(ctx.frozen, up_Or, down_rI, ctx.scale)
        with torch.autocast(upstream.device.type, enabled=False):  # the forward pass was in one precision
            grad_RO = (upstream * gate).flatten(0, -2)
            grad_silu = matmul(grad_RO, low_rank_sum(parts).to(grad_RO.dtype)).view_as(o)
            grad_o = torch.ops.aten.silu_backward(grad_silu, o)
            return grad_o, upstream * mapped, *_part_gradients(parts, F.silu(o).flatten(0, -2), grad_RO), None
