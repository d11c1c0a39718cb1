"""Latency on this machine: every distinct block is timed once, the times of a model's parts are added.

Legend: `B` batch (one stream), `T` tokens, `W` width.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from linnet.design.metrics import Metric
from linnet.design.space import Space
from linnet.inference.rows.steps import RowSteps, block_steps
from linnet.mixers.base import Span
from linnet.model.cost import block_cost, model_cost
from linnet.model.decoder import Block, Decoder
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.nn.linear import Linear
from linnet.progress import progress

Kind = Literal["token", "sequence"]

RUNS = 5
"""Of each part, after one that does not count; the median is its time."""

CHECK_RUNS = 15
PROMPT = 16
"""Tokens that a state has really seen when one more is timed; the rest of its length is room, read all the same."""

MOST_BETWEEN_BYTES = 256 << 20


@dataclass(frozen=True)
class Timing:
    """What is timed. kind: one more token of a stream of `tokens`, or a pass over that many; one stream, float32."""

    kind: Kind
    tokens: int
    device: torch.device

    def position(self, model: ModelSpec) -> int:
        """Where the timed chunk begins; learned positions have a last one."""
        if self.kind == "sequence":
            return 0
        return min(self.tokens, model.context_length - 1) if model.embedding.positions == "learned" else self.tokens

    @property
    def length(self) -> int:
        """Tokens of the timed chunk."""
        return 1 if self.kind == "token" else self.tokens


@dataclass(frozen=True)
class Times:
    """Seconds of each block (by its description), of each projection, and of embedding and head together."""

    blocks: dict[str, float]
    joins: dict[tuple[int, int], float]
    outside: float

    def metric(self) -> Metric:
        """The sum over a model's parts."""
        return Metric(
            "latency",
            "seconds",
            lambda block, _: self.blocks[_key(block)],
            lambda inputs, outputs: self.joins.get((inputs, outputs), 0.0),
            lambda _: self.outside,
        )


def _key(block: BlockSpec) -> str:
    return block.model_dump_json()


@torch.inference_mode()
def measure(space: Space, timing: Timing) -> Times:
    """Time every part that a model of the space can have.

    Between two runs as many other bytes are read as one token reads of a model, so that caches are as cold as they are
    in one.
    """
    model = space.model([0] * space.spec.blocks)
    widths = sorted({model.d_model, *(block.width or model.d_model for block in space.described)})
    pairs = [(a, b) for a in widths for b in widths if a != b]
    clock = Clock(timing.device, _bytes_between(space, model))
    with progress("timing blocks", len(space.described) + len(pairs), "parts") as advance:
        joins = {}
        for inputs, outputs in pairs:
            joins[inputs, outputs] = clock.seconds(_projection(inputs, outputs, timing))
            advance(1)
        blocks = {}
        for block in space.described:
            blocks[_key(block)] = clock.seconds(_block(block, model, timing))
            advance(1)
    return Times(blocks, joins, clock.seconds(_outside(model, timing)))


@torch.inference_mode()
def measured(model: ModelSpec, timing: Timing) -> float:
    """Seconds of a whole model, run as it is: the median."""
    decoder, position = Decoder(model).to(timing.device).eval(), timing.position(model)
    clock, tokens_BT = Clock(timing.device, 0), torch.zeros(1, timing.length, dtype=torch.long, device=timing.device)
    if timing.kind == "sequence":
        return clock.seconds(lambda: decoder.logits(decoder.hidden(tokens_BT)[:, -1:]), CHECK_RUNS)
    state = decoder.initial_state(1, position + 1)
    decoder(tokens_BT.expand(1, min(PROMPT, max(1, position))), state)
    steps = RowSteps.of(decoder, state)

    def step() -> None:
        state.position = position
        decoder.logits(decoder.hidden(tokens_BT, state) if steps is None else steps.read(tokens_BT))

    return clock.seconds(step, CHECK_RUNS)


class Clock:
    """Times something several times over, other memory being read in between."""

    def __init__(self, device: torch.device, bytes_between: int) -> None:
        self.device = device
        self.between = torch.ones(bytes_between // 4, device=device)

    def seconds(self, run: Callable[[], object], runs: int = RUNS) -> float:
        """The median."""
        run()
        return statistics.median(self._once(run) for _ in range(runs))

    def _once(self, run: Callable[[], object]) -> float:
        self.between.sum()
        self._wait()
        start_s = time.perf_counter()
        run()
        self._wait()
        return time.perf_counter() - start_s

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _bytes_between(space: Space, model: ModelSpec) -> int:
    """What a token of a middling model reads beside one block: the head's matrix and the other blocks."""
    inputs, outputs = model_cost(model).head_matrix
    of_blocks = statistics.median(block_cost(block, model).parameters for block in space.described)
    return min(MOST_BETWEEN_BYTES, 4 * int(inputs * outputs + (space.spec.blocks - 1) * of_blocks))


def _projection(inputs: int, outputs: int, timing: Timing) -> Callable[[], object]:
    linear = Linear(inputs, outputs, bias=False).to(timing.device)
    x_BTW = torch.randn(1, timing.length, inputs, device=timing.device)
    return lambda: linear(x_BTW)


def _block(described: BlockSpec, model: ModelSpec, timing: Timing) -> Callable[[], object]:
    """A run of a block, its projection left out, as a decoder runs it."""
    width, position = described.width or model.d_model, timing.position(model)
    block = Block(described, width, model.d_model, model.context_length).to(timing.device).eval()
    x_BTW = torch.randn(1, timing.length, width, device=timing.device)
    if timing.kind == "sequence":
        return lambda: block(x_BTW, (None,) * described.repeat, Span())
    mixers = [block.layer(index).mixer for index in range(described.repeat)]
    states = tuple(mixer.initial_state(1, position + 1, timing.device, torch.float32) for mixer in mixers)
    block(torch.randn(1, min(PROMPT, max(1, position)), width, device=timing.device), states, Span())
    if timing.device.type != "cpu":
        return lambda: block(x_BTW, states, Span(position))
    steps = block_steps(block, states)
    return lambda: reduce(lambda x_1W, step: step(x_1W, position), steps, x_BTW[0])[None]


def _outside(model: ModelSpec, timing: Timing) -> Callable[[], object]:
    """Embedding, norm and head, with the product of one token with the vocabulary."""
    bare = model.replace(blocks=[{"mixer": {"kind": "ted"}}])
    decoder, span = Decoder(bare).to(timing.device).eval(), Span(timing.position(model))
    tokens_BT = torch.zeros(1, timing.length, dtype=torch.long, device=timing.device)
    behind = nn.Sequential(*(part for part in (decoder.norm, decoder.head_project) if part is not None))

    def run() -> Tensor:
        return decoder.logits(behind(decoder.embedding(tokens_BT, span))[:, -1:])

    return run
