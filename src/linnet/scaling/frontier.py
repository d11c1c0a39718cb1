"""The best size and its tokens for a budget, as powers of the budget: what approaches 1 and 2 find.

Approach 1 is the lower envelope of all training curves, approach 2 are parabolas through runs of equal training FLOPs
(Hoffmann et al., sections 3.1 and 3.2).

Legend: `M` budgets, `R` runs, `T` points of a curve, `P` points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.scaling.counts import Counting
from linnet.scaling.points import Points, Run


@dataclass(frozen=True)
class PowerLaw:
    """`y = scale * x ^ exponent`."""

    scale: float
    exponent: float

    @classmethod
    def through(cls, x: Numbers, y: Numbers) -> Self:
        """By least squares of the logarithms."""
        exponent, intercept = np.polyfit(np.log(x), np.log(y), 1)
        return cls(float(np.exp(intercept)), float(exponent))

    def __call__(self, x: Numbers) -> Numbers:
        """Its values."""
        return self.scale * x**self.exponent


@dataclass(frozen=True)
class Frontier:
    """At each of `flops_M` training FLOPs, ascending, the best size, its tokens, and the loss there."""

    flops_M: Numbers
    parameters_M: Numbers
    tokens_M: Numbers
    loss_M: Numbers

    @property
    def parameters(self) -> PowerLaw:
        """`N = k C^a`."""
        return PowerLaw.through(self.flops_M, self.parameters_M)

    @property
    def tokens(self) -> PowerLaw:
        """`D = k C^b`."""
        return PowerLaw.through(self.flops_M, self.tokens_M)


class NotPossibleError(ValueError):
    """The runs do not allow an approach; one line says why."""


BUDGETS = 1500
"""As many as in the paper, evenly spaced in the logarithm."""

LEAST_CURVES = 3


def envelope(runs: Sequence[Run], counted: Counting, budgets: int = BUDGETS) -> Frontier:
    """At each budget the run with the lowest loss, read off its curve.

    A budget counts only where runs both smaller and larger than the best one were measured as well: else the best size
    may be one that nobody tried. `NotPossibleError` says what is missing.
    """
    curves = [run for run in runs if len(run.tokens_T) > 1]
    sizes = np.array([run.parameters[counted] for run in curves])
    if len(np.unique(sizes)) < LEAST_CURVES:
        raise NotPossibleError(
            f"needs the loss along the training of at least {LEAST_CURVES} sizes (folders of runs, or a column run in"
            f" the CSV file); there are curves of {len(np.unique(sizes))}"
        )
    ends = [run.flops_T[[0, -1]] for run in curves]
    flops_M = np.geomspace(min(end[0] for end in ends), max(end[1] for end in ends), budgets)
    loss_RM = np.stack([_along(run, run.loss_T, flops_M) for run in curves])
    best_M = loss_RM.argmin(axis=0)
    inner_M = _between(loss_RM, sizes, best_M)
    if len(np.unique(sizes[best_M[inner_M]])) < 2:
        raise NotPossibleError(
            "needs budgets at which the best of the sizes lies between a smaller and a larger one, for two best sizes"
        )
    tokens_RM = np.stack([_along(run, run.tokens_T, flops_M) for run in curves])
    at = best_M[inner_M], np.flatnonzero(inner_M)
    return Frontier(flops_M[inner_M], sizes[at[0]], tokens_RM[at], loss_RM[at])


def _along(run: Run, values_T: Numbers, flops_M: Numbers) -> Numbers:
    """Values along a run's curve, between its points in the logarithm of the FLOPs; infinite beyond its ends."""
    return np.interp(np.log(flops_M), np.log(run.flops_T), values_T, left=np.inf, right=np.inf)


def _between(loss_RM: Numbers, sizes: Numbers, best_M: NDArray[np.intp]) -> NDArray[np.bool_]:
    known_RM = np.isfinite(loss_RM)
    largest_M = np.where(known_RM, sizes[:, None], -np.inf).max(axis=0)
    smallest_M = np.where(known_RM, sizes[:, None], np.inf).min(axis=0)
    inner_M: NDArray[np.bool_] = (smallest_M < sizes[best_M]) & (sizes[best_M] < largest_M)
    return inner_M


TOLERANCE = 0.1
"""FLOPs count as equal when the most are so much more than the least."""

LEAST_SIZES = 4
"""A parabola goes through any three."""


@dataclass(frozen=True)
class Parabola:
    """`loss = c2 (x - x0)^2 + least` over `x = log N`, in one group; `tokens` and `flops` are those at the least."""

    flops: float
    parameters: float
    tokens: float
    least: float
    curvature: float

    def __call__(self, parameters: Numbers) -> Numbers:
        """The loss at a size."""
        distance: Numbers = np.log(parameters / self.parameters)
        return self.curvature * distance**2 + self.least


def isoflop_groups(points: Points, tolerance: float = TOLERANCE) -> list[Points]:
    """Groups of equal FLOPs with enough sizes, by ascending FLOPs; each point is in one at most.

    The fullest group is taken first, so that scattered runs between two groups do not join them.
    """
    order = np.argsort(points.flops, kind="stable")
    groups: list[Points] = []
    while len(order):
        flops = points.flops[order]
        end = np.searchsorted(flops, flops * (1 + tolerance), side="right")
        begin = int(np.argmax(end - np.arange(len(order))))
        chosen = order[begin : end[begin]]
        if len(chosen) < LEAST_SIZES:
            break
        if len(np.unique(points.parameters[chosen])) >= LEAST_SIZES:
            groups.append(points[chosen])
        order = np.delete(order, slice(begin, end[begin]))
    return sorted(groups, key=lambda group: float(group.flops[0]))


def parabola(group: Points) -> Parabola | None:
    """Through one group by least squares; None where its least point is not between the smallest and largest size.

    None as well where there are too few sizes: a resample may have lost some.
    """
    if len(np.unique(group.parameters)) < LEAST_SIZES:
        return None
    x, middle = np.log(group.parameters), float(np.log(group.parameters).mean())
    curvature, slope, offset = np.polyfit(x - middle, group.loss, 2)
    if curvature <= 0:
        return None
    vertex = middle - slope / (2 * curvature)
    if not x.min() < vertex < x.max():
        return None
    tokens_slope, tokens_offset = np.polyfit(x - middle, np.log(group.tokens), 1)
    return Parabola(
        flops=float(np.exp(np.log(group.flops).mean())),
        parameters=float(np.exp(vertex)),
        tokens=float(np.exp(tokens_offset + tokens_slope * (vertex - middle))),
        least=float(offset - slope**2 / (4 * curvature)),
        curvature=float(curvature),
    )


def isoflop(groups: Sequence[Points]) -> Frontier:
    """The least points of the groups' parabolas; `NotPossibleError` says what is missing."""
    if len(groups) < 2:
        raise NotPossibleError(
            f"needs two groups of runs with equal training FLOPs and at least {LEAST_SIZES} sizes each; found"
            f" {len(groups)}"
        )
    found = [one for one in map(parabola, groups) if one is not None]
    if len(found) < 2:
        raise NotPossibleError(
            f"needs two groups whose loss is lowest between the smallest and the largest size; {len(found)} of"
            f" {len(groups)} groups are so"
        )
    return Frontier(
        *(np.array([getattr(one, name) for one in found]) for name in ("flops", "parameters", "tokens", "least"))
    )
