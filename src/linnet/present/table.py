"""Tables of text: their layout for terminals of every width, and their Markdown form."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from linnet.core.errors import printable

MISSING = "–"
"""The text of a cell whose value is unknown, not measured or not applicable."""

GAP = "  "
MIN_NAME_WIDTH = 16
"""Columns of words are not folded to fewer characters."""


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names the row, and a name that starts with a blank is a part of the row above.

    meaning: a line or two below the table. text: the cells of all columns are words, aligned left, not numbers.
    notes: explanations of rows by their names; only pages show them. leading: the number of columns at the left that
    describe the whole row, such as its name and the chance level. If all `columns` are empty, the table has no head.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    meaning: str = ""
    text: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    leading: int = 1


def word_columns(table: Table) -> set[int]:
    """Return the columns that are aligned left and may be folded: names, cells without digits, and sentences."""
    found = {0, *(range(len(table.columns)) if table.text else ())}
    for number, column in enumerate(zip(*table.rows, strict=True)):
        cells = "\n".join(cell.partition("\n")[0] for cell in column)  # a second line is small print
        has_sentence = re.search(r"[a-z]+ [a-z]+ [a-z]+", cells) is not None
        all_names = all(re.fullmatch(r"[A-Za-z][\w.-]*|", cell) for cell in column)  # `top_2_gram`
        if has_sentence or (cells.strip() and (all_names or not re.search(r"\d", cells))):
            found.add(number)
    return found


def table_lines(table: Table, width: int) -> list[str]:
    """Return the table in lines of at most `width` columns, if its numbers allow that: they are never cut or folded.

    If there is too little room, heads are folded first, then words; then the columns are shown in several blocks below
    each other, and each block repeats the names of the rows.
    """
    # A page shows the further lines of a cell below the first; here they stand in parentheses behind it.
    cell_lines = [[printable(cell).split("\n") for cell in row] for row in (table.columns, *table.rows)]
    grid = [[f"{first} ({', '.join(rest)})" if rest else first for first, *rest in row] for row in cell_lines]
    has_head = any(table.columns)
    grid = grid if has_head else grid[1:]
    words = word_columns(table)
    widths = _widths(grid, has_head, width, words)
    lines: list[str] = []
    for block in _blocks(widths, width):
        lines += [""] * bool(lines)
        for number, row in enumerate(grid):
            cells = [_folded(row[column], widths[column]) for column in block]
            lines += _row_lines(
                cells, [widths[n] for n in block], [n in words for n in block], bottom=has_head and not number
            )
    return lines


def _widths(grid: Sequence[Sequence[str]], has_head: bool, width: int, words: set[int]) -> list[int]:
    """Return each column's width: its widest cell if there is room, else with folded heads, else with folded words."""
    columns = list(zip(*grid, strict=True))
    full = [max(map(_length, column)) for column in columns]
    if _sum(full) <= width:
        return full
    tight = [max(_longest_word(column[0]) if has_head else 0, *map(_length, column[has_head:])) for column in columns]
    least = [
        min(size, max(MIN_NAME_WIDTH, *map(_longest_word, column))) if number in words else size
        for number, (size, column) in enumerate(zip(tight, columns, strict=True))
    ]
    if _sum(least) > width and len(words) < len(columns):
        # Several blocks are needed. The names take a third of the width at most; the rest is for one column beside.
        names = min(tight[0], max(least[0], width // 3))
        beside = width - names - len(GAP)
        return [names] + [
            max(least[n], min(tight[n], beside)) if n in words else tight[n] for n in range(1, len(tight))
        ]
    while _sum(tight) > width and tight != least:
        tight[max(words, key=lambda number: tight[number] - least[number])] -= 1
    return tight


def _blocks(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield the columns of each block: as many as there is room for, with the column of names first in each."""
    block = [0]
    for column in range(1, len(widths)):
        if len(block) > 1 and _sum([widths[number] for number in (*block, column)]) > width:
            yield block
            block = [0]
        block.append(column)
    yield block


def _row_lines(cells: Sequence[list[str]], widths: Sequence[int], left: Sequence[bool], bottom: bool) -> list[str]:
    """Return the lines of one row; the cells of a head stand at its bottom, all others at the top."""
    height, filled = max(map(len, cells)), []
    for cell, width, aligned_left in zip(cells, widths, left, strict=True):
        empty = [""] * (height - len(cell))
        lines = [*empty, *cell] if bottom else [*cell, *empty]
        blanks = [" " * (width - _length(line)) for line in lines]
        filled.append(
            [line + blank if aligned_left else blank + line for line, blank in zip(lines, blanks, strict=True)]
        )
    return [GAP.join(parts).rstrip() for parts in zip(*filled, strict=True)]


def _folded(text: str, width: int) -> list[str]:
    if _length(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _longest_word(text: str) -> int:
    return max(map(_length, text.split()), default=0)


def _length(text: str) -> int:
    """Return the columns that a terminal needs; East Asian characters take two."""
    from rich.cells import cell_len

    return cell_len(text)


def table_markdown(table: Table) -> str:
    """Return the table in Markdown; numbers are aligned right, and a cell's second line stays a line of its own."""
    words = word_columns(table) if table.rows else {0}
    rule = ["---" if number in words else "---:" for number in range(len(table.columns))]
    rows = [[cell_markdown(text) for text in row] for row in (table.columns, *table.rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (rows[0], rule, *rows[1:]))


def cell_markdown(text: str) -> str:
    """Return text that Markdown shows verbatim: marks are escaped, line breaks kept."""
    escaped = "".join(f"\\{letter}" if letter in "\\|`*_[]<>#~" else letter for letter in printable(text.strip()))
    return "<br>".join(line.strip() for line in escaped.splitlines()) or " "
