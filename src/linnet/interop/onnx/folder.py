"""A folder of ONNX graphs on disk: the description of how to run them, and the files of graphs and weights.

The same JSON is `linnet.json` of the folder and the entry `linnet` of each graph's `metadata_props`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from linnet.core.checksum import check_files, digest
from linnet.core.errors import UserError
from linnet.core.files import read_json
from linnet.core.spec import Spec
from linnet.inference.captured_step import StateTensors
from linnet.interop.onnx.fusion import AFTER, POSITION
from linnet.interop.onnx.trace import LOGITS, TOKENS
from linnet.model.folder import TOKENIZER
from linnet.model.spec import ModelSpec

if TYPE_CHECKING:
    from onnx import ModelProto

DESCRIPTION, STEP, PROMPT, DATA = "linnet.json", "model.onnx", "prompt.onnx", "model.onnx.data"
KEY = "linnet"
"""Key in the graphs' `metadata_props`."""
VERSION = 1

EXTERNAL_ABOVE_BYTES = 32 * 2**20
"""Weights of a graph above this size are stored in a separate file; a browser loads one file more easily than two."""
MIN_EXTERNAL_BYTES = 1024
ALIGNMENT_BYTES = 4096
"""Alignment of tensors in the separate file: a page, so that runtimes can map it."""

Precision = Literal["float32", "int8", "int4"]


class StateInput(Spec):
    """A tensor that goes into a graph and comes out of it as another, for the next pass.

    shape: null where the tensor grows. grows: `places`: it has room for a number of tokens that the caller chooses (the
    same for all, more than the positions so far); `held`: it comes out longer or shorter, and begins with length 0.
    start: initial value, one number for all or each of them, row by row; `-inf` as text.
    """

    input: str
    output: str
    dtype: Literal["float32", "int64"]
    shape: list[int | None]
    grows: Literal["places", "held"] | None = None
    start: float | str | list[float]

    def initial(self, places: int) -> np.ndarray[Any, Any]:
        """Return the initial tensor with room for `places` tokens."""
        length = places if self.grows == "places" else 0
        shape = [length if size is None else size for size in self.shape]
        if isinstance(self.start, list):
            return np.array(self.start, dtype=self.dtype).reshape(shape)
        return np.full(shape, float(self.start), dtype=self.dtype)


class PromptGraph(Spec):
    """The graph for many tokens. length: it takes this many, from a position that they divide; null: any number."""

    file: str = PROMPT
    length: PositiveInt | None = None


class TokenizerFile(Spec):
    """The tokenizer's file, its hash in linnet, and the token that ends and begins a document.

    end_ids: all tokens that end a text; None if it is `end_id` alone.
    """

    file: str = TOKENIZER
    hash: str
    end_id: NonNegativeInt
    vocab_size: PositiveInt
    end_ids: list[NonNegativeInt] | None = None


class GraphDescription(Spec):
    """How to run the graphs of a folder.

    Tokens int64 `[1, T]`, the position of the first of them int64 `[1]`, and the states, to logits `[1, T, vocab_size]`
    and the states after them. longest: number of positions of a stream; null: unlimited.
    """

    version: PositiveInt = VERSION
    weights: Precision
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
        """Read the description of a folder; `UserError` if there is none, or it was changed after writing."""
        path = folder / DESCRIPTION
        if not path.is_file():
            raise UserError(f"{folder}: no folder of ONNX graphs (no {DESCRIPTION}); expected one of `linnet export`")
        check_files(folder, (DESCRIPTION,))
        return cls.parse(read_json(path), str(path))


def state_inputs(flat: StateTensors) -> list[StateInput]:
    """Describe each tensor of a state, in the order of the graphs' inputs."""
    inputs = []
    for name, tensor in flat.tensors.items():
        shape: list[int | None] = list(tensor.shape)
        grows: Literal["places", "held"] | None = None
        if name in flat.growing:
            shape[flat.growing[name]] = None
            grows = "places" if name in flat.has_room else "held"
        dtype = str(tensor.dtype).removeprefix("torch.")
        values = [float(value) for value in tensor.flatten().tolist()] or [0.0]
        start: float | str | list[float] = values[0]
        if any(value != values[0] for value in values):
            start = values
        elif abs(values[0]) == float("inf"):
            start = str(values[0])
        inputs.append(StateInput(input=name, output=AFTER + name, dtype=dtype, shape=shape, grows=grows, start=start))
    return inputs


def write_graphs(
    folder: Path,
    graphs: dict[str, "ModelProto"],
    description: GraphDescription,
    external_above_bytes: int = EXTERNAL_ABOVE_BYTES,
) -> list[str]:
    """Write graphs by file name, with their description inside; return the names of all written files."""
    import onnx

    names = list(graphs)
    sizes = [sum(len(tensor.raw_data) for tensor in graph.graph.initializer) for graph in graphs.values()]
    if max(sizes) > external_above_bytes:
        _move_weights(graphs, folder / DATA)
        names.append(DATA)
    for name, graph in graphs.items():
        onnx.helper.set_model_props(graph, {KEY: description.model_dump_json()})
        (folder / name).write_bytes(graph.SerializeToString())
    return names


def _move_weights(graphs: dict[str, "ModelProto"], path: Path) -> None:
    """Move large constants of all graphs to one file; equal constants are written once."""
    from onnx.external_data_helper import set_external_data

    places: dict[str, int] = {}
    with path.open("wb") as file:
        for graph in graphs.values():
            for tensor in graph.graph.initializer:
                length = len(tensor.raw_data)
                if length < MIN_EXTERNAL_BYTES:
                    continue
                key = digest(tensor.raw_data)
                if key not in places:
                    file.seek(-(-file.tell() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
                    places[key] = file.tell()
                    file.write(tensor.raw_data)
                set_external_data(tensor, location=path.name, offset=places[key], length=length)
                tensor.ClearField("raw_data")
