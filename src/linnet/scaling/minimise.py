"""Many minimisations of one small function at once: BFGS from many starts, in step.

With five unknowns the whole inverse Hessian is kept, so this is L-BFGS with unlimited memory. The line search halves
and doubles until the weak Wolfe conditions hold, which also suits a function with kinks (Lewis and Overton,
Mathematical Programming 141, 2013, algorithm 2.6): a Huber loss with a small delta is nearly one.

Legend: `S` starts, `K` unknowns.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
Function = Callable[[Array, Rows], tuple[Array, Array]]
"""Points `[S, K]` and the numbers of their starts `[S]` to values `[S]` and gradients `[S, K]`."""

ENOUGH_DECREASE, ENOUGH_CURVATURE = 1e-4, 0.9
MOST_TRIALS = 25
PATIENCE = 10
"""A start is done when so many iterations together have lowered its value by less than the tolerance."""


@dataclass
class Minima:
    """Where each start has come to: points `[S, K]`, values `[S]`, and whether it came to rest `[S]`."""

    x_SK: Array
    value_S: Array
    rested_S: NDArray[np.bool_]


def minimise(
    function: Function,
    start_SK: Array,
    iterations: int = 2000,
    tolerance: float = 1e-9,
    rested: Callable[[int], None] = lambda count: None,
) -> Minima:
    """Minimise from every start. `tolerance` is relative to the value; `rested` hears how many more came to rest.

    A start whose value is not finite rests where it is.
    """
    x, rows = start_SK.copy(), np.arange(len(start_SK))
    value, gradient = function(x, rows)
    inverse = np.tile(np.eye(x.shape[1]), (len(x), 1, 1))
    earlier = np.full((PATIENCE, len(x)), np.inf)
    active = np.flatnonzero(np.isfinite(value))
    for iteration in range(iterations):
        if not len(active):
            break
        step = _directions(inverse, gradient, active, first=iteration == 0)
        new_x, new_value, new_gradient = _line_search(function, x, value, gradient, step, active)
        _update(inverse, active, new_x - x[active], new_gradient - gradient[active], first=iteration == 0)
        x[active], value[active], gradient[active] = new_x, new_value, new_gradient
        oldest = earlier[iteration % PATIENCE, active].copy()
        earlier[iteration % PATIENCE, active] = new_value
        going = oldest - new_value > tolerance * np.abs(new_value)
        rested(len(active) - int(going.sum()))
        active = active[going]
    at_rest = np.ones(len(x), dtype=bool)
    at_rest[active] = False
    return Minima(x, value, at_rest)


def _directions(inverse: Array, gradient: Array, active: Rows, first: bool) -> Array:
    """Where each active start goes; downhill, whatever rounding has made of its matrix."""
    step: Array = -np.einsum("skl,sl->sk", inverse[active], gradient[active])
    uphill = np.einsum("sk,sk->s", step, gradient[active]) >= 0
    if uphill.any():
        inverse[active[uphill]] = np.eye(step.shape[1])
        step[uphill] = -gradient[active[uphill]]
    if first:
        step /= np.linalg.norm(step, axis=1, keepdims=True) + np.finfo(float).tiny
    return step


def _line_search(
    function: Function, x: Array, value: Array, gradient: Array, step: Array, active: Rows
) -> tuple[Array, Array, Array]:
    """A point along each step with enough decrease and curvature; the start itself where none is found."""
    slope = np.einsum("sk,sk->s", step, gradient[active])
    low, high, length = np.zeros(len(active)), np.full(len(active), np.inf), np.ones(len(active))
    best_x, best_value, best_gradient = x[active].copy(), value[active].copy(), gradient[active].copy()
    trying = np.arange(len(active))
    for _ in range(MOST_TRIALS):
        tried_x = x[active[trying]] + length[trying, None] * step[trying]
        tried_value, tried_gradient = function(tried_x, active[trying])
        limit = value[active[trying]] + ENOUGH_DECREASE * length[trying] * slope[trying]
        lower = tried_value <= limit  # False for NaN as well
        flat = np.einsum("sk,sk->s", tried_gradient, step[trying]) >= ENOUGH_CURVATURE * slope[trying]
        better = trying[lower]
        best_x[better], best_value[better] = tried_x[lower], tried_value[lower]
        best_gradient[better] = tried_gradient[lower]
        high[trying[~lower]] = length[trying[~lower]]
        low[better] = length[better]
        trying = trying[~(lower & flat)]
        if not len(trying):
            break
        bounded = np.isfinite(high[trying])
        length[trying] = np.where(bounded, (low[trying] + high[trying]) / 2, 2 * low[trying])
    return best_x, best_value, best_gradient


def _update(inverse: Array, active: Rows, moved: Array, turned: Array, first: bool) -> None:
    """BFGS: the inverse Hessians learn from a move and the turn of the gradient over it (Nocedal and Wright, 6.17)."""
    product = np.einsum("sk,sk->s", moved, turned)
    curved = product > np.finfo(float).tiny
    rows, s, y, rho = active[curved], moved[curved], turned[curved], 1 / product[curved]
    if first:
        inverse[rows] *= (product[curved] / np.einsum("sk,sk->s", y, y))[:, None, None]
    h = inverse[rows]
    hy = np.einsum("skl,sl->sk", h, y)
    yhy = np.einsum("sk,sk->s", y, hy)
    cross = np.einsum("sk,sl->skl", hy, s)
    h = h - rho[:, None, None] * (cross + cross.transpose(0, 2, 1))
    h += (rho * (1 + rho * yhy))[:, None, None] * np.einsum("sk,sl->skl", s, s)
    inverse[rows] = h
