"""Asking models the tasks of files: the one way in, for the command line and for Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.evaluation.subject import ModelOptions
from linnet.evaluation.tasks.contamination import Overlap, overlaps_with
from linnet.evaluation.tasks.measure import SuiteResult, measure_suite
from linnet.evaluation.tasks.suite import (
    MINIMAL_PAIRS,
    Suite,
    load_minimal_pairs,
    load_suite,
    load_task_file,
    suite_spec,
)
from linnet.evaluation.tasks.tables import (
    difference_figures,
    difference_table,
    figures,
    overlap_table,
    score_table,
)
from linnet.evaluation.tasks.verdict import compared
from linnet.present.table import Table


@dataclass(frozen=True)
class SuiteReport:
    """What models reached in one suite; the first is what others are compared with.

    overlaps: of each task with the training text, where one was given.
    """

    results: Sequence[SuiteResult]
    overlaps: Sequence[Overlap] | None = None
    train_text: str = ""

    def tables(self) -> list[Table]:
        """Of each model its scores, then the differences from the first, then the overlap with the text."""
        found = [*(score_table(result) for result in self.results), *self.difference_tables()]
        if self.overlaps is not None:
            found += [overlap_table(result, self.overlaps, self.train_text) for result in self.results]
        return found

    def difference_tables(self) -> list[Table]:
        """Of each other model the differences from the first, item by item."""
        first, *others = self.results
        return [difference_table(first.model, other.model, compared(first, other)) for other in others]

    def figures(self) -> dict[str, Any]:
        """The same by name, ready for JSON."""
        first, *others = self.results
        return {
            "models": [figures(result, self.overlaps) for result in self.results],
            "differences": [difference_figures(first.model, other.model, compared(first, other)) for other in others],
            "train_text": self.train_text or None,
        }


def evaluate_suite(
    models: Sequence[str | Path],
    suite: str | None = None,
    files: str | Path | None = None,
    *,
    task_file: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
    train_text: str | Path | None = None,
    device: str = "auto",
    weights: str | None = None,
    calibration: str | None = None,
    seed: int = 0,
) -> SuiteReport:
    """Ask model folders, or runs', every item of a suite whose files lie in `files`, or of a `task_file`.

    suite: a shipped one, or `minimal-pairs`, whose `files` is one file. shots: examples before each item. limit: items
    of each task. train_text: a text, or a folder, whose overlap with the items is told. operator, seed: what
    replaces the model's own calibration. `UserError` for files that are missing or rows that cannot be read.
    """
    asked = load_tasks(suite, files, task_file, shots, limit)
    overlaps = None if train_text is None else overlaps_with(asked.tasks, Path(train_text))
    read = ModelOptions(None, device, calibration, weights, seed)
    results = [measure_suite(read.load(name), str(name), asked) for name in models]
    return SuiteReport(results, overlaps, "" if train_text is None else str(train_text))


def load_tasks(
    suite: str | None,
    files: str | Path | None,
    task_file: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
) -> Suite:
    """The tasks that `evaluate_suite` asks; `UserError` where what is given does not go together."""
    if (suite is None) == (task_file is None):
        raise UserError("expected one of `suite`, with `files`, and `task_file`")
    if task_file is not None:
        if files is not None:
            raise UserError("goes with a suite; the rows are in `task_file`", field="files", value=files)
        return load_task_file(Path(task_file), shots, limit)
    assert suite is not None
    spec = None if suite == MINIMAL_PAIRS else suite_spec(suite)
    if files is None:
        where = "a file of pairs" if spec is None else "a folder with a file NAME.jsonl for each task"
        raise UserError("`files` is missing", field="suite", value=suite, accepted=where)
    if spec is not None:
        return load_suite(spec, Path(files), shots, limit)
    if shots:
        raise UserError("minimal pairs stand alone; leave it out", field="shots", value=shots)
    return load_minimal_pairs(Path(files), limit)
