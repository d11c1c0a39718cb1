"""What can be read in a picture: every text with its box in pixels, which of them collide, which are cut off."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from linnet.present.style import drawing

SLACK = 1.0
"""Pixels by which boxes may reach into each other: there is nothing at the edge of a letter's box."""


def boxes(figure: Any) -> list[tuple[str, Any]]:
    """Of titles, ticks, labels and legends, as drawn."""
    with drawing():
        figure.draw_without_rendering()
    found = [text for axes in figure.axes if axes.get_visible() for text in _texts(axes)]
    found += [text for legend in figure.legends for text in legend.get_texts()]
    return [(text.get_text(), text.get_window_extent()) for text in found if text.get_visible() and text.get_text()]


def _texts(axes: Any) -> Iterator[Any]:
    yield from (axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        yield from (tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high)


def faults(figure: Any) -> list[str]:
    """Pairs of texts that lie on each other, and texts that reach beyond the picture."""
    (width, height), found = figure.bbox.size, boxes(figure)
    collisions = [
        f"{first} on {second}"
        for (first, one), (second, other) in combinations(found, 2)
        if min(one.x1, other.x1) - max(one.x0, other.x0) > SLACK
        and min(one.y1, other.y1) - max(one.y0, other.y0) > SLACK
    ]
    return collisions + [
        f"{text} is cut off"
        for text, box in found
        if min(box.x0, box.y0) < -SLACK or box.x1 > width + SLACK or box.y1 > height + SLACK
    ]
