"""What stands beside the graphs: how to run them, for whoever has no linnet.

The same JSON is `linnet.json` of the folder and the entry `linnet` of each graph's `metadata_props`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from linnet.core.checksum import check_files
from linnet.core.errors import UserError
from linnet.core.files import read_json
from linnet.core.spec import Spec
from linnet.interop.onnx.flatten import Flat
from linnet.layers.cache_policy import CachePolicy
from linnet.model.spec import ModelSpec
from linnet.model.store import TOKENIZER

DESCRIPTION, STEP, PROMPT, DATA = "linnet.json", "model.onnx", "prompt.onnx", "model.onnx.data"
KEY = "linnet"
"""Of the graphs' `metadata_props`."""

VERSION = 1
TOKENS, POSITION, LOGITS, AFTER = "tokens", "position", "logits", "after."

Weights = Literal["float32", "int8", "int4"]


class StateInput(Spec):
    """A tensor that goes into a graph and comes out of it as another, for the next pass.

    shape: null where the tensor grows. grows: `places`, there is room for so many tokens, and the caller chooses (the
    same number for all; more than the positions so far); `held`, it comes out longer or shorter, and begins with 0.
    start: what it begins with, one number for all or each of them, row by row; `-inf` as text.
    """

    input: str
    output: str
    dtype: Literal["float32", "int64"]
    shape: list[int | None]
    grows: Literal["places", "held"] | None = None
    start: float | str | list[float]

    def begins(self, places: int) -> np.ndarray[Any, Any]:
        """The tensor as it begins, with so many places."""
        length = places if self.grows == "places" else 0
        shape = [length if size is None else size for size in self.shape]
        if isinstance(self.start, list):
            return np.array(self.start, dtype=self.dtype).reshape(shape)
        return np.full(shape, float(self.start), dtype=self.dtype)


class PromptGraph(Spec):
    """The graph for many tokens. length: it takes so many, from a position that they divide; null: any number."""

    file: str = PROMPT
    length: PositiveInt | None = None


class TokenizerFile(Spec):
    """The tokenizer's file, the hash that linnet gives it, and the token that ends and begins a document."""

    file: str = TOKENIZER
    hash: str
    end_id: NonNegativeInt
    vocab_size: PositiveInt


class GraphDescription(Spec):
    """How to run the graphs of a folder.

    Tokens int64 `[1, T]`, the position of the first of them int64 `[1]`, and the states, to logits `[1, T, vocab_size]`
    and the states behind them. longest: positions that a stream may have; null: any number.
    """

    version: PositiveInt = VERSION
    weights: Weights
    opset: dict[str, int]
    tokens: str = TOKENS
    position: str = POSITION
    logits: str = LOGITS
    step: str = STEP
    prompt: PromptGraph | None
    states: list[StateInput]
    longest: PositiveInt | None
    cache_policies: list[dict[str, Any]]
    tokenizer: TokenizerFile
    model: ModelSpec

    @classmethod
    def read(cls, folder: Path) -> "GraphDescription":
        """Of a folder of graphs; `UserError` where there is none, or a file is not what was written."""
        path = folder / DESCRIPTION
        if not path.is_file():
            raise UserError(f"{folder}: no folder of ONNX graphs (no {DESCRIPTION}); expected one of `linnet export`")
        check_files(folder, (DESCRIPTION,))
        return cls.parse(read_json(path), str(path))


def state_inputs(flat: Flat) -> list[StateInput]:
    """Of each tensor of a state, in the order in which graphs take them."""
    return [_state_input(flat, name, tensor) for name, tensor in flat.tensors.items()]


def described(cache_policies: Sequence[CachePolicy]) -> list[dict[str, Any]]:
    """How each layer keeps the past."""
    return [cache_policy.to_dict() for cache_policy in cache_policies]


def _state_input(flat: Flat, name: str, tensor: Tensor) -> StateInput:
    shape: list[int | None] = list(tensor.shape)
    grows: Literal["places", "held"] | None = None
    if name in flat.growing:
        shape[flat.growing[name]] = None
        grows = "places" if name in flat.has_room else "held"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return StateInput(input=name, output=AFTER + name, dtype=dtype, shape=shape, grows=grows, start=_start(tensor))


def _start(tensor: Tensor) -> float | str | list[float]:
    if tensor.numel() == 0:
        return 0.0
    values = tensor.flatten().tolist()
    if any(value != values[0] for value in values):
        return [float(value) for value in values]
    return float(values[0]) if abs(values[0]) != float("inf") else str(float(values[0]))
