"""Approach 3: `L = E + A / N^alpha + B / D^beta` fitted to the ends of all runs (Hoffmann et al., section 3.3).

From every point of the paper's grid, all at once, to a low tolerance; then on from the lowest to a tight one.

Legend: `S` starts, `P` points, `R` resamples, `5` unknowns: a, b, e, alpha, beta (`A = exp a` and so on).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.scaling.counts import Counting
from linnet.scaling.huber import DELTA, HuberSum
from linnet.scaling.law import ParametricLaw
from linnet.scaling.minimise import Minima, minimise
from linnet.scaling.points import Points

Rested = Callable[[int], None]
"""Hears how many more starts have come to rest."""

LEAST_POINTS, LEAST_DIFFERENT = 6, 3
"""There are five unknowns, and three of them lie along each of the two directions."""

COARSE, TIGHT = 1e-7, 1e-14
FINISHED_STARTS = 50
SAME = 1e-6
"""Two minima are one when their values differ by less than this share."""

BOOTSTRAP_STARTS = 5

TINY, HUGE = 1e-6, 1e300
"""A constant beyond these is none: its term is the same for all points, or nothing."""


@dataclass(frozen=True)
class Fitted:
    """The lowest of all minima `x_5`, its value, how many of the `starts` led there, and the lowest of the others."""

    x_5: Numbers
    objective: float
    starts: int
    reached: int
    others_S5: Numbers

    def law(self, name: str, counted: Counting) -> ParametricLaw:
        """As a law; `UserError` where the loss does not fall with size and text."""
        values = constants(self.x_5[None])[0]
        named = dict(zip(("E", "A", "B", "alpha", "beta"), map(float, values), strict=True))
        wrong = next((key for key, value in named.items() if key != "E" and not TINY < value < HUGE), None)
        if wrong is not None:
            raise UserError(
                f"the fit has {wrong} = {named[wrong]:.3g}: the runs do not show how the loss falls with"
                f" {'tokens' if wrong in ('B', 'beta') else 'parameters'}; expected a wider range of them"
            )
        return ParametricLaw(name=name, counted=counted, objective=self.objective, **named)


def grid() -> Numbers:
    """The paper's 4,500 starts `[S, 5]`: a and b 0 to 25 by 5, e -1 to 1 by 0.5, alpha and beta 0 to 2 by 0.5."""
    scales, rests, exponents = np.arange(0, 26, 5.0), np.arange(-1, 1.1, 0.5), np.arange(0, 2.1, 0.5)
    return np.array(list(itertools.product(scales, scales, rests, exponents, exponents)))


def check_points(points: Points) -> None:
    """`UserError` where the points cannot tell the five unknowns apart."""
    if len(points) < LEAST_POINTS:
        raise UserError(f"{len(points)} runs are too few for a law's five unknowns; expected at least {LEAST_POINTS}")
    for what, values in (("sizes", points.parameters), ("numbers of tokens", points.tokens)):
        if len(np.unique(values)) < LEAST_DIFFERENT:
            raise UserError(
                f"the runs have {len(np.unique(values))} different {what}; expected at least {LEAST_DIFFERENT}"
            )


def fit(
    points: Points, delta: float = DELTA, starts_S5: Numbers | None = None, rested: Rested = lambda count: None
) -> Fitted:
    """The global optimum over the starts (None: the paper's grid)."""
    check_points(points)
    objective = HuberSum.of(points, delta)
    starts_S5 = grid() if starts_S5 is None else starts_S5
    coarse = minimise(objective, objective.centred(starts_S5), tolerance=COARSE, rested=rested)
    lowest = np.argsort(coarse.value_S, kind="stable")[:FINISHED_STARTS]
    fine = minimise(objective, coarse.x_SK[lowest], tolerance=TIGHT)
    order = np.argsort(fine.value_S, kind="stable")
    best = fine.value_S[order[0]]
    return Fitted(
        x_5=objective.uncentred(fine.x_SK[order[:1]])[0],
        objective=float(best),
        starts=len(starts_S5),
        reached=int((coarse.value_S <= best * (1 + 10 * SAME)).sum()),
        others_S5=objective.uncentred(_others(coarse, best)),
    )


def bootstrap(
    points: Points, fitted: Fitted, resamples: int, seed: int, delta: float = DELTA, rested: Rested = lambda count: None
) -> Numbers:
    """Constants `[R, 5]` (E, A, B, alpha, beta) of fits to as many points drawn with replacement.

    Each starts at the optimum of all points and at the lowest of the other minima, which are near those of a resample.
    """
    random = np.random.default_rng(seed)
    weights_RP = random.multinomial(len(points), np.full(len(points), 1 / len(points)), size=resamples).astype(float)
    starts_S5 = np.concatenate((fitted.x_5[None], fitted.others_S5[: BOOTSTRAP_STARTS - 1]))
    each = len(starts_S5)
    objective = HuberSum.of(points, delta, np.repeat(weights_RP, each, axis=0))
    minima = minimise(objective, objective.centred(np.tile(starts_S5, (resamples, 1))), tolerance=COARSE, rested=rested)
    best_R = minima.value_S.reshape(resamples, each).argmin(axis=1) + np.arange(resamples) * each
    return constants(objective.uncentred(minima.x_SK[best_R]))


def constants(x_S5: Numbers) -> Numbers:
    """E, A, B, alpha, beta for a, b, e, alpha, beta; what would overflow is as large as can be."""
    a, b, e, alpha, beta = x_S5.T
    scales = (np.exp(np.minimum(log, np.log(HUGE))) for log in (e, a, b))
    return np.stack((*scales, alpha, beta), axis=1)


def _others(minima: Minima, best: float) -> Numbers:
    """The lowest points of other minima `[S, 5]`, one of each value, ascending."""
    found: list[int] = []
    last = best
    for index in np.argsort(minima.value_S, kind="stable"):
        if minima.value_S[index] > last * (1 + 10 * SAME) and len(found) < BOOTSTRAP_STARTS:
            found.append(int(index))
            last = minima.value_S[index]
    return minima.x_SK[found]
