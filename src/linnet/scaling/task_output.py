"""A task's prediction as tables and as pictures, with what came."""

import numpy as np

from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture
from linnet.present.style import INK, SOFT
from linnet.present.table import Table
from linnet.scaling.task_prediction import TaskForecast, TaskPrediction

PAIR = (6.0, 4.8)
LOSS, RIGHT = Axis("loss, nats per token"), Axis("share right", low=-0.02, high=1.03)
CURVE_POINTS = 200
FAR = 100.0
"""No loss is so high."""


def task_tables(found: TaskPrediction) -> list[Table]:
    """The curve with how well it predicts, and each of the runs held out."""
    return [_summary(found), _runs(found)]


def _summary(found: TaskPrediction) -> Table:
    curve, measured_P = found.curve, found.held.right_P
    rows = [
        ("runs fitted", f"{len(found.fitted)}"),
        ("runs held out", f"{len(found.held)}"),
        ("chance", f"{100 * found.fitted.chance:.3g} %"),
        ("the sigmoid rises from", _floor(found)),
        ("loss half-way to all", f"{curve.half_way:.4f}" if 0 < curve.half_way < FAR else "not determined"),
        ("steepness, per nat", numbers.significant(curve.steepness, 3)),
        ("scatter over that of items", f"{curve.dispersion:.2f}"),
        ("mean error, by loss", _error(found.by_loss.mean_absolute_error(measured_P))),
        ("inside the intervals, by loss", _inside(found.by_loss, found)),
    ]
    if not isinstance(found.by_size, str):
        rows.append(("mean error, by size and tokens", _error(found.by_size.mean_absolute_error(measured_P))))
        rows.append(("inside the intervals, by size and tokens", _inside(found.by_size, found)))
    rows.append(("mean error of no progress", _error(found.error_of_no_progress)))
    meaning = (
        "Accuracy is a sigmoid of the loss, up to all items, fitted to the runs with the fewest FLOPs. Errors are"
        " absolute, in percent of the items; no progress: the best fitted run's accuracy, taken for all."
    )
    if isinstance(found.by_size, str):
        meaning += f" Not predicted by size and tokens: {found.by_size}."
    return Table("Predictability", ("", ""), rows, meaning)


def _floor(found: TaskPrediction) -> str:
    return "0, as runs lie below chance" if found.curve.floor < found.fitted.chance else "chance"


def _error(share: float) -> str:
    return f"{100 * share:.2f} points"


def _inside(forecast: TaskForecast, found: TaskPrediction) -> str:
    return f"{forecast.inside(found.held.right_P)} of {len(found.held)}"


def _runs(found: TaskPrediction) -> Table:
    ends, by_size = found.held.ends, found.by_size
    columns = ["parameters", "tokens", "loss", "right, %", "by loss, %", "interval"]
    columns += [] if isinstance(by_size, str) else ["by size, %", "interval"]
    rows = []
    for number in range(len(found.held)):
        sizes = numbers.metric(ends.parameters[number]), numbers.metric(ends.tokens[number])
        cells = [*sizes, f"{ends.loss[number]:.4f}", f"{100 * found.held.right_P[number]:.1f}"]
        cells += _predicted(found.by_loss, number)
        cells += [] if isinstance(by_size, str) else _predicted(by_size, number)
        rows.append(cells)
    return Table("Held out", columns, rows, "By ascending FLOPs. Intervals: of one measurement, 95 %.")


def _predicted(forecast: TaskForecast, number: int) -> list[str]:
    low, high = 100 * forecast.low_P[number], 100 * forecast.high_P[number]
    return [f"{100 * forecast.right_P[number]:.1f}", f"{low:.1f} to {high:.1f}"]


def task_pictures(found: TaskPrediction) -> list[Picture]:
    """The sigmoid among all runs, and predictions against what came."""
    panels = [_over_loss(found), _against_measured(found)]
    caption = (
        "Left: the sigmoid, fitted to the gray runs, and the larger runs that it was not fitted to. Right: what was"
        " predicted of each of these against what came, with intervals of 95 %; the diagonal is a perfect prediction."
    )
    return [Picture("task", "Larger models, predicted from smaller ones", Plot(panels, PAIR, columns=2), caption)]


def _over_loss(found: TaskPrediction) -> Panel:
    fitted, held, curve = found.fitted, found.held, found.curve
    losses = np.concatenate([fitted.ends.loss, held.ends.loss])
    along_L = np.linspace(losses.min(), losses.max(), CURVE_POINTS)
    drawn = [
        Series(along_L, curve.accuracy(along_L), "sigmoid", color=INK),
        Series(fitted.ends.loss, fitted.right_P, "fitted", "o", SOFT),
        Series(held.ends.loss, held.right_P, "held out, measured", "o", 0),
    ]
    return Panel(LOSS, RIGHT, drawn, rules=[Rule(fitted.chance, "chance")])


def _against_measured(found: TaskPrediction) -> Panel:
    drawn = [_told(found, found.by_loss, "by loss", 0)]
    if not isinstance(found.by_size, str):
        drawn.append(_told(found, found.by_size, "by size and tokens", 1))
    return Panel(Axis("measured share right"), Axis("predicted share right"), drawn, diagonal=True)


def _told(found: TaskPrediction, forecast: TaskForecast, name: str, color: int) -> Series:
    low_P = np.minimum(forecast.low_P, forecast.right_P)
    high_P = np.maximum(forecast.high_P, forecast.right_P)
    return Series(found.held.right_P, forecast.right_P, name, "o", color, low_P, high_P)
