"""The recipe `auto`: optimizer, batch, learning rate and schedule for a model and a number of tokens.

Measured on one attention model of 1.05 M parameters (4 layers of 128) with 1.66 M tokens, three batches and several
learning rates each (`experiments/LOG.md`). How it goes on from there, to other widths and lengths, is what is usual,
and not measured yet.
"""

import math
from typing import Any

from linnet.core.errors import note
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.present import numbers

TOKENS_PER_PARAMETER = 20
"""Of a run that does not say how long it is (Hoffmann et al., arXiv 2203.15556)."""

WIDTH, TOKENS, STEP_TOKENS, LEARNING_RATE = 128, 1_660_000, 1024, 5.5e-3
"""Where it was measured: the best of batches and learning rates."""

BATCH_POWER = 0.5
"""Of the number of tokens, in those of a step: usual, not measured."""

RATE_POWER = 0.5
"""Of the tokens of a step, in the learning rate: measured from 512 to 2,048."""

WIDTH_POWER = -0.5
"""Of the width, in the learning rate: usual, not measured."""

SENSITIVE_SHARE = 0.02
"""Of the learning rate, for what sublayers call sensitive: measured from 0.001 to 1 on power-law graph attention."""

MOST_STEP_TOKENS = 1 << 20
WARMUP_SHARE = 0.05


def automatic(model: ModelSpec, context_length: int, tokens: int | None, step_tokens: int | None) -> dict[str, Any]:
    """Fields of `training`. tokens: of the whole run (None: 20 of them for each parameter that one token
    uses), of windows of `context_length`. step_tokens: of a step, where that is given; else the batch is chosen.
    """
    fields: dict[str, Any] = {}
    if tokens is None:
        tokens = fields["tokens"] = _tokens(model)
    if step_tokens is None:
        fields["batch_size"] = batch_size(tokens, context_length)
        step_tokens = fields["batch_size"] * context_length
    lr = peak_learning_rate(model.d_model, step_tokens)
    fields["optimizer"] = {"kind": "muon", "lr": lr, "low_lr": round_to_two_digits(SENSITIVE_SHARE * lr)}
    fields["schedule"] = {"kind": "linear", "warmup_share": WARMUP_SHARE, "final_fraction": 0.0}
    return fields


def _tokens(model: ModelSpec) -> int:
    """Of a run that does not say: by the parameters that one token uses, as compute is."""
    cost = model_cost(model)
    tokens = TOKENS_PER_PARAMETER * cost.active_parameters
    if cost.active_parameters < cost.parameters:
        active, stored = numbers.metric(cost.active_parameters), numbers.metric(cost.parameters)
        note(
            f"recipe auto: {tokens:,} tokens, {TOKENS_PER_PARAMETER} for each of the {active} parameters that one token"
            f" uses, of {stored}"
        )
    return tokens


def batch_size(tokens: int, context_length: int) -> int:
    """Sequences of a step: the power of two nearest to what the law says."""
    step_tokens = min(STEP_TOKENS * (tokens / TOKENS) ** BATCH_POWER, MOST_STEP_TOKENS)
    return 1 << max(0, round(math.log2(step_tokens / context_length)))


def peak_learning_rate(width: int, step_tokens: int) -> float:
    """The learning rate, to two digits."""
    return round_to_two_digits(
        LEARNING_RATE * (step_tokens / STEP_TOKENS) ** RATE_POWER * (width / WIDTH) ** WIDTH_POWER
    )


def round_to_two_digits(rate: float) -> float:
    """As people write it."""
    return float(f"{rate:.1e}")
