"""A plain decoder of a given size: what a plan is measured and costed with where nothing better has been designed.

With it the vocabulary that suits a size, as its table grows slower than the rest of a model (Tao et al. 2024, arXiv
2407.13623, approach 2: `N_v = 3.15 M (N_nv / 33 M)^0.835`, `N_v` parameters of the table and `N_nv` of all else; they
trained 33 M to 3 B parameters, what is said of smaller models goes beyond that), and the search space around its shape:
what `linnet design` looks for a better one in. Vocabulary, context length and token width are the plan's there, so that
what is found trains on the same data.
"""

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


TABLE, REST, TABLE_EXPONENT = 3_145_728, 33e6, 0.8354
LEAST_TOKENS, MOST_TOKENS = 256, 262_144
"""Tokens: as many as there are bytes, and as many as large models have."""

VOCABULARY_SOURCE = "Tao et al. 2024, arXiv 2407.13623"


def fitted_vocabulary(parameters: float, counted: Counting, context_length: int) -> int:
    """The power of two nearest to the best number of tokens for a plain decoder of so many parameters, counted so."""
    model = candidate(parameters, counted, LEAST_TOKENS, context_length)
    table = TABLE * (parameter_counts(model).without_embedding / REST) ** TABLE_EXPONENT
    return 1 << round(math.log2(min(max(table / model.d_model, LEAST_TOKENS), MOST_TOKENS)))


WIDTH_FACTORS = (0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 2.0)
DEPTH_FACTORS = (0.75, 1.0, 1.25, 1.5, 2.0)
LEAST_DEPTH = 0.7
"""Of the plain shape's. At equal size a score with a penalty for depth likes few wide layers ever better; no trained
models bear that out far from the usual proportions."""

RATIOS = (1, 1.5, 2, 2.667, 4)
"""Of a feed-forward's hidden width to the block's."""

MOST_BLOCKS = 3
FEW_HEADS, NARROW = 4, 16
"""Every plain shape is a multiple of the latter wide (`candidate.WIDTHS`)."""


def search_space(plain: ModelSpec) -> dict[str, Any]:
    """The description of the space, ready for YAML: half to twice the width, 0.7 times to twice the depth."""
    head_width = _head_width(plain.d_model, heads_of(plain.d_model))
    blocks = next(count for count in range(MOST_BLOCKS, 0, -1) if _fewest(plain.layers, count))
    heads = {max(1, round(plain.d_model / head_width * factor)) for factor in WIDTH_FACTORS}
    fewest = _fewest(plain.layers, blocks)
    repeats = {max(fewest, round(plain.layers / blocks * factor)) for factor in DEPTH_FACTORS}
    return {
        "name": f"around-{plain.name}",
        "model": plain.model_dump(mode="json", exclude={"name", "blocks"}),
        "blocks": blocks,
        "block": {
            "width": [head_width * count for count in sorted(heads)],
            "ratio": list(RATIOS),
            "repeat": sorted(repeats),
            "head_width": head_width,
            **PLAIN_BLOCK,
        },
    }


def _fewest(layers: int, blocks: int) -> int:
    """Layers of a block, so that all have no more than the plain shape and not many fewer; 0: there are none."""
    each = layers // blocks
    return each if each * blocks >= LEAST_DEPTH * layers else 0


def _head_width(width: int, heads: int) -> int:
    """That of the plain shape; less where it has few heads, as widths go in steps of it."""
    return width // heads if heads >= FEW_HEADS else NARROW
