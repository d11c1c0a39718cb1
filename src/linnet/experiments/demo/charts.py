"""Line charts as SVG, for a page that brings its own style sheet: colours are classes, text is the page's.

Sized so that a chart is readable at the width of a telephone; the page lets it grow a little.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from linnet.experiments.demo.figures import Point
from linnet.present.page import escaped

WIDTH, HEIGHT = 480, 330
LEFT, RIGHT, TOP, BOTTOM = 74, 88, 14, 46
LABEL_LINE = 15


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, both shown, with ticks. `logarithmic` needs positive ends."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    text: Callable[[float], str]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end."""
        scale: Callable[[float], float] = math.log if self.logarithmic else float
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))


@dataclass(frozen=True)
class Series:
    """One line. `style`: its CSS class. `label`: written at its end, where it is not empty; `dots` marks its points."""

    name: str
    style: str
    points: Sequence[Point]
    label: str = ""
    dots: bool = False


def line_chart(name: str, description: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """An SVG element. `description` says in words what can be seen."""
    drawn = [one for one in series if one.points]
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escaped(description)}">',
        f"<title>{escaped(name)}</title>",
        *_axes(x, y),
        *(_line(one, x, y) for one in drawn),
        *_labels(drawn, x, y),
        "</svg>",
    ]
    return "\n".join(parts)


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values between the ends."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * min((1, 2, 2.5, 5, 10), key=lambda factor: abs(factor * power - raw))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in takewhile(lambda n: n * step <= high + 1e-9 * step, count(first))]


def log_ticks(low: float, high: float) -> list[float]:
    """Round values between the ends, about evenly spaced in their logarithm where there are enough of those."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = (factor * 10.0**power for power in powers for factor in (1, 1.5, 2, 3, 5, 7))
    found = [value for value in values if low <= value <= high]
    return found if len(found) >= 3 else linear_ticks(low, high)


def power_ticks(low: float, high: float, base: int) -> list[float]:
    """The powers of `base` between the ends."""
    first = math.ceil(math.log(low, base) - 1e-9)
    last = math.floor(math.log(high, base) + 1e-9)
    return [float(base**power) for power in range(first, last + 1)]


def smooth(points: Sequence[Point], width: int) -> list[Point]:
    """The mean of each point's `width` neighbours, itself in the middle; fewer towards the ends, evenly."""
    smoothed = []
    for index, (x, _) in enumerate(points):
        reach = min(width // 2, index, len(points) - 1 - index)
        near = [y for _, y in points[index - reach : index + reach + 1]]
        smoothed.append((x, sum(near) / len(near)))
    return smoothed


def _axes(x: Axis, y: Axis) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = ['<g class="axes">']
    for tick in y.ticks:
        at = _y(y, tick)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{escaped(y.text(tick))}</text>')
    for tick in x.ticks:
        at = _x(x, tick)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{escaped(x.text(tick))}</text>')
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle" class="axis">{escaped(x.title)}</text>'
    )
    parts.append(
        f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle" class="axis">'
        f"{escaped(y.title)}</text>"
    )
    return [*parts, "</g>"]


def _line(series: Series, x: Axis, y: Axis) -> str:
    places = " ".join(f"{_x(x, a):.1f},{_y(y, b):.1f}" for a, b in series.points)
    line = f'<polyline class="line {series.style}" points="{places}"><title>{escaped(series.name)}</title></polyline>'
    if not series.dots:
        return line
    dots = (
        f'<circle class="dot {series.style}" cx="{_x(x, a):.1f}" cy="{_y(y, b):.1f}" r="2.6">'
        f"<title>{escaped(f'{series.name}: {y.text(b)} at {x.text(a)}')}</title></circle>"
        for a, b in series.points
    )
    return line + "".join(dots)


def _labels(series: Sequence[Series], x: Axis, y: Axis) -> list[str]:
    """The labels at the ends of their lines, moved apart where they would touch."""
    labelled = sorted((one for one in series if one.label), key=lambda one: _y(y, one.points[-1][1]))
    places = apart([_y(y, one.points[-1][1]) for one in labelled], LABEL_LINE, TOP, HEIGHT - BOTTOM)
    return [
        f'<text class="label {one.style}" x="{_x(x, one.points[-1][0]) + 8:.1f}" y="{at + 4:.1f}">'
        f"{escaped(one.label)}</text>"
        for one, at in zip(labelled, places, strict=True)
    ]


def apart(places: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Ascending places, moved so that neighbours are `distance` apart, and inside the ends where there is room."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + distance) if moved else max(place, low))
    limit = high
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - distance
    return moved


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    bottom = HEIGHT - BOTTOM
    return bottom - axis.place(value) * (bottom - TOP)
