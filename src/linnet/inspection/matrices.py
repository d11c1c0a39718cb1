"""Figures of K x K matrices, one for each head, in float64.

What is not finite in a matrix makes its figures NaN, and `json_safe` makes null of that: JSON knows no NaN.

Legend: `H` heads, `K` head width, `N` things that are compared.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_LOG10 = math.log10(torch.finfo(torch.float64).max)
"""From here on a determinant overflows."""


@dataclass(frozen=True)
class SquaredDifferences:
    """The sum of squared differences over pairs of things and their elements, and how many; sums add up."""

    total: float = 0.0
    count: int = 0

    def __add__(self, other: "SquaredDifferences") -> "SquaredDifferences":
        return SquaredDifferences(self.total + other.total, self.count + other.count)

    @property
    def rmse(self) -> float | None:
        """The square root of the mean; None without a pair, NaN where an element is not finite."""
        return math.sqrt(self.total / self.count) if self.count else None


def pairwise(x: Tensor) -> SquaredDifferences:
    """Squared differences `x[i] - x[j]` of all unordered pairs, `x` being `[N, ...]`.

    They add up to N times the squared distances from the mean. The first is taken off before, so that equal things
    differ by exactly nothing.
    """
    count = len(x)
    from_first = x.double() - x[:1].double()
    from_mean = from_first - from_first.mean(dim=0, keepdim=True)
    total = count * float((from_mean**2).sum())
    return SquaredDifferences(total if math.isfinite(total) else math.nan, count * (count - 1) // 2 * x[0].numel())


def between_heads(x_HKK: Tensor) -> SquaredDifferences:
    """Differences between the heads of a layer (Gokden, arXiv 2502.13502)."""
    return pairwise(x_HKK)


def between_rows(x_HKK: Tensor) -> SquaredDifferences:
    """Differences between the rows of each matrix."""
    return pairwise(x_HKK.transpose(0, 1))


def log10_abs_determinants(x_HKK: Tensor) -> Tensor:
    """`log10 |det|`, `[H]`: finite where the determinant overflows or underflows, -infinity where it is 0."""

    def logarithm(finite_HKK: Tensor) -> Tensor:
        natural_H: Tensor = torch.linalg.slogdet(finite_HKK).logabsdet
        return natural_H / math.log(10)

    return _of_finite(x_HKK, logarithm)


def singular_values(x_HKK: Tensor) -> Tensor:
    """`[H, K]`, descending."""
    return _of_finite(x_HKK, torch.linalg.svdvals)


def ranks(singular_HK: Tensor, tolerance: float) -> list[int | None]:
    """How many singular values are above `tolerance` times the largest one, of each head; None for NaN."""
    above_H = (singular_HK > tolerance * singular_HK[:, :1]).sum(dim=1).tolist()
    return [None if math.isnan(first) else n for n, first in zip(above_H, singular_HK[:, 0].tolist(), strict=True)]


def largest_eigenvalues(x_HKK: Tensor) -> Tensor:
    """The eigenvalue of largest magnitude of each matrix, complex `[H]`; the magnitude is the spectral radius."""

    def of_finite(finite_HKK: Tensor) -> Tensor:
        values_HK: Tensor = torch.linalg.eigvals(finite_HKK)
        return values_HK.gather(1, values_HK.abs().argmax(dim=1, keepdim=True))[:, 0]

    return _of_finite(x_HKK, of_finite)


def mean_row_sums(x_HKK: Tensor) -> Tensor:
    """`[H]`."""
    return _of_finite(x_HKK, lambda finite: finite.sum(dim=2).mean(dim=1))


def largest(values: Sequence[float]) -> float:
    """The largest; NaN where one is NaN, which `max` would pass over."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def power_of_ten(exponent: float) -> float | None:
    """`10 ** exponent`; None where that overflows, 0 where it underflows."""
    return 10.0**exponent if exponent < LARGEST_LOG10 else None


def _of_finite(x_HKK: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of each head's matrix, on the CPU; NaN where the matrix is not finite (decompositions refuse that)."""
    x_HKK = x_HKK.detach().cpu().double()
    finite_H = x_HKK.isfinite().flatten(1).all(dim=1)
    values = function(torch.where(finite_H[:, None, None], x_HKK, 0.0))
    return torch.where(finite_H.view(-1, *[1] * (values.dim() - 1)), values, math.nan)
