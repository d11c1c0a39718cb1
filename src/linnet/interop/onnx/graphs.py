"""From a step to a graph: PyTorch's exporter, with the names and the lengths that are ours."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.interop.onnx.flatten import Flat, Step
from linnet.interop.onnx.metadata import AFTER, LOGITS, POSITION, TOKENS
from linnet.interop.onnx.norms import divide_by_roots

if TYPE_CHECKING:
    import onnx

OPSET = 20
"""Of ONNX itself: what the runtimes for browsers have had since 2024."""

PIECE = 64
"""Tokens of a prompt that a graph takes at once, where it cannot take any number, at most."""

FEW = 4
NODES = 1300
"""A recurrence that goes from token to token stands in a graph once for each, and the exporter's time goes with the
square of the operations: pieces are as short as it takes to have no more of them than about so many.
"""

EXAMPLE_TOKENS = 7
"""Of the stream, and of a prompt of any length, that are traced: like no other size of a model."""


def onnx_modules(field: str = "to") -> tuple[Any, Any]:
    """The packages onnx and onnxruntime; `UserError` that names the extra where they are not installed."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("needs onnx: pip install 'linnet[onnx]'", field=field) from None
    return onnx, onnxruntime


def graph_of(step: Step, tokens: int | None) -> "onnx.ModelProto":
    """The graph for so many tokens at once; None: for any number from 2 on.

    What the exporter cannot take is an error of its own.
    """
    traced = tokens or EXAMPLE_TOKENS
    with _quiet(), torch.no_grad():
        states = _example_states(step)
        example = (torch.zeros(1, traced, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), states)
        from torch.fx.experimental import _config as symbols

        with symbols.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            lengths = _lengths(step.flat, tokens is None)
            program = torch.export.export(step, example, dynamic_shapes=lengths, strict=False)
            exported = torch.onnx.export(program, example, dynamo=True, opset_version=OPSET, verbose=False)
    assert exported is not None
    names = list(step.flat.tensors)
    for value, name in zip(exported.model.graph.inputs, [TOKENS, POSITION, *names], strict=True):
        value.name = name
    for value, name in zip(exported.model.graph.outputs, [LOGITS, *(AFTER + name for name in names)], strict=True):
        value.name = name
    graph: onnx.ModelProto = exported.model_proto
    divide_by_roots(graph.graph)
    return graph


class NoPromptGraphError(Exception):
    """Why a prompt has no graph."""


def prompt_graph(step: Step, one: "onnx.ModelProto") -> tuple["onnx.ModelProto", int | None]:
    """The graph for a prompt, and of how many tokens; None: of any number, wherever the exporter can follow that.

    one: the graph for a single token.
    `NoPromptGraphError` where it can follow neither, or an eviction policy goes from token to token.
    """
    if step.flat.growing.keys() != step.flat.has_room:
        raise NoPromptGraphError("what an eviction policy leaves after a token decides what the next one reads")
    if step.takes_any_number:
        with suppress(Exception):  # of many kinds, where operations depend on the length
            return graph_of(step, None), None
    try:
        tokens = _piece(step, len(one.graph.node))
        return graph_of(step, tokens), tokens
    except Exception as error:  # likewise, or of operations that are none of ONNX
        raise NoPromptGraphError(f"PyTorch's exporter cannot follow several tokens ({reason(error)})") from error


def _piece(step: Step, nodes: int) -> int:
    """Tokens of a piece, a power of 2; nodes: of the graph for one token."""
    try:
        few = graph_of(step, FEW)
    except Exception:  # of many kinds: so few are no chunk of a bank, or as many as a window has
        return PIECE
    each = (len(few.graph.node) - nodes) / (FEW - 1)
    most = NODES / max(each, 1)
    return PIECE if most >= PIECE else max(FEW, 1 << (int(most).bit_length() - 1))


def reason(error: Exception) -> str:
    """What the exporter says first."""
    return str(error.__cause__ or error).strip().splitlines()[0]


def _example_states(step: Step) -> list[Tensor]:
    """Of a stream that has begun: what grows has a length that is neither 0 nor 1, which are traced as such.

    The pass that begins it also makes the tables that layers keep, as numbers: those made in a trace are symbols.
    """
    begun = [tensor.clone() for tensor in step.flat.tensors.values()]
    tokens = torch.arange(EXAMPLE_TOKENS)[None] % step.decoder.spec.vocab_size
    filled: list[Tensor] = step(tokens, torch.zeros(1, dtype=torch.int64), begun)[1]
    return filled


def _lengths(flat: Flat, any_tokens: bool) -> tuple[Any, None, list[Any]]:
    """Which dimensions are symbols."""
    from torch.export import Dim

    places = Dim("places", min=2)
    of_states = [
        None if name not in flat.growing else {flat.growing[name]: places if name in flat.has_room else Dim.DYNAMIC}
        for name in flat.tensors
    ]
    return {1: Dim.DYNAMIC} if any_tokens else None, None, of_states


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of its own workings, which are nothing that a user could change."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
