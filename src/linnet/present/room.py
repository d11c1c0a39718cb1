"""Room for text in a picture: how wide it is, where it breaks, which ticks are told; a legend below the panels."""

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

POINTS = 10.0
"""Size of the letters of titles and legends, and of ticks."""

PER_INCH = 72
"""Points."""

ENTRY_POINTS = 52.0
"""What an entry of a legend takes beside its name: the line before it, and the blank to the next column."""

TICK_GAP = 4.0
"""Pixels between the labels of two ticks, at least."""


def text_width_inches(text: str, points: float = POINTS) -> float:
    """How wide one line of text is."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(_encodable(text), FontProperties(size=points), False)
    return float(width) / PER_INCH


def _encodable(text: str) -> str:
    """Names of files may have bytes that are no text, which no font has."""
    return text.encode(errors="backslashreplace").decode()


def wrap_text(text: str, inches: float, points: float = POINTS) -> str:
    """The text in lines of at most that width; words that are too long for one are broken as well."""
    letters = len(text)
    lines = [text]
    while letters > 1 and max(text_width_inches(line, points) for line in lines) > inches:
        letters -= max(1, letters // 16)
        lines = textwrap.wrap(text, letters) or [text]
    return "\n".join(lines)


def fit_titles(axes: Any) -> None:
    """Break the panel's title, and those of its axes, where they are longer than the panel; once it is laid out."""
    room = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    texts = ((axes._left_title, room.width), (axes.xaxis.label, room.width), (axes.yaxis.label, room.height))
    for text, inches in texts:
        plain = text.get_text().replace(r"\$", "$")
        text.set_text(wrap_text(plain, inches, text.get_fontsize()).replace("$", r"\$"))


def thin_ticks(axes: Any) -> None:
    """Every second, third ... tick of the level axis alone, as it takes to tell them apart; once it is laid out."""
    from matplotlib.ticker import FixedFormatter

    axis = axes.xaxis
    low, high = sorted(axis.get_view_interval())
    shown = [
        (tick.get_loc(), tick.label1.get_text(), tick.label1.get_window_extent())
        for tick in axis.get_major_ticks()
        if low <= tick.get_loc() <= high and tick.label1.get_visible() and tick.label1.get_text()
    ]
    step = next((step for step in range(1, len(shown)) if not _collide([one[2] for one in shown[::step]])), 1)
    if step > 1:
        named = isinstance(axis.get_major_formatter(), FixedFormatter)
        names = {"labels": [text for _, text, _ in shown[::step]]} if named else {}
        axis.set_ticks([place for place, _, _ in shown[::step]], **names)


def _collide(boxes: Sequence[Any]) -> bool:
    """From left to right."""
    return any(right.x0 - left.x1 < TICK_GAP for left, right in pairwise(boxes))


def legend_below(figure: Any) -> None:
    """Every name once, below the panels; the figure grows by its height, so that the panels keep theirs."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    taken = ENTRY_POINTS / PER_INCH
    names = [wrap_text(name.replace(r"\$", "$"), figure.get_figwidth() - taken) for name in found]
    widest = max(text_width_inches(line) for name in names for line in name.split("\n"))
    columns = min(len(found), max(1, math.floor(figure.get_figwidth() / (widest + taken))))
    texts = [name.replace("$", r"\$") for name in names]
    legend = figure.legend(list(found.values()), texts, loc="outside lower center", ncols=columns)
    figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)
