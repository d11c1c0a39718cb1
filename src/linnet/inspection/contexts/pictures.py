"""Pictures of the comparison: quality over memory, and the contexts of each layer."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from linnet.inspection.contexts.grid import varied
from linnet.inspection.contexts.measure import Comparison, Outcome
from linnet.layers.retention import FULL
from linnet.ops.decay.eviction import EvictionPolicy
from linnet.present import numbers
from linnet.present.drawing import new_figure, png_of
from linnet.present.report import Picture

SMALLEST_SHOWN_PERCENT = 1e-3
"""The lower edge of the logarithmic scale of losses."""

MOST_SHOWN_PERCENT = 10
"""Where the scale of bits per byte ends, so that the rest can be told apart."""

COLUMNS = 3
LABEL_POINTS = 8
LABEL_GAP = 0.036
"""Between the labels of two lines, of the height of the axes."""

SLANTED_GAP = 0.019
"""Between the slanted labels of two points, of the width of the axes."""


def contexts_pictures(found: Comparison) -> list[Picture]:
    """Quality over memory; the average context of each layer."""
    return [
        Picture(
            "quality_against_memory",
            "Quality against memory",
            quality_picture(found),
            "The state is that of the ted layers, averaged over all tokens. The upper panel ends at a loss"
            f" of {MOST_SHOWN_PERCENT} %. Lower panel: how much worse than with all"
            " tokens, and the standard error over the windows; on the lower edge: not worse, or by less than"
            f" {numbers.plain(SMALLEST_SHOWN_PERCENT)} %. What lies below the dotted line loses nothing.",
        ),
        Picture(
            "contexts_of_layers",
            "Average context of each layer",
            layers_picture(found),
            "Vectors held after each token, averaged over all tokens. With a threshold each layer takes what it needs;"
            " top_k gives all of them the same.",
        ),
    ]


def quality_picture(found: Comparison) -> bytes:
    """Two panels over the size of the state: bits per byte, and the loss in percent on a logarithmic scale."""
    figure = new_figure(9.0, 8.0)
    bits, loss = figure.subplots(2, 1, sharex=True)
    sizes = [one.state_bytes for one in found.outcomes]
    loss.set_xscale("log", base=2)
    loss.set_xlim(min(sizes) / 1.4, max(sizes) * 1.4)
    _bits_panel(bits, found)
    _loss_panel(loss, found)
    loss.xaxis.set_major_formatter(lambda size, _: numbers.binary(size))
    loss.set_xlabel("state, average")
    return png_of(figure)


def _bits_panel(axes: Any, found: Comparison) -> None:
    _points(axes, found, lambda one: one.bits_per_byte)
    axes.axhline(found.full.bits_per_byte, color="black", linewidth=0.8, alpha=0.5)
    axes.margins(y=0.15)
    highest = found.full.bits_per_byte * (1 + MOST_SHOWN_PERCENT / 100)
    if axes.get_ylim()[1] > highest:
        axes.set_ylim(top=highest)
    axes.set_ylabel("bits per byte")
    axes.legend(frameon=False)


def _loss_panel(axes: Any, found: Comparison) -> None:
    _points(axes, found, lambda one: _shown(one.worse_percent))
    for one in found.outcomes[1:]:
        _error_bar(axes, one)
    if found.within_percent > SMALLEST_SHOWN_PERCENT:
        axes.axhline(found.within_percent, color="black", linestyle=":", linewidth=1.5)
    worst = max((one.worse_percent for one in found.outcomes if math.isfinite(one.worse_percent)), default=0)
    axes.set_yscale("log")
    axes.set_ylim(SMALLEST_SHOWN_PERCENT / 3, 3 * max(worst, found.within_percent, SMALLEST_SHOWN_PERCENT))
    axes.yaxis.set_major_formatter(lambda percent, _: f"{percent:g} %")
    axes.set_ylabel("worse than with all tokens")


def _points(axes: Any, found: Comparison, value: Callable[[Outcome], float]) -> None:
    """A line for each series, labelled above and below in turns; marks for what is no policy."""
    for number, (name, line) in enumerate(found.lines.items()):
        colour, values = f"C{number}", [value(one) for one in line]
        axes.plot([one.state_bytes for one in line], values, marker="o", markersize=4, color=colour, label=name)
        _slanted_labels(axes, [(one, value(one)) for one in line], colour, above=number % 2 == 0)
    for one in found.outcomes:
        if not isinstance(one.context, EvictionPolicy):
            marker = "*" if one.context == FULL else "D"
            hollow = {"markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.4, "linestyle": "none"}
            axes.plot([one.state_bytes], [value(one)], color="black", marker=marker, label=one.name, **hollow)
    axes.grid(alpha=0.3)


def _slanted_labels(axes: Any, points: Sequence[tuple[Outcome, float]], colour: str, above: bool) -> None:
    """Labels above or below points, moved to the side where two would lie on each other."""
    low, high = (math.log(end) for end in axes.get_xlim())
    ordered = sorted(points, key=lambda point: point[0].state_bytes)
    places = [(math.log(one.state_bytes) - low) / (high - low) for one, _ in ordered]
    for (one, y), place in zip(ordered, apart(places, SLANTED_GAP), strict=True):
        assert isinstance(one.context, EvictionPolicy)
        axes.annotate(
            varied(one.context),
            (math.exp(low + place * (high - low)), y),
            xytext=(0, 6 if above else -6),
            textcoords="offset points",
            rotation=60,
            rotation_mode="anchor",
            horizontalalignment="left" if above else "right",
            verticalalignment="center",
            fontsize=LABEL_POINTS,
            color=colour,
        )


def _error_bar(axes: Any, one: Outcome) -> None:
    if one.standard_error is not None and math.isfinite(one.worse_percent):
        error = 100 * one.standard_error / (one.bits_per_byte - one.difference)
        ends = [_shown(one.worse_percent - error), _shown(one.worse_percent + error)]
        axes.plot([one.state_bytes] * 2, ends, color="black", linewidth=1, alpha=0.5)


def _shown(percent: float) -> float:
    return max(percent, SMALLEST_SHOWN_PERCENT) if math.isfinite(percent) else math.nan


def layers_picture(found: Comparison) -> bytes:
    """A panel for each series of policies, with full and bank in all of them."""
    lines = found.lines or {"": []}
    columns = min(COLUMNS, len(lines))
    rows = math.ceil(len(lines) / columns)
    figure = new_figure(5.0 * columns + 0.6, 4.2 * rows + 0.3)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes, (name, line) in zip(panels, lines.items(), strict=False):
        _layer_lines(axes, found, line)
        axes.set_title(name, fontsize=10)
    for axes in panels[: len(lines)]:
        _end_labels(axes)
    for axes in panels[len(lines) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("average context, vectors")
    return png_of(figure)


def _layer_lines(axes: Any, found: Comparison, line: Sequence[Outcome]) -> None:
    from matplotlib import colormaps

    for one in found.outcomes:
        if not isinstance(one.context, EvictionPolicy):
            _layer_line(axes, one, one.name, "black", ":" if one.context == FULL else "--")
    for number, one in enumerate(line):
        assert isinstance(one.context, EvictionPolicy)
        colour = colormaps["viridis"](0.9 * number / max(1, len(line) - 1))
        _layer_line(axes, one, varied(one.context), colour, "-")
    layers = found.full.layers
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda size, _: numbers.plain(size))
    axes.set_xticks(range(len(layers)), [str(layer.layer) for layer in layers])
    axes.set_xlim(-0.3, len(layers) - 1 + max(0.4, 0.25 * len(layers)))
    axes.set_xlabel("layer")
    axes.grid(alpha=0.3)


def _layer_line(axes: Any, one: Outcome, text: str, colour: Any, style: str) -> None:
    sizes = [layer.average_context for layer in one.layers]
    axes.plot(range(len(sizes)), sizes, style, marker="o", markersize=3, color=colour, label=text)


def _end_labels(axes: Any) -> None:
    """Each line's label beside its last point, moved up or down where two would lie on each other."""
    low, high = (math.log(end) for end in axes.get_ylim())
    lines = sorted(axes.get_lines(), key=lambda line: line.get_ydata()[-1])
    heights = [(math.log(max(line.get_ydata()[-1], math.exp(low))) - low) / (high - low) for line in lines]
    for line, height in zip(lines, apart(heights, LABEL_GAP), strict=True):
        axes.annotate(
            line.get_label(),
            (len(line.get_xdata()) - 1, height),
            xycoords=("data", "axes fraction"),
            xytext=(8, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=LABEL_POINTS,
            color=line.get_color(),
        )


def apart(ascending: Sequence[float], gap: float) -> list[float]:
    """The values moved by as little as it takes to lie `gap` from each other: groups that collide spread evenly."""
    groups: list[list[float]] = []
    for value in ascending:
        groups.append([value])
        while len(groups) > 1 and _low(groups[-1], gap) - _high(groups[-2], gap) < gap:
            last = groups.pop()
            groups[-1] += last
    return [_low(group, gap) + gap * number for group in groups for number in range(len(group))]


def _low(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _high(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) + gap * (len(group) - 1) / 2
