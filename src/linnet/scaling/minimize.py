"""Many minimizations of one small function at once: BFGS from many starts.

With five unknowns the whole inverse Hessian is kept, so this is L-BFGS with unlimited memory. The line search halves
and doubles until the weak Wolfe conditions hold, which also suits a function with kinks (Lewis and Overton,
Mathematical Programming 141, 2013, algorithm 2.6): a Huber loss with a small delta is nearly one. Every start is at its
own place in its own line search, so that one call of the function serves all that are not at rest.

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

ENOUGH_DECREASE, ENOUGH_CURVATURE = 1e-4, 0.9
MOST_TRIALS = 25
PATIENCE = 10
"""A start is at rest when so many line searches together have lowered its value by less than the tolerance."""


@dataclass
class Minima:
    """Where each start has come to: points `[S, K]`, values `[S]`, and whether it came to rest `[S]`."""

    x_SK: Numbers
    value_S: Numbers
    rested_S: NDArray[np.bool_]


@np.errstate(all="ignore")  # a start that leaves the floats is told by its value, not by a warning
def minimize(
    function: Function,
    start_SK: Numbers,
    evaluations: int = 5000,
    tolerance: float = 1e-9,
    rested: Callable[[int], None] = lambda count: None,
) -> Minima:
    """Minimize from every start. `tolerance` is relative to the value; `rested` hears how many more came to rest.

    Each start gets so many `evaluations` at most. One whose value is not finite rests where it is.
    """
    descents = _Descents(function, start_SK)
    moving_S, active = np.ones(len(start_SK), dtype=bool), np.arange(len(start_SK))
    descents.aim(active)
    for _ in range(evaluations):
        if not len(active):
            break
        arrived = descents.advance(active)
        going = descents.settle(arrived, tolerance)
        descents.aim(arrived[going])
        if not going.all():
            rested(int((~going).sum()))
            moving_S[arrived[~going]] = False
            active = active[moving_S[active]]
    return Minima(descents.x_SK, descents.value_S, ~moving_S)


class _Descents:
    """Where every start stands, and its line search: the step, the lengths known to be too short and too long."""

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

    def aim(self, rows: Rows) -> None:
        """Begin a line search: downhill, whatever rounding has made of the inverse Hessian."""
        gradient = self.gradient_SK[rows]
        step = -np.einsum("skl,sl->sk", self.inverse_SKK[rows], gradient)
        slope = np.einsum("sk,sk->s", step, gradient)
        lost = slope >= 0
        self.inverse_SKK[rows[lost]] = np.eye(step.shape[1])
        step[lost], slope[lost] = -gradient[lost], -(gradient[lost] ** 2).sum(axis=1)
        first = self.searches_S[rows] == 0  # nothing is known of the scale yet
        size = np.where(first, np.linalg.norm(step, axis=1) + np.finfo(float).tiny, 1)
        self.step_SK[rows], self.slope_S[rows] = step / size[:, None], slope / size
        self.length_S[rows], self.low_S[rows], self.high_S[rows], self.trials_S[rows] = 1, 0, np.inf, 0
        self.best_x_SK[rows], self.best_value_S[rows] = self.x_SK[rows], self.value_S[rows]
        self.best_gradient_SK[rows] = gradient

    def advance(self, rows: Rows) -> Rows:
        """Try one length of each search; those whose search has come to its end."""
        length, step, slope = self.length_S[rows], self.step_SK[rows], self.slope_S[rows]
        x = self.x_SK[rows] + length[:, None] * step
        value, gradient = self.function(x, rows)
        lower = value <= self.value_S[rows] + ENOUGH_DECREASE * length * slope  # False for NaN as well
        flat = np.einsum("sk,sk->s", gradient, step) >= ENOUGH_CURVATURE * slope
        better = rows[lower]
        self.best_x_SK[better], self.best_value_S[better] = x[lower], value[lower]
        self.best_gradient_SK[better] = gradient[lower]
        low = self.low_S[rows] = np.where(lower, length, self.low_S[rows])
        high = self.high_S[rows] = np.where(lower, self.high_S[rows], length)
        self.length_S[rows] = np.where(np.isfinite(high), (low + high) / 2, 2 * low)
        self.trials_S[rows] += 1
        ended: Rows = rows[(lower & flat) | (self.trials_S[rows] >= MOST_TRIALS)]
        return ended

    def settle(self, rows: Rows, tolerance: float) -> NDArray[np.bool_]:
        """Move to the best point of each search and learn from it; which of them are not at rest there."""
        self._learn(rows)
        self.x_SK[rows], self.value_S[rows] = self.best_x_SK[rows], self.best_value_S[rows]
        self.gradient_SK[rows] = self.best_gradient_SK[rows]
        turn = rows, self.searches_S[rows] % PATIENCE
        oldest = self.earlier_SP[turn]
        self.earlier_SP[turn] = self.value_S[rows]
        self.searches_S[rows] += 1
        going: NDArray[np.bool_] = oldest - self.value_S[rows] > tolerance * np.abs(self.value_S[rows])
        return going

    def _learn(self, rows: Rows) -> None:
        """BFGS: the inverse Hessian from a move and the turn of the gradient over it (Nocedal and Wright, 6.17)."""
        moved = self.best_x_SK[rows] - self.x_SK[rows]
        turned = self.best_gradient_SK[rows] - self.gradient_SK[rows]
        product = np.einsum("sk,sk->s", moved, turned)
        curved = product > np.finfo(float).tiny
        rows, s, y, product = rows[curved], moved[curved], turned[curved], product[curved]
        scale = np.where(self.searches_S[rows] == 0, product / np.einsum("sk,sk->s", y, y), 1)
        h = self.inverse_SKK[rows] * scale[:, None, None]
        hy = np.einsum("skl,sl->sk", h, y)
        cross = np.einsum("sk,sl->skl", hy, s)
        again = (1 + np.einsum("sk,sk->s", y, hy) / product) / product
        h -= (cross + cross.transpose(0, 2, 1)) / product[:, None, None]
        self.inverse_SKK[rows] = h + again[:, None, None] * np.einsum("sk,sl->skl", s, s)
