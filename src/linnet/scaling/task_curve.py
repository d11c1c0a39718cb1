"""Accuracy as a sigmoid of the loss, from a floor to all (Bhagia et al., arXiv 2412.04403, section 3.2).

`p = c + (1 - c) sigmoid(a - b (L - L_0) / s)`, `c` chance, or 0 where that is likelier, `L_0` and `s` the mean and
spread of the losses fitted to, `b > 0`: accuracy does not fall as the loss does. What is maximized is the likelihood of
so many right of so many items (binomial); where runs scatter more than items alone would, items count for less
(McCullagh and Nelder, section 4.5).

Legend: `P` points, `R` resamples, `S` starts, `2` unknowns: a and log b.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.scaling.minimize import minimize
from linnet.scaling.task_points import TaskPoints

LEAST_POINTS, LEAST_LOSSES = 4, 3
UNKNOWNS = 2
STARTS_S2 = np.array([[a, np.log(b)] for a in (-3.0, 0.0, 3.0) for b in (0.3, 1.0, 5.0)])
TOLERANCE, OF_RESAMPLES = 1e-12, 1e-8
ALMOST = 1e-9
"""As near as a share comes to none or all: what happened is never impossible."""

CLEARLY = 4.0
"""By so much the log likelihood of one floor is above that of another."""

SURE, TRIES = 0.05, 10_000
"""Runs scatter more than their items where these would as much in fewer than this share of so many tries."""

STEEPEST = 20.0
"""Of log b: beyond, a sigmoid is a step."""


@dataclass(frozen=True)
class TaskCurve:
    """The curve, and curves `[R, 2]` of resamples.

    dispersion: the variance of the runs over that of items alone, 1 where it may be no more; `dispersions_R`: as far as
    so few runs tell it, one for each resample.
    """

    floor: float
    center: float
    spread: float
    x_2: Numbers
    samples_R2: Numbers
    dispersion: float
    dispersions_R: Numbers

    @property
    def half_way(self) -> float:
        """The loss at which accuracy is half-way from the floor to all."""
        return float(self.center + self.spread * self.x_2[0] / np.exp(self.x_2[1]))

    @property
    def steepness(self) -> float:
        """Of the sigmoid, per nat."""
        return float(np.exp(self.x_2[1]) / self.spread)

    def accuracy(self, loss_P: Numbers) -> Numbers:
        """At losses `[P]`."""
        along_P: Numbers = self.of_samples(self.x_2[None], loss_P[None])[0]
        return along_P

    def of_samples(self, x_R2: Numbers, loss_RP: Numbers) -> Numbers:
        """By each of several curves, each at losses of its own `[R, P]`."""
        return _shares(x_R2, (loss_RP - self.center) / self.spread, self.floor)


def _shares(x_S2: Numbers, u_SP: Numbers, floor: float) -> Numbers:
    slope = np.exp(np.minimum(x_S2[:, 1:], STEEPEST))
    shares: Numbers = floor + (1 - floor) * _sigmoid(x_S2[:, :1] - slope * u_SP)
    return shares


def _sigmoid(z: Numbers) -> Numbers:
    small = np.exp(-np.abs(z))
    gates: Numbers = np.where(z >= 0, 1.0, small) / (1 + small)  # never overflows, and keeps the digits of a small one
    return gates


@dataclass(frozen=True)
class Misfit:
    """Minus the log likelihood per item of many starts at once, with its gradient; each start has shares of its own."""

    u_P: Numbers
    items_P: Numbers
    right_SP: Numbers
    floor: float

    def __call__(self, x_S2: Numbers, rows_S: NDArray[np.intp]) -> tuple[Numbers, Numbers]:
        """Values `[S]` and gradients `[S, 2]`."""
        slope_S1 = np.exp(np.minimum(x_S2[:, 1:], STEEPEST))
        z_SP = x_S2[:, :1] - slope_S1 * self.u_P
        log_known_SP = self._log_not_floor - np.logaddexp(0, -z_SP)  # right, and not by the floor
        log_wrong_SP = self._log_not_floor - np.logaddexp(0, z_SP)
        log_share_SP = np.logaddexp(self._log_floor, log_known_SP)
        right_SP, weight_P = self.right_SP[rows_S], self.items_P / self.items_P.sum()
        value_S = -(weight_P * (right_SP * log_share_SP + (1 - right_SP) * log_wrong_SP)).sum(axis=1)
        known_SP = np.exp(log_known_SP - log_share_SP)  # of those that are right
        gate_SP = _sigmoid(z_SP)
        by_z_SP = weight_P * ((1 - right_SP) * gate_SP - right_SP * known_SP * (1 - gate_SP))
        return value_S, np.stack([by_z_SP.sum(axis=1), -(by_z_SP * slope_S1 * self.u_P).sum(axis=1)], axis=1)

    @property
    def _log_floor(self) -> float:
        return math.log(self.floor) if self.floor else -math.inf

    @property
    def _log_not_floor(self) -> float:
        return math.log1p(-self.floor)


def fit_curve(points: TaskPoints, resamples: int, seed: int) -> TaskCurve:
    """The likeliest curve, and those of as many draws from it; `UserError` where the points cannot tell one."""
    losses = len(np.unique(points.ends.loss))
    if len(points) < LEAST_POINTS or losses < LEAST_LOSSES:
        raise UserError(
            f"{len(points)} runs of {losses} different losses are too few for a curve;"
            f" expected at least {LEAST_POINTS} of {LEAST_LOSSES}"
        )
    center, spread = float(points.ends.loss.mean()), float(points.ends.loss.std())
    u_P = (points.ends.loss - center) / spread
    floor, x_2 = _likeliest(points, u_P)
    share_P = _bounded(x_2, u_P, floor)
    random = np.random.default_rng(seed)
    dispersion, dispersions_R = _dispersion(points, share_P, resamples, random)
    counts_RP = effective_items(points.items_P, dispersions_R)
    drawn_RP = random.binomial(counts_RP, share_P) / counts_RP
    again = Misfit(u_P, points.items_P, drawn_RP, floor)
    samples = minimize(again, np.tile(x_2, (resamples, 1)), tolerance=OF_RESAMPLES)
    return TaskCurve(floor, center, spread, x_2, samples.x_SK, dispersion, dispersions_R)


def _likeliest(points: TaskPoints, u_P: Numbers) -> tuple[float, Numbers]:
    """The floor, and the unknowns `[2]`.

    Chance knows the rules; models that have not learned even these, as which symbols can be an answer, are right less
    often, and rise from nothing. The likelihood has to say so clearly, for runs that scatter as these do: between
    floors that fit alike it is chance.
    """
    right_SP = np.tile(points.right_P, (len(STARTS_S2), 1))
    found = {floor: _lowest(Misfit(u_P, points.items_P, right_SP, floor)) for floor in (points.chance, 0.0)}
    (of_chance, x_2), (of_nothing, from_nothing_2) = found[points.chance], found[0.0]
    gained = (of_chance - of_nothing) * float(points.items_P.sum())
    scatter = _pearson(points, _bounded(from_nothing_2, u_P, 0.0)) / (len(points) - UNKNOWNS)
    return (0.0, from_nothing_2) if gained > CLEARLY * max(1.0, scatter) else (points.chance, x_2)


def _lowest(misfit: Misfit) -> tuple[float, Numbers]:
    """The lowest misfit from all starts, and where it lies."""
    minima = minimize(misfit, STARTS_S2, tolerance=TOLERANCE)
    best = int(minima.value_S.argmin())
    return float(minima.value_S[best]), minima.x_SK[best]


def effective_items(items_P: Numbers, dispersions_R: Numbers) -> NDArray[np.int64]:
    """How many independent items would scatter as much as so many of these do, `[R, P]`."""
    counts_RP: NDArray[np.int64] = np.maximum(1, np.rint(items_P / dispersions_R[:, None])).astype(np.int64)
    return counts_RP


def _dispersion(
    points: TaskPoints, share_P: Numbers, resamples: int, random: np.random.Generator
) -> tuple[float, Numbers]:
    """Pearson's, and what it may be by so few runs; both 1 where items alone scatter as much often enough.

    Less than 1 is luck.
    """
    squares, freedom = _pearson(points, share_P), len(points) - UNKNOWNS
    of_items_T = random.chisquare(freedom, TRIES)
    if squares <= np.quantile(of_items_T, 1 - SURE):
        return 1.0, np.ones(resamples)
    return squares / freedom, np.maximum(1.0, squares / random.chisquare(freedom, resamples))


def _pearson(points: TaskPoints, share_P: Numbers) -> float:
    """The squared errors over the variances of items alone, summed."""
    return float((points.items_P * (points.right_P - share_P) ** 2 / (share_P * (1 - share_P))).sum())


def _bounded(x_2: Numbers, u_P: Numbers, floor: float) -> Numbers:
    """The shares by a curve, none of them impossible."""
    shares_P: Numbers = np.clip(_shares(x_2[None], u_P[None], floor)[0], ALMOST, 1 - ALMOST)
    return shares_P
