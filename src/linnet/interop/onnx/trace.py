"""From a decoder to ONNX graphs: its states as a flat list of tensors, and PyTorch's exporter.

Legend: `T` tokens of the chunk, `V` vocabulary.
"""

import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.interop import optional_package
from linnet.interop.onnx.fusion import AFTER, POSITION, divide_by_roots
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout, Value
from linnet.layers.cache_policy import FULL
from linnet.layers.key_value import WindowState
from linnet.layers.state import CachePolicyState, State
from linnet.model.decoder import Decoder
from linnet.model.stack import run_blocks
from linnet.model.state import DecoderState, LayerStates

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


@dataclass(frozen=True)
class GraphBatchLayout(BatchLayout):
    """Layout of one stream in a graph, where the position is a tensor `[1]` and `places` a size of the graph.

    Layers treat it as rows at different positions, for which they use tensors only.
    """

    position_B: Tensor | None = None
    places: int = 0

    @cached_property
    def uniform(self) -> bool:
        """False: no layer may read a position as a number."""
        return False

    @property
    def start(self) -> int:
        """The position, which is not known as a number."""
        raise NotImplementedError("the position is a tensor in a graph")

    def end(self, length: int) -> int:
        """Return all places, so that layers mask those after the position."""
        return self.places

    def remember(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Compute again: a length may be a symbol, which is no key; runtimes eliminate common subexpressions."""
        return make()

    def offsets_B(self, device: torch.device) -> Tensor:
        assert self.position_B is not None
        return self.position_B

    def positions(self, length: int, device: torch.device) -> Tensor:
        return self.offsets_B(device)[:, None] + torch.arange(length, device=device)


class Flat:
    """Names and places of the tensors in the state of one stream."""

    def __init__(self, state: DecoderState) -> None:
        """`state`: the initial state; fields without a tensor stay without one."""
        self.initial = state
        self.tensors = {
            prefix + field: tensor for prefix, part in state.named() for field, tensor in part.tensors().items()
        }
        self.growing = {
            prefix + field: part.room.get(field, 1)
            for prefix, part in state.named()
            for field in part.tensors()
            if field in part.room or field in part.any_length
        }
        self.has_room = {prefix + field for prefix, part in state.named() for field in part.room} & set(self.tensors)

    @property
    def needs_whole_pieces(self) -> bool:
        """True if some layer only takes pieces of one length, as a bank takes its chunks."""
        policies = (part.cache_policy for _, part in self.initial.named() if isinstance(part, CachePolicyState))
        return any(policy != FULL for policy in policies)

    @classmethod
    def of(cls, decoder: Decoder, capacity: int, cache_policy: CachePolicies) -> "Flat":
        """Describe an empty state of one stream."""
        return cls(cache_policy_state(decoder, 1, capacity, cache_policy))

    def filled(self, tensors: Sequence[Tensor]) -> list[LayerStates]:
        """Return the states of each layer with these tensors, in the order of the names."""
        by_name = dict(zip(self.tensors, tensors, strict=True))
        each = [
            part.with_tensors({field: by_name[prefix + field] for field in part.tensors()})
            for prefix, part in self.initial.named()
        ]
        layers = len(self.initial.layers)
        return [LayerStates(*each[index::layers]) for index in range(layers)]

    def taken(self, layers: Sequence[LayerStates]) -> list[Tensor]:
        """Return the tensors of these states, in the order of the names."""
        parts = [part for column in zip(*layers, strict=True) for part in column]
        by_name = {
            prefix + field: tensor
            for (prefix, _), part in zip(self.initial.named(), parts, strict=True)
            if isinstance(part, State)
            for field, tensor in part.tensors().items()
        }
        if by_name.keys() != self.tensors.keys():
            changed = sorted(by_name.keys() ^ self.tensors.keys())
            raise ValueError(f"a step changes which tensors a state has: {changed}")
        return [by_name[name] for name in self.tensors]


class Step(nn.Module):
    """A decoder as a function: tokens `[1, T]`, position `[1]` and states to logits `[1, T, V]` and states."""

    def __init__(self, decoder: Decoder, flat: Flat) -> None:
        super().__init__()
        self.decoder, self.flat = decoder, flat

    @property
    def takes_any_number(self) -> bool:
        """True if one graph can read any number of tokens; a recurrence is unrolled over the traced number."""
        states = zip(self.decoder.mixers, self.flat.initial.layers, strict=True)
        recurs = any(mixer.traits.constant_state and not isinstance(state, WindowState) for mixer, state in states)
        return not recurs and not self.flat.needs_whole_pieces

    def forward(self, tokens_BT: Tensor, position_B: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the logits and the states after the tokens."""
        layers = self.flat.filled(states)
        named = zip(self.flat.tensors, states, strict=True)
        rooms = (x.shape[self.flat.growing[name]] for name, x in named if name in self.flat.has_room)
        places = next(rooms, tokens_BT.shape[1])
        layout = GraphBatchLayout(record=AuxiliaryOutputs(), position_B=position_B, places=places)
        x_BTD = run_blocks(self.decoder.blocks, self.decoder.embedding(tokens_BT, layout), layers, layout)
        return self.decoder.logits(self.decoder.after_blocks(x_BTD)), self.flat.taken(layers)


def onnx_modules(field: str = "to") -> tuple[Any, Any]:
    """Import onnx and onnxruntime; `UserError` names the extra if they are missing."""
    onnx, onnxruntime, _ = (optional_package(name, field, "onnx") for name in ("onnx", "onnxruntime", "onnxscript"))
    return onnx, onnxruntime


def graph_of(step: Step, tokens: int | None) -> "onnx.ModelProto":
    """Export the graph for a number of tokens; None: for any number from 2 on.

    Raises whatever the exporter raises for a model that it does not support.
    """
    from torch.export import Dim
    from torch.fx.experimental import _config as symbols

    traced, flat = tokens or EXAMPLE_TOKENS, step.flat
    with _quiet(), torch.no_grad():
        # The states of a stream that has begun: growing tensors have a length other than 0 and 1, which are traced as
        # constants. This pass also makes the tables that layers keep as numbers; made in a trace they would be symbols.
        tensors = [tensor.clone() for tensor in flat.tensors.values()]
        first = torch.arange(EXAMPLE_TOKENS)[None] % step.decoder.spec.vocab_size
        states: list[Tensor] = step(first, torch.zeros(1, dtype=torch.int64), tensors)[1]
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


def prompt_graph(step: Step, one: "onnx.ModelProto") -> tuple["onnx.ModelProto", int | None]:
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


def _piece(step: Step, nodes: int) -> int:
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
    return str(error.__cause__ or error).strip().splitlines()[0]


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
