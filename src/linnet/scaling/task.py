"""Predictability of a task: the accuracy of larger models, predicted from smaller ones and compared with the results.

There are two predictions: from the loss of the larger model, by the sigmoid alone; and from its size and tokens, by a
scaling law of the loss followed by the sigmoid, as before the model is trained.

A CSV file of runs has columns `parameters`, `loss` (nats per token), `training_flops` or `tokens`, `right` (the share
of right items), `items` (their number) and `chance`, the same for all.

Legend: `P` held-out points, `R` resamples, `L` losses along a curve.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.checksum import without_checksum
from linnet.core.errors import UserError
from linnet.core.files import read_text
from linnet.core.units import read_rows
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture, Result
from linnet.present.style import INK, SOFT
from linnet.present.table import Table
from linnet.scaling.fit import COVERAGE
from linnet.scaling.law import FLOPS_FACTOR
from linnet.scaling.parametric import DELTA, bootstrap, fit
from linnet.scaling.reliability import sampled_losses, split_by_flops
from linnet.scaling.runs import Points
from linnet.scaling.task_curve import MIN_POINTS, TaskCurve, TaskPoints, effective_items, fit_curve

Accuracy = Literal["whole", "symbols", "final"]
SHARES: dict[Accuracy, tuple[str, str]] = {
    "whole": ("right", "chance"),
    "symbols": ("symbols_right", "symbols_chance"),
    "final": ("final_right", "final_chance"),
}
"""The share of right items and its chance, by their names in the record of a comparison."""

RESULTS = "results.jsonl"
COLUMNS = ("parameters", "tokens", "flops", "loss", "right", "items")

PAIR = (6.0, 4.8)
"""Inches of one of two panels."""
CURVE_POINTS = 200
MAX_LOSS, MAX_STEEPNESS = 100.0, 1e6
"""Beyond these, the runs do not determine the curve's constants."""


def read_task_points(sources: Sequence[Path], accuracy: Accuracy = "whole") -> TaskPoints:
    """Read one CSV file, or folders of comparisons on one ability, of which every seed is a point.

    `UserError` names the file and what is missing or wrong in it, or different values of chance.
    """
    rows: list[dict[str, float]] = []
    for source in sources:
        if not source.exists():
            raise UserError(f"{source}: no such file or folder; expected a CSV file, or folders of comparisons")
        if source.is_file() and len(sources) > 1:
            raise UserError(f"{source}: one CSV file, or folders of comparisons; not several and not both")
        rows += _read_table(source) if source.is_file() else _read_comparison(source, accuracy)
    chances = sorted({one["chance"] for one in rows})
    if len(chances) != 1:
        listed = ", ".join(f"{chance:.4g}" for chance in chances) or "none"
        raise UserError(f"{sources[0]}: chance: {listed}: expected one, that of a single task")
    if chances[0] == 1:
        raise UserError(f"{sources[0]}: chance: 1: expected less, of a task that can be failed")
    parameters, tokens, flops, loss, right, items = (np.array([row[name] for row in rows]) for name in COLUMNS)
    return TaskPoints(Points(parameters, tokens, flops, loss), right, items, chances[0])


def _read_table(path: Path) -> Iterator[dict[str, float]]:
    required = [("parameters",), ("loss",), ("training_flops", "tokens"), ("right",), ("items",), ("chance",)]
    for row in read_rows(path, required):
        one = {name: row.number(name) for name in ("parameters", "loss", "items")}
        for name in ("right", "chance"):
            text = row.cells[name]
            zero = text.strip("0.") == "" and "0" in text  # `row.number` accepts positive numbers only
            one[name] = 0.0 if zero else row.number(name)
            if one[name] > 1:
                raise UserError(f"{row.origin}: {name}: {text}: expected a share from 0 to 1")
        flops_per_token = FLOPS_FACTOR * one["parameters"]
        has_flops, has_tokens = "training_flops" in row.cells, "tokens" in row.cells
        one["flops"] = row.number("training_flops") if has_flops else row.number("tokens") * flops_per_token
        one["tokens"] = row.number("tokens") if has_tokens else one["flops"] / flops_per_token
        yield one


def _read_comparison(folder: Path, accuracy: Accuracy) -> Iterator[dict[str, float]]:
    """Yield every run and seed that was trained to its end, from the result table of a suite."""
    path = folder / RESULTS
    if not path.is_file():
        raise UserError(f"{folder}: no {RESULTS}; expected the folder of a finished `linnet compare` on an ability")
    by_measure: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        row = without_checksum(json.loads(line), f"{path}, line {number}")
        if row.get("status", "measured") == "measured":
            by_measure.setdefault((row["run"], row["seed"]), {})[row["measure"]] = row["values"]
    right, chance = SHARES[accuracy]
    for (run, _), found in by_measure.items():
        training, measured = found["training"], found.get("ability", {}).get("ability", {})
        if measured.get(right) is None or measured.get(chance) is None:
            known = [name for name, (share, _) in SHARES.items() if measured.get(share) is not None]
            accepted = f"one of {', '.join(known)}" if known else "a comparison on an ability"
            raise UserError(f"{path}: {run}: has no accuracy {accuracy}; expected {accepted}")
        yield {
            "parameters": training["parameters"], "tokens": training["tokens"], "flops": training["training_flops"],
            "loss": found["likelihood"]["nats_per_token"], "right": measured[right], "items": measured["items"],
            "chance": measured[chance],
        }  # fmt: skip


@dataclass(frozen=True)
class TaskForecast:
    """The accuracy predicted for each model from the loss `loss_P`, and the interval that a measurement should lie in.

    mean_absolute_error: of the predicted shares. inside: number of measured shares in their intervals.
    """

    loss_P: Numbers
    right_P: Numbers
    low_P: Numbers
    high_P: Numbers
    mean_absolute_error: float
    inside: int

    def to_dict(self) -> dict[str, Any]:
        columns = {"loss": self.loss_P, "right": self.right_P, "low": self.low_P, "high": self.high_P}
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        return {
            "mean_absolute_error": self.mean_absolute_error,
            "inside_interval": self.inside,
            "runs": [dict(zip(columns, row, strict=True)) for row in rows],
        }


@dataclass(frozen=True)
class TaskPrediction(Result):
    """The fitted and the held-out runs, and both predictions; by_size is the reason if the runs do not allow a law.

    error_of_no_progress: mean absolute error if the best fitted accuracy is the prediction for all.
    """

    fitted: TaskPoints
    held: TaskPoints
    curve: TaskCurve
    by_loss: TaskForecast
    by_size: TaskForecast | str
    error_of_no_progress: float

    def title(self) -> str:
        return "Predictability of a task"

    def facts(self) -> dict[str, str]:
        return {"runs": f"{len(self.fitted)} fitted, {len(self.held)} predicted"}

    def to_dict(self) -> dict[str, Any]:
        by_size, curve, ends = self.by_size, self.curve, self.held.ends
        columns = {
            "parameters": ends.parameters, "tokens": ends.tokens, "loss": ends.loss,
            "right": self.held.right_P, "items": self.held.items_P,
        }  # fmt: skip
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
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
            "measured": [dict(zip(columns, row, strict=True)) for row in rows],
            "by_loss": self.by_loss.to_dict(),
            "by_size": {"reason": by_size} if isinstance(by_size, str) else by_size.to_dict(),
        }

    def tables(self) -> list[Table]:
        """Return the curve with the errors of the predictions, and each of the held-out runs."""
        return [self._summary(), self._runs()]

    def _summary(self) -> Table:
        curve, count = self.curve, len(self.held)
        below_chance = curve.floor < self.fitted.chance
        determined = 0 < curve.half_way < MAX_LOSS and 1 / MAX_STEEPNESS < curve.steepness < MAX_STEEPNESS
        rows = [
            ("runs fitted", f"{len(self.fitted)}"),
            ("runs held out", f"{count}"),
            ("chance", f"{100 * self.fitted.chance:.3g} %"),
            ("the sigmoid rises from", "0, as runs lie below chance" if below_chance else "chance"),
            ("loss half-way to 1", f"{curve.half_way:.4f}" if determined else "not determined"),
            ("steepness, per nat", numbers.significant(curve.steepness, 3) if determined else "not determined"),
            ("scatter relative to that of items", f"{curve.dispersion:.2f}"),
        ]
        for name, forecast in (("loss", self.by_loss), ("size and tokens", self.by_size)):
            if not isinstance(forecast, str):
                rows.append((f"mean error, by {name}", f"{100 * forecast.mean_absolute_error:.2f} points"))
                rows.append((f"inside the intervals, by {name}", f"{forecast.inside} of {count}"))
        rows.append(("mean error of no progress", f"{100 * self.error_of_no_progress:.2f} points"))
        meaning = (
            "Accuracy is a sigmoid of the loss, up to 1, fitted to the runs with the fewest FLOPs. Errors are absolute,"
            " in percent of the items; no progress: the best fitted accuracy is predicted for all."
        )
        if isinstance(self.by_size, str):
            meaning += f" Not predicted by size and tokens: {self.by_size}."
        return Table("Predictability", ("", ""), rows, meaning)

    def _runs(self) -> Table:
        held, columns = self.held, ["parameters", "tokens", "loss", "right, %", "by loss, %", "interval"]
        forecasts = [self.by_loss]
        if not isinstance(self.by_size, str):
            columns += ["by size, %", "interval"]
            forecasts.append(self.by_size)
        rows = []
        for n in range(len(held)):
            sizes = numbers.metric(held.ends.parameters[n]), numbers.metric(held.ends.tokens[n])
            cells = [*sizes, f"{held.ends.loss[n]:.4f}", f"{100 * held.right_P[n]:.1f}"]
            for one in forecasts:
                cells += [f"{100 * one.right_P[n]:.1f}", f"{100 * one.low_P[n]:.1f} to {100 * one.high_P[n]:.1f}"]
            rows.append(cells)
        return Table("Held out", columns, rows, "By ascending FLOPs. Intervals: of one measurement, 95 %.")

    def plots(self) -> list[Picture]:
        """Draw the sigmoid among all runs, and the predictions over the measured shares."""
        fitted, held = self.fitted, self.held
        losses = np.concatenate([fitted.ends.loss, held.ends.loss])
        along_L = np.linspace(losses.min(), losses.max(), CURVE_POINTS)
        over_loss = [
            Series(along_L, self.curve.accuracy(along_L), "sigmoid", color=INK),
            Series(fitted.ends.loss, fitted.right_P, "fitted", "o", SOFT),
            Series(held.ends.loss, held.right_P, "held out, measured", "o", 0),
        ]
        predicted = []
        for color, (name, one) in enumerate((("by loss", self.by_loss), ("by size and tokens", self.by_size))):
            if not isinstance(one, str):
                low_P, high_P = np.minimum(one.low_P, one.right_P), np.maximum(one.high_P, one.right_P)
                predicted.append(Series(held.right_P, one.right_P, name, "o", color, low_P, high_P))
        share = Axis("share right", low=-0.02, high=1.03)
        panels = [
            Panel(Axis("loss, nats per token"), share, over_loss, rules=[Rule(fitted.chance, "chance")]),
            Panel(Axis("measured share right"), Axis("predicted share right"), predicted, diagonal=True),
        ]
        caption = (
            "Left: the sigmoid, fitted to the gray runs, and the larger runs that it was not fitted to. Right: the"
            " predicted over the measured accuracy of the larger runs, with 95 % intervals; a perfect prediction lies"
            " on the diagonal."
        )
        return [Picture("task", "Larger models, predicted from smaller ones", Plot(panels, PAIR, columns=2), caption)]


def predict_task(points: TaskPoints, share: float, resamples: int = 200, seed: int = 0) -> TaskPrediction:
    """Fit the smaller models and predict the `share` with the most training FLOPs; `UserError` if they are too few."""
    known, _ = split_by_flops(points.ends, share, MIN_POINTS)
    order = np.argsort(points.ends.flops, kind="stable")
    fitted, held = points[order[: len(known)]], points[order[len(known) :]]
    curve = fit_curve(fitted, resamples, seed)
    by_loss = forecast(curve, held, held.ends.loss, np.tile(held.ends.loss, (resamples, 1)), seed)
    by_size: TaskForecast | str
    try:
        optimum = fit(fitted.ends)
        law = optimum.law("task", "total")
        losses_RP = sampled_losses(bootstrap(fitted.ends, optimum, resamples, seed, DELTA), held.ends)
    except UserError as error:
        by_size = str(error)
    else:
        by_size = forecast(curve, held, law.loss(held.ends.parameters, held.ends.tokens), losses_RP, seed)
    error_of_no_progress = float(np.abs(fitted.right_P.max() - held.right_P).mean())
    return TaskPrediction(fitted, held, curve, by_loss, by_size, error_of_no_progress)


def forecast(curve: TaskCurve, held: TaskPoints, loss_P: Numbers, losses_RP: Numbers, seed: int) -> TaskForecast:
    """Predict accuracies from losses. losses_RP: drawn losses, as the loss is not known exactly.

    The interval includes the uncertainty of the curve and of the loss, and the scatter of one measurement.
    """
    shares_RP = curve.of_samples(curve.samples_R2, losses_RP)
    counts_RP = effective_items(held.items_P, curve.dispersions_R)
    drawn_RP = np.random.default_rng([seed, 1]).binomial(counts_RP, np.clip(shares_RP, 0, 1)) / counts_RP
    low_P, high_P = np.quantile(drawn_RP, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], axis=0)
    right_P = curve.accuracy(loss_P)
    # Of no right items, or no wrong ones, the interval is at least that of Clopper and Pearson.
    right_items_P, sure_P = np.rint(right_P * held.items_P), ((1 - COVERAGE) / 2) ** (1 / held.items_P)
    high_P = np.where(right_items_P == 0, np.maximum(high_P, 1 - sure_P), high_P)
    low_P = np.where(right_items_P == held.items_P, np.minimum(low_P, sure_P), low_P)
    error = float(np.abs(right_P - held.right_P).mean())
    inside = int(((low_P <= held.right_P) & (held.right_P <= high_P)).sum())
    return TaskForecast(loss_P, right_P, low_P, high_P, error, inside)
