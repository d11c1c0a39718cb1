"""Several goals at once: the models of which no other is better in one goal and as good in the others.

For each limit of a grid on the metrics the model of the highest score within it is looked for, so every point of the
front is an optimum of its own; what another point beats is left out.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.files import write_text
from linnet.design.budget import find_within_budgets, limits
from linnet.design.chain import find_feasible, smallest
from linnet.design.cost_tables import CostTables
from linnet.design.dominance import non_dominated
from linnet.design.evolution import evolve
from linnet.design.metrics import Metric
from linnet.design.optimum import TooLargeError, optimum
from linnet.design.search import SearchTask, write_description
from linnet.design.space import Candidate
from linnet.model.spec import ModelSpec
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.progress import progress
from linnet.present.result import Picture
from linnet.present.table import Table


@dataclass(frozen=True)
class Point:
    """A model of the front. values: of the goals' metrics. proven: no model within these values has a higher score."""

    plain: dict[str, Any]
    model: ModelSpec
    score: float
    values: tuple[float, ...]
    proven: bool


def front(task: SearchTask, goals: Sequence[Metric], points: int, name: str) -> list[Point]:
    """The models of a grid of `points` limits on each goal, from the smallest to what the highest score takes.

    All keep within the task's budgets. Sorted by the first goal; `name` begins their names.
    """
    tables = task.tables(goals)
    find_within_budgets(task.budgets, tables)  # a budget that nothing meets is said at once
    most_M = limits(task.budgets, tables)
    found: dict[Candidate, bool] = {}
    grid = list(_grid(task, tables, most_M, len(goals), points))
    with progress("searching", len(grid), "limits") as advance:
        for corner in grid:
            best = _best(task, tables, np.concatenate([corner, most_M[len(goals) :]]))
            if best is not None:
                candidate, proven = best
                found[candidate] = found.get(candidate, False) or proven
            advance(1)
    return _points(task, tables, found, len(goals), name)


def _grid(task: SearchTask, tables: CostTables, most_M: Numbers, goals: int, points: int) -> Iterator[Numbers]:
    """The corners, each axis in equal ratios; the last of them all is that of the highest score."""
    best = _best(task, tables, most_M)
    assert best is not None
    highest = tables.evaluate(np.array([best[0]])).metrics_CM[0]
    axes = []
    for goal in range(goals):
        lowest = smallest(tables, goal)
        axes.append(np.append(np.geomspace(lowest, max(lowest, highest[goal]), points)[:-1], highest[goal]))
    for corner in product(*axes):
        yield np.array(corner)


def _best(task: SearchTask, tables: CostTables, limits_M: Numbers) -> tuple[Candidate, bool] | None:
    """The model of the highest score within the limits, and whether that is proven."""
    if task.method != "evolution":
        try:
            proven = optimum(tables, limits_M)
            return (proven.candidate, True) if proven is not None else None
        except TooLargeError:
            pass
    start = find_feasible(tables, limits_M)
    if start is None:
        return None
    return evolve(tables, limits_M, start, task.settings.search, lambda *_: None).candidate, False


def _points(task: SearchTask, tables: CostTables, found: dict[Candidate, bool], goals: int, name: str) -> list[Point]:
    candidates = list(found)
    evaluation = tables.evaluate(np.array(candidates))
    values = evaluation.metrics_CM[:, :goals]
    kept = non_dominated(np.hstack([values, -evaluation.score_C[:, None]]))
    kept = kept[np.lexsort((evaluation.score_C[kept], values[kept, 0]))]
    return [
        Point(
            task.space.describe(candidates[row], f"{name}-{number:02}"),
            task.space.model(candidates[row], f"{name}-{number:02}"),
            float(evaluation.score_C[row]),
            tuple(float(value) for value in values[row]),
            found[candidates[row]],
        )
        for number, row in enumerate(kept, 1)
    ]


FRONT = "front.csv"


def front_figures(points: Sequence[Point], goals: Sequence[Metric], score: str) -> dict[str, Any]:
    """Ready for JSON."""
    return {
        "goals": [*(goal.name for goal in goals), "score"],
        "score": score,
        "front": [
            {
                **dict(zip((goal.name for goal in goals), point.values, strict=True)),
                "score": point.score,
                "proven": point.proven,
                "model": point.plain,
            }
            for point in points
        ],
    }


def front_table(points: Sequence[Point], goals: Sequence[Metric], score: str) -> Table:
    """A row for each model."""
    columns = ["model", *(goal.name for goal in goals), score, "layers x width", "mixers"]
    rows = [
        [
            str(point.plain["name"]),
            *(goal.format(value) for goal, value in zip(goals, point.values, strict=True)),
            f"{point.score:,.6g}",
            shape_said(point.model),
            ", ".join(dict.fromkeys(block.mixer.kind for block in point.model.blocks)),
        ]
        for point in points
    ]
    proven = sum(point.proven for point in points)
    meaning = (
        f"Each has the highest {score} for what it costs: for {proven} of {len(points)} that is proven."
        " Among them none is better than another in every goal."
    )
    return Table("Front", columns, rows, meaning)


def shape_said(model: ModelSpec) -> str:
    """`2x512 2x512 3x640`: layers and width of each block."""
    return " ".join(f"{block.repeat}x{block.width or model.d_model}" for block in model.blocks)


def front_pictures(points: Sequence[Point], goals: Sequence[Metric], score: str) -> list[Picture]:
    """The score over the first goal; a second one as color."""
    values = list(zip(*(point.values for point in points), strict=True))
    second = values[1] if len(goals) > 1 else None
    drawn = Series(values[0], [point.score for point in points], style="o" if second else "o-", values=second)
    x = Axis(goals[0].name, "log", goals[0].format)  # the limits are in equal ratios
    caption = "Each dot a model: the highest score for what it costs."
    plot = Plot([Panel(x, Axis(score), [drawn])], values=_axis(goals[1]) if second else "")
    return [Picture("front", f"{score} over {goals[0].name}", plot, caption)]


def _axis(metric: Metric) -> str:
    return f"{metric.name}, {metric.unit}" if metric.unit else metric.name


def write_front(points: Sequence[Point], goals: Sequence[Metric], score: str, folder: Path, command: str) -> None:
    """`front.csv`, and each model's description under its name."""
    stream = io.StringIO()
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(["model", *(goal.name for goal in goals), score, "proven", "shape"])
    for point in points:
        rows.writerow([point.plain["name"], *point.values, point.score, point.proven, shape_said(point.model)])
        write_description(point.plain, folder / f"{point.plain['name']}.yaml", [command, f"{score} {point.score:,.7g}"])
    write_text(folder / FRONT, stream.getvalue())
