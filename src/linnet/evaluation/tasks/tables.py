"""Scores of tasks as tables for people and as figures for programs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnet.evaluation.tasks.contamination import Overlap
from linnet.evaluation.tasks.measure import SuiteResult, TaskResult
from linnet.evaluation.tasks.verdict import ScoreDifference, verdicts
from linnet.present import numbers
from linnet.present.table import MISSING, Table

PERCENT = "Scores and errors in per cent."
BELIEVE = (
    f"{PERCENT} Verdicts: two-sided, 5 % for all tasks together (Holm). longest, shortest, letter: taking the longest "
    "choice, the shortest, the commonest place."
)


def score_table(result: SuiteResult) -> Table:
    """Of each task and average: score, standard error, chance, plain ways of choosing, verdict."""
    columns = ("task", "score", "is", "±", "chance", "longest", "shortest", "letter", "items", "verdict")
    rows = [
        (
            task.task.name,
            task.task.score,
            percent(task.mean.value),
            percent(task.mean.standard_error),
            percent(task.chance),
            *(percent(task.baselines.get(name)) for name in ("longest", "shortest", "letter")),
            numbers.grouped(len(task.task.items)),
            verdict,
        )
        for task, (_, verdict) in zip(result.tasks, verdicts(result.tasks), strict=True)
    ]
    for one in result.averages:
        shares = (one.mean.value, one.mean.standard_error, one.chance)
        rows.append((one.name, "mean", *map(percent, shares), "", "", "", numbers.grouped(one.items), ""))
    rows += [(Path(file).stem, *[""] * 8, f"no {file}") for file in result.suite.missing]
    return Table(f"{result.model}: {result.suite.name}", columns, rows, f"{BELIEVE}{_shots_said(result)}")


def _shots_said(result: SuiteResult) -> str:
    """Where examples come from, of the tasks that have any; nothing where none has."""
    shots = max((task.task.shots for task in result.tasks), default=0)
    own = [task.task.name for task in result.tasks if task.task.shots_from == f"{task.task.name}.jsonl"]
    if not shots:
        return ""
    said = f" Before each item {shots} with its answer, of NAME_train.jsonl"
    return f"{said}; of {', '.join(own)}, which have none, another item." if own else f"{said}."


def difference_table(first: str, second: str, rows: Sequence[ScoreDifference]) -> Table:
    """`second - first` on the same items, with its 95 % interval."""
    columns = ("task", "difference", "from", "to", "p (Holm)", "verdict")
    cells = []
    for row in rows:
        low, high = row.difference.interval() or (math.nan, math.nan)
        p_value = MISSING if row.corrected is None else f"{row.corrected:.3f}"
        cells.append((row.name, *map(signed, (row.difference.value, low, high)), p_value, row.verdict))
    meaning = "Paired: the same items; 95 % intervals; p corrected for the number of tasks, averages apart."
    return Table(f"{second} against {first}", columns, cells, f"{PERCENT} {meaning}")


def overlap_table(result: SuiteResult, overlaps: Sequence[Overlap], text: str) -> Table:
    """The score of the items that share a run of words with the training text, and of the others."""
    columns = ("task", "items", "too short", "shared", "score", "of shared", "of others", "± of others")
    rows = []
    for task, overlap in zip(result.tasks, overlaps, strict=True):
        shared, others = task.of_items(overlap.shared_N), task.of_items(~overlap.shared_N)
        counts = (
            numbers.grouped(len(task.task.items)),
            numbers.grouped(overlap.short_N.sum()),
            numbers.grouped(overlap.shared_N.sum()),
        )
        scores = (percent(task.mean.value), percent(_value(shared)), percent(_value(others)), percent(_error(others)))
        rows.append((task.task.name, *counts, *scores))
    meaning = "shared: items with 13 words in a row that stand in the text (all of shorter ones; below 8 none can)."
    return Table(f"{result.model}: overlap with {text}", columns, rows, f"{PERCENT} {meaning}")


def figures(result: SuiteResult, overlaps: Sequence[Overlap] | None = None) -> dict[str, Any]:
    """The numbers by name, ready for JSON: null for what is not finite or unknown; shares, not per cent."""
    tasks: dict[str, Any] = {}
    for number, (task, (corrected, verdict)) in enumerate(zip(result.tasks, verdicts(result.tasks), strict=True)):
        tasks[task.task.name] = {
            task.task.score: finite(task.mean.value),
            "score": task.task.score,
            "value": finite(task.mean.value),
            "standard_error": finite(task.mean.standard_error),
            "also": {name: finite(value) for name, value in task.also.items()},
            "chance": task.chance,
            "baselines": task.baselines,
            "items": len(task.task.items),
            "shots": task.task.shots,
            "shots_from": task.task.shots_from,
            "p_value": task.p_value,
            "p_value_holm": corrected,
            "verdict": verdict,
        }
        if overlaps is not None:
            tasks[task.task.name]["overlap"] = _overlap_figures(task, overlaps[number])
    averages = {
        one.name: {"mean": finite(one.mean.value), "standard_error": finite(one.mean.standard_error)}
        for one in result.averages
    }
    missing = list(result.suite.missing)
    return {
        "model": result.model,
        "suite": result.suite.name,
        "tasks": tasks,
        "averages": averages,
        "missing": missing,
    }


def difference_figures(first: str, second: str, rows: Sequence[ScoreDifference]) -> dict[str, Any]:
    """The differences by task, ready for JSON."""
    by_task = {
        row.name: {
            "difference": finite(row.difference.value),
            "standard_error": finite(row.difference.standard_error),
            "interval": None if (ends := row.difference.interval()) is None else [finite(end) for end in ends],
            "p_value": row.difference.p_value(),
            "p_value_holm": row.corrected,
            "verdict": row.verdict,
        }
        for row in rows
    }
    return {"first": first, "second": second, "tasks": by_task}


def _overlap_figures(task: TaskResult, overlap: Overlap) -> dict[str, Any]:
    shared, others = task.of_items(overlap.shared_N), task.of_items(~overlap.shared_N)
    return {
        "shared": int(overlap.shared_N.sum()),
        "too_short": int(overlap.short_N.sum()),
        "of_shared": finite(_value(shared)),
        "of_others": finite(_value(others)),
        "standard_error_of_others": finite(_error(others)),
    }


def _value(result: TaskResult | None) -> float | None:
    return None if result is None else result.mean.value


def _error(result: TaskResult | None) -> float | None:
    return None if result is None else result.mean.standard_error


def percent(share: float | None) -> str:
    """`31.4`; a dash for what is not known."""
    return MISSING if share is None or not math.isfinite(share) else f"{100 * share:.1f}"


def signed(share: float) -> str:
    """`+1.2`, and `0.0` for what rounds to nothing."""
    return numbers.signed(100 * share, 1) if math.isfinite(share) else MISSING


def finite(value: float | None) -> float | None:
    """None for what JSON cannot say."""
    return value if value is not None and math.isfinite(value) else None
