"""Latency on this machine: every distinct block is timed by itself, the times of a model's parts are added.

Legend: `B` batch (one stream), `T` tokens, `W` width.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from itertools import permutations
from typing import Literal

import torch
from torch import Tensor, nn

from linnet.design.metrics import Metric
from linnet.design.shape import joined_widths
from linnet.design.space import Space
from linnet.inference.decode_programs import EMBEDDED, record_program, token_step
from linnet.inference.decode_steps import DecodeSteps, block_steps
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import Place
from linnet.model.cost import block_cost, model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.model.stack import Block
from linnet.model.state import LayerStates
from linnet.nn.linear import Linear
from linnet.present.progress import Advance, progress

Kind = Literal["token", "sequence"]
PartKey = str | tuple[int, int]
Make = Callable[[], Callable[[], object]]
"""Makes a part, ready to be run."""

OUTSIDE = "embedding and head"

RUNS = 3
"""Of a part, after one that does not count; the median is what it took."""

PASSES = 2
"""Over all parts, some time apart. Other programs can only make a part slower, so the faster counts."""

CHECK_RUNS = 5
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


def _key(block: BlockSpec) -> str:
    return block.model_dump_json()


class PartTimes:
    """Seconds of every part that a model of a space can have, all that were taken; the lowest count.

    taken: of a block by its description, of a projection by its widths, and of `OUTSIDE`. Between two runs as many
    other bytes are read as one token reads of a model, so that caches are as cold as they are in one.
    """

    def __init__(self, space: Space, timing: Timing) -> None:
        self.space, self.timing = space, timing
        self.model = space.model([0] * space.spec.blocks)
        self.clock = ColdCacheTimer(timing.device, _bytes_between(space, self.model))
        self.taken: dict[PartKey, list[float]] = {}

    def time_all(self) -> None:
        """Time every part, in several passes."""
        widths = sorted({self.model.d_model, *(block.width or self.model.d_model for block in self.space.described)})
        parts = self._parts(self.space.described, permutations(widths, 2))
        with progress("timing blocks", PASSES * len(parts), "parts") as advance:
            for _ in range(PASSES):
                self._take(parts, advance)

    def time_again(self, model: ModelSpec) -> None:
        """Time the parts of one model once more."""
        self._take(self._parts(model.blocks, joined_widths(model)))

    def metric(self) -> Metric:
        """The sum over a model's parts."""
        return Metric(
            "latency",
            "seconds",
            lambda block, _: min(self.taken[_key(block)]),
            lambda inputs, outputs: min(self.taken.get((inputs, outputs), [0.0])),
            lambda _: min(self.taken[OUTSIDE]),
        )

    def _parts(self, blocks: Iterable[BlockSpec], widths: Iterable[tuple[int, int]]) -> dict[PartKey, Make]:
        """These blocks, the projections between different widths, and what lies outside, each once."""
        joins: dict[PartKey, Make] = {
            pair: partial(_projection, *pair, self.timing) for pair in widths if len({*pair}) > 1
        }
        own: dict[PartKey, Make] = {_key(block): partial(_block, block, self.model, self.timing) for block in blocks}
        return {**joins, **own, OUTSIDE: partial(_outside, self.model, self.timing)}

    def _take(self, parts: dict[PartKey, Make], advance: Advance = lambda *_: None) -> None:
        for key, make in parts.items():
            with torch.inference_mode():
                self.taken.setdefault(key, []).append(self.clock.seconds(make()))
            advance(1)


@torch.inference_mode()
def measure_latency(model: ModelSpec, timing: Timing) -> float:
    """Seconds of a whole model, run as it is: the median."""
    decoder, position = Decoder(model).to(timing.device).eval(), timing.position(model)
    clock, tokens_BT = (
        ColdCacheTimer(timing.device, 0),
        torch.zeros(1, timing.length, dtype=torch.long, device=timing.device),
    )
    if timing.kind == "sequence":
        return clock.seconds(lambda: decoder.logits(decoder.hidden(tokens_BT)[:, -1:]), CHECK_RUNS)
    state = decoder.initial_state(1, position + 1)
    decoder(tokens_BT.expand(1, min(PROMPT, max(1, position))), state)
    steps = DecodeSteps.of(decoder, state)

    def step() -> None:
        state.positions = (position,)
        if steps is None:
            decoder.logits(decoder.hidden(tokens_BT, state))
        else:
            steps.logits(tokens_BT)

    return clock.seconds(step, CHECK_RUNS)


class ColdCacheTimer:
    """PartTimes something several times over, other memory being read in between."""

    def __init__(self, device: torch.device, bytes_between: int) -> None:
        self.device = device
        self.between = torch.ones(bytes_between // 4, device=device)

    def seconds(self, run: Callable[[], object], runs: int = RUNS) -> float:
        """The median, after a run that does not count."""
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
    skip = model.embedding.skip
    block = Block(described, width, Place(width, model.context_length), skip).to(timing.device).eval()
    x_BTW = torch.randn(1, timing.length, width, device=timing.device)
    if timing.kind == "sequence":
        return lambda: block(x_BTW, [LayerStates()] * described.repeat, BatchLayout(), x_BTW)
    form = (1, position + 1, timing.device, torch.float32)
    states = [block.layer(index).initial_states(*form) for index in range(described.repeat)]
    read_BTW = torch.randn(1, min(PROMPT, max(1, position)), width, device=timing.device)
    block(read_BTW, states, BatchLayout(), read_BTW)
    if timing.device.type != "cpu":
        return lambda: block(x_BTW, states, BatchLayout(position), x_BTW)
    record = AuxiliaryOutputs(values={EMBEDDED: x_BTW})
    steps = block_steps(block, states, record)
    run = record_program(lambda _, at: reduce(lambda x_1W, step: step(x_1W, at), steps, x_BTW[0]), record)
    return lambda: run(0, position)[None]


def _outside(model: ModelSpec, timing: Timing) -> Callable[[], object]:
    """Embedding, norm and head, with the product of one token with the vocabulary."""
    bare = model.replace(blocks=[{"mixer": {"kind": "ted"}}])
    decoder, layout = Decoder(bare).to(timing.device).eval(), BatchLayout(timing.position(model))
    whole = None if timing.kind == "sequence" else token_step(decoder, [], AuxiliaryOutputs())
    if whole is not None:
        return lambda: decoder.capped(whole(0, layout.start))[None]
    tokens_BT = torch.zeros(1, timing.length, dtype=torch.long, device=timing.device)
    behind = nn.Sequential(*(part for part in (decoder.norm, decoder.head_project) if part is not None))

    def run() -> Tensor:
        return decoder.logits(behind(decoder.embedding(tokens_BT, layout))[:, -1:])

    return run
