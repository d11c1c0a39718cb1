"""Pictures of lifetimes, with what can be seen in them."""

import math

import numpy as np
from numpy.typing import NDArray

from linnet.inspection.lifetimes.folder import Lifetimes
from linnet.inspection.lifetimes.text import TextLifetimes
from linnet.inspection.lifetimes.vocabulary import Curves
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture

BARS = 40
"""At most about so many; each at least a step wide."""

MARKED_AGE = 12
"""So far a step can be told from the next, and has a dot."""

TOLD_BY_COLOR = 10
"""Of more lines than that every second is dotted."""

BELOW, NOTHING = 1e-2, 1e-300
"""Curves are shown until so much of the threshold is left; nothing at all has no place on a logarithmic axis."""


def lifetimes_pictures(found: Lifetimes) -> list[Picture]:
    """The lifetimes of the vocabulary, some entries over time, and the layers over a text: of each what there is."""
    pictures = []
    if found.vocabulary is not None:
        lives = found.vocabulary.lifetimes_V.numpy()
        pictures.append(
            Picture("vocabulary", "Lifetimes of the vocabulary, layer 0", histogram(lives), _left_out(lives))
        )
    if found.curves is not None:
        caption = (
            "What is left of a vocabulary entry in the lowest layer. Where a line crosses the dashed one, the entry's"
            " life ends. One rate fades evenly; where there are several heads, each line ends with its slowest."
        )
        plot = relevance_curves(found.curves, found.threshold)
        pictures.append(Picture("relevance", "Relevance over time, layer 0", plot, caption))
    if found.text is not None:
        count = numbers.grouped(found.text.windows * found.text.tokens)
        caption = f"Over {count} tokens of text. No point: endless, or 0, or a layer without ted."
        pictures.append(Picture("layers", "Lifetimes of a text's tokens, by layer", layer_points(found.text), caption))
    return pictures


def histogram(lifetimes: NDArray[np.float64]) -> Plot:
    """Over a logarithmic axis, a bar's area being its number of entries; those of 0 and endless ones are left out."""
    shown, drawn = lifetimes[np.isfinite(lifetimes) & (lifetimes > 0)], []
    if shown.size:
        edges = bar_edges(float(shown.min()), float(shown.max()))
        counts, _ = np.histogram(shown, edges)
        # Bars differ in width, as lives are whole steps: per doubling, so that a wide one is not higher for that.
        drawn.append(Series(edges, counts / np.diff(np.log2(edges)), style="bars"))
    x = Axis("lifetime, steps", "log" if drawn else "linear", numbers.metric)
    return Plot([Panel(x, Axis("entries per doubling of the lifetime"), drawn)], (9.0, 4.2))


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


def relevance_curves(curves: Curves, threshold: float) -> Plot:
    """A line for each entry, from dark to light, both axes logarithmic but for age 0; the threshold is dashed."""
    count = len(curves.curves)
    dots = [place for place, age in enumerate(curves.ages) if age <= MARKED_AGE]
    drawn = [
        Series(
            curves.ages,
            np.maximum(curve.relevance, NOTHING),
            curve.name,
            "o:" if place % 2 and count > TOLD_BY_COLOR else "o-",
            place / max(1, count - 1),
            dots=dots,
        )
        for place, curve in enumerate(curves.curves)
    ]
    highest = 3 * max(threshold / BELOW, *(curve.relevance[0] for curve in curves.curves))
    x = Axis("age, steps", "symlog", numbers.metric, low=0, high=curves.ages[-1])
    y = Axis("relevance", "log", low=threshold * BELOW, high=highest)
    end = Rule(threshold, f"threshold {numbers.exact(threshold)}")
    return Plot([Panel(x, y, drawn, rules=[end])], (9.0, 4.8))


def layer_points(text: TextLifetimes) -> Plot:
    """Median, 90th percentile and average context of each layer that has lifetimes; a gap for one that has none."""
    last = text.layers[-1].layer
    lines = {
        "90th percentile": [layer.upper for layer in text.layers],
        "median": [layer.median for layer in text.layers],
        "average context": [layer.average_context for layer in text.layers],
    }
    drawn = []
    for number, (name, values) in enumerate(lines.items()):
        shown = np.full(last + 1, math.nan)
        shown[[layer.layer for layer in text.layers]] = values
        shown[(shown <= 0) | np.isinf(shown)] = math.nan
        drawn.append(Series(range(last + 1), shown, name, "o:" if name == "average context" else "o-", number))
    x = Axis("layer", low=-0.5, high=last + 0.5, places={layer: str(layer) for layer in range(last + 1)})
    y = Axis("lifetime, steps; context, tokens", "log", numbers.metric)
    window = Rule(text.tokens, "tokens of a window")
    return Plot([Panel(x, y, drawn, rules=[window])], (max(6.5, 0.5 * last + 4), 4.4))
