"""CSV files with a head, as people and spreadsheets write them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from linnet.errors import UserError
from linnet.files import read_text

BYTE_ORDER_MARK = "\ufeff"
"""Spreadsheets write it before the first column's name."""


@dataclass(frozen=True)
class Row:
    """Text by column, empty where a row is too short. `origin` names file and line."""

    origin: str
    cells: Mapping[str, str]


def read_rows(path: Path, needed: Sequence[Sequence[str]]) -> list[Row]:
    """The rows of a CSV file; blanks around names and values, and a byte-order mark, do not count.

    Of each group of `needed` columns one has to be there. `UserError` names the columns that are missing and those that
    are there, or the line that is no CSV.
    """
    reader = csv.DictReader(read_text(path).removeprefix(BYTE_ORDER_MARK).splitlines(), skipinitialspace=True)
    try:
        columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        _check(path, columns, needed)
        return [
            Row(f"{path}, line {reader.line_num}", {name: (row[name] or "").strip() for name in columns})
            for row in reader
        ]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num + 1}: not valid CSV ({error})") from None


def _check(path: Path, columns: Sequence[str], needed: Sequence[Sequence[str]]) -> None:
    for group in needed:
        if not set(group) & set(columns):
            found = ", ".join(columns) or "nothing"
            raise UserError(f"{path}: column {' or '.join(group)} is missing; found {found}")
