"""`log(trace(exp(M)) / K)` of a matrix M >= 0: 0 where it has no cycles (Zheng et al., arXiv 1803.01422).

With `M = X * X`, element by element, its absolute value is the directed-acyclic-graph regularizer of PLDR-LLM (Gokden,
arXiv 2410.16703). As written, `exp(M)` overflows for elements of a few hundred.

Legend: `K` rows and columns, `...` any leading dimensions.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TAYLOR_TERMS = 18
"""The exponential of a matrix of norm 1 is cut off at a relative `1 / 19! = 8e-18`."""


def log_trace_exponential_reference(matrix: Tensor) -> Tensor:
    """The plain formula, `[..., K, K] -> [...]`; infinite where the exponential overflows."""
    traces: Tensor = torch.linalg.matrix_exp(matrix).diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return (traces / matrix.shape[-1]).log()


def _scaled_exponential(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`E, s` with `exp(M) = e^s E` and the largest element of E at 1, for `M >= 0`, one s per matrix.

    `exp(M) = exp(M / 2^k)^(2^k)`, with k by the norm of each matrix: the small exponential by its series, then k
    squarings, each scaled back. No element is negative, so nothing cancels.
    """
    squarings = matrix.sum(dim=-1).amax(dim=-1).clamp(min=1.0).log2().ceil()[..., None, None]
    squarings = squarings.nan_to_num(nan=0.0, posinf=0.0)  # what is not finite stays so, and is reported as such
    total, logarithm = _with_largest_one(_series(matrix * 2.0**-squarings))
    for step in range(int(squarings.max())):
        squared, of_squared = _with_largest_one(total @ total)
        going_on = step < squarings
        total = torch.where(going_on, squared, total)
        logarithm = torch.where(going_on, 2 * logarithm + of_squared, logarithm)
    return total, logarithm[..., 0, 0]


def _series(matrix: Tensor) -> Tensor:
    power = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    total = power.clone()
    for term in range(1, TAYLOR_TERMS + 1):
        power = power @ matrix / term
        total += power
    return total


def _with_largest_one(matrix: Tensor) -> tuple[Tensor, Tensor]:
    largest = matrix.amax(dim=(-2, -1), keepdim=True)
    return matrix / largest, largest.log()


class _LogTraceExponential(torch.autograd.Function):
    """The gradient is `exp(M)^T / trace(exp(M))`: what the forward pass has, and scaled as it is."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        exponential, logarithm = _scaled_exponential(matrix.double())
        trace = exponential.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        smallest = torch.finfo(trace.dtype).tiny
        gradient = exponential.mT / trace.clamp(min=smallest)[..., None, None]
        ctx.save_for_backward(gradient.clamp(max=torch.finfo(matrix.dtype).max).to(matrix.dtype))
        value = logarithm + trace.clamp(min=smallest).log() - math.log(matrix.shape[-1])
        return value.clamp(min=0.0)  # the trace is never below K; rounding may say so

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (gradient,) = ctx.saved_tensors
        scaled: Tensor = upstream[..., None, None].to(gradient.dtype) * gradient
        return scaled


def log_trace_exponential(matrix: Tensor) -> Tensor:
    """`log(trace(exp(M)) / K)`, `[..., K, K] -> [...]`, float64, for `M >= 0`.

    It and its gradient are finite for every finite M (a gradient beyond the range of M's precision becomes the largest
    number there), and exact unless the trace is less than 1e-300 of the largest
    element of the exponential (a matrix almost without cycles whose elements are beyond 1e5).
    """
    value: Tensor = _LogTraceExponential.apply(matrix)  # type: ignore[no-untyped-call]
    return value
