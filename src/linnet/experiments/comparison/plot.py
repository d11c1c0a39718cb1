"""Learning curves of all compared runs in one picture, in the table's unit, bits per byte.

A seed with which a run diverged is no part of its line: its own is dotted, and an upright line tells where it ended.
"""

from collections.abc import Sequence
from pathlib import Path

from linnet.core.files import atomic_path
from linnet.experiments.comparison.figures import ComparedFigures
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.style import png_of

MARGIN = 1.05
"""Of a logarithmic axis, about the curves."""


def draw(figures: Sequence[ComparedFigures], path: Path, title: str) -> None:
    """Draw a PNG, with bands from the lowest seed to the highest."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(png_of(plot(figures, title).figure()))


def plot(figures: Sequence[ComparedFigures], title: str) -> Plot:
    """The axis is that of the runs that came to an end: a loss that runs away would leave the others a flat line."""
    drawn = [_curve(one, number) for number, one in enumerate(figures) if one.outcomes]
    lost = [series for number, one in enumerate(figures) for series in _lost_curves(one, number)]
    ends = [rule for number, one in enumerate(figures) for rule in _ends(one, number)]
    spreads = [spread for one in figures if one.outcomes for _, spread in one.curve]
    low = min((spread.lowest / MARGIN for spread in spreads), default=None)
    high = max((spread.highest * MARGIN for spread in spreads), default=None)
    y = Axis("held-out text, causal, bits per byte", "log", low=low, high=high)
    return Plot([Panel(Axis("step"), y, [*drawn, *lost], title, ends)], (9.0, 5.2))


def _curve(one: ComparedFigures, number: int) -> Series:
    """Runs that were evaluated once have no line, so the points are drawn too."""
    steps, spreads = zip(*one.curve, strict=True) if one.curve else ((), ())
    low, high = [spread.lowest for spread in spreads], [spread.highest for spread in spreads]
    return Series(steps, [spread.mean for spread in spreads], one.name, "o-", number, low, high)


def _lost_curves(one: ComparedFigures, number: int) -> list[Series]:
    curves = [
        Series([p.step for p in each.curve], [p.bits_per_byte for p in each.curve], "", ".:", number)
        for each in one.broken_down
    ]
    return [*curves, Series([], [], _lost_said(one), ":", number)] if curves else []


def _ends(one: ComparedFigures, number: int) -> list[Rule]:
    ends = [each.step for each in one.broken_down if each.step is not None]
    return [Rule(step, style=":", colour=number, upright=True) for step in ends]


def _lost_said(one: ComparedFigures) -> str:
    lost = len(one.broken_down)
    return f"{one.name}: {one.fate} with {lost} of {lost + len(one.outcomes)} seeds"
