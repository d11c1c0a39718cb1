"""What a budget can limit and a front can weigh: metrics that are sums over the parts of a model."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from linnet.core import amounts
from linnet.design.shape import joined_widths
from linnet.model.cost import ModelCost, WeightType, block_cost, model_cost, projection_cost
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.nn.cost import Cost
from linnet.present import numbers

Unit = Literal["", "bytes", "seconds"]

MOST_TOKENS = 10**12
"""In a stream or a sequence: squared, and times any model's width, it is still far from the largest float."""

TOKENS = {"": 1.0, "k": 1024.0, "K": 1024.0, "M": 1024.0**2}
"""As lengths of context are said: 64k are 65,536 (`numbers.tokens`)."""


@dataclass(frozen=True)
class Metric:
    """`of_block` without the projection before it, `of_join` for a projection between two widths (0 for equal ones),
    `fixed` for all that does not depend on the blocks.
    """

    name: str
    unit: Unit
    of_block: Callable[[BlockSpec, ModelSpec], float]
    of_join: Callable[[int, int], float]
    fixed: Callable[[ModelSpec], float]

    def of_model(self, model: ModelSpec) -> float:
        """The whole sum, part by part; the slow and obvious form of `cost_tables`."""
        joins = sum(self.of_join(*widths) for widths in joined_widths(model))
        return self.fixed(model) + sum(self.of_block(block, model) for block in model.blocks) + joins

    def format(self, value: float) -> str:
        """A value as people read it."""
        if self.unit == "seconds":
            return f"{numbers.significant(value * 1e3)} ms"
        return numbers.binary(value) if self.unit == "bytes" else numbers.metric(value)


def cost_metric(
    name: str,
    unit: Unit,
    of_cost: Callable[[ModelCost], float],
    at_end: Callable[[int], Cost] = lambda width: Cost(),
) -> Metric:
    """A metric that the description alone decides; that of a part is that of a model of this part alone.

    at_end: what a block of some width may cost more, by what follows it, where an `rms` norm ends it; it is counted
    whether it does or not, so such a metric is never too low.
    """

    def of_part(cost: Cost) -> float:
        return of_cost(ModelCost(Cost(), cost, Cost(), (0, 0), (0, 0), tied=False))

    def of_block(block: BlockSpec, model: ModelSpec) -> float:
        ends_in_rms = block.norm.placement == "post" and block.norm.kind == "rms"
        more = at_end(block.width or model.d_model) if ends_in_rms else Cost()
        return of_part(block_cost(block, model) + more)

    def fixed(model: ModelSpec) -> float:
        bare = model.replace(blocks=[{"mixer": {"kind": "ted"}}])  # begins with an rms norm, which costs most
        return of_cost(model_cost(bare)) - of_block(bare.blocks[0], bare)

    return Metric(name, unit, of_block, lambda inputs, outputs: of_part(projection_cost(inputs, outputs)), fixed)


def parameters() -> Metric:
    """All parameters, shared ones once."""
    return cost_metric("parameters", "", lambda cost: cost.parameters)


def active_parameters() -> Metric:
    """Those of them that one token uses."""
    return cost_metric("active_parameters", "", lambda cost: cost.active_parameters)


def flops(tokens: int, with_head: bool) -> Metric:
    """Forward FLOPs of one sequence of `tokens` tokens."""
    return cost_metric("flops", "", lambda cost: cost.flops(tokens, with_head))


def weights(dtype: WeightType) -> Metric:
    """Bytes of the weights."""
    return cost_metric("weights", "bytes", lambda cost: cost.weights_bytes(dtype))


def state(tokens: int, dtype: WeightType = "float32") -> Metric:
    """Bytes of decode state of a stream of `tokens` tokens, beside weights of this precision."""
    return cost_metric(f"state@{tokens}", "bytes", lambda cost: cost.state_bytes_for_precision(dtype, tokens))


def training_memory(sequences: int, tokens: int) -> Metric:
    """Bytes that a training step holds; where `rms` norms end blocks, never less, and at most so much more as that
    they keep their last output.
    """

    def of_cost(cost: ModelCost) -> float:
        return cost.training_memory(sequences, tokens).total

    return cost_metric("training_memory", "bytes", of_cost, lambda width: Cost(activations_per_token=width))


def read_tokens(text: str) -> int | None:
    """A whole number of tokens from 1 to `MOST_TOKENS`: `4096`, `16k`; None for anything else."""
    tokens = amounts.parse_units(text, TOKENS) or 0.0
    return int(tokens) if tokens == int(tokens) and 1 <= tokens <= MOST_TOKENS else None


@dataclass(frozen=True)
class CostCounts:
    """How metrics are counted: FLOPs and training over `tokens`, `batch` sequences in a step, weights in `dtype`.

    State is that beside weights in `dtype`: in float32 where they are of 8 or 4 bits, keys and values in bfloat16.
    """

    tokens: int
    with_head: bool = False
    dtype: WeightType = "float32"
    batch: int = 8

    def metric(self, name: str) -> Metric | None:
        """`flops`, `parameters`, `active_parameters`, `weights`, `training_memory`, `state@TOKENS`; None for others."""
        base, at, length = name.partition("@")
        if base == "state" and at:
            stream = read_tokens(length)
            return None if stream is None else state(stream, self.dtype)
        made: dict[str, Callable[[], Metric]] = {
            "flops": partial(flops, self.tokens, self.with_head),
            "parameters": parameters,
            "active_parameters": active_parameters,
            "weights": partial(weights, self.dtype),
            "training_memory": partial(training_memory, self.batch, self.tokens),
        }
        return made[name]() if name in made else None
