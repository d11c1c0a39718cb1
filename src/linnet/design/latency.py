"""Latency on this machine: every distinct block is timed alone, and the predicted latency of a model is their sum.

A search under a latency limit runs its winner and tightens the limit if the winner is slower than predicted.

Legend: `B` batch (one stream), `T` tokens, `W` width.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Literal

import torch
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.core.system import synchronize
from linnet.design.feasibility import UnmetError
from linnet.design.metrics import Budget, Metric, joined_widths
from linnet.design.search import SearchResult, SearchTask, search
from linnet.design.space import Space
from linnet.inference.native_step import NativeStep, block_program, outside_program
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.registry import PLAIN_MIXER
from linnet.model.cost import block_cost, model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.model.stack import Block
from linnet.model.state import DecoderState, LayerStates
from linnet.nn.linear import Linear
from linnet.present.progress import progress

Kind = Literal["token", "sequence"]
PartKey = str | tuple[int, int]
Make = Callable[[], Callable[[], object]]
"""Builds a part and returns a function that runs it."""

OUTSIDE = "embedding and head"

RUNS = 3
"""Timed runs of a part, after one warm-up run; their median counts."""

PASSES = 2
"""Passes over all parts. Other programs can only make a part slower, so the fastest pass counts."""

CHECK_RUNS = 5
PROMPT = 16
"""Tokens that a state has really read when the next token is timed; the rest of its capacity is read all the same."""

MAX_BETWEEN_BYTES = 256 << 20

ATTEMPTS = 8
ROUNDS = 5
MARGIN = 0.97
"""A tightened limit is lower by this factor than the last winner requires: times vary from run to run."""


@dataclass(frozen=True)
class Timing:
    """What is timed: one more token of a stream of `tokens` (kind token), or a pass over that many (kind sequence).

    One stream, float32.
    """

    kind: Kind
    tokens: int
    device: torch.device

    def position(self, model: ModelSpec) -> int:
        """Return the position of the timed chunk; learned positions end at the context length."""
        if self.kind == "sequence":
            return 0
        return min(self.tokens, model.context_length - 1) if model.embedding.positions == "learned" else self.tokens

    @property
    def length(self) -> int:
        """Tokens of the timed chunk."""
        return 1 if self.kind == "token" else self.tokens


class ColdCacheTimer:
    """Times a function several times, reading other memory in between so that caches are cold."""

    def __init__(self, device: torch.device, bytes_between: int) -> None:
        self.device = device
        self.between = torch.ones(bytes_between // 4, device=device)

    def seconds(self, run: Callable[[], object], runs: int = RUNS) -> float:
        """Return the median time of several runs, after one warm-up run."""
        times_s = []
        run()
        for _ in range(runs):
            self.between.sum()
            synchronize(self.device)
            start_s = time.perf_counter()
            run()
            synchronize(self.device)
            times_s.append(time.perf_counter() - start_s)
        return statistics.median(times_s)


class PartTimes:
    """Seconds of every part that a model of a space can have; of several timings the lowest counts.

    taken: all timings of a block by its description, of a projection by its widths, and of `OUTSIDE`. Between two runs
    as many other bytes are read as one token reads of a model, so that caches are as cold as in a model.
    """

    def __init__(self, space: Space, timing: Timing) -> None:
        self.space, self.timing = space, timing
        self.model = space.model([0] * space.spec.blocks)
        # Bytes that a token of an average model reads beside one block: the head's matrix and the other blocks.
        inputs, outputs = model_cost(self.model).head_matrix
        of_blocks = statistics.median(block_cost(block, self.model).parameters for block in space.described)
        between = 4 * int(inputs * outputs + (space.spec.blocks - 1) * of_blocks)
        self.clock = ColdCacheTimer(timing.device, min(MAX_BETWEEN_BYTES, between))
        self.taken: dict[PartKey, list[float]] = {}

    def time_all(self) -> None:
        """Time every part, in several passes."""
        widths = sorted({self.model.d_model, *(block.width or self.model.d_model for block in self.space.described)})
        self._time(self.space.described, permutations(widths, 2), PASSES)

    def time_again(self, model: ModelSpec) -> None:
        """Time the parts of one model once more."""
        self._time(model.blocks, joined_widths(model), 1)

    def metric(self) -> Metric:
        """Return the latency metric: the sum over a model's parts."""
        return Metric(
            "latency",
            "seconds",
            lambda block, _: min(self.taken[block.model_dump_json()]),
            lambda inputs, outputs: min(self.taken.get((inputs, outputs), [0.0])),
            lambda _: min(self.taken[OUTSIDE]),
        )

    def _time(self, blocks: Iterable[BlockSpec], widths: Iterable[tuple[int, int]], passes: int) -> None:
        """Time these blocks, the projections between different widths, and embedding and head, once in each pass."""
        parts: dict[PartKey, Make] = {
            pair: partial(_projection, *pair, self.timing) for pair in widths if len({*pair}) > 1
        }
        parts |= {block.model_dump_json(): partial(_block, block, self.model, self.timing) for block in blocks}
        parts[OUTSIDE] = partial(_outside, self.model, self.timing)
        with progress("timing blocks", passes * len(parts), "parts") as advance:
            for _ in range(passes):
                for key, make in parts.items():
                    with torch.inference_mode():
                        self.taken.setdefault(key, []).append(self.clock.seconds(make()))
                    advance(1)


def _projection(inputs: int, outputs: int, timing: Timing) -> Callable[[], object]:
    linear = Linear(inputs, outputs, bias=False).to(timing.device)
    x_BTW = torch.randn(1, timing.length, inputs, device=timing.device)
    return lambda: linear(x_BTW)


def _block(described: BlockSpec, model: ModelSpec, timing: Timing) -> Callable[[], object]:
    """Return a function that runs a block without its projection, as a decoder runs it."""
    width, position = described.width or model.d_model, timing.position(model)
    skip = model.embedding.skip
    block = Block(described, width, Place(width, model.context_length), skip).to(timing.device).eval()
    x_BTW = torch.randn(1, timing.length, width, device=timing.device)
    if timing.kind == "sequence":
        return lambda: block(x_BTW, [LayerStates()] * described.repeat, BatchLayout(), x_BTW)
    form = (1, position + 1, timing.device, torch.float32)
    states = [block.layer(index).initial_states(*form) for index in range(described.repeat)]
    read_BTW = torch.randn(1, min(PROMPT, max(1, position)), width, device=timing.device)
    block(read_BTW, states, BatchLayout(), read_BTW)
    program = block_program(block, DecoderState.from_layers(states, position + 1, (position,)), x_BTW)
    if program is None:
        return lambda: block(x_BTW, states, BatchLayout(position), x_BTW)
    return lambda: program(0, position)[None]


def _outside(model: ModelSpec, timing: Timing) -> Callable[[], object]:
    """Return a function that runs embedding, norm and head, the logits of one token included."""
    bare = model.replace(blocks=[{"mixer": PLAIN_MIXER}])
    decoder, layout = Decoder(bare).to(timing.device).eval(), BatchLayout(timing.position(model))
    program = None if timing.kind == "sequence" else outside_program(decoder, layout.start + 1)
    if program is not None:
        return lambda: decoder.capped(program(0, layout.start))[None]
    tokens_BT = torch.zeros(1, timing.length, dtype=torch.long, device=timing.device)
    behind = nn.Sequential(*(part for part in (decoder.norm, decoder.head_project) if part is not None))

    def run() -> Tensor:
        return decoder.logits(behind(decoder.embedding(tokens_BT, layout))[:, -1:])

    return run


@torch.inference_mode()
def measure_latency(model: ModelSpec, timing: Timing) -> float:
    """Return the median seconds of a whole model."""
    decoder, position = Decoder(model).to(timing.device).eval(), timing.position(model)
    clock = ColdCacheTimer(timing.device, 0)
    tokens_BT = torch.zeros(1, timing.length, dtype=torch.long, device=timing.device)
    if timing.kind == "sequence":
        return clock.seconds(lambda: decoder.logits(decoder.hidden(tokens_BT)[:, -1:]), CHECK_RUNS)
    state = decoder.initial_state(1, position + 1)
    decoder(tokens_BT.expand(1, min(PROMPT, max(1, position))), state)
    native = NativeStep.of(decoder, state)

    def step() -> None:
        state.positions = (position,)
        if native is None:
            decoder.logits(decoder.hidden(tokens_BT, state))
        else:
            native.logits(tokens_BT)

    return clock.seconds(step, CHECK_RUNS)


@dataclass(frozen=True)
class LatencyResult:
    """A search result whose model met its latency limit when it was run.

    task: the task, with the limit among its budgets. found: with the measured time as its latency. predicted_s: from
    all timings of its parts. rounds_s: the median of each round; measured_s: the fastest of them, as other programs can
    only make a round slower.
    """

    task: SearchTask
    found: SearchResult
    predicted_s: float
    measured_s: float
    rounds_s: list[float]
    attempts: int


def search_with_latency(
    task: SearchTask,
    limit: Budget,
    run: Callable[[ModelSpec], float],
    again: Callable[[ModelSpec], None],
    name: str | None = None,
) -> LatencyResult:
    """`search` with one more budget, of latency.

    run: returns the seconds that a model takes. again: times the model's parts once more, between rounds, so that both
    see the same state of the machine; this changes what the budget's metric predicts. `UserError` if no model is
    predicted to meet the limit, or no winner met it.
    """
    tightened, last = limit, None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            found = search(replace(task, budgets=[*task.budgets, tightened]), name)
        except UnmetError:
            if last is None:
                raise
            break  # no other model is predicted to be fast enough
        rounds_s = []
        for _ in range(ROUNDS):
            rounds_s.append(run(found.model))
            again(found.model)
        last = LatencyResult(
            replace(task, budgets=[*task.budgets, limit]),
            replace(found, values=[*found.values[:-1], min(rounds_s)]),
            limit.metric.of_model(found.model),
            min(rounds_s),
            rounds_s,
            attempt,
        )
        if last.measured_s <= limit.limit:
            return last
        late = max(1.0, last.measured_s / last.predicted_s / MARGIN)
        tightened = replace(limit, limit=min(tightened.limit, limit.limit / late))
    assert last is not None
    ms = limit.metric.format
    raise UserError(
        f"{limit.option}: no model met it when it was run; the last of {last.attempts} was predicted to take"
        f" {ms(last.predicted_s)} and took {ms(last.measured_s)} to {ms(max(last.rounds_s))} in {len(last.rounds_s)}"
        " rounds; expected a larger limit, or a machine without other load"
    )
