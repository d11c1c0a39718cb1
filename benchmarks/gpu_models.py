"""The models of `gpu.py`: every mixer with a `tiny-` preset, scaled to a width and a number of parameters."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from linnet.model.cost import model_cost
from linnet.model.folder import preset_names, read_description
from linnet.model.spec import ModelSpec

HEAD_WIDTH = 64
FIRST = ("attention", "ted", "plga")
"""Kinds that are measured first, in every form, because the time may end before all are measured."""

PUBLISHED_NET = {"metric_hidden": 170, "residual_units": 8}
"""The hidden width of PLGA's net at model widths from 512 on; its preset has a smaller one."""


@dataclass(frozen=True)
class Size:
    """parameters: about so many. layers: but for mixers without a feed-forward, whose number follows. sequences: of a
    training step. decoded: tokens that are timed behind a prompt of half the context. seconds: of steps, at most.
    """

    parameters: int
    width: int
    layers: int
    vocabulary: int
    context: int
    sequences: int
    decoded: int
    seconds: float


SIZES = {
    "124 M": Size(124_000_000, 768, 12, 32_000, 1024, 16, 64, 2.0),
    "10 M": Size(10_000_000, 256, 8, 8192, 512, 64, 64, 1.0),
}
TINY = {"tiny": Size(120_000, 64, 2, 256, 320, 2, 4, 0.1)}


def kinds() -> dict[str, str]:
    """The preset of each kind of mixer that has one: `tiny-KIND`, or another with only this mixer."""
    found: dict[str, str] = {}
    for name in (name for name in preset_names() if name.startswith("tiny-")):
        blocks = read_description(name)["blocks"]
        kind = blocks[0]["mixer"]["kind"]
        if len(blocks) == 1 and found.get(kind) != f"tiny-{kind.replace('_', '-')}":
            found[kind] = name
    return found


def model(kind: str, size: Size) -> ModelSpec:
    """The preset at another size: `hidden`, or the number of layers, that comes closest to the number of parameters."""
    plain = deepcopy(read_description(kinds()[kind]))
    plain |= {"name": kind, "vocab_size": size.vocabulary, "d_model": size.width, "context_length": size.context}
    (block,) = plain["blocks"]
    block["repeat"] = size.layers
    if "heads" in block["mixer"]:
        block["mixer"]["heads"] = size.width // HEAD_WIDTH
    if size.width >= 512:
        block["mixer"] |= {field: value for field, value in PUBLISHED_NET.items() if field in block["mixer"]}
    part, field, step = (block, "repeat", 1) if block["feed_forward"] is None else (block["feed_forward"], "hidden", 16)
    return _nearest(plain, part, field, step, size.parameters)


def _nearest(plain: dict[str, Any], part: dict[str, Any], field: str, step: int, parameters: int) -> ModelSpec:
    """Solve for the field, in which the number of parameters is linear."""
    counts = []
    for steps in (1, 2):
        part[field] = steps * step
        counts.append(model_cost(ModelSpec.parse(plain, "benchmark")).parameters)
    part[field] = step * max(1, 1 + round((parameters - counts[0]) / (counts[1] - counts[0])))
    return ModelSpec.parse(plain, "benchmark")
