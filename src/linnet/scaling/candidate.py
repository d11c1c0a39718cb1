"""A plain decoder of a given size: what a plan is measured and costed with where nothing better has been designed."""

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Any

from linnet.core.errors import UserError
from linnet.model.spec import ModelSpec
from linnet.scaling.counts import Counting, ParameterCounts, parameter_counts

WIDTHS = (*range(16, 128, 16), *range(128, 512, 32), *range(512, 16385, 64))
WIDTH_PER_LAYER = 64
"""As in GPT-2 small (768, 12 layers); within wide bounds the loss hardly depends on it (Kaplan et al., section 3.1)."""

PROPORTIONS_COUNT = 0.05
"""How much being off in them counts beside being off in size."""

HEAD_WIDTHS = (64, 32, 16)
HIDDEN_RATIO = 8 / 3
"""Of a gated feed-forward, which then has as many parameters as an ungated one of ratio 4."""

PLAIN_BLOCK: dict[str, dict[str, Any]] = {
    "mixer": {"kind": "attention"},
    "feed_forward": {"kind": "glu"},
    "norm": {"kind": "rms"},
}
"""A layer of every plain shape, but for its sizes."""


def candidate(parameters: float, counted: Counting, vocab_size: int, context_length: int) -> ModelSpec:
    """The decoder whose parameters, counted so, are nearest to `parameters` in their ratio.

    Attention with rotary positions, gated feed-forwards, a tied head; the width is about 64 times the layers.
    `UserError` where even the nearest has more than twice as many or less than half.
    """
    at = bisect_left(WIDTHS, parameters, key=lambda width: _count(width, _layers(width), counted, vocab_size))
    shapes = [
        (width, layers)
        for width in WIDTHS[max(0, at - 2) : at + 2]
        for layers in range(max(1, math.floor(_layers(width) / 1.6)), math.ceil(1.6 * _layers(width)) + 1)
    ]
    ratios = [_count(width, layers, counted, vocab_size) / parameters for width, layers in shapes]
    best = min(range(len(shapes)), key=lambda index: _distance(ratios[index], *shapes[index]))
    if not 0.5 < ratios[best] < 2:
        raise UserError(
            f"a model of {parameters:,.0f} parameters: the nearest shape with a vocabulary of {vocab_size:,} has"
            f" {ratios[best] * parameters:,.0f}; expected a {'larger' if ratios[best] > 1 else 'smaller'} budget, or"
            " another vocabulary"
        )
    width, layers = shapes[best]
    return _shape(width, layers, vocab_size, context_length)


def _distance(ratio: float, width: int, layers: int) -> float:
    """From the wanted size, and a little from the usual proportions."""
    return abs(math.log(ratio)) + PROPORTIONS_COUNT * abs(math.log(width / (WIDTH_PER_LAYER * layers)))


def least_parameters(vocab_size: int) -> float:
    """Of the smallest shape, all counted."""
    return _count(WIDTHS[0], 1, "total", vocab_size)


def _layers(width: int) -> int:
    return max(1, round(width / WIDTH_PER_LAYER))


def _count(width: int, layers: int, counted: Counting, vocab_size: int) -> float:
    """Parameters of a shape, from those with one and two layers: each further layer has as many."""
    one, two = (_counts(width, few, vocab_size).by_name()[counted] for few in (1, 2))
    return one + (layers - 1) * (two - one)


@lru_cache(maxsize=1024)
def _counts(width: int, layers: int, vocab_size: int) -> ParameterCounts:
    return parameter_counts(_shape(width, layers, vocab_size, 1))


def heads_of(width: int) -> int:
    """Of the plain shape of a width."""
    return width // next(size for size in HEAD_WIDTHS if width % size == 0)


def _shape(width: int, layers: int, vocab_size: int, context_length: int) -> ModelSpec:
    block = {
        **PLAIN_BLOCK,
        "repeat": layers,
        "mixer": {**PLAIN_BLOCK["mixer"], "heads": heads_of(width)},
        "feed_forward": {**PLAIN_BLOCK["feed_forward"], "hidden": round(HIDDEN_RATIO * width / 16) * 16},
    }
    plain = {
        "name": f"planned-{layers}x{width}",
        "vocab_size": vocab_size,
        "d_model": width,
        "context_length": context_length,
        "blocks": [block],
        "head": {"tied": True, "norm": {"kind": "rms"}},
    }
    return ModelSpec.parse(plain, "planned")
