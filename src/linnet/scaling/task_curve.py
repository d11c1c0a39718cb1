"""Accuracy as a sigmoid of the loss, from chance to all (Bhagia et al., arXiv 2412.04403, section 3.2).

`p = c + (1 - c) sigmoid(a - b (L - L_0) / s)`, `c` chance, `L_0` and `s` the mean and spread of the losses fitted to,
`b > 0`: accuracy does not fall as the loss does. What is maximised is the likelihood of so many right of so many items
(binomial); where runs scatter more than items alone would, items count for less (McCullagh and Nelder, section 4.5).

Legend: `P` points, `R` resamples, `S` starts, `2` unknowns: a and log b.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.scaling.minimise import minimise
from linnet.scaling.task_points import TaskPoints

LEAST_POINTS, LEAST_LOSSES = 4, 3
UNKNOWNS = 2
STARTS_S2 = np.array([[a, np.log(b)] for a in (-3.0, 0.0, 3.0) for b in (0.3, 1.0, 5.0)])
TOLERANCE, OF_RESAMPLES = 1e-12, 1e-8
ALMOST = 1e-9
"""As near as a share comes to none or all: what happened is never impossible."""

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

    chance: float
    centre: float
    spread: float
    x_2: Numbers
    samples_R2: Numbers
    dispersion: float
    dispersions_R: Numbers

    @property
    def half_way(self) -> float:
        """The loss at which accuracy is half-way from chance to all."""
        return float(self.centre + self.spread * self.x_2[0] / np.exp(self.x_2[1]))

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
        return _shares(x_R2, (loss_RP - self.centre) / self.spread, self.chance)


def _shares(x_S2: Numbers, u_SP: Numbers, chance: float) -> Numbers:
    slope = np.exp(np.minimum(x_S2[:, 1:], STEEPEST))
    shares: Numbers = chance + (1 - chance) * _sigmoid(x_S2[:, :1] - slope * u_SP)
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
    chance: float

    def __call__(self, x_S2: Numbers, rows_S: NDArray[np.intp]) -> tuple[Numbers, Numbers]:
        """Values `[S]` and gradients `[S, 2]`."""
        slope_S1 = np.exp(np.minimum(x_S2[:, 1:], STEEPEST))
        z_SP = x_S2[:, :1] - slope_S1 * self.u_P
        log_known_SP = self._log_not_chance - np.logaddexp(0, -z_SP)  # right, and not by chance
        log_wrong_SP = self._log_not_chance - np.logaddexp(0, z_SP)
        log_share_SP = np.logaddexp(self._log_chance, log_known_SP)
        right_SP, weight_P = self.right_SP[rows_S], self.items_P / self.items_P.sum()
        value_S = -(weight_P * (right_SP * log_share_SP + (1 - right_SP) * log_wrong_SP)).sum(axis=1)
        known_SP = np.exp(log_known_SP - log_share_SP)  # of those that are right
        gate_SP = _sigmoid(z_SP)
        by_z_SP = weight_P * ((1 - right_SP) * gate_SP - right_SP * known_SP * (1 - gate_SP))
        return value_S, np.stack([by_z_SP.sum(axis=1), -(by_z_SP * slope_S1 * self.u_P).sum(axis=1)], axis=1)

    @property
    def _log_chance(self) -> float:
        return math.log(self.chance) if self.chance else -math.inf

    @property
    def _log_not_chance(self) -> float:
        return math.log1p(-self.chance)


def fit_curve(points: TaskPoints, resamples: int, seed: int) -> TaskCurve:
    """The likeliest curve, and those of as many draws from it; `UserError` where the points cannot tell one."""
    losses = len(np.unique(points.ends.loss))
    if len(points) < LEAST_POINTS or losses < LEAST_LOSSES:
        raise UserError(
            f"{len(points)} runs of {losses} different losses are too few for a curve;"
            f" expected at least {LEAST_POINTS} of {LEAST_LOSSES}"
        )
    centre, spread = float(points.ends.loss.mean()), float(points.ends.loss.std())
    u_P = (points.ends.loss - centre) / spread
    whole = Misfit(u_P, points.items_P, np.tile(points.right_P, (len(STARTS_S2), 1)), points.chance)
    starts = minimise(whole, STARTS_S2, tolerance=TOLERANCE)
    x_2 = starts.x_SK[starts.value_S.argmin()]
    share_P = np.clip(_shares(x_2[None], u_P[None], points.chance)[0], ALMOST, 1 - ALMOST)
    random = np.random.default_rng(seed)
    dispersion, dispersions_R = _dispersion(points, share_P, resamples, random)
    counts_RP = effective_items(points.items_P, dispersions_R)
    drawn_RP = random.binomial(counts_RP, share_P) / counts_RP
    again = Misfit(u_P, points.items_P, drawn_RP, points.chance)
    samples = minimise(again, np.tile(x_2, (resamples, 1)), tolerance=OF_RESAMPLES)
    return TaskCurve(points.chance, centre, spread, x_2, samples.x_SK, dispersion, dispersions_R)


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
    squares = float((points.items_P * (points.right_P - share_P) ** 2 / (share_P * (1 - share_P))).sum())
    freedom = len(points) - UNKNOWNS
    of_items_T = random.chisquare(freedom, TRIES)
    if squares <= np.quantile(of_items_T, 1 - SURE):
        return 1.0, np.ones(resamples)
    return squares / freedom, np.maximum(1.0, squares / random.chisquare(freedom, resamples))
