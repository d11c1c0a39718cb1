"""Whether a fitted law can be trusted: whether the runs determine it, and how well it predicts larger runs.

A fit always returns some constants. Four rules show whether others would have fitted as well: enough runs, over a wide
enough range, exponents on which resampled runs agree, and an `E` that differs from 0.

Legend: `P` held-out points, `R` resamples.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.present import numbers
from linnet.scaling.law import Law
from linnet.scaling.parametric import MIN_POINTS
from linnet.scaling.runs import Points

Interval = tuple[float, float]

RELIABLE_RUNS = 10
"""Two for each of the five unknowns: a curve passes through fewer whether the law holds or not."""

RELIABLE_RANGE = 10.0
"""Of sizes, and of tokens, largest to smallest. With an exponent of 0.3 a term halves over it; over a smaller range it
can hardly be told from a constant."""

MAX_SPREAD = 2.0
"""Between the ends of an exponent's interval: at twice the exponent a term falls by the square of its factor. On the
240 points of Hoffmann et al.'s figure 4 it is 1.3."""

MIN_CONSTANT = 0.01
"""Share of the lowest loss; if the interval of E begins below it, E may as well be 0."""

MIN_SHARE = 1e-6
"""For a smaller share of runs, to hold out or to fit, the number of runs that it would take is not computed."""


def law_warnings(points: Points, intervals: Mapping[str, Interval], coverage: float) -> list[str]:
    """Return the reasons to doubt a law fitted to these points, with intervals of this coverage; empty if none."""
    found = []
    if len(points) < RELIABLE_RUNS:
        found.append(
            f"{len(points)} runs for five unknowns: they can be matched whether the law holds or not; expected at least"
            f" {RELIABLE_RUNS}"
        )
    for name, values in (("sizes", points.parameters), ("numbers of tokens", points.tokens)):
        low, high = float(values.min()), float(values.max())
        if high < RELIABLE_RANGE * low:
            factor = f"{math.floor(10 * high / low) / 10:g}"  # rounded down: 9.99 is not the 10 that is expected
            found.append(
                f"{name} from {numbers.metric(low)} to {numbers.metric(high)}, a factor of {factor}: too narrow to tell"
                f" a power from a constant; expected a factor of at least {RELIABLE_RANGE:g}"
            )
    for name, variable in (("alpha", "parameters"), ("beta", "tokens")):
        low, high = intervals[name]
        if not high <= MAX_SPREAD * low:
            found.append(
                f"{name} is not determined: its {coverage:.0%} interval is {low:.2g} to {high:.2g}, a factor of more"
                f" than {MAX_SPREAD:g}; how the loss falls with {variable} beyond these runs is a guess"
            )
    lowest = float(points.loss.min())
    if intervals["E"][0] < MIN_CONSTANT * lowest:
        found.append(
            f"E is not determined: it may be 0 (its {coverage:.0%} interval begins below {MIN_CONSTANT:.0%} of the"
            f" lowest loss, {lowest:.3g}); what unlimited size and text would bring is a guess"
        )
    return found


@dataclass(frozen=True)
class HeldOutPrediction:
    """Runs that a law was not fitted to, by ascending FLOPs, and its predictions of their losses.

    low_P, high_P: bootstrap intervals. flops_fitted: the most FLOPs of a fitted run. errors_P: predicted minus measured
    loss, relative to the measured loss; rms_error: the root of their mean square. rms_error_of_no_progress: the same if
    the lowest fitted loss is the prediction for all. inside: number of measured losses in their intervals.
    """

    held: Points
    predicted_P: Numbers
    low_P: Numbers
    high_P: Numbers
    flops_fitted: float
    errors_P: Numbers
    rms_error: float
    rms_error_of_no_progress: float
    inside: int

    def to_dict(self) -> dict[str, Any]:
        columns = {
            "parameters": self.held.parameters, "tokens": self.held.tokens, "training_flops": self.held.flops,
            "loss": self.held.loss, "predicted": self.predicted_P, "low": self.low_P, "high": self.high_P,
        }  # fmt: skip
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        return {
            "runs_held_out": len(self.held),
            "largest_training_flops_fitted": self.flops_fitted,
            "rms_error": self.rms_error,
            "mean_error": float(self.errors_P.mean()),
            "largest_error": float(np.abs(self.errors_P).max()),
            "inside_interval": self.inside,
            "rms_error_of_best_known": self.rms_error_of_no_progress,
            "runs": [dict(zip(columns, row, strict=True)) for row in rows],
        }


def split_by_flops(points: Points, share: float, least: int = MIN_POINTS) -> tuple[Points, Points]:
    """Split off the `share` of the points with the most training FLOPs; both parts are sorted by FLOPs.

    least: number of points that must remain. `UserError` if fewer do, or if none is held out.
    """
    if not 0 < share < 1:
        raise UserError(field="hold_out", value=share, accepted="a share between 0 and 1, as in 0.5")
    order = np.argsort(points.flops, kind="stable")
    count, held = len(order), round(share * len(order))
    if not 0 < held <= count - least:
        fewest = fewest_runs(share, least)
        accepted = [] if fewest is None else [f"at least {fewest:,} runs"]
        if count > least:
            accepted.append(f"a share from {1 / count:.3g} to {(count - least) / count:.3g}")
        raise UserError(
            f"of {count} runs {count - held} are left to fit and {held} to predict, at least {least} and 1 are needed",
            field="hold_out",
            value=share,
            accepted=" or ".join(accepted) or f"at least {least + 1} runs",
        )
    return points[order[: count - held]], points[order[count - held :]]


def fewest_runs(share: float, least: int = MIN_POINTS) -> int | None:
    """Return how many runs it takes to hold out this share and fit the others; None if millions are too few."""
    if not MIN_SHARE <= share <= 1 - MIN_SHARE:
        return None
    begin = max(least + 1, math.floor(0.5 / share), math.floor((least - 0.5) / (1 - share)))
    return next(count for count in itertools.count(begin) if 0 < round(share * count) <= count - least)


def predict(law: Law, samples_R5: Numbers, fitted: Points, held: Points, coverage: float) -> HeldOutPrediction:
    """Predict the runs that the law was not fitted to; samples_R5: constants of laws fitted to resampled runs."""
    low_P, high_P = np.quantile(sampled_losses(samples_R5, held), [(1 - coverage) / 2, (1 + coverage) / 2], axis=0)
    predicted_P = law.loss(held.parameters, held.tokens)
    errors_P = predicted_P / held.loss - 1
    no_progress_P = float(fitted.loss.min()) / held.loss - 1
    return HeldOutPrediction(
        held,
        predicted_P,
        low_P,
        high_P,
        flops_fitted=float(fitted.flops.max()),
        errors_P=errors_P,
        rms_error=float(np.sqrt(np.mean(errors_P**2))),
        rms_error_of_no_progress=float(np.sqrt(np.mean(no_progress_P**2))),
        inside=int(((low_P <= held.loss) & (held.loss <= high_P)).sum()),
    )


def sampled_losses(samples_R5: Numbers, points: Points) -> Numbers:
    """Return the losses of the points by laws with these constants (E, A, B, alpha, beta), `[R, P]`."""
    e, a, b, alpha, beta = (column[:, None] for column in samples_R5.T)
    with np.errstate(divide="ignore"):  # in a resample A and alpha may be huge, or A 0
        of_size_RP = np.exp(np.log(a) - alpha * np.log(points.parameters))
        of_text_RP = np.exp(np.log(b) - beta * np.log(points.tokens))
    losses_RP: Numbers = e + of_size_RP + of_text_RP
    return losses_RP
