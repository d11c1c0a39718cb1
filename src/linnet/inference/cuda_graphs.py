"""Decoding steps as CUDA graphs: the captured step is recorded once for its shapes, and replayed for every token.

A step of a small model is hundreds of kernels of a few microseconds, and starting them from Python takes longer than
they run; a graph starts them all at once. A graph reads and writes fixed places: those of tokens, positions, logits and
states (`StepBuffers`). Streams of any ages are copied there when they begin or their batch changes; from then on the
tensors of their state are parts of the buffers, which the graph writes in place. Shapes are few: the rows and the room
of buffers are powers of two. Weights are read where they are.

Legend: `B` batch (rows), `V` vocabulary.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from linnet.core.errors import note
from linnet.core.system import available_bytes
from linnet.inference.captured_step import InPlaceStep, Maintenance, StateTensors, can_capture, reserve, weights_of
from linnet.inference.step_packages import BUILDS, RESERVED_TOKENS
from linnet.layers.state import State
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

RECORD_AFTER_TOKENS = 16
"""Ordinary steps of a decoder after which steps are recorded: a recording takes as long as about five of them."""

WARM_UP_STEPS = 2
"""Steps before a recording, in which libraries allocate what they keep and tables are copied to the device."""

MIN_ROOM = 256
"""Smallest number of places for tokens that a graph reads."""

MAX_BUFFERS = 8
"""Buffers of one decoder that are kept although no stream uses them."""


@dataclass(frozen=True)
class RecordedGraph:
    """A recorded function. replay: runs it again. out: what each replay writes. pool: of the memory between."""

    replay: Callable[[], None]
    out: Tensor
    pool: Any = None


Recorder = Callable[[Callable[[], Tensor], RecordedGraph | None], RecordedGraph]
"""From a function without arguments to its recording; another one may share its memory, if it never runs meanwhile."""


def record_cuda_graph(function: Callable[[], Tensor], beside: RecordedGraph | None) -> RecordedGraph:
    """Record a function as a CUDA graph; see `Recorder`."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    pool = None if beside is None else beside.pool
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads go on
        out = function()
    return RecordedGraph(graph.replay, out, graph.pool())


RECORDERS: dict[str, Recorder] = {"cuda": record_cuda_graph}
"""By the type of the device. Tests put a recorder that runs the function again there for a device without graphs."""


def can_record(decoder: Decoder, state: DecoderState) -> bool:
    """True for streams on a device that records steps, whose prompts have been read, but not with `recalibrate`."""
    device = decoder.device.type
    return device in RECORDERS and not torch.is_autocast_enabled(device) and can_capture(decoder, state)


@dataclass(eq=False)
class StepBuffers:
    """The places that graphs read and write. Streams have them to themselves as long as any tensor refers to them.

    states: of as many streams as a power of two; the rows of a batch are the first ones, and the others repeat its
    first row. form: of these states. weights: aliases of those that the graphs read. graphs: by the number of places
    for tokens that they read. references: how many tensors share the memory of each state if no stream does.
    """

    states: DecoderState
    tokens_B1: Tensor
    positions_B: Tensor
    weights: list[Tensor]
    graphs: dict[int, RecordedGraph] = field(default_factory=dict)
    references: list[int] = field(default_factory=list)

    @classmethod
    def for_state(cls, state: DecoderState, weights: Sequence[Tensor]) -> "StepBuffers":
        """Buffers for a state and others like it, whose graphs read these weights."""
        rows = len(state.positions)
        index = [*range(rows), *[0] * (power_of_two(rows) - rows)]
        states = state.select(index).grown(room_for(state.capacity))
        tokens_B1 = torch.zeros(len(index), 1, dtype=torch.int64, device=weights[0].device)
        return cls(states, tokens_B1, tokens_B1[:, 0].clone(), [weight.detach() for weight in weights])

    @property
    def fields(self) -> list[tuple[State, str]]:
        """The state and the name of each tensor."""
        return fields_of(self.states)

    @property
    def is_free(self) -> bool:
        """True if no stream uses them."""
        return self.references == [_references(getattr(*each)) for each in self.fields]

    def holds(self, state: DecoderState) -> bool:
        """True if some tensors of a state are here."""
        own = {_storage(getattr(*each)) for each in self.fields}
        return any(_storage(getattr(*each)) in own for each in fields_of(state))

    def fits(self, state: DecoderState, weights: Sequence[Tensor]) -> bool:
        """True if a state can be copied here and a graph that was recorded here runs its step with these weights."""
        rows, room = power_of_two(len(state.positions)), room_for(state.capacity)
        if self.states.form != state.form or len(self.tokens_B1) != rows:
            return False
        own, theirs = self.fields, fields_of(state)
        if [name for _, name in own] != [name for _, name in theirs]:
            return False
        for (part, name), (buffers, _) in zip(theirs, own, strict=True):
            shape = [rows, *getattr(part, name).shape[1:]]
            if name in part.room:
                shape[part.room[name]] = room
            if list(getattr(buffers, name).shape) != shape:
                return False
        return len(weights) == len(self.weights) and all(map(_is_same_place, weights, self.weights))

    def places_for(self, position: int) -> int:
        """How many places a graph reads for rows of at most this position; 0 if no state has any."""
        room = [getattr(part, name).shape[part.room[name]] for part, name in self.fields if name in part.room]
        return min([*room, room_for(position + 1)]) if room else 0

    def record(self, decoder: Decoder, places: int, recorder: Recorder) -> None:
        """Record the step that reads so many places; whatever is in the buffers is overwritten."""
        self.graphs[places] = self._recorded_graph(decoder, places, recorder)
        self.references = [_references(getattr(*each)) for each in self.fields]

    def _recorded_graph(self, decoder: Decoder, places: int, recorder: Recorder) -> RecordedGraph:
        tensors = StateTensors(self.states)
        step = InPlaceStep(decoder, tensors)
        self.tokens_B1.zero_()
        self.positions_B.zero_()
        read = [
            tensor.narrow(tensors.growing[name], 0, places) if name in tensors.has_room else tensor
            for name, tensor in tensors.tensors.items()
        ]
        beside = next(iter(self.graphs.values()), None)
        return recorder(lambda: step(self.tokens_B1, self.positions_B, read, self.weights), beside)

    def lend(self, state: DecoderState) -> list[Tensor]:
        """Copy a state here, and let its tensors be parts of the buffers, which are returned."""
        parts = []
        for (part, name), own in zip(fields_of(state), self.fields, strict=True):
            tensor, buffer = getattr(part, name), getattr(*own)
            place = buffer
            for dim, size in enumerate(tensor.shape):
                place = place.narrow(dim, 0, size)
            if not _is_same_place(tensor, place):
                tensor = tensor.clone() if _storage(tensor) == _storage(buffer) else tensor
                buffer.zero_()  # a masked place may hold no infinity, which an earlier stream may have left
                place.copy_(tensor)
            buffer[len(tensor) :] = buffer[:1]
            setattr(part, name, place)
            parts.append(place)
        self.set_positions(state)
        return parts

    def set_positions(self, state: DecoderState) -> None:
        """The positions of the rows of a state; those of the other rows are that of the first."""
        rest = [state.positions[0]] * (len(self.positions_B) - len(state.positions))
        self.positions_B.copy_(torch.tensor([*state.positions, *rest], device=self.positions_B.device))


@dataclass(eq=False)
class Pool:
    """What is recorded for one decoder. buffers: the one used last is the last. tokens: ordinary steps so far.

    problem: why nothing more is recorded; None as long as recordings succeed.
    """

    buffers: list[StepBuffers] = field(default_factory=list)
    tokens: int = 0
    problem: str | None = None

    def for_state(self, decoder: Decoder, state: DecoderState) -> StepBuffers | None:
        """Buffers for a state: those that hold it, or free ones, or new ones; None if there is no memory for them."""
        weights = _weights(decoder, state)
        fitting = [each for each in self.buffers if each.fits(state, weights)]
        found = next((each for each in fitting if each.holds(state)), None) or next(
            (each for each in fitting if each.is_free), None
        )
        if found is None:
            free = [each for each in self.buffers if each.is_free]
            scarce = 4 * state.nbytes > available_bytes(decoder.device)
            for each in free if scarce else free[: max(0, len(self.buffers) - MAX_BUFFERS + 1)]:
                self.buffers.remove(each)
            if 4 * state.nbytes > available_bytes(decoder.device):
                return None
            found = StepBuffers.for_state(state, weights)
        else:
            self.buffers.remove(found)
        self.buffers.append(found)
        return found


_POOLS: "WeakKeyDictionary[Decoder, Pool]" = WeakKeyDictionary()

_LOCK = threading.Lock()
"""Held while buffers are chosen and steps recorded: a process records one graph at a time."""


@dataclass(eq=False)
class GraphSteps:
    """The steps of a batch of streams: ordinary ones, and recorded ones once the decoder has taken some steps.

    ordinary: the step to begin with; both advance `state`, whose prompts have been read. An ordinary pass may advance
    the state between two steps.
    """

    decoder: Decoder
    state: DecoderState
    ordinary: Callable[[Tensor], Tensor]
    _buffers: StepBuffers | None = None
    _parts: list[Tensor] = field(default_factory=list)
    _places: int = 0
    _positions: tuple[int, ...] = ()
    _steps_left: int = 0

    def __post_init__(self) -> None:
        self._maintenance = Maintenance(self.state)

    def logits(self, tokens_B1: Tensor) -> Tensor:
        """Logits `[B, V]` of one token of each row."""
        state = self.state
        if state.position >= state.capacity:
            raise ValueError("1 more tokens: the state has room for 0")
        if not self._is_ready():
            return self.ordinary(tokens_B1)
        assert self._buffers is not None
        buffers, rows = self._buffers, len(state.positions)
        if self._positions != state.positions:
            buffers.set_positions(state)
            self._maintenance.plan()
        buffers.tokens_B1[:rows].copy_(tokens_B1)
        recording = buffers.graphs[self._places]
        recording.replay()
        buffers.positions_B.add_(1)
        state.positions = self._positions = tuple(position + 1 for position in state.positions)
        self._steps_left -= 1
        self._maintenance.after_step()
        return recording.out[:rows].clone()

    def count_pass(self, tokens: int) -> None:
        """Count a pass that read several tokens of the streams instead of steps."""
        _POOLS.setdefault(self.decoder, Pool()).tokens += tokens

    def release(self) -> None:
        """Move the state out of the buffers, so that other streams can use them."""
        if self._buffers is not None:
            with torch.inference_mode(False), torch.no_grad():  # the state may be advanced anywhere later
                for part, name in fields_of(self.state):
                    setattr(part, name, getattr(part, name).clone(memory_format=torch.contiguous_format))
        self._buffers, self._parts, self._steps_left = None, [], 0

    def _is_ready(self) -> bool:
        """True if the state is where a graph reads it; it is copied there, and the graph recorded, if need be."""
        pool = _POOLS.setdefault(self.decoder, Pool())
        if not BUILDS.enabled or pool.problem is not None:
            return False
        buffers = self._buffers
        if buffers is None and self._steps_left > 0:  # there was no memory a moment ago
            self._steps_left -= 1
            return False
        if buffers is not None and self._steps_left > 0 and buffers.places_for(self.state.position) == self._places:
            current = (getattr(*each) for each in fields_of(self.state))
            if all(tensor is part for tensor, part in zip(current, self._parts, strict=True)):
                return True
        if pool.tokens < RECORD_AFTER_TOKENS:
            pool.tokens += 1
            return False
        try:
            with _LOCK, torch.inference_mode(False), torch.no_grad():  # as in `release`
                return self._enter(pool)
        except (RuntimeError, ValueError) as error:  # memory, or an operation that a graph cannot hold
            self.release()
            pool.problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            note(f"decoding steps are not recorded as graphs: {pool.problem}")
            return False

    def _enter(self, pool: Pool) -> bool:
        """Move the state to buffers with a recorded graph; False if there is no memory for them."""
        state, self._parts = self.state, []
        if any(part.any_length for part in state.sublayers):
            reserve(state, RESERVED_TOKENS)
        self._buffers = buffers = pool.for_state(self.decoder, state)
        if buffers is None:
            self._steps_left = RESERVED_TOKENS
            return False
        self._places = buffers.places_for(state.position)
        if self._places not in buffers.graphs:
            self.release()  # a recording overwrites the buffers
            self._buffers = buffers
            buffers.record(self.decoder, self._places, RECORDERS[self.decoder.device.type])
        self._parts, self._positions, self._steps_left = buffers.lend(state), state.positions, RESERVED_TOKENS
        self._maintenance.plan()
        return True


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def room_for(tokens: int) -> int:
    """The places that buffers and graphs have for so many tokens."""
    return max(MIN_ROOM, power_of_two(tokens))


def fields_of(state: DecoderState) -> list[tuple[State, str]]:
    """The part and the name of each tensor of a state, in the order of `StateTensors`."""
    return [(part, name) for _, part in state.named() for name in part.tensors()]


def _weights(decoder: Decoder, state: DecoderState) -> list[Tensor]:
    """The weights in the order that a step takes them."""
    return list(weights_of(InPlaceStep(decoder, StateTensors(state)).function).values())


def _storage(tensor: Tensor) -> int:
    """A number that is the same for all tensors in one memory."""
    found: int = tensor.untyped_storage()._cdata
    return found


def _references(tensor: Tensor) -> int:
    """How many tensors share its memory."""
    return torch._C._storage_Use_Count(_storage(tensor))


def _is_same_place(one: Tensor, other: Tensor) -> bool:
    """True if two tensors are the same elements of one memory."""
    first, second = ((_storage(x), x.storage_offset(), x.shape, x.stride(), x.dtype) for x in (one, other))
    return first == second
