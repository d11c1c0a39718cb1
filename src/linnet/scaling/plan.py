"""What a budget buys: a size, its tokens, what each law expects of them, and how long training takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from linnet.model.spec import ModelSpec
from linnet.scaling.allocate import TrainingBudget, allocate, allocate_exact
from linnet.scaling.candidate import candidate, fitted_vocabulary, least_parameters
from linnet.scaling.counts import ParameterCounts, parameter_counts
from linnet.scaling.data_at_hand import DataAtHand
from linnet.scaling.law import Allocation, Law, ParametricLaw
from linnet.scaling.throughput import Throughput, guessed_flops_per_s, measure, most_parameters
from linnet.training.runs import training_flops_per_token

HOUR_S = 3600.0
ROUNDS, NEAR = 3, 1.5
"""A speed counts for models of up to so many times the size that was timed; else it is measured again."""


LEAST_LAYERS = 2
"""With one, what came before a token's last occurrence cannot be found again (Olsson et al. 2022, arXiv 2209.11895)."""

MOST_TABLE = 0.5
"""Of the parameters in the table of tokens; beyond it, little but how frequent each token is can be learned."""

LARGER = 1.1
"""Steps in which the smallest useful size is looked for."""


@dataclass(frozen=True)
class PlanSetting:
    """What a plan takes for granted. vocab_size: None for one that suits the size. throughput: given, not measured."""

    vocab_size: int | None
    context_length: int
    batch_size: int
    device: torch.device
    throughput: Throughput | None = None


@dataclass(frozen=True)
class Prediction:
    """What one law says: its own best for the budget, with the loss there, and the loss of the plan. Nats per token.

    The limits are those of the planned size with unlimited text, and of the planned tokens with a model without limit.
    """

    law: Law
    best: Allocation
    loss_at_best: float
    loss: float
    loss_of_parameters: float
    loss_of_tokens: float
    extrapolated: bool
    bytes_per_token: float | None

    @property
    def bits_per_byte(self) -> float | None:
        """The plan's loss, if a token stands for as much text as one of the law's."""
        return None if self.bytes_per_token is None else self.loss / math.log(2) / self.bytes_per_token

    def figures(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "source": self.law.source,
            "parameters_counted": self.law.counted,
            "best": {"parameters": self.best.parameters, "tokens": self.best.tokens, "loss": self.loss_at_best},
            "loss": self.loss,
            "bits_per_byte": self.bits_per_byte,
            "loss_with_unlimited_tokens": self.loss_of_parameters,
            "loss_with_unlimited_parameters": self.loss_of_tokens,
            "extrapolated": self.extrapolated,
        }


@dataclass(frozen=True)
class Plan:
    """A size, its tokens, and all that follows. `allocation` counts as the law does; `model` is a plain shape of it."""

    law: Law
    allocation: Allocation
    model: ModelSpec
    counts: ParameterCounts
    setting: PlanSetting
    data: DataAtHand | None
    throughput: Throughput
    predictions: list[Prediction]

    @property
    def tokens(self) -> int:
        """To train on."""
        return max(1, round(self.allocation.tokens))

    @property
    def tokens_per_step(self) -> int:
        """In a batch."""
        return self.setting.batch_size * self.setting.context_length

    @property
    def steps(self) -> int:
        """Of training."""
        return -(-self.tokens // self.tokens_per_step)

    @property
    def exact_flops(self) -> float:
        """Of training the plain shape: forward and backward, with the head."""
        return self.tokens * training_flops_per_token(self.model, None)

    @property
    def wall_s(self) -> float:
        """Time in training steps."""
        return self.exact_flops / self.throughput.flops_per_s

    @property
    def epochs(self) -> float | None:
        """How often the data at hand is seen."""
        return None if self.data is None else self.data.epochs(self.tokens)

    @property
    def useful_from(self) -> Allocation | None:
        """The smallest that the law asks for whose plain shape is useful; None where this one is."""
        if is_useful(self.model):
            return None
        parameters, model = self.allocation.parameters, self.model
        while not is_useful(model):
            parameters *= LARGER
            model = _model(Allocation(parameters, 1), self.law, self.setting)
        return self.law.of_parameters(parameters)


def is_useful(model: ModelSpec) -> bool:
    """Whether a plain shape has layers enough, and parameters beside its table of tokens."""
    counts = parameter_counts(model)
    return model.layers >= LEAST_LAYERS and 1 - counts.without_embedding / counts.total <= MOST_TABLE


def make_plan(
    budget: TrainingBudget, law: Law, laws: Sequence[Law], setting: PlanSetting, data: DataAtHand | None
) -> Plan:
    """Plan with `law`; all `laws` say what they expect. Measures the device unless its throughput is given."""
    if budget.hours is not None:
        allocation, throughput = _for_hours(budget.hours * HOUR_S, budget, law, setting)
        budget.check(allocation)
    else:
        allocation = allocate(budget, law)
        budget.check(allocation)
        throughput = setting.throughput or _measured(_model(allocation, law, setting), setting)
    model = _model(allocation, law, setting)
    counts = parameter_counts(model)
    predictions = [_prediction(one, allocation, counts, data) for one in laws]
    return Plan(law, allocation, model, counts, setting, data, throughput, predictions)


def _model(allocation: Allocation, law: Law, setting: PlanSetting) -> ModelSpec:
    size, length = allocation.parameters, setting.context_length
    vocabulary = setting.vocab_size or fitted_vocabulary(size, law.counted, length)
    return candidate(size, law.counted, vocabulary, length)


def _for_hours(wall_s: float, budget: TrainingBudget, law: Law, setting: PlanSetting) -> tuple[Allocation, Throughput]:
    """Speed depends on the size, and the size on the speed: from a guess, until the size stays."""

    def flops_of(allocation: Allocation) -> float:
        budget.check_size(allocation)
        return allocation.tokens * training_flops_per_token(_model(allocation, law, setting), None)

    throughput = setting.throughput or Throughput(guessed_flops_per_s(setting.device))
    allocation = allocate_exact(budget, law, wall_s * throughput.flops_per_s, flops_of)
    if setting.throughput is not None:
        return allocation, throughput
    for _ in range(ROUNDS):
        throughput = _measured(_model(allocation, law, setting), setting)
        before, allocation = allocation, allocate_exact(budget, law, wall_s * throughput.flops_per_s, flops_of)
        if 1 / NEAR < allocation.parameters / before.parameters < NEAR:
            break
    return allocation, throughput


def _measured(model: ModelSpec, setting: PlanSetting) -> Throughput:
    """The speed with this model, or with the largest that can be timed here in seconds."""
    most = max(most_parameters(setting.device, setting.context_length), least_parameters(model.vocab_size))
    size = min(parameter_counts(model).total, most)
    timed = candidate(size, "total", model.vocab_size, setting.context_length)
    return measure(timed, setting.batch_size, setting.device)


def _prediction(law: Law, allocation: Allocation, counts: ParameterCounts, data: DataAtHand | None) -> Prediction:
    size, tokens = counts.by_name()[law.counted], allocation.tokens
    own = law.bytes_per_token if isinstance(law, ParametricLaw) else None
    return Prediction(
        law=law,
        best=law.of_flops(allocation.flops),
        loss_at_best=law.loss_of_flops(allocation.flops),
        loss=float(law.loss(size, tokens)),
        loss_of_parameters=law.loss_of_parameters(size),
        loss_of_tokens=law.loss_of_tokens(tokens),
        extrapolated=not law.reaches(size),
        bytes_per_token=own or (data.bytes_per_token if data else None),
    )
