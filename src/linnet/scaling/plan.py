"""What a budget buys: a size, its tokens, the loss that each law predicts, and how long training takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from linnet.core.system import resolve_device
from linnet.data.token_data import read_manifest
from linnet.model.spec import ModelSpec
from linnet.scaling.budget import TrainingBudget, allocate, allocate_exact
from linnet.scaling.candidate import (
    ParameterCounts,
    candidate,
    fitted_vocabulary,
    min_parameters,
    parameter_counts,
)
from linnet.scaling.law import Allocation, Law, ParametricLaw, laws_for_plan
from linnet.scaling.throughput import Throughput, estimate_flops_per_s, max_parameters, measure
from linnet.training.runs import training_flops_per_token

HOUR_S = 3600.0
ROUNDS, MAX_RATIO = 3, 1.5
"""A measured speed is valid for models of up to this ratio of sizes; beyond it, the speed is measured again."""

MIN_LAYERS = 2
"""With one layer a model cannot look up what came before a token's last occurrence (Olsson et al. 2022, arXiv
2209.11895)."""

MAX_TABLE_SHARE = 0.5
"""Of the parameters in the table of tokens; beyond it, little can be learned except the frequency of each token."""

GROWTH = 1.1
"""Factor between the sizes among which the smallest useful one is searched."""

MAX_EPOCHS = 4
"""Up to which repeated text is nearly as good as new: Muennighoff et al. 2023, arXiv 2305.16264, section 6."""

REPETITION_DECAY = 15.387756
"""`R*_D` of the same paper, appendix A: repetitions after which another is worth 1 / e of new text."""

REPETITION_SOURCE = "Muennighoff et al. 2023, arXiv 2305.16264"


@dataclass(frozen=True)
class TrainingText:
    """The training split of a data folder, and the vocabulary of its tokenizer."""

    folder: Path
    tokens: int
    bytes_per_token: float
    vocab_size: int

    def equivalent_tokens(self, tokens: float) -> float:
        """Return the number of new tokens that would teach as much as `tokens` tokens of this text, partly repeated.

        `U + U R* (1 - exp(-R / R*))` for `R` repetitions of `U` tokens (Muennighoff et al., equation 5).
        """
        repetitions = tokens / self.tokens - 1
        if repetitions <= 0:
            return tokens
        return self.tokens * (1 + REPETITION_DECAY * (1 - math.exp(-repetitions / REPETITION_DECAY)))


def read_training_text(folder: Path) -> TrainingText:
    """Read the manifest of a data folder; `UserError` if there is none."""
    manifest = read_manifest(folder)
    split = manifest.splits["train"]
    return TrainingText(folder, split.tokens, split.bytes / split.tokens, manifest.tokenizer.vocab_size)


@dataclass(frozen=True)
class PlanSetting:
    """Assumptions of a plan. vocab_size: None for one that suits the size. throughput: None to measure it."""

    vocab_size: int | None
    context_length: int
    batch_size: int
    device: torch.device
    throughput: Throughput | None = None


@dataclass(frozen=True)
class Prediction:
    """Predictions of one law: its own best allocation of the budget and the loss there, and the loss of the plan.

    Losses are nats per token. loss_of_parameters: of the planned size with unlimited text. loss_of_tokens: of the
    planned tokens with an unlimited model. extrapolated: True if the size is outside those that the law was fitted to.
    bits_per_byte: the plan's loss if a token stands for as much text as one of the law's; None if that is unknown.
    """

    law: Law
    best: Allocation
    loss_at_best: float
    loss: float
    loss_of_parameters: float
    loss_of_tokens: float
    extrapolated: bool
    bits_per_byte: float | None


@dataclass(frozen=True)
class Plan:
    """A size, its tokens, and what follows from them.

    allocation: as the law counts parameters. model: a plain decoder of that size; counts: its parameters. exact_flops:
    training FLOPs of that model, forward and backward, with the head; wall_s: the time of its steps. epochs: passes
    over the text; None without a text. budget_tokens: those of the law's split of the whole budget, if they are
    more than the text is good for; else None. useful_from: the smallest allocation by the law whose plain decoder is
    useful; None if this one is.
    """

    law: Law
    allocation: Allocation
    model: ModelSpec
    counts: ParameterCounts
    setting: PlanSetting
    text: TrainingText | None
    throughput: Throughput
    predictions: list[Prediction]
    tokens: int
    tokens_per_step: int
    steps: int
    exact_flops: float
    wall_s: float
    epochs: float | None
    budget_tokens: float | None
    useful_from: Allocation | None


def make_plan(
    budget: TrainingBudget, law: Law, laws: Sequence[Law], setting: PlanSetting, text: TrainingText | None
) -> Plan:
    """Plan with `law` and predict with all `laws`; measures the device unless its throughput is given.

    `UserError` if the budget buys no model.
    """
    if budget.hours is not None:
        allocation, throughput = _allocate_hours(budget.hours * HOUR_S, budget, law, setting)
        budget.check(allocation)
    else:
        allocation = allocate(budget, law)
        budget.check(allocation)
        throughput = setting.throughput or _measured(_model(allocation, law, setting), setting)
    budget_tokens = None
    if text is not None and budget.tokens is None and allocation.tokens > MAX_EPOCHS * text.tokens:
        whole, allocation = allocation, _within_text(allocation, budget, law, setting, text)
        budget_tokens = whole.tokens if allocation != whole else None
        if allocation.parameters != whole.parameters and setting.throughput is None:
            throughput = _measured(_model(allocation, law, setting), setting)
    model = _model(allocation, law, setting)
    counts = parameter_counts(model)
    tokens, tokens_per_step = max(1, round(allocation.tokens)), setting.batch_size * setting.context_length
    exact_flops = tokens * training_flops_per_token(model, None)
    return Plan(
        law,
        allocation,
        model,
        counts,
        setting,
        text,
        throughput,
        predictions=[_prediction(one, allocation, counts, text) for one in laws],
        tokens=tokens,
        tokens_per_step=tokens_per_step,
        steps=-(-tokens // tokens_per_step),
        exact_flops=exact_flops,
        wall_s=exact_flops / throughput.flops_per_s,
        epochs=None if text is None else tokens / text.tokens,
        budget_tokens=budget_tokens,
        useful_from=_useful_from(allocation, model, law, setting),
    )


def _within_text(
    allocation: Allocation, budget: TrainingBudget, law: Law, setting: PlanSetting, text: TrainingText
) -> Allocation:
    """Return `MAX_EPOCHS` passes over the text and the size that the law gives them, at least a useful one.

    A size that the budget fixes stays, and so does what a second amount of the budget determines.
    """
    if budget.parameters is not None and (budget.flops is not None or budget.hours is not None):
        return allocation
    tokens = float(MAX_EPOCHS * text.tokens)
    if budget.parameters is not None:
        return Allocation(budget.parameters, tokens)
    smallest = min_parameters(setting.vocab_size or text.vocab_size)
    found = Allocation(min(allocation.parameters, max(law.best(tokens=tokens).parameters, smallest)), tokens)
    useful = _useful_from(found, _model(found, law, setting), law, setting)
    return found if useful is None else Allocation(min(allocation.parameters, useful.parameters), tokens)


def _model(allocation: Allocation, law: Law, setting: PlanSetting) -> ModelSpec:
    size, length = allocation.parameters, setting.context_length
    vocabulary = setting.vocab_size or fitted_vocabulary(size, law.counted, length)
    return candidate(size, law.counted, vocabulary, length)


def _allocate_hours(
    wall_s: float, budget: TrainingBudget, law: Law, setting: PlanSetting
) -> tuple[Allocation, Throughput]:
    """Speed depends on the size, and the size on the speed: start from an estimate, repeat until the size is stable."""

    def flops_of(allocation: Allocation) -> float:
        budget.check(allocation, check_tokens=False)
        return allocation.tokens * training_flops_per_token(_model(allocation, law, setting), None)

    throughput = setting.throughput or Throughput(estimate_flops_per_s(setting.device))
    allocation = allocate_exact(budget, law, wall_s * throughput.flops_per_s, flops_of)
    if setting.throughput is not None:
        return allocation, throughput
    for _ in range(ROUNDS):
        throughput = _measured(_model(allocation, law, setting), setting)
        before, allocation = allocation, allocate_exact(budget, law, wall_s * throughput.flops_per_s, flops_of)
        if 1 / MAX_RATIO < allocation.parameters / before.parameters < MAX_RATIO:
            break
    return allocation, throughput


def _measured(model: ModelSpec, setting: PlanSetting) -> Throughput:
    """Return the speed of this model, or of the largest that can be timed here within seconds."""
    most = max(max_parameters(setting.device, setting.context_length), min_parameters(model.vocab_size))
    size = min(parameter_counts(model).total, most)
    timed = candidate(size, "total", model.vocab_size, setting.context_length)
    return measure(timed, setting.batch_size, setting.device)


def _prediction(law: Law, allocation: Allocation, counts: ParameterCounts, text: TrainingText | None) -> Prediction:
    size, tokens = counts.by_name()[law.counted], allocation.tokens
    loss = float(law.loss(size, tokens))
    of_law = law.bytes_per_token if isinstance(law, ParametricLaw) else None
    bytes_per_token = of_law or (text.bytes_per_token if text else None)
    return Prediction(
        law=law,
        best=law.best(flops=allocation.flops),
        loss_at_best=law.lowest_loss(flops=allocation.flops),
        loss=loss,
        loss_of_parameters=law.lowest_loss(parameters=size),
        loss_of_tokens=law.lowest_loss(tokens=tokens),
        extrapolated=law.sizes is not None and not law.sizes[0] <= size <= law.sizes[1],
        bits_per_byte=None if bytes_per_token is None else loss / math.log(2) / bytes_per_token,
    )


def _useful_from(allocation: Allocation, model: ModelSpec, law: Law, setting: PlanSetting) -> Allocation | None:
    parameters = allocation.parameters
    while True:
        counts = parameter_counts(model)
        if model.layers >= MIN_LAYERS and 1 - counts.without_embedding / counts.total <= MAX_TABLE_SHARE:
            return None if parameters == allocation.parameters else law.best(parameters=parameters)
        parameters *= GROWTH
        model = _model(Allocation(parameters, 1), law, setting)


def plan(
    *,
    flops: float | None = None,
    hours: float | None = None,
    parameters: float | None = None,
    tokens: float | None = None,
    law: str | Path = "replication",
    data: str | Path | None = None,
    device: str = "auto",
    throughput: float | None = None,
    batch_size: int = 8,
    context_length: int = 1024,
    vocab_size: int | None = None,
) -> Plan:
    """Plan a training run: the best size and its tokens for a budget, predicted losses, and its time (`.wall_s`).

    Give flops, hours, parameters or tokens; or two of them that fix size and tokens. law: chinchilla, replication,
    kaplan, or a file of `linnet plan fit`. data: the data folder to train on. throughput: training FLOPs per second;
    None to measure it with a few steps. Losses are nats per token. `.model` is a plain decoder of that size. Raises
    `UserError` if the budget buys no model.
    """
    chosen, laws = laws_for_plan(str(law))
    text = None if data is None else read_training_text(Path(data))
    vocabulary = vocab_size or (text.vocab_size if text else None)
    speed = None if throughput is None else Throughput(throughput)
    setting = PlanSetting(vocabulary, context_length, batch_size, resolve_device(device), speed)
    return make_plan(TrainingBudget(flops, hours, parameters, tokens), chosen, laws, setting, text)
