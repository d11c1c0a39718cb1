"""Products of float32 matrices where MKL is not at home: oneDNN's, which PyTorch brings along for narrower types.

On two Zen 4 cores MKL reaches 115 to 190 GFLOP/s in a training step's products, oneDNN 130 to 210, and with 2 to 32
rows of a large matrix oneDNN takes a third to two thirds of the time. A gradient with respect to weights, `y^T x`, is
MKL's: there oneDNN is slower. The operator is the one that PyTorch's compiler calls for a linear map.

Legend: `R` rows, `I` inputs, `O` outputs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from linnet.ops.processor import HAS_MKL, MKL_IS_FAST

LEAST_PRODUCTS, LEAST_WEIGHTS = 1 << 22, 1 << 17
"""Fewer multiplications by fewer weights are done sooner by MKL: oneDNN's call takes 15 us more."""


def _has_onednn() -> bool:
    built = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    known = bool(built) and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return known and torch.backends.cpu.get_cpu_capability() == "AVX512"


BY_ONEDNN = HAS_MKL and not MKL_IS_FAST and _has_onednn()
"""Whether oneDNN's are faster here. With AVX2 alone they are not: on Zen 3 MKL is 1.05 to 1.3 times as fast."""


def linear_product(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`x W^T + b`, `[..., I] -> [..., O]`; where gradients are wanted it is PyTorch's own."""
    if _is_differentiated(x, weight_OI, bias_O) or not by_onednn(x, weight_OI):
        return F.linear(x, weight_OI, bias_O)
    x_RI = x.reshape(-1, x.shape[-1])
    out_RO: Tensor = torch.ops.mkldnn._linear_pointwise(x_RI, weight_OI, bias_O, "none", [], "")
    return out_RO.view(*x.shape[:-1], len(weight_OI))


def times(y_RO: Tensor, weight_OI: Tensor) -> Tensor:
    """`y W`, `[R, O] -> [R, I]`; where gradients are wanted it is PyTorch's own."""
    if _is_differentiated(y_RO, weight_OI) or not by_onednn(y_RO, weight_OI):
        return y_RO @ weight_OI
    out_RI: Tensor = torch.ops.mkldnn._linear_pointwise(y_RO, weight_OI.t(), None, "none", [], "")
    return out_RI


def add_times_(sum_RI: Tensor, y_RO: Tensor, weight_OI: Tensor) -> Tensor:
    """Adds `y W` to what there is, `[R, I]`; in narrow types with one rounding."""
    if by_onednn(y_RO, weight_OI):
        return sum_RI.add_(times(y_RO, weight_OI))
    return sum_RI.addmm_(y_RO, weight_OI)


def with_gradients(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """`linear_product` with a backward pass of the same kind: `[..., I] -> [..., O]`, differentiable once."""
    out: Tensor = _Product.apply(x, weight_OI, bias_O)  # type: ignore[no-untyped-call]
    return out


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        return linear_product(x, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight_OI = ctx.saved_tensors
        of_out_RO = upstream.reshape(-1, upstream.shape[-1])
        wanted_x, wanted_weight, wanted_bias = ctx.needs_input_grad
        return (
            times(of_out_RO, weight_OI).view(x.shape) if wanted_x else None,
            of_out_RO.t() @ x.reshape(-1, x.shape[-1]) if wanted_weight else None,
            of_out_RO.sum(0) if wanted_bias else None,
        )


def by_onednn(x: Tensor, weight_OI: Tensor) -> bool:
    """Whether oneDNN is faster: float32, more than a row, enough of it, nothing traced or compiled."""
    return BY_ONEDNN and _is_eager(x, weight_OI) and _is_large(x.shape[:-1].numel(), weight_OI.numel())


def _is_large(rows: int, weights: int) -> bool:
    return rows > 1 and (weights >= LEAST_WEIGHTS or rows * weights >= LEAST_PRODUCTS)


def _is_eager(x: Tensor, weight_OI: Tensor) -> bool:
    """Asked before sizes are: those of what is being exported may stand for any."""
    return (
        not torch.compiler.is_compiling()
        and _is_plain(x)
        and _is_plain(weight_OI)
        and x.dtype == weight_OI.dtype == torch.float32
        and x.device.type == weight_OI.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )


def _is_plain(x: Tensor) -> bool:
    """Not a tensor that is sharded, made up or wrapped."""
    return type(x) in (Tensor, nn.Parameter)


def _is_differentiated(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)
