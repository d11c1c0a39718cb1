"""Pictures of the comparison: quality over memory, and the contexts of each layer."""

import math
from collections.abc import Callable, Sequence

from linnet.inspection.contexts.measure import CachePolicyComparison, CachePolicyOutcome
from linnet.layers.cache_policy import FULL
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture
from linnet.present.style import INK

SMALLEST_SHOWN_PERCENT = 1e-3
"""The lower edge of the logarithmic scale of losses."""

MOST_SHOWN_PERCENT = 10
"""Where the scale of bits per byte ends, so that the rest can be told apart."""

COLUMNS = 3


def contexts_pictures(found: CachePolicyComparison) -> list[Picture]:
    """Quality over memory; the average context of each layer."""
    return [
        Picture(
            "quality_against_memory",
            "Quality against memory",
            quality_plot(found),
            "The state is that of the layers that have a choice, averaged over all tokens. The upper panel ends at a"
            f" loss of {MOST_SHOWN_PERCENT} %. Lower panel: how much worse than with all"
            " tokens, and the standard error over the windows; on the lower edge: not worse, or by less than"
            f" {numbers.exact(SMALLEST_SHOWN_PERCENT)} %. What lies below the dotted line loses nothing.",
        ),
        Picture(
            "contexts_of_layers",
            "Average context of each layer",
            layers_plot(found),
            "Vectors held after each token, averaged over all tokens. With a threshold each layer takes what it needs;"
            " top_k gives all of them the same.",
        ),
    ]


def quality_plot(found: CachePolicyComparison) -> Plot:
    """Two panels over the size of the state: bits per byte, and the loss in percent on a logarithmic scale."""
    sizes = [one.state_bytes for one in found.outcomes]
    x = Axis("state, average", "log2", numbers.binary, min(sizes) / 1.4, max(sizes) * 1.4)
    full = Rule(found.full.bits_per_byte, style="-")
    within = [Rule(found.within_percent, style=":")] if found.within_percent > SMALLEST_SHOWN_PERCENT else []
    worse = [*_series(found, lambda one: _shown(one.worse_percent)), *map(_error_bar, found.outcomes[1:])]
    panels = [
        Panel(x, _bits_axis(found), _series(found, lambda one: one.bits_per_byte), rules=[full]),
        Panel(x, _loss_axis(found), worse, rules=within),
    ]
    return Plot(panels, (9.0, 4.0), shared="x")


def _bits_axis(found: CachePolicyComparison) -> Axis:
    """A margin about all that is not too bad to be shown."""
    bits = [one.bits_per_byte for one in found.outcomes if math.isfinite(one.bits_per_byte)] or [0.0]
    margin = 0.15 * (max(bits) - min(bits)) or 0.05
    highest = found.full.bits_per_byte * (1 + MOST_SHOWN_PERCENT / 100)
    return Axis("bits per byte", low=min(bits) - margin, high=min(max(bits) + margin, highest))


def _loss_axis(found: CachePolicyComparison) -> Axis:
    worst = max((one.worse_percent for one in found.outcomes if math.isfinite(one.worse_percent)), default=0)
    highest = 3 * max(worst, found.within_percent, SMALLEST_SHOWN_PERCENT)
    return Axis("worse than with all tokens", "log", _percent, SMALLEST_SHOWN_PERCENT / 3, highest)


def _percent(value: float) -> str:
    return f"{numbers.exact(value)} %"


def _series(found: CachePolicyComparison, value: Callable[[CachePolicyOutcome], float]) -> list[Series]:
    """A line for each series of policies, each point labeled; marks for what is no policy."""
    lines = [
        Series([one.state_bytes for one in line], list(map(value, line)), name, "o-", number, labels=_varied(line))
        for number, (name, line) in enumerate(found.lines.items())
    ]
    marks = [
        Series([one.state_bytes], [value(one)], one.name, "*" if one.context == FULL else "D", INK, large=True)
        for one in found.marks
    ]
    return [*lines, *marks]


def _varied(line: Sequence[CachePolicyOutcome]) -> list[str]:
    return [one.context.series[1] for one in line if one.context.series is not None]


def _error_bar(one: CachePolicyOutcome) -> Series:
    """Nothing where no error is known."""
    if one.standard_error is None or not math.isfinite(one.worse_percent):
        return Series([], [])
    error = 100 * one.standard_error / (one.bits_per_byte - one.difference)
    ends = [_shown(one.worse_percent - error)], [_shown(one.worse_percent + error)]
    return Series([one.state_bytes], [_shown(one.worse_percent)], "", ",", INK, *ends)


def _shown(percent: float) -> float:
    return max(percent, SMALLEST_SHOWN_PERCENT) if math.isfinite(percent) else math.nan


def layers_plot(found: CachePolicyComparison) -> Plot:
    """A panel for each series of policies, with those of no series in all of them; named at the ends of the lines."""
    layers = range(len(found.full.layers))
    places = {number: str(layer.layer) for number, layer in enumerate(found.full.layers)}
    x = Axis("layer", low=-0.3, high=len(layers) - 0.7, places=places)
    y = Axis("average context, vectors", "log")
    always = [
        Series(layers, _contexts(one), one.name, "o:" if one.context == FULL else "o--", INK) for one in found.marks
    ]
    panels = [
        Panel(x, y, [*always, *_by_policy(layers, line)], name) for name, line in (found.lines or {"": []}).items()
    ]
    columns = min(COLUMNS, len(panels))
    return Plot(panels, (5.0, 4.2), columns, names="ends", shared="y")


def _by_policy(layers: Sequence[int], line: Sequence[CachePolicyOutcome]) -> list[Series]:
    return [
        Series(layers, _contexts(one), name, "o-", number / max(1, len(line) - 1))
        for number, (one, name) in enumerate(zip(line, _varied(line), strict=True))
    ]


def _contexts(one: CachePolicyOutcome) -> list[float]:
    return [layer.average_context for layer in one.layers]
