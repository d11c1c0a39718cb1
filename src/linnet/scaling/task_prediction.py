"""Is a task predictable? Accuracy of the larger models, from what the smaller ones can, held against what came.

Two ways: from the loss that the larger model has, by the sigmoid alone; and from its size and tokens, by a scaling law
of the loss and the sigmoid behind it, before it is trained.

Legend: `P` points held out, `R` resamples, `F` points fitted.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.scaling.fit import COVERAGE
from linnet.scaling.holdout import sampled_losses, split_by_flops
from linnet.scaling.parametric import DELTA, bootstrap, fit
from linnet.scaling.task_curve import LEAST_POINTS, TaskCurve, effective_items, fit_curve
from linnet.scaling.task_points import TaskPoints


@dataclass(frozen=True)
class TaskForecast:
    """The accuracy expected of each model, the interval that a measurement should lie in, and the loss it is from."""

    loss_P: Numbers
    right_P: Numbers
    low_P: Numbers
    high_P: Numbers

    def figures(self, measured_P: Numbers) -> dict[str, Any]:
        """Ready for JSON, held against what came; errors are shares of all items."""
        columns = {"loss": self.loss_P, "right": self.right_P, "low": self.low_P, "high": self.high_P}
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        return {
            "mean_absolute_error": self.mean_absolute_error(measured_P),
            "inside_interval": self.inside(measured_P),
            "runs": [dict(zip(columns, row, strict=True)) for row in rows],
        }

    def mean_absolute_error(self, measured_P: Numbers) -> float:
        """Of the shares."""
        return float(np.abs(self.right_P - measured_P).mean())

    def inside(self, measured_P: Numbers) -> int:
        """How many measured shares lie in their intervals."""
        return int(((self.low_P <= measured_P) & (measured_P <= self.high_P)).sum())


@dataclass(frozen=True)
class TaskPrediction:
    """What was fitted and held out; `by_size` is a line that says why not where the runs do not allow a law."""

    fitted: TaskPoints
    held: TaskPoints
    curve: TaskCurve
    by_loss: TaskForecast
    by_size: TaskForecast | str

    @property
    def error_of_no_progress(self) -> float:
        """The mean absolute error of who expects the best that was fitted, of all."""
        return float(np.abs(self.fitted.right_P.max() - self.held.right_P).mean())

    def figures(self) -> dict[str, Any]:
        """Ready for JSON."""
        by_size, curve, ends = self.by_size, self.curve, self.held.ends
        return {
            "runs_fitted": len(self.fitted),
            "runs_held_out": len(self.held),
            "chance": self.fitted.chance,
            "floor": curve.floor,
            "half_way_loss": curve.half_way,
            "steepness_per_nat": curve.steepness,
            "dispersion": curve.dispersion,
            "coverage": COVERAGE,
            "mean_absolute_error_of_no_progress": self.error_of_no_progress,
            "measured": [
                {"parameters": size, "tokens": tokens, "loss": loss, "right": right, "items": items}
                for size, tokens, loss, right, items in zip(
                    *(v.tolist() for v in (ends.parameters, ends.tokens, ends.loss, self.held.right_P)),
                    self.held.items_P.tolist(),
                    strict=True,
                )
            ],
            "by_loss": self.by_loss.figures(self.held.right_P),
            "by_size": {"reason": by_size} if isinstance(by_size, str) else by_size.figures(self.held.right_P),
        }


def predict_task(points: TaskPoints, share: float, resamples: int = 200, seed: int = 0) -> TaskPrediction:
    """Fit the smaller models and predict the `share` with the most training FLOPs; `UserError` where they do not do."""
    known, _ = split_by_flops(points.ends, share, LEAST_POINTS)
    order = np.argsort(points.ends.flops, kind="stable")
    fitted, held = points[order[: len(known)]], points[order[len(known) :]]
    curve = fit_curve(fitted, resamples, seed)
    by_loss = _forecast(curve, held, held.ends.loss, np.tile(held.ends.loss, (resamples, 1)), seed)
    try:
        loss_P, losses_RP = _losses(fitted, held, resamples, seed)
    except UserError as error:
        return TaskPrediction(fitted, held, curve, by_loss, str(error))
    return TaskPrediction(fitted, held, curve, by_loss, _forecast(curve, held, loss_P, losses_RP, seed))


def _losses(fitted: TaskPoints, held: TaskPoints, resamples: int, seed: int) -> tuple[Numbers, Numbers]:
    """What a law of the fitted runs expects of those held out, `[P]`, and laws of resamples, `[R, P]`."""
    found = fit(fitted.ends)
    law = found.law("task", "total")
    samples_R5 = bootstrap(fitted.ends, found, resamples, seed, DELTA)
    return law.loss(held.ends.parameters, held.ends.tokens), sampled_losses(samples_R5, held.ends)


def _forecast(curve: TaskCurve, held: TaskPoints, loss_P: Numbers, losses_RP: Numbers, seed: int) -> TaskForecast:
    """The interval has both in it: what the curve and the loss are not known by, and the scatter of one measurement."""
    shares_RP = curve.of_samples(curve.samples_R2, losses_RP)
    counts_RP = effective_items(held.items_P, curve.dispersions_R)
    drawn_RP = np.random.default_rng([seed, 1]).binomial(counts_RP, np.clip(shares_RP, 0, 1)) / counts_RP
    low_P, high_P = np.quantile(drawn_RP, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], axis=0)
    return TaskForecast(loss_P, curve.accuracy(loss_P), low_P, high_P)
