"""Tables: rows of text, laid out alike for terminals of every width."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from linnet.core.text import printable

MISSING = "–"
"""In a cell: not known, not measured, or not there."""

GAP = "  "
LEAST_NAME = 16
"""Narrower than so many columns words are not folded."""


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names the row, one that begins with a blank being a part of the row above.

    `meaning`: what to look for, a line or two. `text`: the cells are words, which begin at the left, not figures,
    in all columns. `leading`: so many columns at the left speak of the whole row: its name, and what holds for all the
    others alike, as chance does for every model.
    `notes`: what a row means, by its name, for a page. Where all `columns` are empty there is no head.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    meaning: str = ""
    text: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    leading: int = 1


def word_columns(table: Table) -> set[int]:
    """Those that begin at the left and can be folded: names, and what has no figures in it or says a sentence."""
    columns = list(zip(*table.rows, strict=True))
    firsts = [[cell.partition("\n")[0] for cell in cells] for cells in columns]  # a second line is small print
    said = {number for number, cells in enumerate(firsts) if _are_words("\n".join(cells))}
    return {0} | said | set(range(len(columns)) if table.text else ())


def _are_words(cells: str) -> bool:
    sentence = re.search(r"[a-z]+ [a-z]+ [a-z]+", cells)
    return bool(sentence) or (bool(cells.strip()) and not re.search(r"\d", cells))


def table_lines(table: Table, width: int) -> list[str]:
    """The table in lines of at most `width` columns, as far as its figures allow: none is cut or folded.

    Where there is too little room heads are folded, then words; then columns stand below each other, rows named again.
    """
    grid = [[_on_one_line(printable(cell)) for cell in row] for row in (table.columns, *table.rows)]
    grid = grid if any(table.columns) else grid[1:]
    head = bool(any(table.columns))
    words = word_columns(table)
    widths = _widths(grid, head, width, words)
    lines: list[str] = []
    for chosen in _blocks(widths, width):
        lines += [""] * bool(lines)
        for number, row in enumerate(grid):
            cells = [_folded(row[column], widths[column]) for column in chosen]
            left = [column in words for column in chosen]
            lines += _row_lines(cells, [widths[column] for column in chosen], left, bottom=head and not number)
    return lines


def _on_one_line(text: str) -> str:
    """The second line of a cell, which a page shows below the first, in parentheses behind it."""
    first, _, second = text.partition("\n")
    return f"{first} ({second})" if second else first


def _widths(grid: Sequence[Sequence[str]], head: bool, width: int, words: set[int]) -> list[int]:
    """Of each column: its widest cell where there is room, else its heads folded, else its words."""
    columns = list(zip(*grid, strict=True))
    whole = [max(map(_length, column)) for column in columns]
    if _sum(whole) <= width:
        return whole
    tight = [max(_longest_word(column[0]) if head else 0, *map(_length, column[head:])) for column in columns]
    least = [
        min(size, max(LEAST_NAME, *map(_longest_word, column))) if number in words else size
        for number, (size, column) in enumerate(zip(tight, columns, strict=True))
    ]
    if _sum(least) > width and len(words) < len(columns):
        names = min(tight[0], max(least[0], width // 3))
        beside = width - names - len(GAP)
        return [
            names,
            *(max(least[n], min(tight[n], beside)) if n in words else tight[n] for n in range(1, len(tight))),
        ]
    while _sum(tight) > width and tight != least:
        widest = max(words, key=lambda number: tight[number] - least[number])
        tight[widest] -= 1
    return tight


def _blocks(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """The columns that stand beside each other: as many as there is room for, the first of all in each."""
    block = [0]
    for column in range(1, len(widths)):
        if len(block) > 1 and _sum([widths[number] for number in (*block, column)]) > width:
            yield block
            block = [0]
        block.append(column)
    yield block


def _row_lines(cells: Sequence[list[str]], widths: Sequence[int], left: Sequence[bool], bottom: bool) -> list[str]:
    """The lines of one row, whose cells stand at the top, those of the head at the bottom."""
    height = max(map(len, cells))
    filled = []
    for cell, width, begins in zip(cells, widths, left, strict=True):
        empty = [""] * (height - len(cell))
        lines = [*empty, *cell] if bottom else [*cell, *empty]
        filled.append([f"{line}{_blank(line, width)}" if begins else f"{_blank(line, width)}{line}" for line in lines])
    return [GAP.join(parts).rstrip() for parts in zip(*filled, strict=True)]


def _folded(text: str, width: int) -> list[str]:
    if _length(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _blank(text: str, width: int) -> str:
    return " " * (width - _length(text))


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _longest_word(text: str) -> int:
    return max(map(_length, text.split()), default=0)


def _length(text: str) -> int:
    """In columns of a terminal: characters of East Asia take two."""
    from rich.cells import cell_len

    return cell_len(text)
