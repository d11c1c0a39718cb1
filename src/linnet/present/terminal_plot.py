"""Curves in a terminal: points in Braille characters, two by four to a character, with axes in figures.

Matplotlib draws for files and pages; this is for a look. (plotext, the library for it, keeps one global figure, and
brings a compiled wheel with an interface of its own; this is a hundred lines.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from linnet.present import numbers

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille character by row and column (Unicode chapter 21.1)."""

EMPTY = 0x2800
COLORS, PLAIN = ("\x1b[34m", "\x1b[33m", "\x1b[32m"), "\x1b[0m"
LEAST_WIDTH, LEAST_HEIGHT = 16, 3


@dataclass(frozen=True)
class DottedCurve:
    """A line through points, x ascending; what is not finite is left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float]

    @property
    def points(self) -> list[tuple[float, float]]:
        """Those that can be drawn."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if math.isfinite(x) and math.isfinite(y)]


def curve_lines(
    title: str, curves: Sequence[DottedCurve], width: int, height: int, logarithmic: bool = False, styled: bool = False
) -> list[str]:
    """The curves over one another in `height` lines of at most `width` columns, between title and x axis.

    logarithmic: of y, where all are positive. styled: colors, each curve its own; without them all look alike.
    """
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return [f"{title}: nothing yet"]
    values = [y for curve in drawn for _, y in curve.points]
    bend: Callable[[float], float] = math.log if logarithmic and min(values) > 0 else float
    marks = [f"{value:.3g}" for value in (max(values), min(values))]
    margin = max(map(len, marks)) + 1
    columns, rows = max(LEAST_WIDTH, width - margin - 1), max(LEAST_HEIGHT, height)
    cells = _cells(drawn, bend, columns, rows)
    lines = [_head(title, drawn, styled)]
    for row in range(rows):
        mark = marks[0] if row == 0 else marks[1] if row == rows - 1 else ""
        lines.append(f"{mark:>{margin}}┤{_painted(cells[row], styled)}".rstrip())
    ends = [numbers.grouped(point) for point in _ends([x for curve in drawn for x, _ in curve.points])]
    return [*lines, f"{'':>{margin}}└{ends[0]}{ends[1]:>{max(1, columns - len(ends[0]))}}"]


def _head(title: str, curves: Sequence[DottedCurve], styled: bool) -> str:
    names = [f"{_color(number, styled)}{curve.name}{PLAIN if styled else ''}" for number, curve in enumerate(curves)]
    return f"{title}: {', '.join(names)}" if any(curve.name for curve in curves) else title


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _cells(
    curves: Sequence[DottedCurve], bend: Callable[[float], float], columns: int, rows: int
) -> list[list[tuple[int, int]]]:
    """Of each character its dots, and the number of the curve that has the last of them."""
    cells = [[(0, 0)] * columns for _ in range(rows)]
    x_ends = _ends([x for curve in curves for x, _ in curve.points])
    y_ends = _ends([bend(y) for curve in curves for _, y in curve.points])
    for number, curve in enumerate(curves):
        places = [
            (_place(x, x_ends, 2 * columns), 4 * rows - 1 - _place(bend(y), y_ends, 4 * rows)) for x, y in curve.points
        ]
        for column, row in _joined(places):
            bits, _ = cells[row // 4][column // 2]
            cells[row // 4][column // 2] = (bits | DOTS[row % 4][column % 2], number)
    return cells


def _place(value: float, ends: tuple[float, float], count: int) -> int:
    low, high = ends
    return 0 if high == low else min(count - 1, int((value - low) / (high - low) * count))


def _joined(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The dots on straight lines between neighbors."""
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
        parts.append(chr(EMPTY + bits) if bits else " ")
    return "".join(parts) + (PLAIN if current >= 0 else "")


def _color(number: int, styled: bool) -> str:
    return COLORS[number % len(COLORS)] if styled else ""
