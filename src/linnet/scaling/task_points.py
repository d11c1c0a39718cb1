"""A task's accuracy on the models of a ladder: from a CSV file, or from comparisons on an ability.

A CSV file has columns `parameters`, `loss` (nats per token), `training_flops` or `tokens`, `right` (the share of items
that are right), `items` (how many were asked) and `chance`, the same for all.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.core.checksum import without_checksum
from linnet.core.errors import UserError
from linnet.core.files import read_text
from linnet.core.units import Row, read_rows
from linnet.scaling.law import FLOPS_FACTOR
from linnet.scaling.points import Points

Accuracy = Literal["whole", "symbols", "final"]
SHARES: dict[Accuracy, tuple[str, str]] = {
    "whole": ("right", "chance"),
    "symbols": ("symbols_right", "symbols_chance"),
    "final": ("final_right", "final_chance"),
}
"""What is right and its chance, by their names in the record of a comparison."""

RESULTS = "results.jsonl"


@dataclass(frozen=True)
class TaskPoints:
    """The ends of runs, the share of items that each had right, and how many were asked, `[P]` each; and chance."""

    ends: Points
    right_P: Numbers
    items_P: Numbers
    chance: float

    def __len__(self) -> int:
        return len(self.right_P)

    def __getitem__(self, chosen: NDArray[np.intp]) -> "TaskPoints":
        return TaskPoints(self.ends[chosen], self.right_P[chosen], self.items_P[chosen], self.chance)


Figures = dict[str, float]
"""Of one run: parameters, tokens, flops, loss, right, items, chance."""


def read_task_points(sources: Sequence[Path], accuracy: Accuracy = "whole") -> TaskPoints:
    """One CSV file, or folders of comparisons on one ability, every seed a point.

    `UserError` names the file and what is missing or wrong in it, and chances that are not one.
    """
    found: list[Figures] = []
    for source in sources:
        if not source.exists():
            raise UserError(f"{source}: no such file or folder; expected a CSV file, or folders of comparisons")
        if source.is_file() and len(sources) > 1:
            raise UserError(f"{source}: one CSV file, or folders of comparisons; not several and not both")
        found += _of_table(source) if source.is_file() else _of_comparison(source, accuracy)
    chances = sorted({one["chance"] for one in found})
    if len(chances) != 1:
        said = ", ".join(f"{chance:.4g}" for chance in chances) or "none"
        raise UserError(f"{sources[0]}: chance: {said}: expected one, that of a single task")
    if chances[0] == 1:
        raise UserError(f"{sources[0]}: chance: 1: expected less, of a task that can be failed")
    names = ("parameters", "tokens", "flops", "loss", "right", "items")
    parameters, tokens, flops, loss, right, items = (np.array([one[name] for one in found]) for name in names)
    return TaskPoints(Points(parameters, tokens, flops, loss), right, items, chances[0])


def _of_table(path: Path) -> Iterator[Figures]:
    needed = [("parameters",), ("loss",), ("training_flops", "tokens"), ("right",), ("items",), ("chance",)]
    for row in read_rows(path, needed):
        one = {name: row.number(name) for name in ("parameters", "loss", "items")}
        one |= {name: _share(row, name) for name in ("right", "chance")}
        size = FLOPS_FACTOR * one["parameters"]
        flops = row.number("training_flops") if "training_flops" in row.cells else row.number("tokens") * size
        tokens = row.number("tokens") if "tokens" in row.cells else flops / size
        yield {**one, "tokens": tokens, "flops": flops}


def _share(row: Row, column: str) -> float:
    """From 0 to 1; zero is no positive number."""
    text = row.cells[column]
    value = 0.0 if text.strip("0.") == "" and "0" in text else row.number(column)
    if value > 1:
        raise UserError(f"{row.origin}: {column}: {text}: expected a share from 0 to 1")
    return value


def _of_comparison(folder: Path, accuracy: Accuracy) -> Iterator[Figures]:
    """Every run and seed that was trained to its end, from the result table of a suite."""
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
