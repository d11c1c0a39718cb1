"""CSV files with a head, as people and spreadsheets write them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.core import amounts
from linnet.core.errors import UserError
from linnet.core.files import read_text

BYTE_ORDER_MARK = "\ufeff"
"""Spreadsheets write it before the first column's name."""


@dataclass(frozen=True)
class Row:
    """Text by column, empty where a row is too short. `origin` names file and line."""

    origin: str
    cells: Mapping[str, str]

    def number(self, column: str) -> float:
        """A cell's positive number; `UserError` names file, line, column and what it holds."""
        return amounts.parse_amount(self.cells[column], f"{self.origin}: {column}:")


def read_rows(path: Path, needed: Sequence[Sequence[str]]) -> list[Row]:
    """The rows of a CSV file; blanks around names and values, and a byte-order mark, do not count.

    Of each group of `needed` columns one has to be there. `UserError` names the columns that are missing and those that
    are there, one that is there twice, or the line that is no CSV or has more cells than there are columns.
    """
    reader = csv.DictReader(read_text(path).removeprefix(BYTE_ORDER_MARK).splitlines(), skipinitialspace=True)
    try:
        columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        _check(path, columns, needed)
        return [_row(f"{path}, line {reader.line_num}", row, columns) for row in reader]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num + 1}: not valid CSV ({error})") from None


def _row(origin: str, row: Mapping[str | None, Any], columns: Sequence[str]) -> Row:
    beyond = [cell for cell in row.get(None) or () if cell.strip()]
    if beyond:
        raise UserError(
            f"{origin}: {', '.join(beyond)}: more cells than the {len(columns)} columns; expected quotes around a"
            ' number with commas in it: "340,000"'
        )
    return Row(origin, {name: (row[name] or "").strip() for name in columns})


def _check(path: Path, columns: Sequence[str], needed: Sequence[Sequence[str]]) -> None:
    for name in columns:
        if name and columns.count(name) > 1:
            raise UserError(f"{path}: column {name} is there {columns.count(name)} times; expected once")
    for group in needed:
        if not set(group) & set(columns):
            found = ", ".join(columns) or "nothing"
            raise UserError(f"{path}: column {' or '.join(group)} is missing; found {found}")
