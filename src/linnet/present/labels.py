"""Labels beside points and at the ends of lines, moved apart where they would lie on each other."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

END_POINTS, SLANTED_POINTS = 9.5, 8.5
END_GAP = 0.042
"""Between the labels of two lines, of the height of axes 4 inches high."""

SLANTED_GAP = 0.019
"""Between the slanted labels of two points, of the width of the axes."""

End = tuple[str, Any, Any, Any]
"""A line's name, places, values and colour."""


def label_ends(axes: Any, lines: Sequence[End]) -> None:
    """Each line's name beside its last point."""
    share, _ = _shares(axes.get_ylim(), axes.get_yscale())
    lines = sorted((line for line in lines if len(line[2])), key=lambda line: line[2][-1])
    heights = [share(line[2][-1]) for line in lines]
    gap = END_GAP * 4 / axes.figure.get_figheight() * axes.get_gridspec().nrows
    for (name, x, _, colour), height in zip(lines, apart(heights, gap), strict=True):
        axes.annotate(
            name.replace("$", r"\$"),
            (x[-1], height),
            xycoords=("data", "axes fraction"),
            xytext=(7, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=END_POINTS,
            color=colour,
        )


def label_points(axes: Any, x: Any, y: Any, labels: Sequence[str], colour: Any, above: bool) -> None:
    """Slanted text above or below points."""
    share, value = _shares(axes.get_xlim(), axes.get_xscale())
    ordered = sorted(zip(x, y, labels, strict=True))
    places = apart([share(point[0]) for point in ordered], SLANTED_GAP)
    for (_, height, label), place in zip(ordered, places, strict=True):
        axes.annotate(
            label,
            (value(place), height),
            xytext=(0, 6 if above else -6),
            textcoords="offset points",
            rotation=60,
            rotation_mode="anchor",
            horizontalalignment="left" if above else "right",
            verticalalignment="center",
            fontsize=SLANTED_POINTS,
            color=colour,
        )


def _shares(ends: tuple[float, float], scale: str) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Where a value lies between the ends of an axis, from 0 to 1, and back; ends that are one point lie apart by 1."""
    bent, back = (math.log, math.exp) if scale == "log" else (float, float)
    low, high = map(bent, ends)
    length = high - low or 1.0

    def share(value: float) -> float:
        return 0.0 if scale == "log" and value <= 0 else (bent(value) - low) / length

    return share, lambda place: back(low + place * length)


def apart(ascending: Sequence[float], gap: float) -> list[float]:
    """The values moved by as little as it takes to lie `gap` from each other: groups that collide spread evenly."""
    groups: list[list[float]] = []
    for value in ascending:
        groups.append([value])
        while len(groups) > 1 and _spread(groups[-1], gap)[0] - _spread(groups[-2], gap)[-1] < gap:
            last = groups.pop()
            groups[-1] += last
    return [place for group in groups for place in _spread(group, gap)]


def _spread(group: Sequence[float], gap: float) -> list[float]:
    """As many places, `gap` from each other, about the group's mean."""
    lowest = float(np.mean(group)) - gap * (len(group) - 1) / 2
    return [lowest + gap * number for number in range(len(group))]
