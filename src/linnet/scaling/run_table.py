"""Runs from a CSV file.

Columns `parameters` and `loss` (nats per token), and `training_flops` or `tokens` or both; where one is missing it
follows from `C = 6 N D`. Optional: `parameters_without_embedding` and `parameters_matrices_and_head`, the same models
counted in other ways; `run`: rows of one name are points along one run's curve. Other columns do not matter.
"""

from pathlib import Path

import numpy as np

from linnet.core.csv_table import Row, read_rows
from linnet.core.errors import UserError
from linnet.scaling.counts import Counting
from linnet.scaling.law import FLOPS_FACTOR
from linnet.scaling.points import Run

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
    return [_run(path, name, rows) for name, rows in groups.items()]


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


def _run(path: Path, name: str, rows: list[dict[str, float]]) -> Run:
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
