"""The deductive outputs of power-law graph attention as matrices, one for each head (Gokden, arXiv 2502.13502).

All figures are computed in float64, whatever the precision of the outputs.

What is not finite in a matrix makes its figures NaN, and `json_safe` makes null of that: JSON knows no NaN.

Shapes: `H` heads, `K` head width, `N` things that are compared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.layers.mixers.plga.operator import OUTPUTS

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


@dataclass(frozen=True)
class Determinant:
    """The largest |det| of some matrices, by its logarithm: NaN where one is not finite, -infinity where it is 0."""

    log10: float

    @property
    def value(self) -> float | None:
        """The determinant itself; None where it overflows or is not known."""
        return None if math.isnan(self.log10) else power_of_ten(self.log10)

    def figures(self) -> dict[str, Any]:
        """Both by name; a null beside a number is an overflow (or, of the logarithm, a determinant of 0)."""
        return {"max_abs_det": self.value, "log10_max_abs_det": json_safe(self.log10)}


@dataclass(frozen=True)
class Eigen:
    """Of each head of A: the eigenvalue of largest magnitude, the mean row sum; of the layer: how far rows differ."""

    eigenvalues: list[complex]
    row_sums: list[float]
    between_rows: SquaredDifferences

    @property
    def radii(self) -> list[float]:
        """The spectral radius of each head."""
        return [math.hypot(value.real, value.imag) for value in self.eigenvalues]

    def figures(self) -> dict[str, Any]:
        """Lists have an entry for each head."""
        return {
            "spectral_radius": self.radii,
            "largest_eigenvalue": [value.real for value in self.eigenvalues],
            "largest_eigenvalue_imaginary": [value.imag for value in self.eigenvalues],
            "mean_row_sum": self.row_sums,
            "rmse_between_rows": self.between_rows.rmse,
        }


@dataclass(frozen=True)
class LayerFigures:
    """One deductive output of one layer. `eigen` belongs to A; `singular_HK`: singular values, descending."""

    layer: int
    non_finite: int
    between_heads: SquaredDifferences
    determinant: Determinant
    ranks: list[int | None]
    singular_HK: list[list[float]]
    eigen: Eigen | None = None

    @property
    def conditions(self) -> list[float]:
        """The condition number of each head: infinite for a singular matrix."""
        return [values[0] / values[-1] if values[-1] != 0 else math.inf for values in self.singular_HK]

    @property
    def singular_ends(self) -> tuple[float, float, float]:
        """Over the heads: the largest singular value, the smallest, and the worst condition number."""
        most, least = ([values[place] for values in self.singular_HK] for place in (0, -1))
        return largest(most), -largest([-value for value in least]), largest(self.conditions)

    def figures(self, with_singular_values: bool) -> dict[str, Any]:
        """Lists have an entry for each head."""
        named: dict[str, Any] = {
            "layer": self.layer,
            "rmse": self.between_heads.rmse,
            **self.determinant.figures(),
            "rank": self.ranks,
            "non_finite_elements": self.non_finite,
        }
        if self.eigen is not None:
            named |= self.eigen.figures()
        if with_singular_values:
            named |= {"singular_values": self.singular_HK, "condition_number": self.conditions}
        return named


@dataclass(frozen=True)
class OutputFigures:
    """One deductive output, over the layers that have it."""

    name: str
    layers: list[LayerFigures]

    @property
    def rmse(self) -> float | None:
        """RMSE between heads over all layers; None where no layer has two."""
        return _sum(layer.between_heads for layer in self.layers).rmse

    @property
    def rmse_between_rows(self) -> float | None:
        """RMSE between the rows of each head over all layers; None but for A."""
        return _sum(layer.eigen.between_rows for layer in self.layers if layer.eigen).rmse

    @property
    def determinant(self) -> Determinant:
        """The largest over all heads and layers."""
        return Determinant(largest([layer.determinant.log10 for layer in self.layers]))

    def figures(self) -> dict[str, Any]:
        found = [rank for layer in self.layers for rank in layer.ranks if rank is not None]
        named: dict[str, Any] = {
            "rmse": self.rmse,
            **self.determinant.figures(),
            "rank": {"smallest": min(found, default=None), "largest": max(found, default=None)},
            "non_finite_elements": sum(layer.non_finite for layer in self.layers),
        }
        if self.name == "A":
            radii = [radius for layer in self.layers if layer.eigen for radius in layer.eigen.radii]
            named |= {"spectral_radius": largest(radii), "rmse_between_rows": self.rmse_between_rows}
        if self.name == "A_LM":
            ends = [layer.singular_ends for layer in self.layers]
            named["largest_singular_value"] = largest([most for most, _, _ in ends])
            named["smallest_singular_value"] = -largest([-least for _, least, _ in ends])
            named["condition_number"] = largest([condition for _, _, condition in ends])
        per_layer = [layer.figures(with_singular_values=self.name == "A_LM") for layer in self.layers]
        return dict(json_safe({**named, "per_layer": per_layer}))


@dataclass(frozen=True)
class DeductiveFigures:
    """Every deductive output that there is. `rank_tolerance`: singular values count above this share of the largest."""

    rank_tolerance: float
    outputs: list[OutputFigures]

    def figures(self) -> dict[str, Any]:
        return {"rank_tolerance": self.rank_tolerance, **{one.name: one.figures() for one in self.outputs}}


def operator_figures(layers: Sequence[Mapping[str, Tensor]], rank_tolerance: float | None = None) -> DeductiveFigures:
    """The figures of the deductive outputs of a model: for each layer its outputs `[H, K, K]` by name, not all needed.

    `rank_tolerance` None: K times the rounding of the precision that the outputs come in, as for `numpy`'s rank.
    """
    if rank_tolerance is not None and not 0 <= rank_tolerance <= 1:
        raise UserError(field="rank_tolerance", value=rank_tolerance, accepted="a share, 0 to 1")
    if rank_tolerance is None:
        every = [tensor for outputs in layers for tensor in outputs.values()]
        rank_tolerance = max(tensor.shape[-1] * torch.finfo(tensor.dtype).eps for tensor in every)
    found = []
    for name in OUTPUTS:
        having = [
            _layer_figures(name, number, outputs[name], rank_tolerance)
            for number, outputs in enumerate(layers)
            if name in outputs
        ]
        if having:
            found.append(OutputFigures(name, having))
    return DeductiveFigures(rank_tolerance, found)


def _layer_figures(name: str, layer: int, x_HKK: Tensor, rank_tolerance: float) -> LayerFigures:
    x_HKK = x_HKK.detach().cpu().double()
    singular_HK = singular_values(x_HKK)
    return LayerFigures(
        layer=layer,
        non_finite=int((~x_HKK.isfinite()).sum()),
        between_heads=between_heads(x_HKK),
        determinant=Determinant(largest(log10_abs_determinants(x_HKK).tolist())),
        ranks=ranks(singular_HK, rank_tolerance),
        singular_HK=singular_HK.tolist(),
        eigen=Eigen(largest_eigenvalues(x_HKK).tolist(), mean_row_sums(x_HKK).tolist(), between_rows(x_HKK))
        if name == "A"
        else None,
    )


def _sum(parts: Any) -> SquaredDifferences:
    return sum(parts, SquaredDifferences())
