"""Approach 3: `L = E + A / N^alpha + B / D^beta` fitted to the ends of all runs (Hoffmann et al., section 3.3).

The objective is the sum over the points of Huber losses of the log loss:
`sum_i w_i Huber_delta( LSE(a - alpha log N_i, b - beta log D_i, e) - log L_i )`, `A = exp a`, `B = exp b`, `E = exp e`.
With the mean instead of the sum, every tolerance of an optimizer is looser by the number of points, and it stops too
early (Besiroglu et al., arXiv 2404.10102). All starts of the paper's grid are minimized at once to a low tolerance, and
the lowest of them to a tight one.

Legend: `S` starts, `P` points, `R` resamples, `5` unknowns: a, b, e, alpha, beta.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.scaling.candidate import Counting
from linnet.scaling.law import ParametricLaw
from linnet.scaling.minimize import minimize
from linnet.scaling.runs import Points

CONSTANTS = ("E", "A", "B", "alpha", "beta")

DELTA = 1e-3
"""Hoffmann et al., appendix D.3."""

ROWS_AT_ONCE = 64
"""Starts whose `[S, P]` arrays fit in the processor's cache together."""

MIN_POINTS, MIN_DISTINCT = 6, 3
"""There are five unknowns, and three of them lie along each of the two directions."""

COARSE, TIGHT = 1e-7, 1e-14
FINISHED_STARTS = 50
SAME = 1e-6
"""Two minima are the same if their values differ by less than this share."""

BOOTSTRAP_STARTS = 5

TINY, HUGE = 1e-6, 1e300
"""A constant beyond these has no meaning: its term is the same for all points, or 0."""

Advance = Callable[[int], None]
"""Called with the number of starts that have just converged."""


def huber_sum_reference(x_5: Numbers, points: Points, delta: float = DELTA) -> float:
    """Return the objective as it is written, point by point."""
    a, b, e, alpha, beta = (float(value) for value in x_5)
    total = 0.0
    for parameters, tokens, loss in zip(points.parameters, points.tokens, points.loss, strict=True):
        of_size, of_text = a - alpha * math.log(parameters), b - beta * math.log(tokens)
        distance = abs(math.log(math.exp(of_size) + math.exp(of_text) + math.exp(e)) - math.log(loss))
        total += distance**2 / 2 if distance <= delta else delta * (distance - delta / 2)
    return total


@dataclass(frozen=True)
class HuberSum:
    """The objective of many starts at once, with its gradient, over centered logarithms.

    With `u = log N - mean` the unknown a becomes `a - alpha mean`, so that the two are nearly independent. `center` and
    `uncenter` convert the unknowns. weights_SP: how often each start counts each point; None for once.
    """

    u_P: Numbers
    v_P: Numbers
    log_loss_P: Numbers
    means: tuple[float, float]
    delta: float = DELTA
    weights_SP: Numbers | None = None

    @classmethod
    def of(cls, points: Points, delta: float = DELTA, weights_SP: Numbers | None = None) -> Self:
        """Return the objective of these points."""
        log_parameters_P, log_tokens_P = np.log(points.parameters), np.log(points.tokens)
        means = float(log_parameters_P.mean()), float(log_tokens_P.mean())
        return cls(log_parameters_P - means[0], log_tokens_P - means[1], np.log(points.loss), means, delta, weights_SP)

    def center(self, x_S5: Numbers) -> Numbers:
        """Return the unknowns of this objective for a, b, e, alpha, beta."""
        centered_S5 = x_S5.copy()
        centered_S5[:, :2] -= x_S5[:, 3:] * np.array(self.means)
        return centered_S5

    def uncenter(self, x_S5: Numbers) -> Numbers:
        """Return a, b, e, alpha, beta for the unknowns of this objective."""
        uncentered_S5 = x_S5.copy()
        uncentered_S5[:, :2] += x_S5[:, 3:] * np.array(self.means)
        return uncentered_S5

    def __call__(self, x_S5: Numbers, rows_S: NDArray[np.intp]) -> tuple[Numbers, Numbers]:
        """Return values `[S]` and gradients `[S, 5]`; rows_S: the rows of `weights_SP` for these starts."""
        value_S, gradient_S5 = np.empty(len(x_S5)), np.empty_like(x_S5)
        for begin in range(0, len(x_S5), ROWS_AT_ONCE):
            part = slice(begin, begin + ROWS_AT_ONCE)
            a, b, e, alpha, beta = (column[:, None] for column in x_S5[part].T)
            of_size_SP, of_text_SP = a - alpha * self.u_P, b - beta * self.v_P
            top_SP = np.maximum(np.maximum(of_size_SP, of_text_SP), e)
            size_SP, text_SP, rest_SP = (np.exp(term - top_SP) for term in (of_size_SP, of_text_SP, e))
            sum_SP = size_SP + text_SP + rest_SP
            residual_SP = np.log(sum_SP) + top_SP - self.log_loss_P
            clipped_SP = np.clip(residual_SP, -self.delta, self.delta)  # Huber's derivative
            weighted_SP = clipped_SP if self.weights_SP is None else clipped_SP * self.weights_SP[rows_S[part]]
            value_S[part] = np.einsum("sp,sp->s", weighted_SP, residual_SP - clipped_SP / 2)
            share_SP = weighted_SP / sum_SP
            by_size_SP, by_text_SP, by_rest_SP = (share_SP * term for term in (size_SP, text_SP, rest_SP))
            gradient = (
                by_size_SP.sum(1), by_text_SP.sum(1), by_rest_SP.sum(1), -by_size_SP @ self.u_P, -by_text_SP @ self.v_P,
            )  # fmt: skip
            gradient_S5[part] = np.stack(gradient, axis=1)
        return value_S, gradient_S5


@dataclass(frozen=True)
class Fitted:
    """The lowest of all minima `x_5`, its value, how many `starts` reached it, and the lowest of the other minima."""

    x_5: Numbers
    objective: float
    starts: int
    reached: int
    others_S5: Numbers

    def law(self, name: str, counted: Counting) -> ParametricLaw:
        """Return the law; `UserError` if its loss does not fall with size and tokens."""
        values = dict(zip(CONSTANTS, map(float, constants(self.x_5[None])[0]), strict=True))
        wrong = next((key for key, value in values.items() if key != "E" and not TINY < value < HUGE), None)
        if wrong is not None:
            raise UserError(
                f"the fit has {wrong} = {values[wrong]:.3g}: the runs do not show how the loss falls with"
                f" {'tokens' if wrong in ('B', 'beta') else 'parameters'}; expected a wider range of them"
            )
        return ParametricLaw(name=name, counted=counted, objective=self.objective, **values)


def grid() -> Numbers:
    """Return the paper's 4,500 starts `[S, 5]`.

    a and b go from 0 to 25 by 5, e from -1 to 1 by 0.5, alpha and beta from 0 to 2 by 0.5.
    """
    scales, rests, exponents = np.arange(0, 26, 5.0), np.arange(-1, 1.1, 0.5), np.arange(0, 2.1, 0.5)
    return np.array(list(itertools.product(scales, scales, rests, exponents, exponents)))


def check_points(points: Points) -> None:
    """Raise `UserError` if the points cannot determine the five unknowns."""
    if len(points) < MIN_POINTS:
        raise UserError(f"{len(points)} runs are too few for a law's five unknowns; expected at least {MIN_POINTS}")
    for name, values in (("sizes", points.parameters), ("numbers of tokens", points.tokens)):
        if len(np.unique(values)) < MIN_DISTINCT:
            raise UserError(
                f"the runs have {len(np.unique(values))} different {name}; expected at least {MIN_DISTINCT}"
            )


def fit(
    points: Points, delta: float = DELTA, starts_S5: Numbers | None = None, advance: Advance = lambda count: None
) -> Fitted:
    """Return the global optimum over the starts (None: the paper's grid)."""
    check_points(points)
    objective = HuberSum.of(points, delta)
    starts_S5 = grid() if starts_S5 is None else starts_S5
    coarse = minimize(objective, objective.center(starts_S5), tolerance=COARSE, advance=advance)
    order = np.argsort(coarse.value_S, kind="stable")
    fine = minimize(objective, coarse.x_SK[order[:FINISHED_STARTS]], tolerance=TIGHT)
    best = int(np.argsort(fine.value_S, kind="stable")[0])
    lowest = fine.value_S[best]

    # The lowest points of the other minima, one for each value, ascending.
    others: list[int] = []
    last = lowest
    for index in order:
        if coarse.value_S[index] > last * (1 + 10 * SAME) and len(others) < BOOTSTRAP_STARTS:
            others.append(int(index))
            last = coarse.value_S[index]
    return Fitted(
        x_5=objective.uncenter(fine.x_SK[[best]])[0],
        objective=float(lowest),
        starts=len(starts_S5),
        reached=int((coarse.value_S <= lowest * (1 + 10 * SAME)).sum()),
        others_S5=objective.uncenter(coarse.x_SK[others]),
    )


def bootstrap(
    points: Points,
    fitted: Fitted,
    resamples: int,
    seed: int,
    delta: float = DELTA,
    advance: Advance = lambda count: None,
) -> Numbers:
    """Return the constants `[R, 5]` (E, A, B, alpha, beta) of fits to as many points drawn with replacement.

    Each starts at the optimum of all points and at the lowest other minima, which are close to those of a resample.
    """
    random = np.random.default_rng(seed)
    weights_RP = random.multinomial(len(points), np.full(len(points), 1 / len(points)), size=resamples).astype(float)
    starts_S5 = np.concatenate((fitted.x_5[None], fitted.others_S5[: BOOTSTRAP_STARTS - 1]))
    each = len(starts_S5)
    objective = HuberSum.of(points, delta, np.repeat(weights_RP, each, axis=0))
    tiled_S5 = objective.center(np.tile(starts_S5, (resamples, 1)))
    minima = minimize(objective, tiled_S5, tolerance=COARSE, advance=advance)
    best_R = minima.value_S.reshape(resamples, each).argmin(axis=1) + np.arange(resamples) * each
    return constants(objective.uncenter(minima.x_SK[best_R]))


def constants(x_S5: Numbers) -> Numbers:
    """Return E, A, B, alpha, beta for a, b, e, alpha, beta; those that would overflow are `HUGE`."""
    a, b, e, alpha, beta = x_S5.T
    scales = (np.exp(np.minimum(log, np.log(HUGE))) for log in (e, a, b))
    return np.stack((*scales, alpha, beta), axis=1)
