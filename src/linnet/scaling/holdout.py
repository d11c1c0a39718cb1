"""Is scaling predictable? A law fitted to the smaller runs, held against the larger ones.

Legend: `P` points held out, `R` resamples.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.scaling.law import Law
from linnet.scaling.parametric import LEAST_POINTS
from linnet.scaling.points import Points

LEAST_SHARE = 1e-6
"""Of the runs, to hold out or to fit, for which it is said how many it takes."""


@dataclass(frozen=True)
class HeldOutPrediction:
    """`held` runs by ascending FLOPs, the loss predicted for each, and the interval that the bootstrap gives it.

    `best_known`: the lowest loss of the runs that the law was fitted to, the prediction of who expects no progress.
    """

    held: Points
    predicted_P: Numbers
    low_P: Numbers
    high_P: Numbers
    best_known: float
    flops_known: float

    @property
    def errors(self) -> Numbers:
        """Predicted minus measured, as shares of the measured loss, `[P]`."""
        shares: Numbers = self.predicted_P / self.held.loss - 1
        return shares

    @property
    def rms_error(self) -> float:
        """Root of the mean square of the errors."""
        return _rms(self.errors)

    @property
    def rms_error_of_best_known(self) -> float:
        """The same of who expects no progress."""
        return _rms(self.best_known / self.held.loss - 1)

    @property
    def inside(self) -> int:
        """How many measured losses lie in their intervals."""
        return int(((self.low_P <= self.held.loss) & (self.held.loss <= self.high_P)).sum())

    def figures(self) -> dict[str, Any]:
        """Ready for JSON."""
        columns = {
            "parameters": self.held.parameters, "tokens": self.held.tokens, "training_flops": self.held.flops,
            "loss": self.held.loss, "predicted": self.predicted_P, "low": self.low_P, "high": self.high_P,
        }  # fmt: skip
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        return {
            "runs_held_out": len(self.held),
            "largest_training_flops_fitted": self.flops_known,
            "rms_error": self.rms_error,
            "mean_error": float(self.errors.mean()),
            "largest_error": float(np.abs(self.errors).max()),
            "inside_interval": self.inside,
            "rms_error_of_best_known": self.rms_error_of_best_known,
            "runs": [dict(zip(columns, row, strict=True)) for row in rows],
        }


def split_by_flops(points: Points, share: float, least: int = LEAST_POINTS) -> tuple[Points, Points]:
    """The points but the `share` of them with the most training FLOPs, and those; both by ascending FLOPs.

    least: how many have to be left to fit. `UserError` where they are not, or none is held out.
    """
    if not 0 < share < 1:
        raise UserError(field="hold_out", value=share, accepted="a share between 0 and 1, as in 0.5")
    order = np.argsort(points.flops, kind="stable")
    held = round(share * len(order))
    if not _divides(len(order), share, least):
        raise UserError(
            f"of {len(order)} runs {len(order) - held} are left to fit and {held} to predict, at least {least}"
            " and 1 are needed",
            field="hold_out",
            value=share,
            accepted=_accepted(len(order), share, least),
        )
    return points[order[: len(order) - held]], points[order[len(order) - held :]]


def fewest_runs(share: float, least: int = LEAST_POINTS) -> int | None:
    """How many runs it takes to hold out this share and to fit a law to the others; None where millions are too few."""
    if not LEAST_SHARE <= share <= 1 - LEAST_SHARE:
        return None
    begin = max(least + 1, math.floor(0.5 / share), math.floor((least - 0.5) / (1 - share)))
    return next(count for count in itertools.count(begin) if _divides(count, share, least))


def _divides(runs: int, share: float, least: int) -> bool:
    """Whether there is a run to predict, and enough of the others to fit a law to."""
    held = round(share * runs)
    return held > 0 and runs - held >= least


def _accepted(runs: int, share: float, least: int) -> str:
    """What would be accepted instead: more runs for this share, or another share of these runs."""
    fewest = fewest_runs(share, least)
    ways = [] if fewest is None else [f"at least {fewest:,} runs"]
    if runs > least:
        ways.append(f"a share from {1 / runs:.3g} to {(runs - least) / runs:.3g}")
    return " or ".join(ways) or f"at least {least + 1} runs"


def predict(law: Law, samples_R5: Numbers, fitted: Points, held: Points, coverage: float) -> HeldOutPrediction:
    """What the law says of the runs that it was not fitted to; `samples_R5` are constants of resamples."""
    low_P, high_P = np.quantile(sampled_losses(samples_R5, held), [(1 - coverage) / 2, (1 + coverage) / 2], axis=0)
    predicted_P = law.loss(held.parameters, held.tokens)
    return HeldOutPrediction(held, predicted_P, low_P, high_P, float(fitted.loss.min()), float(fitted.flops.max()))


def sampled_losses(samples_R5: Numbers, points: Points) -> Numbers:
    """What laws with these constants say of the points, `[R, P]`."""
    e, a, b, alpha, beta = (column[:, None] for column in samples_R5.T)
    with np.errstate(divide="ignore"):  # of a resample both may be huge, or nothing
        of_size_RP = np.exp(np.log(a) - alpha * np.log(points.parameters))
        of_text_RP = np.exp(np.log(b) - beta * np.log(points.tokens))
    losses_RP: Numbers = e + of_size_RP + of_text_RP
    return losses_RP


def _rms(errors: Numbers) -> float:
    return float(np.sqrt(np.mean(errors**2)))
