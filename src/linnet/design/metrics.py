"""Metrics that a budget can limit or a Pareto front can weigh, and budgets as users write them (`60G`, `2MB@4096`).

A metric of a model is the sum over its blocks, the projections between their widths, and a fixed part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from linnet.core.bounds import MAX_COUNTED_TOKENS
from linnet.core.errors import UserError
from linnet.core.units import parse_units, read_quantity
from linnet.layers.registry import PLAIN_MIXER
from linnet.model.cost import ModelCost, WeightType, block_cost, model_cost, projection_cost
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.nn.cost import Cost
from linnet.present import numbers

Unit = Literal["", "bytes", "seconds"]

TOKENS = {"": 1.0, "k": 1024.0, "K": 1024.0, "M": 1024.0**2}
"""Suffixes of context lengths: 64k is 65,536 (`numbers.tokens`)."""


def joined_widths(spec: ModelSpec) -> list[tuple[int, int]]:
    """Return the widths before and after each place where a projection stands if they differ."""
    inner = [block.width or spec.d_model for block in spec.blocks]
    return list(pairwise([spec.d_model, *inner, spec.d_model]))


@dataclass(frozen=True)
class Metric:
    """A quantity that is a sum over the parts of a model.

    of_block: value of a block without the projection before it; of_join: value of a projection between two widths (0
    for equal widths); fixed: everything that does not depend on the blocks.
    """

    name: str
    unit: Unit
    of_block: Callable[[BlockSpec, ModelSpec], float]
    of_join: Callable[[int, int], float]
    fixed: Callable[[ModelSpec], float]

    def of_model(self, model: ModelSpec) -> float:
        """Sum all parts of a model: the slow reference form of `cost_tables`."""
        joins = sum(self.of_join(*widths) for widths in joined_widths(model))
        return self.fixed(model) + sum(self.of_block(block, model) for block in model.blocks) + joins

    def format(self, value: float) -> str:
        if self.unit == "seconds":
            return f"{numbers.significant(value * 1e3)} ms"
        return numbers.binary(value) if self.unit == "bytes" else numbers.metric(value)


def cost_metric(
    name: str,
    unit: Unit,
    of_cost: Callable[[ModelCost], float],
    at_end: Callable[[int], Cost] = lambda width: Cost(),
) -> Metric:
    """Return a metric that follows from the description alone; each part counts as a model of that part alone.

    at_end: additional cost of a block of some width that ends in an `rms` norm. Whether it occurs depends on the next
    block; it is always counted, so the metric never understates.
    """

    def of_part(cost: Cost) -> float:
        return of_cost(ModelCost(Cost(), cost, Cost(), (0, 0), (0, 0), tied=False))

    def of_block(block: BlockSpec, model: ModelSpec) -> float:
        ends_in_rms = block.norm.placement == "post" and block.norm.kind == "rms"
        more = at_end(block.width or model.d_model) if ends_in_rms else Cost()
        return of_part(block_cost(block, model) + more)

    def fixed(model: ModelSpec) -> float:
        bare = model.replace(blocks=[{"mixer": PLAIN_MIXER}])  # begins with an rms norm, the most expensive one
        return of_cost(model_cost(bare)) - of_block(bare.blocks[0], bare)

    return Metric(name, unit, of_block, lambda inputs, outputs: of_part(projection_cost(inputs, outputs)), fixed)


@dataclass(frozen=True)
class CostCounts:
    """How metrics are counted: FLOPs and training over `tokens`, `batch` sequences in a step, weights in `dtype`.

    The state is the one used beside weights in `dtype`: float32 for 8-bit and 4-bit weights, where keys and values are
    bfloat16.
    """

    tokens: int
    with_head: bool = False
    dtype: WeightType = "float32"
    batch: int = 8

    def metric(self, name: str) -> Metric | None:
        """Return the metric of that name; None for other names.

        flops: forward FLOPs of one sequence of `tokens` tokens. parameters: shared ones count once. active_parameters:
        those that one token uses. weights: bytes in `dtype`. training_memory: bytes of a step of `batch` sequences, an
        upper bound if `rms` norms end blocks, as each may keep its last output. state@TOKENS: bytes of decode state of
        a stream of that many tokens.
        """
        base, at, length = name.partition("@")
        stream = read_tokens(length) if base == "state" and at else None
        if stream is not None:
            return cost_metric(
                f"state@{stream}", "bytes", lambda cost: cost.state_bytes_for_precision(self.dtype, stream)
            )
        match name:
            case "flops":
                return cost_metric(name, "", lambda cost: cost.flops(self.tokens, self.with_head))
            case "parameters":
                return cost_metric(name, "", lambda cost: cost.parameters)
            case "active_parameters":
                return cost_metric(name, "", lambda cost: cost.active_parameters)
            case "weights":
                return cost_metric(name, "bytes", lambda cost: cost.weights_bytes(self.dtype))
            case "training_memory":
                return cost_metric(
                    name,
                    "bytes",
                    lambda cost: cost.training_memory(self.batch, self.tokens).total,
                    lambda width: Cost(activations_per_token=width),
                )
        return None


@dataclass(frozen=True)
class Budget:
    """An upper limit of a metric; `option` is the text in which the user gave it."""

    metric: Metric
    limit: float
    option: str

    def format(self, value: float) -> str:
        """Format a value of the metric in the units of the limit: 1 MB stays 1 MB."""
        decimal = self.metric.unit == "bytes" and "iB" not in self.option
        return numbers.decimal(value) if decimal else self.metric.format(value)


def read_state(text: str, option: str) -> tuple[float, int]:
    """Parse `2MB@4096` or `2MB@16k` as bytes and the length of a stream in tokens."""
    size, at, tokens = text.partition("@")
    length = read_tokens(tokens)
    if not at or length is None:
        raise UserError(
            f"{option} {text}: expected bytes@tokens, as in 2MB@4096 or 2MB@16k, with at most"
            f" {MAX_COUNTED_TOKENS:,} tokens"
        )
    return read_quantity(size, "bytes", option), length


def read_tokens(text: str) -> int | None:
    """Parse a whole number of tokens from 1 to `MAX_COUNTED_TOKENS`: `4096`, `16k`; None for anything else."""
    tokens = parse_units(text, TOKENS) or 0.0
    return int(tokens) if tokens == int(tokens) and 1 <= tokens <= MAX_COUNTED_TOKENS else None
