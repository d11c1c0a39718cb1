"""Show a result: tables or JSON on the standard output, a page with plots in a folder, curves in the terminal."""

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from linnet.core.errors import print_error, printable
from linnet.present import numbers
from linnet.present.result import Commands, Part, Passage, Result
from linnet.present.table import Table, table_lines

UNLIMITED_WIDTH, MAX_PROSE_WIDTH = 1000, 100
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def show(result: Result, command: str, as_json: bool = False, out: Path | None = None) -> None:
    """Print a result as tables or JSON; write its page and plots into the folder `out` first, if one is given.

    command: the command line that produced the result; the page names it.
    """
    if out is not None:
        from linnet.present.page import write_page

        print_error(f"report: {write_page(result, out, command)}")
    if as_json:
        write_json(result.to_dict())
    else:
        _write(result_text(result, terminal_width(), sys.stdout.isatty()))


def write_json(figures: Any) -> None:
    """Write plain data to the standard output as JSON."""
    write(json.dumps(figures, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_parts(*parts: Part) -> None:
    """Write tables, passages and commands to the standard output, without a heading."""
    lines = [*parts_lines(parts, terminal_width(), sys.stdout.isatty())]
    _write("".join(f"{line}\n" for line in lines[1:]))


def write(text: str) -> None:
    """Write text to the standard output at once, as UTF-8. A terminal gets escapes instead of control characters."""
    _write(printable(text) if sys.stdout.isatty() else text)


def _write(text: str) -> None:
    sys.stdout.flush()
    content, stream = text.encode(errors="surrogateescape"), getattr(sys.stdout, "buffer", None)
    if stream is None:  # a text stream without bytes beneath, as in a notebook
        sys.stdout.write(content.decode(errors="replace"))
        return
    stream.write(content)
    stream.flush()


def terminal_width() -> int:
    """Return the terminal's width in columns; pipes and files have room for every table."""
    return shutil.get_terminal_size((UNLIMITED_WIDTH, 24)).columns


def result_text(result: Result, width: int, styled: bool = False) -> str:
    """Return the terminal form: heading, tables, conclusion. `styled` marks headings with bold and notes with dim."""
    heading = printable(": ".join(part for part in (result.title(), *result.facts().values()) if part))
    lines = [*_prose(heading, width), *parts_lines(result.tables(), width, styled)]
    if conclusion := result.conclusion():
        lines += ["", *_prose(conclusion, width)]
    return "".join(f"{line}\n" for line in (lines if heading else lines[1:]))


def parts_lines(parts: Sequence[Part], width: int, styled: bool = False) -> Iterator[str]:
    """Yield the lines of tables, passages and commands, with an empty line before each part."""
    for part in parts:
        match part:
            case Table():
                yield ""
                for line in _prose(part.title, width):
                    yield _marked(line, BOLD, styled)
                yield from table_lines(part, width)
                for line in _prose(part.meaning, width):
                    yield _marked(line, DIM, styled)
            case Passage():
                yield from ["", *_passage(part, width, styled)]
            case Commands():
                yield from ["", _marked(part.title, BOLD, styled)]
                for purpose, lines in part.lines.items():
                    yield purpose
                    yield from (f"  {line}" for line in lines)  # never folded, so that they can be copied


def _passage(passage: Passage, width: int, styled: bool) -> Iterator[str]:
    width = MAX_PROSE_WIDTH if width == UNLIMITED_WIDTH else width
    yield f"{_marked(passage.title, BOLD, styled)} {'─' * max(0, width - len(passage.title) - 1)}"
    prompt = len(printable(passage.prompt))
    for line in printable(passage.prompt + passage.text.rstrip()).split("\n"):
        for part in textwrap.wrap(line, width - 4, drop_whitespace=True) or [""]:
            bold = min(prompt, len(part))
            yield f"  {_marked(part[:bold], BOLD, styled)}{part[bold:]}" if part else ""
            prompt = max(0, prompt - len(part) - 1)


def _prose(text: str, width: int) -> list[str]:
    width = min(width, MAX_PROSE_WIDTH)
    wrapped = (textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))
    return [part for parts in wrapped for part in parts]


def _marked(text: str, mark: str, styled: bool) -> str:
    return f"{mark}{text}{PLAIN}" if styled and text else text


# Curves in the terminal: Braille characters of two by four dots, with axes in numbers. Matplotlib draws for files; this
# is for a look. (plotext keeps one global figure and brings a compiled wheel.)

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille character by row and column (Unicode chapter 21.1)."""

EMPTY_CHARACTER = 0x2800
CURVE_COLORS = ("\x1b[34m", "\x1b[33m", "\x1b[32m")
MIN_WIDTH, MIN_HEIGHT = 16, 3


@dataclass(frozen=True)
class TerminalCurve:
    """A line through points with ascending x; points that are not finite are left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float]

    @property
    def points(self) -> list[tuple[float, float]]:
        """The finite points."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if math.isfinite(x) and math.isfinite(y)]


def curve_lines(
    title: str,
    curves: Sequence[TerminalCurve],
    width: int,
    height: int,
    logarithmic: bool = False,
    styled: bool = False,
) -> list[str]:
    """Draw the curves in `height` lines of at most `width` columns, between the title and the x axis.

    logarithmic: a logarithmic y axis if all values are positive. styled: one color for each curve.
    """
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return [f"{title}: nothing yet"]
    x_values, y_values = ([point[axis] for curve in drawn for point in curve.points] for axis in (0, 1))
    transform: Callable[[float], float] = math.log if logarithmic and min(y_values) > 0 else float
    labels = [f"{value:.3g}" for value in (max(y_values), min(y_values))]
    margin = max(map(len, labels)) + 1
    columns, rows = max(MIN_WIDTH, width - margin - 1), max(MIN_HEIGHT, height)
    x_range = min(x_values), max(x_values)
    y_range = transform(min(y_values)), transform(max(y_values))

    # Each character holds its dots and the number of the curve that drew the last of them.
    cells = [[(0, 0)] * columns for _ in range(rows)]
    for number, curve in enumerate(drawn):
        places = [
            (_place(x, x_range, 2 * columns), 4 * rows - 1 - _place(transform(y), y_range, 4 * rows))
            for x, y in curve.points
        ]
        for column, row in _connected(places):
            bits, _ = cells[row // 4][column // 2]
            cells[row // 4][column // 2] = (bits | DOTS[row % 4][column % 2], number)

    names = [f"{_color(number, styled)}{curve.name}{PLAIN if styled else ''}" for number, curve in enumerate(drawn)]
    lines = [f"{title}: {', '.join(names)}" if any(curve.name for curve in drawn) else title]
    for row in range(rows):
        label = labels[0] if row == 0 else labels[1] if row == rows - 1 else ""
        lines.append(f"{label:>{margin}}┤{_painted(cells[row], styled)}".rstrip())
    low, high = map(numbers.grouped, x_range)
    return [*lines, f"{'':>{margin}}└{low}{high:>{max(1, columns - len(low))}}"]


def _place(value: float, ends: tuple[float, float], count: int) -> int:
    low, high = ends
    return 0 if high == low else min(count - 1, int((value - low) / (high - low) * count))


def _connected(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the places together with the dots on straight lines between neighbors."""
    found = list(places[:1])
    for (x, y), (to_x, to_y) in pairwise(places):
        steps = max(abs(to_x - x), abs(to_y - y))
        found += [(x + round(k * (to_x - x) / steps), y + round(k * (to_y - y) / steps)) for k in range(1, steps + 1)]
    return found


def _painted(cells: Sequence[tuple[int, int]], styled: bool) -> str:
    parts, current = [], -1
    for bits, number in cells:
        if styled and bits and number != current:
            parts.append(_color(number, styled))
            current = number
        parts.append(chr(EMPTY_CHARACTER + bits) if bits else " ")
    return "".join(parts) + (PLAIN if current >= 0 else "")


def _color(number: int, styled: bool) -> str:
    return CURVE_COLORS[number % len(CURVE_COLORS)] if styled else ""
