"""The captured step of one stream as one native call, the fastest backend on a processor for layers that it can map.

`NativeStep.of` traces one pass of the decoder (`native_trace`), maps its operations to native functions
(`native_lowering`), and records their calls at the first token (`ops.native.program`): all later tokens are one call
each. The trace serves all streams of a decoder until its weights move. Before its calls are used, they must give what
the traced pass gave. Other decoders have compiled or ordinary steps (`compiled_step`).

Legend: `B` batch (rows), `V` vocabulary; rows are `[1, D]`.
"""

import ctypes
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from linnet.core.errors import note
from linnet.inference.captured_step import GraphBatchLayout, PassFunction, StateTensors, can_capture_on_cpu, weights_of
from linnet.inference.native_lowering import lowered
from linnet.inference.native_plan import NativePlan
from linnet.inference.native_trace import Trace, UnmappedError
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.stack import Block
from linnet.model.state import DecoderState
from linnet.ops.native import library, row_ops_in_graphs
from linnet.ops.native.program import Program, Recording, UnrecordableError
from linnet.ops.support import graph_forms

TRACED_PLACES = 2
"""Places for tokens in the states of a trace."""

MAX_ERRORS = {torch.float32: 0.02, torch.bfloat16: 0.25}
"""Largest accepted distance from what the traced pass gave, relative to its size, by the precision of the pass.

A wrong step differs by about 1. Inputs of products with 8 and 4 bits are rounded, which magnifies other differences.
"""

Pass = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]]
"""From a token `[1, 1]`, its position `[1]` and states to the result and the states after it."""


@dataclass
class RowProgram:
    """A step from a token and its position to a row that the next call may overwrite, as one native call.

    bound: the step that is recorded when it runs for the first time, and again when weights or states have moved.
    """

    bound: Callable[[int, int], Tensor]
    compiled: ctypes.CDLL
    _program: Program | None = field(default=None, init=False)
    _out: Tensor | None = field(default=None, init=False)

    def __call__(self, token: int, position: int) -> Tensor:
        if self._program is not None and self._out is not None and self._program.is_valid():
            self._program.run(token, position)
            return self._out
        with torch.inference_mode(), Recording(token, position) as recording:
            self._out = self.bound(token, position)
        self._program = recording.program(self.compiled)
        return self._out


@dataclass
class NativeStep:
    """The steps of one stream; `logits` advances `state`, whose tensors nothing else may advance or crop meanwhile."""

    decoder: Decoder
    state: DecoderState
    _row: RowProgram

    @classmethod
    def of(cls, decoder: Decoder, state: DecoderState) -> Self | None:
        """The steps behind a prompt; None for several streams, and for layers without native functions."""
        compiled = library(decoder.device)
        has_begun = len(state.positions) == 1 and 0 < state.position < state.capacity
        if compiled is None or not has_begun or not can_capture_on_cpu(decoder, state):
            return None
        tensors = list(StateTensors(state).tensors.values())
        plan = _plan_of(decoder, state) if all(x.is_contiguous() for x in tensors) else None
        if plan is None:
            return None
        bound = plan.bind(compiled, tensors, state.capacity)
        return cls(decoder, state, RowProgram(bound, compiled))

    def logits(self, token_11: Tensor) -> Tensor:
        """`Decoder.logits` of one token, `[1, V]`, in float32."""
        return self.logits_behind((int(token_11),)).clone()

    def logits_behind(self, tokens: Sequence[int]) -> Tensor:
        """The same for the one token as a number; without a soft cap the next call overwrites the result.

        To make a tensor of a token can take a tenth of the step of a small model.
        """
        (token,) = tokens
        position = self.state.position
        if position >= self.state.capacity:
            raise ValueError("1 more tokens: the state has room for 0")
        logits_1V = self.decoder.capped(self._row(token, position))
        self.state.positions = (position + 1,)
        return logits_1V


_PLANS = WeakKeyDictionary[Decoder, dict[Hashable, tuple[list[int], NativePlan | None]]]()
"""What is known of a decoder's steps by the kinds of its states, with the addresses of the weights at that time."""


def _plan_of(decoder: Decoder, state: DecoderState) -> NativePlan | None:
    """The plan for states of this kind; None if the step has no native form."""
    states = StateTensors(state)
    function = PassFunction(decoder, states, in_place=True)
    addresses = [tensor.data_ptr() for tensor in weights_of(function).values()]
    policies = tuple(part.cache_policy for part in state.layers)
    key = policies, *((name, tensor.dtype) for name, tensor in states.tensors.items())
    known = _PLANS.setdefault(decoder, {})
    if any(of_weights != addresses for of_weights, _ in known.values()):
        known.clear()  # traces keep the old weights alive
    if key not in known:
        known[key] = addresses, plan_of_pass(function.uncapped, states)
    return known[key][1]


@torch.inference_mode()
def plan_of_pass(function: Pass, states: StateTensors, row: Tensor | None = None) -> NativePlan | None:
    """The native calls of a pass of one token; None if one of its operations has no native form.

    states: describes the states; the trace has states of its own, as small as possible. row: another input.
    """
    before = [
        x.narrow(states.growing[name], 0, min(TRACED_PLACES, x.shape[states.growing[name]])).clone()
        if name in states.has_room
        else x.clone()
        for name, x in states.tensors.items()
    ]
    token_11, position_1 = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
    tensors = [x.clone() for x in before]
    inputs = {"token": [token_11], "position": [position_1], "state": tensors, "row": [] if row is None else [row]}
    trace = Trace(inputs)
    with row_ops_in_graphs(), graph_forms(), trace:
        result, after = function(token_11, position_1, tensors)
    try:
        plan = lowered(trace, result, after)
    except UnmappedError:
        return None
    problem = _difference(plan, before, row, [result, *after])
    if problem is not None:
        note(f"the native decoding step is not used: {problem}")
    return plan if problem is None else None


def _difference(
    plan: NativePlan, states: Sequence[Tensor], row: Tensor | None, expected: Sequence[Tensor]
) -> str | None:
    """How the calls differ from the traced pass, when they are recorded and when they are run again; None if not.

    states: before the pass. expected: the result of the pass and the states after it.
    """
    compiled = library(torch.device("cpu"))
    assert compiled is not None
    try:
        program = RowProgram(plan.bind(compiled, states, TRACED_PLACES, row), compiled)
        for _ in range(2):
            found = [program(0, 1), *states]
            for ours, theirs in zip(found, expected, strict=True):
                difference, size = (ours.flatten().float() - theirs.flatten().float()).norm(), theirs.float().norm()
                error = float(difference / (size + 1e-6))
                if theirs.isfinite().all() and not error <= MAX_ERRORS.get(theirs.dtype, 0.0):
                    return f"it differs from the model by {error:.1e} of the size"
    except (ValueError, UnmappedError, UnrecordableError) as error:
        return str(error)
    return None


def block_program(block: Block, state: DecoderState, x_11W: Tensor) -> RowProgram | None:
    """The layers of a block without its projection, at the row `x_11W`; None if they have no native form."""
    states = StateTensors(state)

    def function(token_11: Tensor, position_1: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        layers, layout, x = states.filled(tensors), _row_layout(token_11, position_1), x_11W
        for index, of_layer in enumerate(layers):
            x = block.layer(index)(x, of_layer, layout, x_11W)
        return x, states.taken(layers)

    return _row_program(function, states, x_11W)


def outside_program(decoder: Decoder, capacity: int) -> RowProgram | None:
    """From a token to the head's product without the layers; None if a part has no native form."""
    states = StateTensors(DecoderState((), (), (), capacity, (0,)))

    def function(token_11: Tensor, position_1: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        x_11D = decoder.embedding(token_11, _row_layout(token_11, position_1))
        return decoder.uncapped_logits(decoder.after_blocks(x_11D)), tensors

    return _row_program(function, states)


def _row_layout(token_11: Tensor, position_1: Tensor) -> GraphBatchLayout:
    """The layout of a pass of one token that is traced."""
    record = AuxiliaryOutputs()
    return GraphBatchLayout(
        record=record, tokens_BT=token_11, position_B=position_1, places=TRACED_PLACES, in_place=True
    )


def _row_program(function: Pass, states: StateTensors, row: Tensor | None = None) -> RowProgram | None:
    """The pass as a program for these states; None if it has no native form."""
    tensors = list(states.tensors.values())
    compiled = library(torch.device("cpu"))
    if compiled is None or any(x.device.type != "cpu" for x in (*tensors, *(() if row is None else (row,)))):
        return None
    plan = plan_of_pass(function, states, row)
    return None if plan is None else RowProgram(plan.bind(compiled, tensors, states.initial.capacity, row), compiled)
