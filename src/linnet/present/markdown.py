"""Tables as Markdown, for a README or a note."""

from collections.abc import Sequence

from linnet.core.text import printable
from linnet.present.table import Table, word_columns


def table_markdown(table: Table) -> str:
    """A table of pipes; figures stand at the right, and a second line of a cell in its own line."""
    words = word_columns(table) if table.rows else {0}
    rule = ["---" if number in words else "---:" for number in range(len(table.columns))]
    return "".join(f"{_row(cells)}\n" for cells in (list(map(cell, table.columns)), rule, *_cells(table)))


def _cells(table: Table) -> list[list[str]]:
    return [[cell(text) for text in row] for row in table.rows]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(text: str) -> str:
    """Text that a reader of Markdown shows as it is: no mark of it counts, lines are kept."""
    escaped = "".join(f"\\{letter}" if letter in "\\|`*_[]<>#~" else letter for letter in printable(text.strip()))
    return "<br>".join(line.strip() for line in escaped.splitlines()) or " "
