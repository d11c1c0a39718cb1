"""Mixing laws: the loss on held-out text as a function of the shares of the sources, fitted to small runs.

The law is that of Ye et al. (arXiv 2403.16952): for each target text, loss = floor + exp(sum of slope_j share_j). The
factor in front is part of the slopes, because shares add up to 1. With a floor of 0 it is the log-linear regression
that RegMix (arXiv 2407.01492) compares with; the floor is chosen by leaving out one run at a time.

Legend: `N` runs, `S` sources, `T` target texts, `F` floors that are tried, `M` mixtures.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError

Floats = NDArray[np.float64]

FLOORS_F = np.concatenate([np.linspace(0, 0.9, 46), [0.925, 0.95, 0.97]])
"""Floors that are tried, relative to the lowest loss."""

_RIDGE = 1e-6
_DESCENT_STEPS, _DESCENT_RATE = 1000, 0.5


def fewest_runs(sources: int) -> int:
    """Runs that a law of so many sources needs at least: its unknowns, one for the floor, and two to test it by."""
    return sources + 3


def mixture_design(centre_S: Floats, runs: int, seed: int = 0, concentration: float = 1.0) -> Floats:
    """Shares of the sources in each run, `[N, S]`: the centre first, then draws of a Dirichlet distribution around it.

    concentration: of the distribution, per source; 1 with equal shares as the centre is uniform over all mixtures.
    """
    generator = np.random.default_rng(seed)
    centre_S = centre_S / centre_S.sum()
    drawn_NS = generator.dirichlet(concentration * len(centre_S) * centre_S, runs - 1)
    return np.concatenate([centre_S[None], drawn_NS])


@dataclass(frozen=True)
class MixtureLaw:
    """Floors `[T]` and slopes `[T, S]` of the loss on each target text, in the unit of the losses."""

    floors_T: Floats
    slopes_TS: Floats

    def predict(self, shares_MS: Floats) -> Floats:
        """The losses of mixtures, `[M, T]`."""
        return np.asarray(self.floors_T + np.exp(shares_MS @ self.slopes_TS.T), dtype=np.float64)

    def best_shares(self, weights_T: Floats, lowest_S: Floats | None = None, highest_S: Floats | None = None) -> Floats:
        """The shares `[S]` with the lowest weighted mean of predicted losses, within bounds that are met by projection.

        The mean is convex in the shares, so that the descent (multiplicative steps, from equal shares within the
        bounds) ends at its lowest place.
        """
        size = self.slopes_TS.shape[1]
        lowest_S = np.zeros(size) if lowest_S is None else lowest_S
        highest_S = np.ones(size) if highest_S is None else highest_S
        weights_T = weights_T / weights_T.sum()
        shares_S = _within(np.full(size, 1 / size), lowest_S, highest_S)
        best_S, best = shares_S, np.inf
        for step in range(_DESCENT_STEPS):
            terms_T = weights_T * np.exp(self.slopes_TS @ shares_S)
            if (value := float(terms_T.sum())) < best:
                best_S, best = shares_S, value
            gradient_S = terms_T @ self.slopes_TS
            gradient_S = gradient_S - gradient_S.mean()
            rate = _DESCENT_RATE / (1 + step / 25) / max(float(np.abs(gradient_S).max()), 1e-12)
            moved_S = np.maximum(shares_S, 1e-9) * np.exp(-rate * gradient_S)
            shares_S = _within(moved_S / moved_S.sum(), lowest_S, highest_S)
        return best_S


def _within(shares_S: Floats, lowest_S: Floats, highest_S: Floats) -> Floats:
    """Shares times one factor, cut at their bounds, so that they add up to 1."""
    low, high = 0.0, 1.0
    while np.clip(high * shares_S, lowest_S, highest_S).sum() < 1 and high < 1e12:
        high *= 2
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * shares_S, lowest_S, highest_S).sum() < 1 else (low, middle)
    cut_S = np.clip(high * shares_S, lowest_S, highest_S)
    return np.asarray(cut_S / cut_S.sum(), dtype=np.float64)


def fit_mixture_law(shares_NS: Floats, losses_NT: Floats) -> MixtureLaw:
    """Fit the law to the losses of runs on each target; `UserError` for fewer runs than `fewest_runs`."""
    runs, sources = shares_NS.shape
    if runs < fewest_runs(sources):
        raise UserError(f"{runs} runs; a law of {sources} sources needs at least {fewest_runs(sources)}")
    fitted = [_fit_target(shares_NS, losses_N) for losses_N in losses_NT.T]
    return MixtureLaw(np.array([floor for floor, _ in fitted]), np.stack([slopes_S for _, slopes_S in fitted]))


def _fit_target(shares_NS: Floats, losses_N: Floats) -> tuple[float, Floats]:
    """Floor and slopes of one target. For every floor it is linear regression, whose errors without one run are exact:
    residual / (1 - leverage).
    """
    floors_F = FLOORS_F * losses_N.min()
    logs_NF = np.log(losses_N[:, None] - floors_F)
    solve_SN = np.linalg.solve(shares_NS.T @ shares_NS + _RIDGE * np.eye(shares_NS.shape[1]), shares_NS.T)
    slopes_SF = solve_SN @ logs_NF
    leverages_N = np.minimum(np.diag(shares_NS @ solve_SN), 1 - 1e-6)
    without_NF = logs_NF - (logs_NF - shares_NS @ slopes_SF) / (1 - leverages_N)[:, None]
    errors_F = np.square(floors_F + np.exp(np.minimum(without_NF, 50)) - losses_N[:, None]).sum(0)
    chosen = int(errors_F.argmin())
    return float(floors_F[chosen]), slopes_SF[:, chosen]


def predictions_without(shares_NS: Floats, losses_NT: Floats) -> Floats:
    """What the law predicts for each run, `[N, T]`, if it is fitted to all the others, its floor included."""
    others = ~np.eye(len(shares_NS), dtype=np.bool_)
    rows = []
    for number, kept_N in enumerate(others):
        fitted = [_fit_target(shares_NS[kept_N], losses_N[kept_N]) for losses_N in losses_NT.T]
        law = MixtureLaw(np.array([floor for floor, _ in fitted]), np.stack([slopes_S for _, slopes_S in fitted]))
        rows.append(law.predict(shares_NS[number : number + 1])[0])
    return np.stack(rows)
