"""The deductive outputs of power-law graph attention as matrices, one for each head (Gokden, arXiv 2502.13502).

All figures are computed in float64, in any precision of the outputs. A matrix that is not finite has figures that are
NaN; `json_safe` makes null of these.

Shapes: `H` heads, `K` head width, `N` compared items.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.layers.mixers.plga.operator import OUTPUTS

MAX_LOG10 = math.log10(torch.finfo(torch.float64).max)
"""A determinant with a larger logarithm overflows."""


@dataclass(frozen=True)
class SquaredDifferences:
    """The sum of squared differences over pairs of items and their elements, and the number of terms.

    rmse: the square root of the mean; None without a pair, NaN if an element is not finite.
    """

    total: float = 0.0
    count: int = 0

    def __add__(self, other: "SquaredDifferences") -> "SquaredDifferences":
        return SquaredDifferences(self.total + other.total, self.count + other.count)

    @property
    def rmse(self) -> float | None:
        return math.sqrt(self.total / self.count) if self.count else None


def squared_differences(x: Tensor) -> SquaredDifferences:
    """Squared differences `x[i] - x[j]` of all unordered pairs of `x`, `[N, ...]`."""
    count = len(x)
    # The sum over pairs is N times the squared distances from the mean. The first item is subtracted before, so that
    # equal items have a difference of exactly 0.
    from_first = x.double() - x[:1].double()
    from_mean = from_first - from_first.mean(dim=0, keepdim=True)
    total = count * float((from_mean**2).sum())
    return SquaredDifferences(total if math.isfinite(total) else math.nan, count * (count - 1) // 2 * x[0].numel())


def _of_finite(x_HKK: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of each head's matrix, on the CPU; NaN for matrices that are not finite."""
    x_HKK = x_HKK.detach().cpu().double()
    finite_H = x_HKK.isfinite().flatten(1).all(dim=1)
    values = function(torch.where(finite_H[:, None, None], x_HKK, 0.0))
    return torch.where(finite_H.view(-1, *[1] * (values.dim() - 1)), values, math.nan)


def log10_abs_determinants(x_HKK: Tensor) -> Tensor:
    """`log10 |det|`, `[H]`: finite even if the determinant overflows or underflows, -infinity if it is 0."""
    return _of_finite(x_HKK, lambda finite_HKK: torch.linalg.slogdet(finite_HKK).logabsdet / math.log(10))


def singular_values(x_HKK: Tensor) -> Tensor:
    """The singular values of each matrix, `[H, K]`, descending."""
    return _of_finite(x_HKK, torch.linalg.svdvals)


def ranks(singular_HK: Tensor, tolerance: float) -> list[int | None]:
    """The number of singular values of each head above `tolerance` times its largest one; None for NaN."""
    above_H = (singular_HK > tolerance * singular_HK[:, :1]).sum(dim=1).tolist()
    return [None if math.isnan(first) else n for n, first in zip(above_H, singular_HK[:, 0].tolist(), strict=True)]


def rank_range(values: Iterable[int | None]) -> tuple[int | None, int | None]:
    """The smallest and the largest known rank; None if no rank is known."""
    known = [rank for rank in values if rank is not None]
    return min(known, default=None), max(known, default=None)


def range_text(bounds: tuple[int | None, int | None]) -> str:
    """A range of ranks as a table cell: `63 to 64`, `1`, or `not finite`."""
    smallest, largest_ = bounds
    if smallest is None:
        return "not finite"
    return str(smallest) if smallest == largest_ else f"{smallest} to {largest_}"


def largest_eigenvalues(x_HKK: Tensor) -> Tensor:
    """The eigenvalue of largest magnitude of each matrix, complex `[H]`; the magnitude is the spectral radius."""

    def of_finite(finite_HKK: Tensor) -> Tensor:
        values_HK: Tensor = torch.linalg.eigvals(finite_HKK)
        return values_HK.gather(1, values_HK.abs().argmax(dim=1, keepdim=True))[:, 0]

    return _of_finite(x_HKK, of_finite)


def mean_row_sums(x_HKK: Tensor) -> Tensor:
    """The mean over the row sums of each matrix, `[H]`."""
    return _of_finite(x_HKK, lambda finite: finite.sum(dim=2).mean(dim=1))


def largest(values: Sequence[float]) -> float:
    """The largest value; NaN if one is NaN, which `max` would ignore."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def power_of_ten(exponent: float) -> float | None:
    """`10 ** exponent`; None if it overflows, 0 if it underflows."""
    return 10.0**exponent if exponent < MAX_LOG10 else None


def determinant_figures(log10: float) -> dict[str, Any]:
    """A |det| and its logarithm for JSON. One null is an overflow or the logarithm of 0, two nulls are NaN."""
    value = None if math.isnan(log10) else power_of_ten(log10)
    return {"max_abs_det": value, "log10_max_abs_det": json_safe(log10)}


@dataclass(frozen=True)
class Eigen:
    """For each head of A the eigenvalue of largest magnitude, its magnitude and the mean row sum; the layer's
    differences between the rows of each matrix.
    """

    values: list[complex]
    radii: list[float]
    row_sums: list[float]
    between_rows: SquaredDifferences


@dataclass(frozen=True)
class LayerFigures:
    """The figures of one deductive output in one layer; lists have an entry for each head.

    log10_max_abs_det: over the heads: NaN if a matrix is not finite, -infinity if all determinants are 0. singular_HK:
    singular values, descending. conditions: condition numbers, infinite for a singular matrix. singular_ends: over the
    heads, the largest and the smallest singular value, and the largest condition number. eigen: of A alone.
    """

    layer: int
    non_finite: int
    between_heads: SquaredDifferences
    log10_max_abs_det: float
    ranks: list[int | None]
    singular_HK: list[list[float]]
    conditions: list[float]
    singular_ends: tuple[float, float, float]
    eigen: Eigen | None = None

    @classmethod
    def measure(cls, name: str, layer: int, x_HKK: Tensor, rank_tolerance: float) -> "LayerFigures":
        """Compute the figures of an output; `name` is one of `OUTPUTS`."""
        x_HKK = x_HKK.detach().cpu().double()
        singular_HK, eigen = singular_values(x_HKK), None
        rows = singular_HK.tolist()
        conditions = [values[0] / values[-1] if values[-1] != 0 else math.inf for values in rows]
        smallest = -largest([-values[-1] for values in rows])
        if name == "A":
            values = largest_eigenvalues(x_HKK).tolist()
            radii = [math.hypot(value.real, value.imag) for value in values]
            between_rows = squared_differences(x_HKK.transpose(0, 1))
            eigen = Eigen(values, radii, mean_row_sums(x_HKK).tolist(), between_rows)
        return cls(
            layer=layer,
            non_finite=int((~x_HKK.isfinite()).sum()),
            between_heads=squared_differences(x_HKK),
            log10_max_abs_det=largest(log10_abs_determinants(x_HKK).tolist()),
            ranks=ranks(singular_HK, rank_tolerance),
            singular_HK=rows,
            conditions=conditions,
            singular_ends=(largest([values[0] for values in rows]), smallest, largest(conditions)),
            eigen=eigen,
        )

    def figures(self, with_singular_values: bool) -> dict[str, Any]:
        """The figures for JSON."""
        named: dict[str, Any] = {
            "layer": self.layer,
            "rmse": self.between_heads.rmse,
            **determinant_figures(self.log10_max_abs_det),
            "rank": self.ranks,
            "non_finite_elements": self.non_finite,
        }
        if self.eigen is not None:
            named |= {
                "spectral_radius": self.eigen.radii,
                "largest_eigenvalue": [value.real for value in self.eigen.values],
                "largest_eigenvalue_imaginary": [value.imag for value in self.eigen.values],
                "mean_row_sum": self.eigen.row_sums,
                "rmse_between_rows": self.eigen.between_rows.rmse,
            }
        if with_singular_values:
            named |= {"singular_values": self.singular_HK, "condition_number": self.conditions}
        return named


@dataclass(frozen=True)
class OutputFigures:
    """The figures of one deductive output, over the layers that have it.

    rmse: between heads, over all layers; None if no layer has two heads. log10_max_abs_det: over all heads and layers.
    """

    name: str
    layers: list[LayerFigures]
    rmse: float | None
    log10_max_abs_det: float

    def figures(self) -> dict[str, Any]:
        """The figures for JSON."""
        smallest_rank, largest_rank = rank_range(rank for layer in self.layers for rank in layer.ranks)
        named: dict[str, Any] = {
            "rmse": self.rmse,
            **determinant_figures(self.log10_max_abs_det),
            "rank": {"smallest": smallest_rank, "largest": largest_rank},
            "non_finite_elements": sum(layer.non_finite for layer in self.layers),
        }
        if self.name == "A":
            eigen = [layer.eigen for layer in self.layers if layer.eigen]
            between_rows = sum((one.between_rows for one in eigen), SquaredDifferences())
            named["spectral_radius"] = largest([radius for one in eigen for radius in one.radii])
            named["rmse_between_rows"] = between_rows.rmse
        if self.name == "A_LM":
            tops, bottoms, conditions = zip(*(layer.singular_ends for layer in self.layers), strict=True)
            named["largest_singular_value"] = largest(tops)
            named["smallest_singular_value"] = -largest([-bottom for bottom in bottoms])
            named["condition_number"] = largest(conditions)
        per_layer = [layer.figures(with_singular_values=self.name == "A_LM") for layer in self.layers]
        return dict(json_safe({**named, "per_layer": per_layer}))


@dataclass(frozen=True)
class DeductiveFigures:
    """The figures of every deductive output. rank_tolerance: see `ranks`."""

    rank_tolerance: float
    outputs: list[OutputFigures]

    def figures(self) -> dict[str, Any]:
        """The figures for JSON, by the name of the output."""
        return {"rank_tolerance": self.rank_tolerance, **{output.name: output.figures() for output in self.outputs}}


def operator_figures(layers: Sequence[Mapping[str, Tensor]], rank_tolerance: float | None = None) -> DeductiveFigures:
    """The figures of a model's deductive outputs: for each layer its outputs `[H, K, K]` by name, some may be missing.

    rank_tolerance: None: K times the rounding of the outputs' dtype, as in NumPy's `matrix_rank`.
    """
    if rank_tolerance is not None and not 0 <= rank_tolerance <= 1:
        raise UserError(field="rank_tolerance", value=rank_tolerance, accepted="a share, 0 to 1")
    if rank_tolerance is None:
        every = [tensor for outputs in layers for tensor in outputs.values()]
        rank_tolerance = max(tensor.shape[-1] * torch.finfo(tensor.dtype).eps for tensor in every)
    measured = []
    for name in OUTPUTS:
        of_layers = [
            LayerFigures.measure(name, index, outputs[name], rank_tolerance)
            for index, outputs in enumerate(layers)
            if name in outputs
        ]
        if of_layers:
            between_heads = sum((layer.between_heads for layer in of_layers), SquaredDifferences())
            log10 = largest([layer.log10_max_abs_det for layer in of_layers])
            measured.append(OutputFigures(name, of_layers, between_heads.rmse, log10))
    return DeductiveFigures(rank_tolerance, measured)
