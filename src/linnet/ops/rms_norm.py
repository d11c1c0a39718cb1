"""Root-mean-square normalization (Zhang and Sennrich, arXiv 1910.07467): `x / sqrt(mean(x^2) + eps) * gain`.

PyTorch has a fused kernel on the GPU. On the CPU its form reads and writes the activations a dozen times, this one half
as often.

Legend: `D` width; all dimensions before it are batch dimensions.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.support import is_exporting

MIN_SAVED_GAIN = 1e-3
"""The output is saved for the backward pass, which divides it by the gain, only if every gain exceeds this in size."""

LENGTH_EPS = 1e-6
"""Added to the squared length of a vector that `l2_normalize` scales."""


def rms_norm_reference(x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """The definition."""
    out: Tensor = x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gain_D
    return out


def rms_norm(x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """`rms_norm_reference`, fast: `[..., D] -> [..., D]`."""
    wide = x.dtype == gain_D.dtype and x.dtype in (torch.float32, torch.float64)
    if not wide or x.is_cuda or torch.compiler.is_compiling() or is_exporting():
        return F.rms_norm(x, (x.shape[-1],), gain_D, eps)
    if torch.is_grad_enabled():
        out: Tensor = _RmsNorm.apply(x, gain_D, eps)  # type: ignore[no-untyped-call]
        return out
    if x.numel() == gain_D.numel() and x.device.type == "cpu":
        return rms_norm_row(x, gain_D, eps)
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x * norms.square_().div_(x.shape[-1]).add_(eps).rsqrt_()).mul_(gain_D)


def rms_norm_row(x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """One token on a CPU, without gradients. The number of operations matters, so the scale is a Python number."""
    row_D = x.reshape(-1)
    scale = (float(torch.dot(row_D, row_D)) / len(row_D) + eps) ** -0.5
    return torch.addcmul(_zero(x.dtype), x, gain_D, value=scale)


@lru_cache(maxsize=4)
def _zero(dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.zeros((), dtype=dtype, device="cpu")


def l2_normalize(x: Tensor, length: float = 1.0) -> Tensor:
    """Scale vectors `[..., D]` to a given length: `length x / sqrt(|x|^2 + 1e-6)`, a normalization with fixed gain."""
    width = x.shape[-1]
    return rms_norm(x, x.new_full((width,), length * width**-0.5), LENGTH_EPS / width)


class _RmsNorm(torch.autograd.Function):
    """Saves its output instead of its input: the linear map that follows saves that tensor anyway.

    The output divided by the gain is `x / rms`. Where a gain is nearly 0 this would lose digits, so there x is saved.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = norms.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # 1 / sqrt(mean(x^2) + eps)
        out: Tensor = (x * inverse).mul_(gain_D)
        ctx.saves_output = bool(gain_D.abs().amin() > MIN_SAVED_GAIN)
        ctx.save_for_backward(out if ctx.saves_output else x, gain_D, inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        saved, gain_D, inverse = ctx.saved_tensors
        # `mean` is that of `upstream * gain * x / rms`, `[..., 1]`.
        products = upstream * saved
        if ctx.saves_output:
            grad_gain_D, mean = products.flatten(0, -2).sum(dim=0) / gain_D, products.mean(dim=-1, keepdim=True)
            gradient = (upstream * inverse).mul_(gain_D)
            return gradient.addcdiv_(saved * mean.mul_(inverse), gain_D, value=-1), grad_gain_D, None
        products.mul_(inverse)
        grad_gain_D, mean = products.flatten(0, -2).sum(dim=0), products.mul_(gain_D).mean(dim=-1, keepdim=True)
        gradient = (upstream * inverse).mul_(gain_D)
        return gradient.sub_(saved * mean.mul_(inverse.square())), grad_gain_D, None
