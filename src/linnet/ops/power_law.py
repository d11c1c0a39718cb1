"""Power-law graph attention (Gokden, arXiv 2502.13502): its tensors, and the regularizer of their graphs.

The regularizer is the absolute value of `log(trace(exp(M)) / K)` with `M = X * X` element by element (Gokden, arXiv
2410.16703); for `M >= 0` it is 0 if the graph of M has no cycles (Zheng et al., arXiv 1803.01422). As written, `exp(M)`
overflows for elements of a few hundred.

Legend: `B` batch, `H` heads, `T` tokens, `K` head width. All of `A, A_LM, A_P, G` are `[B, H, K, K]`.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.support import widen

METRIC_FLOOR = 1e-9
"""Added to the metric tensor, so that its powers and their gradients exist."""

TAYLOR_TERMS = 18
"""Terms of the exponential of a matrix of norm 1, whose relative error is then `1 / 19! = 8e-18`."""


def density(q_BHTK: Tensor, real_BT: Tensor | None = None) -> Tensor:
    """`D0 = q^T q` summed over the real tokens of the whole sequence, `[B, H, K, K]`, in at least float32."""
    q_BHTK = q_BHTK.to(torch.promote_types(q_BHTK.dtype, torch.float32))
    if real_BT is not None:
        q_BHTK = q_BHTK.masked_fill(~real_BT[:, None, :, None], 0.0)
    return q_BHTK.transpose(-1, -2) @ q_BHTK


def operator_tensors(
    a_BHKK: Tensor,
    metric_weight_HKK: Tensor,
    metric_bias_HKK: Tensor,
    power_HKK: Tensor,
    curvature_weight_HKK: Tensor,
    curvature_bias_HKK: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The metric tensor A_LM, the potential tensor A_P and the energy-curvature tensor G from A.

    `A_LM = iswiglu(W A + b) + 1e-9`, where `iswiglu(z) = z * silu(z)` is never negative; `A_P = A_LM ** P`, element by
    element; `G = a A_P + b_a`, the operator between query and key.
    """
    z_BHKK = metric_weight_HKK @ a_BHKK + metric_bias_HKK
    a_lm_BHKK = z_BHKK * F.silu(z_BHKK) + METRIC_FLOOR
    a_p_BHKK = a_lm_BHKK**power_HKK
    return a_lm_BHKK, a_p_BHKK, curvature_weight_HKK @ a_p_BHKK + curvature_bias_HKK


def log_trace_exponential_reference(matrix: Tensor) -> Tensor:
    """`log(trace(exp(M)) / K)`, `[..., K, K] -> [...]`; infinite where the exponential overflows."""
    traces: Tensor = torch.linalg.matrix_exp(matrix).diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return (traces / matrix.shape[-1]).log()


def log_trace_exponential(matrix: Tensor) -> Tensor:
    """`log(trace(exp(M)) / K)`, `[..., K, K] -> [...]`, float64, for `M >= 0`.

    The value and its gradient are finite for every finite M (a gradient beyond the range of M's precision becomes the
    largest number there). They are exact unless the trace is less than 1e-300 of the largest element of the exponential
    (a matrix almost without cycles whose elements exceed 1e5).
    """
    value: Tensor = _LogTraceExponential.apply(matrix)  # type: ignore[no-untyped-call]
    return value


class _LogTraceExponential(torch.autograd.Function):
    """The gradient is `exp(M)^T / trace(exp(M))`, which the forward pass has in scaled form."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        exponential, logarithm = _scaled_exponential(widen(matrix))
        trace = exponential.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        smallest = torch.finfo(trace.dtype).tiny
        gradient = exponential.mT / trace.clamp(min=smallest)[..., None, None]
        ctx.save_for_backward(gradient.clamp(max=torch.finfo(matrix.dtype).max).to(matrix.dtype))
        value = logarithm + trace.clamp(min=smallest).log() - math.log(matrix.shape[-1])
        return value.clamp(min=0.0)  # the trace is at least K; rounding may give less

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (gradient,) = ctx.saved_tensors
        scaled: Tensor = upstream[..., None, None].to(gradient.dtype) * gradient
        return scaled


def _scaled_exponential(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`E, s` with `exp(M) = e^s E` and the largest element of E equal to 1, for `M >= 0`, one s per matrix.

    `exp(M) = exp(M / 2^k)^(2^k)`, with k by the norm of each matrix: the small exponential by its Taylor series, then k
    squarings, each rescaled. No element is negative, so nothing cancels.
    """
    squarings = matrix.sum(dim=-1).amax(dim=-1).clamp(min=1.0).log2().ceil()[..., None, None]
    squarings = squarings.nan_to_num(nan=0.0, posinf=0.0)  # a matrix that is not finite has a result that is not
    small = matrix * 2.0**-squarings
    power = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    series = power.clone()
    for term in range(1, TAYLOR_TERMS + 1):
        power = power @ small / term
        series += power
    total, logarithm = _scale_to_one(series)
    for step in range(int(squarings.max())):
        squared, log_scale = _scale_to_one(total @ total)
        continues = step < squarings
        total = torch.where(continues, squared, total)
        logarithm = torch.where(continues, 2 * logarithm + log_scale, logarithm)
    return total, logarithm[..., 0, 0]


def _scale_to_one(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix divided by its largest element, and the logarithm of that."""
    largest = matrix.amax(dim=(-2, -1), keepdim=True)
    return matrix / largest, largest.log()
