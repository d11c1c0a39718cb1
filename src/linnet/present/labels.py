"""Labels beside points and at the ends of lines, moved apart where they would lie on each other."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from linnet.present.room import PER_INCH, text_width_inches

END_POINTS, POINT_POINTS = 9.5, 8.5
END_LINE = 1.25
"""From the label of a line to the next, of the height of its letters."""

WIDEST_SHARE, HIGHEST_SHARE = 1 / 3, 0.7
"""Of a panel, names at the ends of its lines take no more."""

FARTHEST = 0.3
"""Of a panel, the name of a point lies no farther from it."""

Point = tuple[float, float, str, Any]
"""Its place, value, name and color."""

End = tuple[str, Any, Any, Any]
"""A line's name, places, values and color."""


def end_labels_fit(names: Sequence[str], width_inches: float, height_inches: float) -> bool:
    """Whether names beside the last points of lines leave a panel of that size enough of itself."""
    widest = max((text_width_inches(name, END_POINTS) for name in names), default=0.0)
    height = len(names) * END_LINE * END_POINTS / PER_INCH
    return widest <= WIDEST_SHARE * width_inches and height <= HIGHEST_SHARE * height_inches


def label_ends(axes: Any, lines: Sequence[End]) -> None:
    """Each line's name beside its last point, between the ends of the axes, which have been laid out."""
    share = _shares(axes.get_ylim(), axes.get_yscale())
    lines = sorted((line for line in lines if len(line[2])), key=lambda line: line[2][-1])
    heights = [share(line[2][-1]) for line in lines]
    gap = END_LINE * END_POINTS / PER_INCH * axes.figure.dpi / axes.get_window_extent().height
    for (name, x, _, color), height in zip(lines, spread(heights, gap, gap / 2, 1 - gap / 2), strict=True):
        axes.annotate(
            name.replace("$", r"\$"),
            (x[-1], height),
            xycoords=("data", "axes fraction"),
            xytext=(7, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=END_POINTS,
            color=color,
        )


def label_points(axes: Any, points: Sequence[Point], lines: Sequence[tuple[Any, Any]]) -> None:
    """Names near their points, off each other and off all points and lines, with a thin line from name to point.

    points: all of them, an empty name where one has none. lines: places and values of what is drawn as a line. The axes
    have been laid out, and stay as they are.
    """
    import textalloc

    drawn: dict[str, Any] = {}
    if lines:
        drawn = {"x_lines": [list(x) for x, _ in lines], "y_lines": [list(y) for _, y in lines]}
    x, y, names, colors = map(list, zip(*(point for point in points if point[2]), strict=True))
    textalloc.allocate(
        axes,
        x,
        y,
        [name.replace("$", r"\$") for name in names],
        x_scatter=[point[0] for point in points],
        y_scatter=[point[1] for point in points],
        textsize=POINT_POINTS,
        textcolor=colors,
        linecolor=colors,
        linewidth=0.6,
        max_distance=FARTHEST,
        avoid_label_lines_overlap=True,
        in_layout=False,
        **drawn,
    )


def _shares(ends: tuple[float, float], scale: str) -> Callable[[float], float]:
    """Where a value lies between the ends of an axis, from 0 to 1; ends that are one point lie apart by 1."""
    bent = math.log if scale == "log" else float
    low, high = map(bent, ends)
    length = high - low or 1.0

    def share(value: float) -> float:
        return 0.0 if scale == "log" and value <= 0 else (bent(value) - low) / length

    return share


def spread(ascending: Sequence[float], gap: float, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """The values moved by as little as it takes to lie `gap` from each other: groups that collide spread evenly.

    low, high: between which all of them come to lie, where they have the room.
    """
    groups: list[list[float]] = []
    for value in ascending:
        groups.append([value])
        while (
            len(groups) > 1 and _spread(groups[-1], gap, low, high)[0] - _spread(groups[-2], gap, low, high)[-1] < gap
        ):
            last = groups.pop()
            groups[-1] += last
    return [place for group in groups for place in _spread(group, gap, low, high)]


def _spread(group: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """As many places, `gap` from each other, about the group's mean, or as near to it as the ends allow."""
    length = gap * (len(group) - 1)
    lowest = max(low, min(float(np.mean(group)) - length / 2, high - length))
    return [lowest + gap * number for number in range(len(group))]
