"""Numbers in text: amounts as people write them (`1e18`, `50M`, `2 MB`), and tables of numbers in CSV files."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from linnet.core.errors import UserError
from linnet.core.files import read_text

FACTORS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}
"""The factor that a letter after a number stands for. `B` is a billion parameters or tokens, never a byte."""

BYTES = {"B": 1.0} | {
    f"{prefix}{unit}": base**power
    for unit, base, first in (("B", 1000.0, "k"), ("iB", 1024.0, "K"))
    for power, prefix in enumerate((first, "M", "G", "T"), start=1)
}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

_AMOUNT = re.compile(r"\s*((?:[0-9][0-9,_]*)?\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_units(text: str, units: Mapping[str, float]) -> float | None:
    """A positive number followed by one of `units` (name and factor): `2 MB`, `1e3k`, `12,000`; None for other text.

    Commas between digits are accepted because linnet prints them.
    """
    found = _AMOUNT.fullmatch(text)
    value = float(re.sub("[,_]", "", found[1])) * units.get(found[2], 0.0) if found else 0.0
    return value if 0 < value < math.inf else None


def parse_amount(text: str, name: str) -> float:
    """A positive number as people write it: `1e18`, `50M`, `2B`, `1.5 G`, `12,000`.

    `UserError` gives `name` (the field or option), the text and what is accepted.
    """
    value = parse_units(text, FACTORS)
    if value is None:
        accepted = "a positive number, with k, M, G (or B), T or P behind it or none: 1e18, 50M, 2B"
        raise UserError(f"{name} {text}: expected {accepted}")
    return value


def read_quantity(text: str, unit: Literal["bytes", "seconds"], option: str) -> float:
    """Parse `2MB` or `1.5GiB` as bytes, `20ms` as seconds; `UserError` names the option and what is accepted."""
    units, example = (BYTES, "2MB") if unit == "bytes" else (SECONDS, "20ms")
    value = parse_units(text, units)
    if value is None:
        raise UserError(
            f"{option} {text}: expected a number above 0 with one of the units {', '.join(units)}, as in {example}"
        )
    return value


@dataclass(frozen=True)
class Row:
    """One row of a CSV file: text by column, empty where the row is too short. `origin` names file and line."""

    origin: str
    cells: Mapping[str, str]

    def number(self, column: str) -> float:
        """The positive number in a cell; `UserError` names file, line, column and the text found."""
        return parse_amount(self.cells[column], f"{self.origin}: {column}:")


def read_rows(path: Path, needed: Sequence[Sequence[str]]) -> list[Row]:
    """Read a CSV file with a header. Spaces around names and values and a byte-order mark are ignored.

    needed: groups of columns; the file must have one of each group. `UserError` names a column that is missing or
    occurs twice, or the line that is not CSV or has more cells than there are columns.
    """
    # Spreadsheets write a byte-order mark before the first column's name.
    reader = csv.DictReader(read_text(path).removeprefix("\ufeff").splitlines(), skipinitialspace=True)
    rows = []
    try:
        columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        for name in columns:
            if name and columns.count(name) > 1:
                raise UserError(f"{path}: column {name} occurs {columns.count(name)} times; expected once")
        for group in needed:
            if not set(group) & set(columns):
                found = ", ".join(columns) or "nothing"
                raise UserError(f"{path}: column {' or '.join(group)} is missing; found {found}")
        cells: Mapping[Any, Any]
        for cells in reader:
            origin = f"{path}, line {reader.line_num}"
            extra = [cell for cell in cells.get(None) or () if cell.strip()]
            if extra:
                raise UserError(
                    f"{origin}: {', '.join(extra)}: more cells than the {len(columns)} columns; expected quotes around"
                    ' a number with commas in it: "340,000"'
                )
            rows.append(Row(origin, {name: (cells[name] or "").strip() for name in columns}))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num + 1}: not valid CSV ({error})") from None
    return rows
