"""The best size and its tokens for a budget, as powers of the budget: approaches 1 and 2.

Approach 1 is the lower envelope of all training curves, approach 2 are parabolas through runs of equal training FLOPs
(Hoffmann et al., sections 3.1 and 3.2).

Legend: `M` budgets, `R` runs, `T` points of a curve, `P` points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from linnet.core.arrays import Numbers
from linnet.scaling.candidate import Counting
from linnet.scaling.runs import Points, Run

BUDGETS = 1500
"""As many as in the paper, evenly spaced in the logarithm."""

MIN_CURVES = 3

TOLERANCE = 0.1
"""Largest relative difference between FLOPs that count as equal."""

MIN_SIZES = 4
"""A parabola passes through any three."""


@dataclass(frozen=True)
class PowerLaw:
    """`y = scale * x ^ exponent`."""

    scale: float
    exponent: float

    def __call__(self, x: Numbers) -> Numbers:
        return self.scale * x**self.exponent


@dataclass(frozen=True)
class Frontier:
    """The best size for each of `flops_M` training FLOPs, ascending, its tokens, and its loss.

    parameters, tokens: the power laws through them, `N = k C^a` and `D = k C^b`.
    """

    flops_M: Numbers
    parameters_M: Numbers
    tokens_M: Numbers
    loss_M: Numbers
    parameters: PowerLaw
    tokens: PowerLaw

    @classmethod
    def fitted(cls, flops_M: Numbers, parameters_M: Numbers, tokens_M: Numbers, loss_M: Numbers) -> Self:
        """Fit both power laws by least squares of the logarithms."""
        laws = []
        for values_M in (parameters_M, tokens_M):
            exponent, intercept = np.polyfit(np.log(flops_M), np.log(values_M), 1)
            laws.append(PowerLaw(float(np.exp(intercept)), float(exponent)))
        return cls(flops_M, parameters_M, tokens_M, loss_M, *laws)


class NotPossibleError(ValueError):
    """The runs do not allow an approach; the message is the reason, in one line."""


def envelope(runs: Sequence[Run], counted: Counting, budgets: int = BUDGETS) -> Frontier:
    """Return the run with the lowest loss at each budget, read off its curve.

    A budget counts only if both smaller and larger models than the best one were measured at it: otherwise the best
    size may be one that was not tried. `NotPossibleError` states what is missing.
    """
    curves = [run for run in runs if len(run.tokens_T) > 1]
    sizes_R = np.array([run.parameters[counted] for run in curves])
    if len(np.unique(sizes_R)) < MIN_CURVES:
        raise NotPossibleError(
            f"needs the loss along the training of at least {MIN_CURVES} sizes (folders of runs, or a column run in"
            f" the CSV file); these runs have it for {len(np.unique(sizes_R)) or 'none'}"
        )
    ends = [run.flops_T[[0, -1]] for run in curves]
    flops_M = np.geomspace(min(end[0] for end in ends), max(end[1] for end in ends), budgets)

    # Values between the points of a curve, in the logarithm of the FLOPs; infinite beyond its ends.
    logs = [(np.log(flops_M), np.log(run.flops_T)) for run in curves]
    loss_RM, tokens_RM = (
        np.stack(
            [np.interp(*log, values, left=np.inf, right=np.inf) for log, values in zip(logs, columns, strict=True)]
        )
        for columns in ([run.loss_T for run in curves], [run.tokens_T for run in curves])
    )
    best_M, known_RM = loss_RM.argmin(axis=0), np.isfinite(loss_RM)
    largest_M = np.where(known_RM, sizes_R[:, None], -np.inf).max(axis=0)
    smallest_M = np.where(known_RM, sizes_R[:, None], np.inf).min(axis=0)
    inner_M = (smallest_M < sizes_R[best_M]) & (sizes_R[best_M] < largest_M)
    if len(np.unique(sizes_R[best_M[inner_M]])) < 2:
        raise NotPossibleError(
            "needs budgets at which the best of the sizes lies between a smaller and a larger one, for two best sizes"
        )
    at = best_M[inner_M], np.flatnonzero(inner_M)
    return Frontier.fitted(flops_M[inner_M], sizes_R[at[0]], tokens_RM[at], loss_RM[at])


@dataclass(frozen=True)
class Parabola:
    """`loss = curvature (x - x0)^2 + least` over `x = log N`; parameters and tokens are those at the least loss."""

    flops: float
    parameters: float
    tokens: float
    least: float
    curvature: float

    def __call__(self, parameters: Numbers) -> Numbers:
        distance: Numbers = np.log(parameters / self.parameters)
        return self.curvature * distance**2 + self.least


def isoflop_groups(points: Points, tolerance: float = TOLERANCE) -> list[Points]:
    """Return the groups of equal FLOPs with enough sizes, by ascending FLOPs; each point is in one group at most.

    The largest group is taken first, so that scattered runs between two groups do not join them.
    """
    order = np.argsort(points.flops, kind="stable")
    groups: list[Points] = []
    while len(order):
        flops = points.flops[order]
        end = np.searchsorted(flops, flops * (1 + tolerance), side="right")
        begin = int(np.argmax(end - np.arange(len(order))))
        chosen = order[begin : end[begin]]
        if len(chosen) < MIN_SIZES:
            break
        if len(np.unique(points.parameters[chosen])) >= MIN_SIZES:
            groups.append(points[chosen])
        order = np.delete(order, slice(begin, end[begin]))
    return sorted(groups, key=lambda group: float(group.flops[0]))


def parabola(group: Points) -> Parabola | None:
    """Fit one group by least squares; None if the least loss is not between the smallest and the largest size.

    Also None if there are too few sizes: a resample may have lost some.
    """
    if len(np.unique(group.parameters)) < MIN_SIZES:
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
    """Return the least points of the groups' parabolas; `NotPossibleError` states what is missing."""
    if len(groups) < 2:
        raise NotPossibleError(
            f"needs two groups of runs with equal training FLOPs and at least {MIN_SIZES} sizes each; found"
            f" {len(groups)}"
        )
    found = [one for one in map(parabola, groups) if one is not None]
    if len(found) < 2:
        raise NotPossibleError(
            "needs two groups whose loss is lowest between the smallest and the largest size; this holds for"
            f" {len(found)} of {len(groups)} groups"
        )
    return Frontier.fitted(
        *(np.array([getattr(one, name) for one in found]) for name in ("flops", "parameters", "tokens", "least"))
    )
