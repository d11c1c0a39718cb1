"""The search space around a plan's plain shape: what `linnet design` looks for a better one in.

Vocabulary, context length and token width are the plan's, so that what is found trains on the same data.
"""

from typing import Any

from linnet.model.spec import ModelSpec
from linnet.scaling.candidate import PLAIN_BLOCK, heads_of

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
