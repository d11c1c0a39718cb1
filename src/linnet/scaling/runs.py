"""Runs that a law is fitted to, from a CSV file or from the folders of runs and of comparisons.

A CSV file has columns `parameters` and `loss` (nats per token), and `training_flops` or `tokens` or both; a missing one
follows from `C = 6 N D`. Optional columns: `parameters_without_embedding` and `parameters_matrices_and_head`, the same
models counted in other ways; `run`: rows with the same name are points along one run's curve. Other columns are
ignored.

Legend: `T` points along one run's curve, `P` points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.core.units import read_rows
from linnet.present import numbers
from linnet.scaling.candidate import COUNTING_DESCRIPTIONS, COUNTINGS, Counting, parameter_counts
from linnet.scaling.law import FLOPS_FACTOR
from linnet.training.runs import check_comparable, read_run_folders, runs_of

PARAMETERS: dict[Counting, str] = {
    "total": "parameters",
    "without_embedding": "parameters_without_embedding",
    "matrices_and_head": "parameters_matrices_and_head",
}
FLOPS, TOKENS, LOSS, RUN = "training_flops", "tokens", "loss", "run"
TABLE_SUFFIX = ".csv"


@dataclass(frozen=True)
class Run:
    """One model and its loss, nats per token, after `tokens_T` tokens and `flops_T` training FLOPs, ascending.

    The last point is the end of training; of many runs only that is known. parameters: by the way of counting.
    """

    name: str
    parameters: dict[Counting, float]
    tokens_T: Numbers
    flops_T: Numbers
    loss_T: Numbers


@dataclass(frozen=True)
class Points:
    """Size, training tokens, training FLOPs and loss at the end of each run, `[P]` each."""

    parameters: Numbers
    tokens: Numbers
    flops: Numbers
    loss: Numbers

    @classmethod
    def of(cls, runs: Sequence[Run], counted: Counting) -> Self:
        """Return the ends of the runs."""
        parameters = np.array([run.parameters[counted] for run in runs])
        curves = ([run.tokens_T for run in runs], [run.flops_T for run in runs], [run.loss_T for run in runs])
        return cls(parameters, *(np.array([curve[-1] for curve in one]) for one in curves))

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> "Points":
        return Points(self.parameters[chosen], self.tokens[chosen], self.flops[chosen], self.loss[chosen])


@dataclass(frozen=True)
class RunSet:
    """Runs, and the bytes of text per token of their losses (None if unknown).

    left_out: a line with the reason for each path that is not a finished run. partly_used: a line for each run whose
    tokens use only a part of its parameters each.
    """

    runs: list[Run]
    bytes_per_token: float | None
    left_out: list[str]
    partly_used: list[str]


def countings(runs: Sequence[Run]) -> list[Counting]:
    """Return the ways of counting that are known for all runs."""
    return [counted for counted in COUNTINGS if all(counted in run.parameters for run in runs)]


def check_counting(runs: Sequence[Run], counted: Counting) -> None:
    """Raise `UserError` if the parameters of some run, counted as `counted`, are unknown."""
    missing = next((run.name for run in runs if counted not in run.parameters), None)
    if missing is not None:
        known = ", ".join(countings(runs))
        raise UserError(
            f"{missing} does not state its parameters {COUNTING_DESCRIPTIONS[counted]}; known for all runs: {known}",
            field="counted",
            value=counted,
        )


def without_highest(runs: Sequence[Run], count: int) -> list[Run]:
    """Return all but the `count` runs that ended with the highest losses, in their order."""
    if not 0 <= count < len(runs):
        raise UserError(f"must be less than the number of runs, {len(runs)}", field="drop_highest", value=count)
    dropped = sorted(range(len(runs)), key=lambda index: runs[index].loss_T[-1])[len(runs) - count :]
    return [run for index, run in enumerate(runs) if index not in dropped]


def read_run_table(path: Path) -> list[Run]:
    """Read the runs of a CSV file, in its order; `UserError` names line, column and value."""
    columns = (*PARAMETERS.values(), FLOPS, TOKENS, LOSS)
    groups: dict[str, list[dict[str, float]]] = {}
    for row in read_rows(path, ((PARAMETERS["total"],), (LOSS,), (FLOPS, TOKENS))):
        figures = {column: row.number(column) for column in columns if column in row.cells}
        flops_per_token = FLOPS_FACTOR * figures[PARAMETERS["total"]]
        if TOKENS not in figures:
            figures[TOKENS] = figures[FLOPS] / flops_per_token
        if FLOPS not in figures:
            figures[FLOPS] = figures[TOKENS] * flops_per_token
        groups.setdefault(row.cells.get(RUN) or row.origin, []).append(figures)
    if not groups:
        raise UserError(f"{path}: has no rows; expected one for each run")

    runs = []
    for name, rows in groups.items():
        parameters = {counted: rows[0][column] for counted, column in PARAMETERS.items() if column in rows[0]}
        for counted in parameters:
            values = {row[PARAMETERS[counted]] for row in rows}
            if len(values) > 1:
                raise UserError(
                    f"{path}: run {name}: {PARAMETERS[counted]}: {len(values)} different values, expected one for all"
                    " its rows"
                )
        curve = sorted(rows, key=lambda row: row[TOKENS])
        tokens_T, flops_T, loss_T = (np.array([row[column] for row in curve]) for column in (TOKENS, FLOPS, LOSS))
        runs.append(Run(name, parameters, tokens_T, flops_T, loss_T))
    return runs


def read_runs(sources: Sequence[Path]) -> RunSet:
    """Read one CSV file; or folders of runs, and folders that contain `runs/`, as those of comparisons and studies do.

    Among several paths those that are not a finished run are left out. `UserError` if no run remains, if a path does
    not exist, or if the runs are not comparable.
    """
    for path in sources:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; expected a CSV file, or folders of runs")
    files = [path for path in sources if path.is_file()]
    tables = [path for path in files if len(files) == len(sources) or path.suffix.lower() == TABLE_SUFFIX]
    if tables and len(sources) > 1:
        raise UserError(f"{tables[0]}: one CSV file, or folders of runs; not several and not both")
    return RunSet(read_run_table(tables[0]), None, [], []) if tables else _read_folders(sources)


def _read_folders(sources: Sequence[Path]) -> RunSet:
    paths = {path.resolve(): path for source in sources for path in runs_of(source)}  # each run once
    finished, left_out = read_run_folders(list(paths.values()))
    if not finished and len(left_out) == 1:
        raise UserError(left_out[0])
    if not finished:
        where = f"{sources[0]}: " if len(sources) == 1 else ""
        first = f"no finished run among {len(left_out)} paths; the first: {left_out[0]}" if left_out else "no run in it"
        raise UserError(f"{where}{first}")
    check_comparable(finished)
    runs, partly_used = [], []
    for one in finished:
        counts = parameter_counts(one.spec.model)
        tokens_T = np.array([line["tokens"] for line in one.lines], dtype=float)
        loss_T = np.array([line["validation"]["nats_per_token"] for line in one.lines], dtype=float)
        runs.append(Run(str(one.path), counts.by_name(), tokens_T, tokens_T * one.flops_per_token, loss_T))
        if counts.stored > counts.total:
            used, stored = numbers.metric(counts.total), numbers.metric(counts.stored)
            partly_used.append(
                f"{one.path}: {used} of its {stored} parameters are used by one token; these are counted"
            )
    return RunSet(runs, finished[0].bytes_per_token, left_out, partly_used)
