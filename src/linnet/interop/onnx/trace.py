"""From a decoder's step to ONNX graphs, by PyTorch's exporter."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from linnet.core.errors import first_line
from linnet.inference.captured_step import PassFunction
from linnet.interop import optional_package
from linnet.interop.onnx.fusion import AFTER, POSITION, divide_by_roots

if TYPE_CHECKING:
    import onnx

TOKENS, LOGITS = "tokens", "logits"
"""Names of an input and an output; a state's output has its input's name with the prefix `AFTER`."""

OPSET = 20
"""ONNX operator set, which browser runtimes support since 2024."""

PIECE = 64
"""Largest number of prompt tokens of a graph that cannot take any number."""

FEW = 4
NODES = 1300
"""A recurrence from token to token is unrolled in a graph, and the exporter's time grows with the square of the number
of operations: pieces are short enough for about this many.
"""

EXAMPLE_TOKENS = 7
"""Length of the traced stream, and of a traced prompt of any length: unlike any other size of a model."""


def onnx_modules(field: str = "to") -> tuple[Any, Any]:
    """Import onnx and onnxruntime; `UserError` names the extra if they are missing."""
    onnx, onnxruntime, _ = (optional_package(name, field, "onnx") for name in ("onnx", "onnxruntime", "onnxscript"))
    return onnx, onnxruntime


def graph_of(step: PassFunction, tokens: int | None) -> "onnx.ModelProto":
    """Export the graph for a number of tokens; None: for any number from 2 on.

    Raises whatever the exporter raises for a model that it does not support.
    """
    from torch.export import Dim
    from torch.fx.experimental import _config as symbols

    traced, flat = tokens or EXAMPLE_TOKENS, step.flat
    with _quiet(), torch.no_grad():
        # The states of a stream that has begun: growing tensors have a length other than 0 and 1, which are traced as
        # constants. It reads token by token, since a bank reads several tokens as whole chunks only. These passes also
        # make the tables that layers keep as numbers; made in a trace they would be symbols.
        states = [tensor.clone() for tensor in flat.tensors.values()]
        for place in range(EXAMPLE_TOKENS):
            token = torch.full((1, 1), place % step.decoder.spec.vocab_size)
            states = step(token, torch.tensor([place]), states)[1]
        if traced > 1:
            tensors = [tensor.clone() for tensor in flat.tensors.values()]
            step(torch.zeros(1, traced, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), tensors)
        example = (torch.zeros(1, traced, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), states)
        places = Dim("places", min=2)
        of_states = [
            None if name not in flat.growing else {flat.growing[name]: places if name in flat.has_room else Dim.DYNAMIC}
            for name in flat.tensors
        ]
        lengths = {1: Dim.DYNAMIC} if tokens is None else None, None, of_states
        with symbols.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            program = torch.export.export(step, example, dynamic_shapes=lengths, strict=False)
            exported = torch.onnx.export(program, example, dynamo=True, opset_version=OPSET, verbose=False)
    assert exported is not None
    names = list(flat.tensors)
    for value, name in zip(exported.model.graph.inputs, [TOKENS, POSITION, *names], strict=True):
        value.name = name
    for value, name in zip(exported.model.graph.outputs, [LOGITS, *(AFTER + name for name in names)], strict=True):
        value.name = name
    graph: onnx.ModelProto = exported.model_proto
    divide_by_roots(graph.graph)
    return graph


class NoPromptGraphError(Exception):
    """The reason why there is no graph for prompts."""


def prompt_graph(step: PassFunction, one: "onnx.ModelProto") -> tuple["onnx.ModelProto", int | None]:
    """Export the graph for a prompt and return its number of tokens; None for any number, if the exporter supports it.

    one: the graph for a single token. `NoPromptGraphError` if the exporter supports neither, or an eviction policy goes
    from token to token.
    """
    if step.flat.growing.keys() != step.flat.has_room:
        raise NoPromptGraphError("what an eviction policy leaves after a token decides what the next one reads")
    if step.takes_any_number:
        with suppress(Exception):  # the exporter raises many kinds if operations depend on the length
            return graph_of(step, None), None
    try:
        tokens = _piece(step, len(one.graph.node))
        return graph_of(step, tokens), tokens
    except Exception as error:  # many kinds, also for operations that ONNX does not have
        raise NoPromptGraphError(f"PyTorch's exporter cannot follow several tokens ({reason(error)})") from error


def _piece(step: PassFunction, nodes: int) -> int:
    """Return the number of tokens of a piece, a power of 2; nodes: of the graph for one token."""
    try:
        few = graph_of(step, FEW)
    except Exception:  # many kinds: so few tokens are no chunk of a bank, or as many as a window has
        return PIECE
    each = (len(few.graph.node) - nodes) / (FEW - 1)
    most = NODES / max(each, 1)
    return PIECE if most >= PIECE else max(FEW, 1 << (int(most).bit_length() - 1))


def reason(error: Exception) -> str:
    """Return the first line of the exporter's message."""
    return first_line(error.__cause__ or error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's messages about its internals, which a user cannot change."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
