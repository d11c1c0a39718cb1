"""Root-mean-square normalization (Zhang and Sennrich, arXiv 1910.07467): `x / sqrt(mean(x^2) + eps) * gain`.

Legend: `D` width; everything before it is a batch. PyTorch has a fused kernel on the GPU; on the CPU its form reads and
writes the activations a dozen times, the one here half as often.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

SMALLEST_GAIN = 1e-3

LENGTH_EPS = 1e-6
"""Added to the squared length of what becomes a vector of length 1."""


def rms_norm_reference(x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """The definition."""
    out: Tensor = x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gain_D
    return out


def _inverse(x: Tensor, eps: float) -> Tensor:
    """`1 / sqrt(mean(x^2) + eps)`, `[..., 1]`."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse: Tensor = norms.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return inverse


def l2_normalize(x: Tensor, length: float = 1.0) -> Tensor:
    """Vectors `[..., D]` of a given length, `length x / sqrt(|x|^2 + 1e-6)`: a normalization with a fixed gain."""
    width = x.shape[-1]
    return rms_norm(x, x.new_full((width,), length * width**-0.5), LENGTH_EPS / width)


class _RmsNorm(torch.autograd.Function):
    """Keeps its output, not its input: the linear map that follows keeps that tensor anyway.

    Dividing it by the gain gives back `x / rms`; where a gain is nearly 0 that would lose digits, so there x is kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
        inverse = _inverse(x, eps)
        out: Tensor = (x * inverse).mul_(gain_D)
        ctx.keeps_output = bool(gain_D.abs().amin() > SMALLEST_GAIN)
        ctx.save_for_backward(out if ctx.keeps_output else x, gain_D, inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        kept, gain_D, inverse = ctx.saved_tensors
        gain_gradient, along = _sums(ctx.keeps_output, upstream, kept, gain_D, inverse)
        gradient = (upstream * inverse).mul_(gain_D)
        scaled = kept * along.mul_(inverse if ctx.keeps_output else inverse.square())
        if ctx.keeps_output:
            return gradient.addcdiv_(scaled, gain_D, value=-1), gain_gradient, None
        return gradient.sub_(scaled), gain_gradient, None


def _sums(keeps_output: bool, upstream: Tensor, kept: Tensor, gain_D: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the gain, `[D]`, and the mean of `upstream * gain * x / rms`, `[..., 1]`."""
    products = upstream * kept
    if keeps_output:
        return products.flatten(0, -2).sum(dim=0) / gain_D, products.mean(dim=-1, keepdim=True)
    products.mul_(inverse)
    return products.flatten(0, -2).sum(dim=0), products.mul_(gain_D).mean(dim=-1, keepdim=True)


def rms_norm(x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """The same, fast: `[..., D] -> [..., D]`."""
    wide = x.dtype == gain_D.dtype and x.dtype in (torch.float32, torch.float64)
    if not wide or x.is_cuda or torch.compiler.is_compiling():
        return F.rms_norm(x, (x.shape[-1],), gain_D, eps)
    if torch.is_grad_enabled():
        out: Tensor = _RmsNorm.apply(x, gain_D, eps)  # type: ignore[no-untyped-call]
        return out
    if x.numel() == gain_D.numel() and x.device.type == "cpu":
        return rms_norm_row(x, gain_D, eps)
    return (x * _inverse(x, eps)).mul_(gain_D)


def rms_norm_row(x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """One token on a CPU, as decoding has it: there the number of operations counts, so the scale is a Python number.

    Without gradients.
    """
    row_D = x.reshape(-1)
    scale = (float(torch.dot(row_D, row_D)) / len(row_D) + eps) ** -0.5
    return torch.addcmul(_zero(x.dtype), x, gain_D, value=scale)


@lru_cache(maxsize=4)
def _zero(dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.zeros((), dtype=dtype, device="cpu")
