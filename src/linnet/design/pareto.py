"""Pareto fronts of several goals: the models than which no other is better in one goal and as good in the others.

For each limit of a grid on the metrics the model with the highest score within it is found, so every point of the front
is an optimum of its own; dominated points are removed.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.files import write_text
from linnet.design.cost_tables import CostTables
from linnet.design.feasibility import cheapest, find_feasible, find_within_budgets, limits, non_dominated
from linnet.design.metrics import Metric
from linnet.design.optimum import TooLargeError, optimum
from linnet.design.search import SearchTask, evolve, write_description
from linnet.design.space import Candidate
from linnet.model.spec import ModelSpec
from linnet.present.progress import progress

FRONT = "front.csv"


@dataclass(frozen=True)
class Point:
    """A model of the front. values: of the goals' metrics. proven: no model within these values has a higher score.

    shape: layers and width of each block, `2x512 2x512 3x640`.
    """

    plain: dict[str, Any]
    model: ModelSpec
    score: float
    values: tuple[float, ...]
    proven: bool
    shape: str


def front(task: SearchTask, goals: Sequence[Metric], points: int, name: str) -> list[Point]:
    """Return the models of a grid of `points` limits on each goal, from the smallest to the value at the highest score.

    All are within the task's budgets, sorted by the first goal; their names begin with `name`.
    """
    tables = task.tables(goals)
    find_within_budgets(task.budgets, tables)  # an impossible budget is reported before the search
    most_M = limits(task.budgets, tables)

    # The axes of the grid go in equal ratios to the values of the model with the highest score.
    highest = _best(task, tables, most_M)
    assert highest is not None
    highest_M = tables.evaluate(np.array([highest[0]])).metrics_CM[0]
    axes = []
    for goal in range(len(goals)):
        _, lowest = cheapest(tables, goal)
        axes.append(np.append(np.geomspace(lowest, max(lowest, highest_M[goal]), points)[:-1], highest_M[goal]))
    grid = list(product(*axes))

    found: dict[Candidate, bool] = {}
    with progress("searching", len(grid), "limits") as advance:
        for corner in grid:
            best = _best(task, tables, np.concatenate([np.array(corner), most_M[len(goals) :]]))
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
    points = []
    for number, row in enumerate(kept, 1):
        candidate, of_goals = candidates[row], tuple(float(value) for value in values[row])
        plain = task.space.describe(candidate, f"{name}-{number:02}")
        model = task.space.model(candidate, f"{name}-{number:02}")
        shape = " ".join(f"{block.repeat}x{block.width or model.d_model}" for block in model.blocks)
        points.append(Point(plain, model, float(evaluation.score_C[row]), of_goals, found[candidate], shape))
    return points


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
