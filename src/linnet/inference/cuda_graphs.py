"""Decoding steps as CUDA graphs: the captured step is recorded once for its shapes, and replayed for every token.

A step of a small model is hundreds of kernels of a few microseconds, and starting them from Python takes longer than
they run; a graph starts them all at once. A graph reads and writes fixed places: those of tokens, positions, logits and
states (`StepBuffers`). Streams of any ages are copied there when they begin or their batch changes; from then on the
tensors of their state are parts of the buffers, which the graph writes in place. Shapes are few: the rows and the room
of buffers are powers of two. Weights are read where they are. Graphs begin with PyTorch's kernels; those that Inductor
joins (`fused_step`) are recorded as soon as they are there, and replayed if they take less time.

Legend: `B` batch (rows), `V` vocabulary.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from linnet.core.errors import UserError, first_line, is_out_of_memory, note
from linnet.core.system import available_bytes, synchronize
from linnet.inference.captured_step import InPlaceStep, Maintenance, StateTensors, can_capture, reserve, weights_of
from linnet.inference.compiled_step import MOST_WAIT_S, WAIT_S, StepResult, difference_of
from linnet.inference.fused_step import LOADING, FusedStep, Fusion, StepInputs, fusion_of, on_device
from linnet.inference.step_packages import BUILDS, RESERVED_TOKENS
from linnet.inference.weights import precision_of
from linnet.layers.state import State
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState
from linnet.ops.kernels import has_triton

RECORD_AFTER_TOKENS = 16
"""Ordinary steps of a decoder after which steps are recorded: a recording takes as long as about five of them."""

BUSY_TOKENS = 16
"""Ordinary steps before the next attempt to record while a step is being loaded, which takes seconds."""

WARM_UP_STEPS = 2
"""Steps before a recording, in which libraries allocate what they keep and tables are copied to the device."""

MIN_ROOM = 256
"""Smallest number of places for tokens that a graph reads."""

MAX_BUFFERS = 8
"""Buffers of one decoder that are kept although no stream uses them."""

LOAD_AFTER_TOKENS, FUSE_AFTER_TOKENS = 64, 512
"""Tokens of a decoder after which a compiled step is loaded, and a missing one compiled: a short text ends before."""

FUSING_DEVICES = {"cuda"}
"""Types of devices for which steps are compiled. Tests add others, for which Inductor compiles as well."""

STATE_COPIES, WEIGHT_COPIES, CONTEXT_BYTES = 4, 2, 2**30
"""Times the bytes of states and weights, and bytes besides, that must be free for a compiled step.

It is compared on copies of the states, and the process that compiles it has weights and a CUDA context of its own.
"""

MAX_ELEMENTS = 2**31
"""Elements of a tensor that compiled kernels no longer reach, whose indices have 32 bits."""

TIMED_REPLAYS = 5
"""Replays of each of two graphs, of which the fastest decides."""


@dataclass(frozen=True, eq=False)
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
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):  # other threads go on
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
    fusion: the compiled step, once it has been looked for. fused: its graph, which reads all places; fused_from: the
    step that it was recorded of, whose kernels it needs; values: what it reads beside weights; is_compared: it gives
    what the other graphs give; is_refused: it does not, or cannot be recorded. fastest: the graph to replay, by the
    number of places that are needed.
    """

    states: DecoderState
    tokens_B1: Tensor
    positions_B: Tensor
    weights: list[Tensor]
    graphs: dict[int, RecordedGraph] = field(default_factory=dict)
    references: list[int] = field(default_factory=list)
    fusion: Fusion | None = None
    fused: RecordedGraph | None = None
    fused_from: FusedStep | None = None
    values: list[Tensor] = field(default_factory=list)
    is_compared: bool = False
    is_refused: bool = False
    fastest: dict[int, RecordedGraph] = field(default_factory=dict)

    @classmethod
    def for_state(cls, state: DecoderState, weights: Sequence[Tensor]) -> "StepBuffers":
        """Buffers for a state and others like it, whose graphs read these weights."""
        rows = len(state.positions)
        index = [*range(rows), *[0] * (power_of_two(rows) - rows)]
        states = state.select(index).grown(room_for(state.capacity))
        for part, name in fields_of(states):  # as compiled steps expect them
            setattr(part, name, getattr(part, name).contiguous())
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

    @property
    def fused_step(self) -> FusedStep | None:
        """The compiled step; None as long as there is none."""
        return None if self.fusion is None or self.is_refused else self.fusion.step

    def must_record(self, places: int) -> bool:
        """True if a graph that reads so many places, or that of the compiled step, has not been recorded."""
        return places not in self.fastest or (self.fused is None and self.fused_step is not None)

    def record(self, decoder: Decoder, places: int, recorder: Recorder) -> None:
        """Record the step that reads so many places, and the compiled one; what is in the buffers is overwritten."""
        self.tokens_B1.zero_()
        self.positions_B.zero_()
        if places not in self.graphs:
            step, inputs = InPlaceStep(decoder, StateTensors(self.states)), self.inputs(places)
            self.graphs[places] = recorder(self._advancing(lambda: step(*inputs.arguments)), self._any_graph)
        if self.fused is None and self.fused_step is not None:
            self._record_fused(self.fused_step, recorder)
            self.fastest.clear()
        self.fastest[places] = self.graphs[places]
        if self.fused is not None:
            times_s = {graph: self._replay_s(graph) for graph in (self.graphs[places], self.fused)}
            self.fastest[places] = min(times_s, key=times_s.__getitem__)
        self.references = [_references(getattr(*each)) for each in self.fields]

    def _record_fused(self, step: FusedStep, recorder: Recorder) -> None:
        """Record the compiled step; it is given up, after a note, where that fails."""
        inputs = self.inputs()
        try:
            self.fused_from, self.values = step, (values := step.values_of(self.weights))
            self.positions_B.zero_()
            self.fused = recorder(self._advancing(lambda: step.logits(inputs, values)), self._any_graph)
        except Exception as error:  # what a capture, Inductor and Triton raise
            note(f"the step compiled for the GPU is not recorded: {first_line(error)}")
            self.is_refused = True

    def update_values(self) -> None:
        """Compute again what the compiled step reads beside weights: they may have changed in their places."""
        if self.fused_from is not None:
            self.fused_from.update(self.values, self.weights)

    def compare(self, decoder: Decoder, places: int) -> None:
        """Compare the graphs at the next token of the streams here; the compiled one is given up if it differs."""
        inputs, names = self.inputs(), list(StateTensors(self.states).tensors)
        before, results = inputs.copied(), list[StepResult]()
        assert self.fused is not None and self.fusion is not None
        for graph in (self.graphs[places], self.fused):
            try:
                graph.replay()
                states = (tensor.clone() for tensor in inputs.states)
                results.append((graph.out.clone(), dict(zip(names, states, strict=True))))
            finally:  # also without memory for the copies: the streams go on from here
                self.positions_B.copy_(before.positions_B)
                for place, tensor in zip(inputs.states, before.states, strict=True):
                    place.copy_(tensor)
        expected, found = results
        if not expected[0].isfinite().all():
            return  # of a model that is broken; other streams may be compared
        problem = difference_of(precision_of(decoder), found, expected)
        self.is_compared = True
        if problem is not None:
            self.fused, self.is_refused, self.fastest = None, True, dict(self.graphs)
            self.fusion.give_up(problem, for_all=True)

    def _advancing(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The step, after which the rows are at their next positions."""

        def run() -> Tensor:
            logits_BV = step()
            self.positions_B.add_(1)
            return logits_BV

        return run

    @property
    def _any_graph(self) -> RecordedGraph | None:
        return next(iter(self.graphs.values()), None)

    def _replay_s(self, graph: RecordedGraph) -> float:
        """Seconds of the fastest of some replays."""
        times_s = []
        for _ in range(TIMED_REPLAYS):
            self.positions_B.zero_()
            synchronize(self.tokens_B1.device)
            start_s = time.perf_counter()
            graph.replay()
            synchronize(self.tokens_B1.device)
            times_s.append(time.perf_counter() - start_s)
        return min(times_s)

    def inputs(self, places: int | None = None) -> StepInputs:
        """What a graph reads; places: of the states that have one for each token (None: all)."""
        flat = StateTensors(self.states)
        states = [
            tensor if places is None or name not in flat.has_room else tensor.narrow(flat.growing[name], 0, places)
            for name, tensor in flat.tensors.items()
        ]
        return StepInputs(self.tokens_B1, self.positions_B, states, self.weights)

    def look_for_fusion(self, decoder: Decoder, builds: bool) -> bool:
        """Go on with the compiled step, unless memory is short; False if nothing more is to come.

        builds: whether a step that is missing is compiled.
        """
        if self.is_refused or (self.fusion is not None and self.fusion.is_settled):
            return False
        device = decoder.device
        can_fuse = device.type in FUSING_DEVICES and (device.type != "cuda" or has_triton(device))
        needed = STATE_COPIES * self.states.nbytes + WEIGHT_COPIES * sum(weight.nbytes for weight in self.weights)
        if not can_fuse or needed + CONTEXT_BYTES > available_bytes(device):
            return False
        inputs = self.inputs()
        if any(tensor.numel() >= MAX_ELEMENTS for tensor in inputs.states):
            return False
        if self.fusion is None:
            try:
                self.fusion = fusion_of(decoder, self.states)
            except (OSError, UserError) as error:  # no home folder
                note(f"the decoding step is not compiled: {error}")
                self.is_refused = True
                return False
        # The step is tried at positions that every room has, also behind a stream that has filled its own.
        self.fusion.look(decoder, replace(inputs, positions_B=self.positions_B.clamp(max=MIN_ROOM - 1)), builds)
        return not self.fusion.is_settled

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
    """What is recorded for one decoder. buffers: the one used last is the last. tokens: all steps so far.

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
        self._pool = _POOLS.setdefault(self.decoder, Pool())

    def logits(self, tokens_B1: Tensor) -> Tensor:
        """Logits `[B, V]` of one token of each row."""
        logits_BV = self._step(tokens_B1)
        return logits_BV.clone() if self._buffers is not None else logits_BV  # the next replay overwrites them

    def logits_behind(self, tokens: Sequence[int]) -> Tensor:
        """The same for tokens as numbers; the next call may overwrite the logits."""
        return self._step(torch.tensor(tokens)[:, None])

    def _step(self, tokens_B1: Tensor) -> Tensor:
        """The logits, where a graph has written them; tokens may be on the CPU."""
        state = self.state
        if state.position >= state.capacity:
            raise ValueError("1 more tokens: the state has room for 0")
        if not self._is_ready():
            return self.ordinary(tokens_B1.to(self.decoder.device))
        assert self._buffers is not None
        buffers, rows = self._buffers, len(state.positions)
        if self._positions != state.positions:
            buffers.set_positions(state)
            self._maintenance.plan()
        buffers.tokens_B1[:rows].copy_(tokens_B1)
        recording = buffers.fastest[self._places]
        recording.replay()
        self._pool.tokens += 1
        state.positions = self._positions = tuple(position + 1 for position in state.positions)
        self._steps_left -= 1
        self._maintenance.after_step()
        return recording.out[:rows]

    def count_pass(self, tokens: int) -> None:
        """Count a pass that read several tokens of the streams instead of steps."""
        self._pool.tokens += tokens

    def release(self) -> None:
        """Move the state out of the buffers, so that other streams can use them."""
        if self._buffers is not None:
            with torch.inference_mode(False), torch.no_grad():  # the state may be advanced anywhere later
                for part, name in fields_of(self.state):
                    setattr(part, name, getattr(part, name).clone(memory_format=torch.contiguous_format))
        self._buffers, self._parts, self._steps_left = None, [], 0

    def _is_ready(self) -> bool:
        """True if the state is where a graph reads it; it is copied there, and the graph recorded, if need be."""
        pool = self._pool
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
            with _LOCK, on_device(self.decoder.device), torch.inference_mode(False), torch.no_grad():  # as in `release`
                return self._enter(pool)
        except (RuntimeError, ValueError) as error:  # memory, or an operation that a graph cannot hold
            with _LOCK:
                self._wait(pool, RESERVED_TOKENS)
            if not is_out_of_memory(error):
                pool.problem = first_line(error)
                note(f"decoding steps are not recorded as graphs: {pool.problem}")
            return False

    def _wait(self, pool: Pool, steps: int) -> None:
        """Take so many ordinary steps before the next attempt, and keep no buffers that no stream has had."""
        self.release()
        pool.buffers = [each for each in pool.buffers if each.references]
        self._steps_left = steps

    def _enter(self, pool: Pool) -> bool:
        """Move the state to buffers with a recorded graph; False if there is no memory for them, or not now."""
        state, is_new, self._parts = self.state, not self._parts, []
        if any(part.any_length for part in state.sublayers):
            reserve(state, RESERVED_TOKENS)
        self._buffers = buffers = pool.for_state(self.decoder, state)
        if buffers is None:
            self._steps_left = RESERVED_TOKENS
            return False
        self._places = buffers.places_for(state.position)
        if pool.tokens >= LOAD_AFTER_TOKENS:
            buffers.look_for_fusion(self.decoder, builds=pool.tokens >= FUSE_AFTER_TOKENS)
        if is_new:
            buffers.update_values()
        if buffers.must_record(self._places):
            if LOADING.acquire(blocking=False):
                try:
                    self.release()  # a recording overwrites the buffers
                    buffers.record(self.decoder, self._places, RECORDERS[self.decoder.device.type])
                finally:
                    LOADING.release()
                self._buffers = buffers
            elif self._places not in buffers.fastest:
                self._wait(pool, BUSY_TOKENS)
                return False
        self._parts, self._positions, self._steps_left = buffers.lend(state), state.positions, RESERVED_TOKENS
        if buffers.fused is not None and not buffers.is_compared:
            buffers.compare(self.decoder, self._places)
        self._maintenance.plan()
        return True


def finish_fusions(decoder: Decoder) -> None:
    """Compile and load the steps of all buffers of a decoder, and wait for it (`readers.finish_captured_steps`)."""
    pool, last_s = _POOLS.get(decoder), time.monotonic() + MOST_WAIT_S
    for buffers in [] if pool is None or not BUILDS.enabled else pool.buffers:
        while buffers.look_for_fusion(decoder, builds=True):
            if time.monotonic() > last_s:
                note("compiling takes long: what is measured now has PyTorch's kernels")
                return
            time.sleep(WAIT_S)


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
