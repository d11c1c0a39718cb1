"""Many minimizations of one small function at once: BFGS from many starts.

With five unknowns the whole inverse Hessian is stored, so this is L-BFGS with unlimited memory. The line search halves
and doubles until the weak Wolfe conditions hold, which also suits a function with kinks (Lewis and Overton,
Mathematical Programming 141, 2013, algorithm 2.6): a Huber loss with a small delta nearly has some. Every start has its
own line search at its own stage, so that one call of the function serves all starts that have not converged.

Legend: `S` starts, `R` some of them, `K` unknowns.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers

Rows = NDArray[np.intp]
Function = Callable[[Numbers, Rows], tuple[Numbers, Numbers]]
"""Points `[R, K]` and the numbers of their starts `[R]` to values `[R]` and gradients `[R, K]`."""

WOLFE_DECREASE, WOLFE_CURVATURE = 1e-4, 0.9
MAX_TRIALS = 25
PATIENCE = 10
"""A start has converged if so many line searches together lowered its value by less than the tolerance."""


@dataclass
class Minima:
    """The point that each start reached, `[S, K]`, its value `[S]`, and whether it converged `[S]`."""

    x_SK: Numbers
    value_S: Numbers
    converged_S: NDArray[np.bool_]


@np.errstate(all="ignore")  # a start that overflows is recognized by its value, without a warning
def minimize(
    function: Function,
    start_SK: Numbers,
    evaluations: int = 5000,
    tolerance: float = 1e-9,
    advance: Callable[[int], None] = lambda count: None,
) -> Minima:
    """Minimize from every start with at most so many `evaluations` each.

    tolerance: relative to the value. advance: called with the number of starts that have just converged. A start whose
    value is not finite stays where it is.
    """
    descents = _Descents(function, start_SK)
    unfinished_S, active = np.ones(len(start_SK), dtype=bool), np.arange(len(start_SK))
    descents.begin_search(active)
    for _ in range(evaluations):
        if not len(active):
            break
        arrived = descents.try_lengths(active)
        going = descents.settle(arrived, tolerance)
        descents.begin_search(arrived[going])
        if not going.all():
            advance(int((~going).sum()))
            unfinished_S[arrived[~going]] = False
            active = active[unfinished_S[active]]
    return Minima(descents.x_SK, descents.value_S, ~unfinished_S)


class _Descents:
    """The point of every start and its line search: the step, and the lengths known to be too short and too long."""

    def __init__(self, function: Function, start_SK: Numbers) -> None:
        starts, unknowns = start_SK.shape
        self.function = function
        self.x_SK = start_SK.copy()
        self.value_S, self.gradient_SK = function(self.x_SK, np.arange(starts))
        self.inverse_SKK = np.tile(np.eye(unknowns), (starts, 1, 1))
        self.searches_S = np.zeros(starts, dtype=int)
        self.earlier_SP = np.full((starts, PATIENCE), np.inf)
        self.step_SK, self.slope_S = np.zeros((starts, unknowns)), np.zeros(starts)
        self.length_S, self.low_S, self.high_S = np.ones(starts), np.zeros(starts), np.zeros(starts)
        self.trials_S = np.zeros(starts, dtype=int)
        self.best_x_SK, self.best_value_S = self.x_SK.copy(), self.value_S.copy()
        self.best_gradient_SK = self.gradient_SK.copy()

    def begin_search(self, rows: Rows) -> None:
        """Begin line searches downhill; where rounding has spoiled the inverse Hessian, it starts again."""
        gradient = self.gradient_SK[rows]
        step = -np.einsum("skl,sl->sk", self.inverse_SKK[rows], gradient)
        slope = np.einsum("sk,sk->s", step, gradient)
        lost = slope >= 0
        self.inverse_SKK[rows[lost]] = np.eye(step.shape[1])
        step[lost], slope[lost] = -gradient[lost], -(gradient[lost] ** 2).sum(axis=1)
        first = self.searches_S[rows] == 0  # the scale is not known yet
        size = np.where(first, np.linalg.norm(step, axis=1) + np.finfo(float).tiny, 1)
        self.step_SK[rows], self.slope_S[rows] = step / size[:, None], slope / size
        self.length_S[rows], self.low_S[rows], self.high_S[rows], self.trials_S[rows] = 1, 0, np.inf, 0
        self.best_x_SK[rows], self.best_value_S[rows] = self.x_SK[rows], self.value_S[rows]
        self.best_gradient_SK[rows] = gradient

    def try_lengths(self, rows: Rows) -> Rows:
        """Try one length in each search and return the starts whose search has ended."""
        length, step, slope = self.length_S[rows], self.step_SK[rows], self.slope_S[rows]
        x = self.x_SK[rows] + length[:, None] * step
        value, gradient = self.function(x, rows)
        lower = value <= self.value_S[rows] + WOLFE_DECREASE * length * slope  # False for NaN as well
        flat = np.einsum("sk,sk->s", gradient, step) >= WOLFE_CURVATURE * slope
        better = rows[lower]
        self.best_x_SK[better], self.best_value_S[better] = x[lower], value[lower]
        self.best_gradient_SK[better] = gradient[lower]
        low = self.low_S[rows] = np.where(lower, length, self.low_S[rows])
        high = self.high_S[rows] = np.where(lower, self.high_S[rows], length)
        self.length_S[rows] = np.where(np.isfinite(high), (low + high) / 2, 2 * low)
        self.trials_S[rows] += 1
        ended: Rows = rows[(lower & flat) | (self.trials_S[rows] >= MAX_TRIALS)]
        return ended

    def settle(self, rows: Rows, tolerance: float) -> NDArray[np.bool_]:
        """Move to the best point of each search, update the inverse Hessian, and return which have not converged."""
        # BFGS from the move and the change of the gradient over it (Nocedal and Wright, equation 6.17).
        moved = self.best_x_SK[rows] - self.x_SK[rows]
        turned = self.best_gradient_SK[rows] - self.gradient_SK[rows]
        product = np.einsum("sk,sk->s", moved, turned)
        curved = product > np.finfo(float).tiny
        updated, s, y, product = rows[curved], moved[curved], turned[curved], product[curved]
        scale = np.where(self.searches_S[updated] == 0, product / np.einsum("sk,sk->s", y, y), 1)
        h = self.inverse_SKK[updated] * scale[:, None, None]
        hy = np.einsum("skl,sl->sk", h, y)
        cross = np.einsum("sk,sl->skl", hy, s)
        again = (1 + np.einsum("sk,sk->s", y, hy) / product) / product
        h -= (cross + cross.transpose(0, 2, 1)) / product[:, None, None]
        self.inverse_SKK[updated] = h + again[:, None, None] * np.einsum("sk,sl->skl", s, s)

        self.x_SK[rows], self.value_S[rows] = self.best_x_SK[rows], self.best_value_S[rows]
        self.gradient_SK[rows] = self.best_gradient_SK[rows]
        turn = rows, self.searches_S[rows] % PATIENCE
        oldest = self.earlier_SP[turn]
        self.earlier_SP[turn] = self.value_S[rows]
        self.searches_S[rows] += 1
        going: NDArray[np.bool_] = oldest - self.value_S[rows] > tolerance * np.abs(self.value_S[rows])
        return going
