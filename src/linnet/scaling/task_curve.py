"""Accuracy as a sigmoid of the loss, from a floor to 1 (Bhagia et al., arXiv 2412.04403, section 3.2).

`p = c + (1 - c) sigmoid(a - b (L - L_0) / s)`, where `c` is chance, or 0 if that is more likely, `L_0` and `s` are the
mean and the standard deviation of the fitted losses, and `b > 0`: accuracy does not fall as the loss does. The fit
maximizes the binomial likelihood of the number of right items. If runs scatter more than items alone would, items count
for less (McCullagh and Nelder, section 4.5).

Legend: `P` points, `R` resamples, `S` starts, `2` unknowns: a and log b.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.scaling.minimize import minimize
from linnet.scaling.runs import Points

MIN_POINTS, MIN_LOSSES = 4, 3
UNKNOWNS = 2
STARTS_S2 = np.array([[a, np.log(b)] for a in (-3.0, 0.0, 3.0) for b in (0.3, 1.0, 5.0)])
TOLERANCE, RESAMPLE_TOLERANCE = 1e-12, 1e-8
MAX_EVALUATIONS = 1000
"""A minimum takes about a hundred; without a right item there is none: the likelihood rises towards 1 without end."""

MIN_DISTANCE = 1e-9
"""Least distance of a share from 0 and 1: an observed result is never impossible."""

MIN_GAIN = 4.0
"""Least difference in log likelihood between two floors."""

SIGNIFICANCE, DRAWS = 0.05, 10_000
"""Runs scatter more than their items if items alone scatter as much in fewer than this share of so many draws."""

MAX_LOG_STEEPNESS = 20.0
"""Of log b; beyond it, a sigmoid is a step."""


@dataclass(frozen=True)
class TaskPoints:
    """The ends of runs, the share of right items of each, and the number of its items, `[P]` each; and chance."""

    ends: Points
    right_P: Numbers
    items_P: Numbers
    chance: float

    def __len__(self) -> int:
        return len(self.right_P)

    def __getitem__(self, chosen: NDArray[np.intp]) -> "TaskPoints":
        return TaskPoints(self.ends[chosen], self.right_P[chosen], self.items_P[chosen], self.chance)


@dataclass(frozen=True)
class TaskCurve:
    """The curve `x_2`, and curves of resamples, `[R, 2]`.

    half_way: the loss at which accuracy is half-way from the floor to 1. steepness: of the sigmoid, per nat.
    dispersion: variance of the runs over that of items alone, 1 if the difference is not significant; dispersions_R:
    drawn values, as so few runs determine it only roughly.
    """

    floor: float
    center: float
    spread: float
    x_2: Numbers
    samples_R2: Numbers
    half_way: float
    steepness: float
    dispersion: float
    dispersions_R: Numbers

    def accuracy(self, loss_P: Numbers) -> Numbers:
        """Return the accuracy at losses `[P]`."""
        accuracy_P: Numbers = self.of_samples(self.x_2[None], loss_P[None])[0]
        return accuracy_P

    def of_samples(self, x_R2: Numbers, loss_RP: Numbers) -> Numbers:
        """Return the accuracies `[R, P]` of several curves, each at losses of its own."""
        return _shares(x_R2, (loss_RP - self.center) / self.spread, self.floor)


def _shares(x_S2: Numbers, u_SP: Numbers, floor: float) -> Numbers:
    slope = np.exp(np.minimum(x_S2[:, 1:], MAX_LOG_STEEPNESS))
    shares: Numbers = floor + (1 - floor) * _sigmoid(x_S2[:, :1] - slope * u_SP)
    return shares


def _sigmoid(z: Numbers) -> Numbers:
    small = np.exp(-np.abs(z))
    gates: Numbers = np.where(z >= 0, 1.0, small) / (1 + small)  # never overflows, and keeps the digits of a small one
    return gates


@dataclass(frozen=True)
class NegativeLogLikelihood:
    """Negative log likelihood per item of many starts at once, with its gradient; each start has its own shares."""

    u_P: Numbers
    items_P: Numbers
    right_SP: Numbers
    floor: float

    def __call__(self, x_S2: Numbers, rows_S: NDArray[np.intp]) -> tuple[Numbers, Numbers]:
        """Return values `[S]` and gradients `[S, 2]`; rows_S: the rows of `right_SP` for these starts."""
        log_floor = math.log(self.floor) if self.floor else -math.inf
        log_rest = math.log1p(-self.floor)
        slope_S1 = np.exp(np.minimum(x_S2[:, 1:], MAX_LOG_STEEPNESS))
        z_SP = x_S2[:, :1] - slope_S1 * self.u_P
        log_known_SP = log_rest - np.logaddexp(0, -z_SP)  # right, and not because of the floor
        log_wrong_SP = log_rest - np.logaddexp(0, z_SP)
        log_share_SP = np.logaddexp(log_floor, log_known_SP)
        right_SP, weight_P = self.right_SP[rows_S], self.items_P / self.items_P.sum()
        value_S = -(weight_P * (right_SP * log_share_SP + (1 - right_SP) * log_wrong_SP)).sum(axis=1)
        known_SP = np.exp(log_known_SP - log_share_SP)  # as a share of the right ones
        gate_SP = _sigmoid(z_SP)
        by_z_SP = weight_P * ((1 - right_SP) * gate_SP - right_SP * known_SP * (1 - gate_SP))
        return value_S, np.stack([by_z_SP.sum(axis=1), -(by_z_SP * slope_S1 * self.u_P).sum(axis=1)], axis=1)


def fit_curve(points: TaskPoints, resamples: int, seed: int) -> TaskCurve:
    """Return the most likely curve, and curves fitted to draws from it; `UserError` if the points do not allow one."""
    losses = len(np.unique(points.ends.loss))
    if len(points) < MIN_POINTS or losses < MIN_LOSSES:
        raise UserError(
            f"{len(points)} runs of {losses} different losses are too few for a curve;"
            f" expected at least {MIN_POINTS} of {MIN_LOSSES}"
        )
    center, spread = float(points.ends.loss.mean()), float(points.ends.loss.std())
    u_P = (points.ends.loss - center) / spread
    floor, x_2 = _most_likely(points, u_P)
    share_P = _possible_shares(x_2, u_P, floor)

    # Pearson's dispersion; values below 1 are chance.
    random = np.random.default_rng(seed)
    squares, freedom = _chi_squared(points, share_P), len(points) - UNKNOWNS
    of_items_T = random.chisquare(freedom, DRAWS)
    if squares <= np.quantile(of_items_T, 1 - SIGNIFICANCE):
        dispersion, dispersions_R = 1.0, np.ones(resamples)
    else:
        dispersion = squares / freedom
        dispersions_R = np.maximum(1.0, squares / random.chisquare(freedom, resamples))

    counts_RP = effective_items(points.items_P, dispersions_R)
    drawn_RP, start_2 = random.binomial(counts_RP, share_P) / counts_RP, x_2
    if np.isin(points.right_P, (0, 1)).all():
        # The most likely curve would draw every run as it is. Shares are drawn from the distributions whose quantiles
        # bound Clopper and Pearson's interval: the curves then differ, most where they are far from the runs.
        start_2 = np.zeros(UNKNOWNS)  # the most likely curve is so flat or steep that it has no gradient
        drawn_RP = np.where(points.right_P == 0, random.beta(1, counts_RP), random.beta(counts_RP, 1))
    resampled = NegativeLogLikelihood(u_P, points.items_P, drawn_RP, floor)
    samples = minimize(resampled, np.tile(start_2, (resamples, 1)), MAX_EVALUATIONS, RESAMPLE_TOLERANCE)
    slope = np.exp(x_2[1])
    half_way, steepness = float(center + spread * x_2[0] / slope), float(slope / spread)
    return TaskCurve(floor, center, spread, x_2, samples.x_SK, half_way, steepness, dispersion, dispersions_R)


def _most_likely(points: TaskPoints, u_P: Numbers) -> tuple[float, Numbers]:
    """Return the floor and the unknowns `[2]`.

    Chance assumes that a model knows the rules. Models that have not learned even these, such as which symbols can be
    an answer, are right less often, and rise from 0. That floor is chosen only if the likelihood is clearly higher,
    given how much these runs scatter.
    """
    right_SP = np.tile(points.right_P, (len(STARTS_S2), 1))
    found = {}
    for floor in (points.chance, 0.0):
        objective = NegativeLogLikelihood(u_P, points.items_P, right_SP, floor)
        minima = minimize(objective, STARTS_S2, MAX_EVALUATIONS, TOLERANCE)
        best = int(minima.value_S.argmin())
        found[floor] = float(minima.value_S[best]), minima.x_SK[best]
    (at_chance, x_2), (at_zero, from_zero_2) = found[points.chance], found[0.0]
    gain = (at_chance - at_zero) * float(points.items_P.sum())
    scatter = _chi_squared(points, _possible_shares(from_zero_2, u_P, 0.0)) / (len(points) - UNKNOWNS)
    return (0.0, from_zero_2) if gain > MIN_GAIN * max(1.0, scatter) else (points.chance, x_2)


def effective_items(items_P: Numbers, dispersions_R: Numbers) -> NDArray[np.int64]:
    """Return how many independent items would scatter as much as these items do, `[R, P]`."""
    counts_RP: NDArray[np.int64] = np.maximum(1, np.rint(items_P / dispersions_R[:, None])).astype(np.int64)
    return counts_RP


def _chi_squared(points: TaskPoints, share_P: Numbers) -> float:
    """Return the sum of squared errors over the variances of items alone (Pearson)."""
    return float((points.items_P * (points.right_P - share_P) ** 2 / (share_P * (1 - share_P))).sum())


def _possible_shares(x_2: Numbers, u_P: Numbers, floor: float) -> Numbers:
    shares_P: Numbers = np.clip(_shares(x_2[None], u_P[None], floor)[0], MIN_DISTANCE, 1 - MIN_DISTANCE)
    return shares_P
