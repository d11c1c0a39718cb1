"""Affine maps `x W^T + b` on a CPU, by whichever library multiplies fastest there; elsewhere PyTorch's own.

- MKL, which PyTorch calls for float32, is fastest on Intel's processors. On two Zen 4 cores it reaches 115 to 190
  GFLOP/s in the products of a training step, oneDNN 130 to 210; for 2 to 32 rows of a large matrix oneDNN takes a third
  to two thirds of MKL's time. The gradient of the weights, `y^T x`, stays with MKL, where oneDNN is slower.
- One row reads every weight once, so memory bandwidth is the limit. On processors of other makers MKL reaches less than
  half of it; the same product as a batch of `SLICES` smaller ones comes close (32 GB/s instead of 14 on two Zen 4
  cores). On Intel's processors the slices take twice as long as the product.
- For a few rows a bfloat16 matrix in oneDNN's own layout takes two thirds of the time of a plain one.

Legend: `R` rows, `I` inputs, `O` outputs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from linnet.ops.support import HAS_MKL, MKL_IS_FAST, is_exporting

SLICES = 16
"""Slices of the outputs; a remainder is computed separately."""

SLICES_ARE_FASTER = HAS_MKL and not MKL_IS_FAST
"""True if one row is multiplied in slices here."""

MIN_PRODUCTS, MIN_WEIGHTS = 1 << 22, 1 << 17
"""With fewer multiplications and fewer weights MKL is faster: a call of oneDNN takes 15 us more."""


def _has_onednn() -> bool:
    """True if oneDNN's operator for linear maps exists. With AVX2 alone (Zen 3) MKL is 1.05 to 1.3 times as fast."""
    built = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    exists = bool(built) and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return exists and torch.backends.cpu.get_cpu_capability() == "AVX512"


USES_ONEDNN = HAS_MKL and not MKL_IS_FAST and _has_onednn()


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`x W^T + b`, `[..., I] -> [..., O]`; differentiable once where oneDNN computes it."""
    one_row = (
        SLICES_ARE_FASTER
        and x.numel() == weight_OI.shape[1]
        and weight_OI.shape[0] >= SLICES
        and x.dtype == weight_OI.dtype == torch.float32
        and x.device.type == "cpu"
        and weight_OI.is_contiguous()
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not is_exporting()
        and not torch.is_autocast_enabled("cpu")
    )
    if one_row:
        return sliced_linear(x, weight_OI, bias_O)
    if torch.is_grad_enabled() and onednn_is_faster(x, weight_OI):
        out: Tensor = _OnednnLinear.apply(x, weight_OI, bias_O)  # type: ignore[no-untyped-call]
        return out
    return linear_product(x, weight_OI, bias_O)


def linear_product(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`x W^T + b`, `[..., I] -> [..., O]`, by oneDNN where no gradient is recorded and it is faster."""
    differentiated = x.requires_grad or weight_OI.requires_grad or (bias_O is not None and bias_O.requires_grad)
    if (torch.is_grad_enabled() and differentiated) or not onednn_is_faster(x, weight_OI):
        return F.linear(x, weight_OI, bias_O)
    x_RI = x.reshape(-1, x.shape[-1])
    # The operator that PyTorch's compiler calls for a linear map.
    out_RO: Tensor = torch.ops.mkldnn._linear_pointwise(x_RI, weight_OI, bias_O, "none", [], "")
    return out_RO.view(*x.shape[:-1], len(weight_OI))


def matmul(y_RO: Tensor, weight_OI: Tensor) -> Tensor:
    """`y W`, `[R, O] -> [R, I]`, by oneDNN where no gradient is recorded and it is faster."""
    differentiated = torch.is_grad_enabled() and (y_RO.requires_grad or weight_OI.requires_grad)
    if differentiated or not onednn_is_faster(y_RO, weight_OI):
        return y_RO @ weight_OI
    out_RI: Tensor = torch.ops.mkldnn._linear_pointwise(y_RO, weight_OI.t(), None, "none", [], "")
    return out_RI


def addmm_(sum_RI: Tensor, y_RO: Tensor, weight_OI: Tensor) -> Tensor:
    """Add `y W` to `[R, I]` in place; in half precision with one rounding."""
    if onednn_is_faster(y_RO, weight_OI):
        return sum_RI.add_(matmul(y_RO, weight_OI))
    return sum_RI.addmm_(y_RO, weight_OI)


class _OnednnLinear(torch.autograd.Function):
    """`linear_product` whose gradient with respect to the input is a product of the same kind."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        return linear_product(x, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight_OI = ctx.saved_tensors
        upstream_RO = upstream.reshape(-1, upstream.shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            matmul(upstream_RO, weight_OI).view(x.shape) if needs_x else None,
            upstream_RO.t() @ x.reshape(-1, x.shape[-1]) if needs_weight else None,
            upstream_RO.sum(0) if needs_bias else None,
        )


def onednn_is_faster(x: Tensor, weight_OI: Tensor) -> bool:
    """True for an eager product in float32 of several rows that is large enough for oneDNN."""
    if not USES_ONEDNN or torch.compiler.is_compiling():
        return False
    # Checked before sizes, which are symbols in an export. Sharded, fake and wrapped tensors are left to PyTorch.
    eager = (
        type(x) in (Tensor, nn.Parameter)
        and type(weight_OI) in (Tensor, nn.Parameter)
        and x.dtype == weight_OI.dtype == torch.float32
        and x.device.type == weight_OI.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )
    if not eager:
        return False
    rows, weights = x.shape[:-1].numel(), weight_OI.numel()
    return rows > 1 and (weights >= MIN_WEIGHTS or rows * weights >= MIN_PRODUCTS)


def sliced_linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`linear` of one row in float32 in slices, without gradients. `O` is at least `SLICES`."""
    outputs, inputs = weight_OI.shape
    rows = outputs // SLICES
    whole = rows * SLICES
    out_O = x.new_empty(outputs)
    # The transposed view tells the library the layout of the row; without it the library takes its slow path again.
    column_sI1 = x.reshape(1, inputs).t().expand(SLICES, inputs, 1)
    torch.bmm(weight_OI[:whole].view(SLICES, rows, inputs), column_sI1, out=out_O[:whole].view(SLICES, rows, 1))
    if whole < outputs:
        torch.mm(weight_OI[whole:], x.reshape(inputs, 1), out=out_O[whole:, None])
    if bias_O is not None:
        out_O += bias_O
    return out_O.view(*x.shape[:-1], outputs)


def can_pack_bfloat16(device: torch.device) -> bool:
    """True on a CPU on which oneDNN multiplies bfloat16."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_bfloat16(weight_OI: Tensor) -> Tensor:
    """The matrix in bfloat16 as an opaque tensor, where `can_pack_bfloat16`. `to_dense` returns the plain matrix."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach().to(torch.bfloat16))
    return packed


def packed_bfloat16_linear(x: Tensor, packed: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`x W^T + b` in bfloat16 with a matrix from `pack_bfloat16`, `[..., I] -> [..., O]`, without gradients."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias_O, "none", [], "")
    return out
