"""Pictures of lifetimes, with what can be seen in them."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.inspection.lifetimes.folder import Lifetimes
from linnet.inspection.lifetimes.text import TextLifetimes
from linnet.inspection.lifetimes.vocabulary import Curves
from linnet.present import numbers
from linnet.present.drawing import new_figure, png_of
from linnet.present.numbers import plain
from linnet.present.report import Picture

BARS = 40
"""At most about so many; each at least a step wide."""

MARKED_AGE = 12
"""So far a step can be told from the next, and has a dot."""

LIGHTEST = 0.86
"""Of the colours from dark to light: what is lighter is hard to see on white."""

TOLD_BY_COLOUR = 10
"""Of more lines than that every second is dotted."""

BELOW, NOTHING = 1e-2, 1e-300
"""Curves are shown until so much of the threshold is left; nothing at all has no place on a logarithmic axis."""

WIDE = 1000
"""From this ratio on the powers of ten are labels enough."""


def lifetimes_pictures(found: Lifetimes) -> list[Picture]:
    """The lifetimes of the vocabulary, some entries over time, and the layers over a text: of each what there is."""
    pictures = []
    if found.vocabulary is not None:
        lifetimes_V = found.vocabulary.lifetimes_V.numpy()
        pictures.append(
            Picture(
                "vocabulary", "Lifetimes of the vocabulary, layer 0", histogram(lifetimes_V), _left_out(lifetimes_V)
            )
        )
    if found.curves is not None:
        caption = (
            "What is left of a vocabulary entry in the lowest layer. Where a line crosses the dashed one, the entry's"
            " life ends. One rate fades evenly; where there are several heads, each line ends with its slowest."
        )
        png = relevance_curves(found.curves, found.threshold)
        pictures.append(Picture("relevance", "Relevance over time, layer 0", png, caption))
    if found.text is not None:
        count = numbers.grouped(found.text.windows * found.text.tokens)
        caption = f"Over {count} tokens of text. No point: endless, or 0, or a layer without ted."
        pictures.append(Picture("layers", "Lifetimes of a text's tokens, by layer", layer_points(found.text), caption))
    return pictures


def histogram(lifetimes: NDArray[np.float64]) -> bytes:
    """Over a logarithmic axis, a bar's area being its number of entries; those of 0 and endless ones are left out."""
    figure = new_figure(9.0, 4.2)
    axes = figure.subplots()
    shown = lifetimes[np.isfinite(lifetimes) & (lifetimes > 0)]
    if shown.size:
        edges = bar_edges(float(shown.min()), float(shown.max()))
        counts, _ = np.histogram(shown, edges)
        # Bars differ in width, as lives are whole steps: per doubling, so that a wide one is not higher for that.
        axes.bar(edges[:-1], counts / np.diff(np.log2(edges)), np.diff(edges), align="edge", edgecolor="white")
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
    axes.set_xlabel("lifetime, steps")
    axes.set_ylabel("entries per doubling of the lifetime")
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return png_of(figure)


def bar_edges(shortest: float, longest: float) -> NDArray[np.float64]:
    """Edges half-way between whole lifetimes, each so many times the one before, but a step apart at least."""
    ratio = max(2.0 ** (1 / 8), (longest / shortest) ** (1 / BARS))
    edges = [shortest - 0.5]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 1, math.floor(edges[-1] * ratio) + 0.5))
    return np.array(edges)


def _left_out(lifetimes: NDArray[np.float64]) -> str:
    caption = f"{numbers.grouped(len(lifetimes))} entries; each counts once, however often it is used."
    for count, what in ((lifetimes == 0).sum(), "never kept"), (np.isinf(lifetimes).sum(), "endless"):
        if count:
            caption += f" {numbers.grouped(count)} not shown: {what}."
    return caption


def relevance_curves(curves: Curves, threshold: float) -> bytes:
    """A line for each entry, both axes logarithmic but for age 0; the threshold is dashed."""
    figure = new_figure(9.0, 4.8)
    axes = figure.subplots()
    draw_curves(axes, curves, threshold)
    axes.set_xscale("symlog", linthresh=1, linscale=0.3)
    axes.set_yscale("log")
    axes.set_ylim(threshold * BELOW, 3 * max(threshold / BELOW, *(curve.relevance[0] for curve in curves.curves)))
    plain_numbers(axes.xaxis)
    axes.set_xlim(0, curves.ages[-1])
    axes.set_xlabel("age, steps")
    axes.set_ylabel("relevance")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, ncols=math.ceil(len(curves.curves) / 20))
    return png_of(figure)


def draw_curves(axes: Any, curves: Curves, threshold: float) -> None:
    """The lines alone, from dark to light, with dots at the first steps; then the threshold's."""
    from matplotlib import colormaps

    count = len(curves.curves)
    for place, curve in enumerate(curves.curves):
        axes.plot(
            curves.ages,
            np.maximum(curve.relevance, NOTHING),
            color=colormaps["viridis"](LIGHTEST * place / max(1, count - 1)),
            linestyle=":" if place % 2 and count > TOLD_BY_COLOUR else "-",
            label=verbatim(curve.name),
            marker="o",
            markersize=3,
            markevery=[at for at, age in enumerate(curves.ages) if age <= MARKED_AGE],
        )
    axes.axhline(threshold, color="black", linestyle="--", linewidth=1, label=f"threshold {plain(threshold)}")


def layer_points(text: TextLifetimes) -> bytes:
    """Median, 90th percentile and average context of each layer that has lifetimes; a gap for one that has none."""
    last = text.layers[-1].layer
    figure = new_figure(max(6.5, 0.5 * last + 4), 4.2)
    axes = figure.subplots()
    lines = {
        "90th percentile": ("-", {layer.layer: layer.upper for layer in text.layers}),
        "median": ("-", {layer.layer: layer.median for layer in text.layers}),
        "average context": (":", {layer.layer: layer.average_context for layer in text.layers}),
    }
    for label, (style, values) in lines.items():
        drawn = [values.get(layer, 0.0) for layer in range(last + 1)]
        shown = [value if 0 < value < math.inf else math.nan for value in drawn]
        axes.plot(shown, marker="o", linestyle=style, label=label)
    axes.axhline(text.tokens, color="black", linestyle="--", linewidth=1, label="tokens of a window")
    axes.set_yscale("log")
    plain_numbers(axes.yaxis)
    axes.set_xlim(-0.5, last + 0.5)
    axes.set_xticks(range(last + 1))
    axes.set_xlabel("layer")
    axes.set_ylabel("lifetime, steps; context, tokens")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", frameon=False, ncols=4)
    return png_of(figure)


def verbatim(name: str) -> str:
    """A name that matplotlib takes as it is: neither a formula nor to be hidden."""
    return name.replace("$", r"\$")


def plain_numbers(axis: Any) -> None:
    """`1 k` instead of a power of ten, and numbers between them where there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and high < WIDE * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: numbers.metric(value)))
    axis.set_minor_formatter(NullFormatter())
