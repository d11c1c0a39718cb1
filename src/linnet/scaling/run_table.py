"""Runs from a CSV file.

Columns `parameters` and `loss` (nats per token), and `training_flops` or `tokens` or both; where one is missing it
follows from `C = 6 N D`. Optional: `parameters_without_embedding` and `parameters_matrices_and_head`, the same models
counted in other ways; `run`: rows of one name are points along one run's curve. Other columns do not matter.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from linnet import numbers
from linnet.errors import UserError
from linnet.files import read_text
from linnet.scaling.counts import Counting
from linnet.scaling.law import FLOPS_FACTOR
from linnet.scaling.points import Run

PARAMETERS: dict[Counting, str] = {
    "total": "parameters",
    "without_embedding": "parameters_without_embedding",
    "matrices_and_head": "parameters_matrices_and_head",
}
FLOPS, TOKENS, LOSS, RUN = "training_flops", "tokens", "loss", "run"
BYTE_ORDER_MARK = "\ufeff"
"""Spreadsheets write it before the first column's name."""


def read_run_table(path: Path) -> list[Run]:
    """The runs of a CSV file, in its order; `UserError` names line, column and value."""
    text = read_text(path).removeprefix(BYTE_ORDER_MARK)
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    reader.fieldnames = columns = _checked_columns(path, reader.fieldnames)
    groups: dict[str, list[dict[str, float]]] = {}
    for row in reader:
        origin = f"{path}, line {reader.line_num}"
        name = row[RUN] if RUN in columns and row[RUN] else origin
        groups.setdefault(name, []).append(_figures(row, columns, origin))
    if not groups:
        raise UserError(f"{path}: has no rows; expected one for each run")
    return [_run(path, name, rows) for name, rows in groups.items()]


def _checked_columns(path: Path, found: object) -> list[str]:
    names = [str(name).strip() for name in found] if isinstance(found, list) else []
    given = ", ".join(names) or "nothing"
    for needed in ((PARAMETERS["total"],), (LOSS,), (FLOPS, TOKENS)):
        if not set(needed) & set(names):
            raise UserError(f"{path}: column {' or '.join(needed)} is missing; found {given}")
    return names


def _figures(row: Mapping[str, str | None], columns: list[str], origin: str) -> dict[str, float]:
    """The numbers of a row; size, FLOPs and tokens complete."""
    read = {}
    for column in (*PARAMETERS.values(), FLOPS, TOKENS, LOSS):
        if column in columns:
            read[column] = numbers.parse(row[column] or "", f"{origin}: {column}:")
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
