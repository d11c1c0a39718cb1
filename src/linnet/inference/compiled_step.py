"""Decoding steps that PyTorch's AOTInductor compiles for the processor at hand, once per model description.

A step is the captured pass of one token of each row (`captured_step`) that writes the states in place. A process in the
background compiles it to a package (`step_packages`; 10 to 60 s) while the ordinary steps go on; the compiled step
takes over between two tokens, after it has been compared with the model on one token.

Legend: `B` batch (rows), `V` vocabulary.
"""

import os
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.core.errors import UserError, first_line, note
from linnet.inference.captured_step import (
    Maintenance,
    PassFunction,
    StateTensors,
    can_capture_on_cpu,
    reserve,
    weights_of,
)
from linnet.inference.step_packages import (
    BUILDS,
    RESERVED_TOKENS,
    opened,
    package_of,
    record_failure,
    start_build,
    weight_values,
)
from linnet.inference.weights import conversion_of, precision_of
from linnet.layers.state import State
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

BUILD_AFTER_S = 2.0
"""Seconds of decoding after which a missing step is compiled: a short text is over before."""

POLL_TOKENS = 32
"""Tokens between two looks for a package that is being compiled."""

WAIT_S, MOST_WAIT_S = 0.2, 600.0
"""Seconds between two looks for a package that is waited for, and in all."""

TIMED_TOKENS = 4
"""Tokens of each form whose fastest decides which one goes on."""


MAX_ERRORS = {"float32": 1e-4, "bfloat16": 0.25, "int8": 0.02, "int4": 0.02}
"""Largest accepted difference of logits from those of the model, in their standard deviations, by precision.

Wrong code differs by about 1. The limit is what either form may be off from float64 with the same weights, measured for
every kind of layer: up to 5e-5 in float32, 0.19 in bfloat16, 0.014 with weights of few bits. Two forms that round at
different places differ by less: 2e-6, 0.045 and 2e-4. A calibration on a prompt may be further off, but belongs to the
state that both forms begin with.
"""

Step = Callable[[Tensor], Tensor]
"""From tokens `[B, 1]`, and with the positions of the state, to the logits `[B, V]`; it advances the state."""

Run = Callable[[Tensor, Tensor, Iterable[Tensor]], Tensor]
"""From tokens, their positions and the tensors of the states, which it writes, to the logits `[B, V]`."""


def can_compile(decoder: Decoder, state: DecoderState) -> bool:
    """True for streams whose step can be captured, where there may be a compiler."""
    return os.name == "posix" and can_capture_on_cpu(decoder, state)


def compiled_step(decoder: Decoder, state: DecoderState, package: Path) -> Callable[[DecoderState], Step] | None:
    """The step of a package, from a state of the same kind; None, after a note, if it does not equal the model's.

    state: prompts have been read. A package that cannot be used is removed, and the reason is recorded. The result is
    kept for as long as the decoder is used, so it does not keep the decoder.
    """
    owner = weakref.ref(decoder)
    try:
        compiled, of_weights = opened(package), weight_values(package)
        values_of = opened(of_weights) if of_weights.is_file() else None

        def step(state: DecoderState) -> Step:
            decoder = owner()
            assert decoder is not None
            weights = list(weights_of(PassFunction(decoder, StateTensors(state))).values())
            if values_of is not None:  # each time anew: a step of training may have changed the weights
                weights += values_of(weights)

            def run(tokens_B1: Tensor, positions_B: Tensor, states: Iterable[Tensor]) -> Tensor:
                return compiled([tokens_B1, positions_B, *states, *weights])[0]

            return _advancing(state, run)

        problem = _difference(decoder, state, step)
    except PermissionError as error:
        note(f"the compiled step is not used: {error}")
        return None
    except (OSError, RuntimeError, KeyError, UserError) as error:
        problem = first_line(error)
    if problem is not None:
        note(f"{package}: the compiled step is not used: {problem}")
        record_failure(package, problem)
        package.unlink(missing_ok=True)
        return None
    return step


def _contiguous(fields: Sequence[tuple[State, str]]) -> list[Tensor]:
    """The tensors of states, which the code expects to be contiguous.

    An ordinary pass may have put other tensors into a state since the last step, and views among them.
    """
    tensors: list[Tensor] = []
    for part, name in fields:
        tensor: Tensor = getattr(part, name)
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
            setattr(part, name, tensor)
        tensors.append(tensor)
    return tensors


def _advancing(state: DecoderState, run: Run) -> Step:
    """The step as a function of the tokens, which advances the state."""
    fields = [(part, name) for _, part in state.named() for name in part.tensors()]
    parts, names = [part for part, _ in fields], [name for _, name in fields]
    free = [(part, name) for part, name in fields if name in part.any_length]
    reserved, tokens_left, tensors, ids = list[torch.Size](), 0, list[Tensor](), list[int]()
    positions_B = torch.empty(len(state.positions), dtype=torch.int64)
    numbers_B, known, maintenance = positions_B.numpy(), tuple[int, ...](), Maintenance(state)

    def step(token_B1: Tensor) -> Tensor:
        nonlocal reserved, tokens_left, tensors, ids, numbers_B, known
        if state.position >= state.capacity:
            raise ValueError("1 more tokens: the state has room for 0")
        if free and (tokens_left == 0 or reserved != [getattr(part, name).shape for part, name in free]):
            reserve(state, RESERVED_TOKENS)
            reserved, tokens_left = [getattr(part, name).shape for part, name in free], RESERVED_TOKENS
        if not ids or list(map(id, map(getattr, parts, names))) != ids:  # those of `tensors`, which are kept alive
            tensors = _contiguous(fields)
            ids = list(map(id, tensors))
        if state.positions is not known:
            numbers_B[:] = state.positions
            maintenance.plan()
        logits_BV = run(token_B1, positions_B, tensors)
        numbers_B += 1
        state.positions = known = tuple([position + 1 for position in state.positions])
        tokens_left -= 1
        maintenance.after_step()
        return logits_BV

    return step


@torch.inference_mode()
def _difference(decoder: Decoder, state: DecoderState, step: Callable[[DecoderState], Step]) -> str | None:
    """The difference from the decoder at the next token of a stream, in words; None if they are the same."""
    if state.position >= state.capacity:
        return None
    ours, theirs = state.fork(), state.fork()
    token_B1 = torch.zeros(len(state.positions), 1, dtype=torch.int64)
    expected_BV = decoder.logits(decoder.hidden(token_B1, ours))[:, 0]
    found_BV = step(theirs)(token_B1)
    for each in (ours, theirs):  # the same number of empty places
        reserve(each, 0)
    return difference_of(precision_of(decoder), (found_BV, theirs.tensors()), (expected_BV, ours.tensors()))


StepResult = tuple[Tensor, Mapping[str, Tensor]]
"""The logits of a step, and the tensors of the states behind it by name."""


def difference_of(precision: str, found: StepResult, expected: StepResult) -> str | None:
    """How the result of a step differs from the expected one by more than rounding, in words; None if it does not."""
    (found_BV, states), (expected_BV, right) = found, expected
    limit = MAX_ERRORS[precision]
    error = float((found_BV - expected_BV).abs().max() / expected_BV.float().std())
    if not error <= limit:
        return f"logits differ by {error:.1e} of their spread"
    return next((f"the state {name} differs" for name in right if not _is_near(states[name], right[name], limit)), None)


def _is_near(found: Tensor, expected: Tensor, limit: float) -> bool:
    """True if a state differs by rounding: in float32 element by element, in other precisions as a whole."""
    if not expected.is_floating_point():  # the padding of an encoder's inputs
        return torch.equal(found, expected)
    if limit == MAX_ERRORS["float32"]:
        return torch.allclose(found, expected, rtol=10 * limit, atol=limit, equal_nan=True)
    finite = expected.isfinite()
    if not torch.equal(found.isfinite(), finite):
        return False
    difference, size = (found - expected)[finite].float().norm(), expected[finite].float().norm()
    return bool(difference <= limit * (size + 1e-6))


@dataclass
class Times:
    """Seconds of the last tokens of each form, for about the same number of rows."""

    ordinary_s: "deque[float]" = field(default_factory=lambda: deque(maxlen=TIMED_TOKENS))
    compiled_s: "deque[float]" = field(default_factory=lambda: deque(maxlen=TIMED_TOKENS))

    @property
    def compiled_is_faster(self) -> bool | None:
        """None as long as one of them has not run often enough."""
        if min(len(self.ordinary_s), len(self.compiled_s)) < TIMED_TOKENS:
            return None
        return min(self.compiled_s) <= min(self.ordinary_s)


@dataclass
class Candidate:
    """What this process knows of the compiled step of one package for one decoder.

    step: from a state to its step; None as long as the package has not been loaded. is_settled: no package is looked
    for any more. tokens: of decoding without it since the last look for a package. spent_s: seconds of all decoding
    without it. times: by the bit length of the number of rows.
    """

    request: dict[str, Any]
    package: Path
    step: Callable[[DecoderState], Step] | None = None
    is_settled: bool = False
    tokens: int = 0
    spent_s: float = 0.0
    times: dict[int, Times] = field(default_factory=lambda: defaultdict(Times))

    def begin_build(self, decoder: Decoder) -> None:
        """Let a process compile the package unless one does; nothing is looked for any more where none can."""
        nbytes = 4 * model_cost(decoder.spec).parameters
        self.is_settled = not start_build(self.request, self.package, nbytes)

    def look(self, decoder: Decoder, state: DecoderState) -> None:
        """Load the package, or let it be compiled after some seconds of decoding."""
        self.tokens = 0
        try:
            if self.package.is_file():
                self.step = compiled_step(decoder, state, self.package)
                self.is_settled = True
            elif self.spent_s > BUILD_AFTER_S:
                self.begin_build(decoder)
        except (OSError, RuntimeError) as error:  # a cache that cannot be written, no process
            note(f"the decoding step is not compiled: {error}")
            self.is_settled = True


_CANDIDATES: "weakref.WeakKeyDictionary[Decoder, dict[Hashable, Candidate]]" = weakref.WeakKeyDictionary()


def candidate_of(decoder: Decoder, state: DecoderState) -> Candidate:
    """The candidate for states of this kind, the same for all streams of a decoder."""
    policies = tuple(part.cache_policy for part in state.layers)
    precision = tuple(conversion_of(decoder).items())
    key = len(state.positions) > 1, policies, precision, torch.get_num_threads()
    known = _CANDIDATES.setdefault(decoder, {})
    if key not in known:
        known[key] = Candidate(*package_of(decoder, state))
    return known[key]


@dataclass
class CompiledSteps:
    """The steps of a batch of streams: ordinary ones, and the compiled one as soon as it is there, if it is faster.

    ordinary: the step to begin with; both advance `state`, whose prompts have been read. What is known of the compiled
    step is shared by all streams of a decoder.
    """

    decoder: Decoder
    state: DecoderState
    ordinary: Step
    _compiled: Step | None = field(default=None, init=False)
    _faster: Step | None = field(default=None, init=False)
    _tokens: int = field(default=0, init=False)

    @cached_property
    def _candidate(self) -> Candidate | None:
        try:
            return candidate_of(self.decoder, self.state)
        except (OSError, UserError) as error:  # no home folder
            note(f"the decoding step is not compiled: {error}")
            return None

    def logits(self, tokens_B1: Tensor) -> Tensor:
        """Logits `[B, V]` of one token of each row."""
        if self._faster is not None and BUILDS.enabled:
            return self._faster(tokens_B1)
        candidate = self._candidate if BUILDS.enabled else None
        if candidate is None:
            return self.ordinary(tokens_B1)
        times = candidate.times[len(self.state.positions).bit_length()]
        is_faster = times.compiled_is_faster
        can_compile = candidate.step is not None and is_faster is not False
        uses_compiled = can_compile and len(times.ordinary_s) == TIMED_TOKENS
        if uses_compiled and self._compiled is None:
            assert candidate.step is not None
            self._compiled = candidate.step(self.state)
        step = self._compiled if uses_compiled and self._compiled is not None else self.ordinary
        start_s = time.perf_counter()
        logits_BV = step(tokens_B1)
        if is_faster is None:
            spent_s = time.perf_counter() - start_s
            (times.compiled_s if uses_compiled else times.ordinary_s).append(spent_s)
            if not candidate.is_settled:
                self._look_for_package(candidate, spent_s)
        else:
            self._faster = step
        return logits_BV

    def logits_behind(self, tokens: Sequence[int]) -> Tensor:
        """The same for tokens as numbers."""
        step = self._compiled
        if step is None or self._faster is not step or not BUILDS.enabled:  # others may keep the tensor
            return self.logits(torch.tensor([[token] for token in tokens]))
        for row, token in enumerate(tokens):
            self._numbers_B[row] = token
        return step(self._tokens_B1)

    @cached_property
    def _tokens_B1(self) -> Tensor:
        """The tokens that the compiled step reads next."""
        return torch.empty(len(self.state.positions), 1, dtype=torch.int64)

    @cached_property
    def _numbers_B(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """The same memory."""
        return self._tokens_B1.numpy()[:, 0]

    @property
    def is_comparing(self) -> bool:
        """True while the next tokens decide whether the compiled step, which is there, is used."""
        candidate = self._candidate if BUILDS.enabled and self._faster is None else None
        if candidate is None or candidate.step is None:
            return False
        return candidate.times[len(self.state.positions).bit_length()].compiled_is_faster is None

    def count_pass(self, tokens: int, spent_s: float) -> None:
        """Count a pass that read several tokens of the streams instead of steps."""
        candidate = self._candidate if BUILDS.enabled and self._faster is None else None
        if candidate is not None and not candidate.is_settled:
            candidate.tokens += tokens
            candidate.spent_s += spent_s

    def _look_for_package(self, candidate: Candidate, spent_s: float) -> None:
        """Now and then, load the compiled step, or let it be compiled."""
        self._tokens += 1
        candidate.tokens += 1
        candidate.spent_s += spent_s
        is_due = self._tokens == TIMED_TOKENS or candidate.tokens >= POLL_TOKENS
        if is_due:
            candidate.look(self.decoder, self.state)


def finish_builds(decoder: Decoder) -> None:
    """Compile what streams of the decoder so far would use, and wait for it; the next stream uses it.

    For measurements: streams of a minute begin with ordinary steps, and a build beside them takes processors from them.
    A build of more than `MOST_WAIT_S` goes on in the background.
    """
    last_s = time.monotonic() + MOST_WAIT_S
    for candidate in _CANDIDATES.get(decoder, {}).values():
        try:
            while BUILDS.enabled and not candidate.is_settled and not candidate.package.is_file():
                candidate.begin_build(decoder)
                if time.monotonic() > last_s:
                    note("compiling takes long: what is measured now has ordinary decoding steps")
                    return
                time.sleep(WAIT_S)
        except (OSError, RuntimeError) as error:  # a cache that cannot be written, no process
            note(f"the decoding step is not compiled: {error}")
            candidate.is_settled = True
