"""Pareto fronts of several goals: the models of which no other is better in one goal and as good in the others.

For each limit of a grid on the metrics the model with the highest score within it is found, so every point of the front
is an optimum of its own; dominated points are removed.
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
from linnet.design.cost_tables import CostTables
from linnet.design.feasibility import find_feasible, find_within_budgets, limits, non_dominated, smallest
from linnet.design.metrics import Metric
from linnet.design.optimum import TooLargeError, optimum
from linnet.design.search import SearchTask, evolve, write_description
from linnet.design.space import Candidate
from linnet.model.spec import ModelSpec
from linnet.present.progress import progress

FRONT = "front.csv"


@dataclass(frozen=True)
class Point:
    """A model of the front. values: of the goals' metrics. proven: no model within these values has a higher score."""

    plain: dict[str, Any]
    model: ModelSpec
    score: float
    values: tuple[float, ...]
    proven: bool

    @property
    def shape(self) -> str:
        """Layers and width of each block: `2x512 2x512 3x640`."""
        return " ".join(f"{block.repeat}x{block.width or self.model.d_model}" for block in self.model.blocks)


def front(task: SearchTask, goals: Sequence[Metric], points: int, name: str) -> list[Point]:
    """Return the models of a grid of `points` limits on each goal, from the smallest to the value at the highest score.

    All are within the task's budgets, sorted by the first goal; their names begin with `name`.
    """
    tables = task.tables(goals)
    find_within_budgets(task.budgets, tables)  # an impossible budget is reported before the search
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


def _points(task: SearchTask, tables: CostTables, found: dict[Candidate, bool], goals: int, name: str) -> list[Point]:
    """Return the non-dominated models; `found`: candidates, and whether each is proven."""
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


def _grid(task: SearchTask, tables: CostTables, most_M: Numbers, goals: int, points: int) -> Iterator[Numbers]:
    """Yield the corners, each axis in equal ratios; the last corner is that of the highest score."""
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
    """Return the model with the highest score within the limits, and whether that is proven."""
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


def write_front(points: Sequence[Point], goals: Sequence[Metric], score: str, folder: Path, command: str) -> None:
    """Write `front.csv`, and each model's description under its name."""
    stream = io.StringIO()
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(["model", *(goal.name for goal in goals), score, "proven", "shape"])
    for point in points:
        rows.writerow([point.plain["name"], *point.values, point.score, point.proven, point.shape])
        write_description(point.plain, folder / f"{point.plain['name']}.yaml", [command, f"{score} {point.score:,.7g}"])
    write_text(folder / FRONT, stream.getvalue())
