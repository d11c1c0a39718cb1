"""All runs that a law is to be fitted to, from a CSV file, or from the folders of runs and of comparisons.

A CSV file has columns `parameters` and `loss` (nats per token), and `training_flops` or `tokens` or both; where one is
missing it follows from `C = 6 N D`. Optional: `parameters_without_embedding` and `parameters_matrices_and_head`, the
same models counted in other ways; `run`: rows of one name are points along one run's curve. Other columns do not
matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnet.core.errors import UserError
from linnet.core.units import Row, read_rows
from linnet.present import numbers
from linnet.scaling.counts import Counting, ParameterCounts, parameter_counts
from linnet.scaling.law import FLOPS_FACTOR
from linnet.scaling.points import Run
from linnet.training.runs import FinishedRun, check_comparable, read_run_folders, runs_of

PARAMETERS: dict[Counting, str] = {
    "total": "parameters",
    "without_embedding": "parameters_without_embedding",
    "matrices_and_head": "parameters_matrices_and_head",
}
FLOPS, TOKENS, LOSS, RUN = "training_flops", "tokens", "loss", "run"


def read_run_table(path: Path) -> list[Run]:
    """The runs of a CSV file, in its order; `UserError` names line, column and value."""
    groups: dict[str, list[dict[str, float]]] = {}
    for row in read_rows(path, ((PARAMETERS["total"],), (LOSS,), (FLOPS, TOKENS))):
        groups.setdefault(row.cells.get(RUN) or row.origin, []).append(_figures(row))
    if not groups:
        raise UserError(f"{path}: has no rows; expected one for each run")
    return [_of_rows(path, name, rows) for name, rows in groups.items()]


def _figures(row: Row) -> dict[str, float]:
    """The numbers of a row; size, FLOPs and tokens complete."""
    columns = (*PARAMETERS.values(), FLOPS, TOKENS, LOSS)
    read = {column: row.number(column) for column in columns if column in row.cells}
    size = FLOPS_FACTOR * read[PARAMETERS["total"]]
    if TOKENS not in read:
        read[TOKENS] = read[FLOPS] / size
    if FLOPS not in read:
        read[FLOPS] = read[TOKENS] * size
    return read


def _of_rows(path: Path, name: str, rows: list[dict[str, float]]) -> Run:
    sizes = {column: {row[column] for row in rows} for column in PARAMETERS.values() if column in rows[0]}
    for column, values in sizes.items():
        if len(values) > 1:
            raise UserError(
                f"{path}: run {name}: {column}: {len(values)} different values, expected one for all its rows"
            )
    rows = sorted(rows, key=lambda row: row[TOKENS])
    tokens, flops, loss = (np.array([row[column] for row in rows]) for column in (TOKENS, FLOPS, LOSS))
    parameters = {counted: rows[0][column] for counted, column in PARAMETERS.items() if column in rows[0]}
    return Run(name, parameters, tokens, flops, loss)


TABLE_SUFFIX = ".csv"


@dataclass(frozen=True)
class Study:
    """Runs, and the bytes of text per token that their losses are of (None where it is not known).

    `left_out`: a line for each path among several that is no finished run; it says why. `partly_used`: one for each run
    whose tokens use a part of its parameters each.
    """

    runs: list[Run]
    bytes_per_token: float | None
    left_out: list[str]
    partly_used: list[str]


def read_study(sources: Sequence[Path]) -> Study:
    """One CSV file; or folders of runs, and folders that hold `runs/`, as comparisons and studies do.

    Among several paths those that are no finished run are left out. `UserError` where nothing remains, where a path
    does not exist, and where the runs do not go together.
    """
    for path in sources:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; expected a CSV file, or folders of runs")
    files = [path for path in sources if path.is_file()]
    tables = [path for path in files if len(files) == len(sources) or path.suffix.lower() == TABLE_SUFFIX]
    if tables and len(sources) > 1:
        raise UserError(f"{tables[0]}: one CSV file, or folders of runs; not several and not both")
    return Study(read_run_table(tables[0]), None, [], []) if tables else _read_folders(sources)


def _read_folders(sources: Sequence[Path]) -> Study:
    paths = {path.resolve(): path for source in sources for path in runs_of(source)}  # each run once
    found, left_out = read_run_folders(list(paths.values()))
    if not found:
        raise UserError(left_out[0] if len(left_out) == 1 else _nothing(sources, left_out))
    check_comparable(found)
    counts = [parameter_counts(one.spec.model) for one in found]
    both = list(zip(found, counts, strict=True))
    partly_used = [_partly_used(*pair) for pair in both if pair[1].stored > pair[1].total]
    return Study([_of_folder(*pair) for pair in both], found[0].bytes_per_token, left_out, partly_used)


def _partly_used(found: FinishedRun, counts: ParameterCounts) -> str:
    used, stored = numbers.metric(counts.total), numbers.metric(counts.stored)
    return f"{found.path}: {used} of its {stored} parameters are used by one token; these are counted"


def _of_folder(found: FinishedRun, counts: ParameterCounts) -> Run:
    tokens_T = np.array([line["tokens"] for line in found.lines], dtype=float)
    loss_T = np.array([line["validation"]["nats_per_token"] for line in found.lines], dtype=float)
    return Run(str(found.path), counts.by_name(), tokens_T, tokens_T * found.flops_per_token, loss_T)


def _nothing(sources: Sequence[Path], left_out: Sequence[str]) -> str:
    where = f"{sources[0]}: " if len(sources) == 1 else ""
    first = f"; the first: {left_out[0]}" if left_out else ""
    among = f"no finished run among {len(left_out)} paths{first}" if left_out else "no run in it"
    return f"{where}{among}"
