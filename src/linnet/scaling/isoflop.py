"""Approach 2: parabolas through runs of equal training FLOPs (Hoffmann et al., section 3.2).

Legend: `P` points, `M` groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linnet.core.arrays import Numbers
from linnet.scaling.frontier import Frontier, NotPossibleError
from linnet.scaling.points import Points

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
