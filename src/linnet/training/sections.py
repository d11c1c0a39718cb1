"""The typed sections of `training`."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from linnet.core.errors import UserError
from linnet.core.spec import Amount, Count, Extent, Spec
from linnet.data.conversations import ASSISTANT, Role
from linnet.data.target_weights import TargetWeights
from linnet.evaluation.models import CalibrationText

Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]

FUNCTION_OF_FILE = re.compile(r"(?P<file>.+\.py):(?P<function>[^\W\d]\w*)", re.DOTALL)
"""A function of a Python file: the file ends in `.py`, and a name of Python stands behind the last colon."""


class MuonSpec(Spec):
    """Muon (Jordan et al., kellerjordan.github.io/posts/muon) on the matrices between hidden vectors.

    lr: the peak (null: `optimizer.lr`). scale: of `lr`, by the shape of a matrix: with `adamw` elements move as far as
    AdamW's, so that one `lr` serves both; with `spectral` outputs move equally at any width, with an `lr` of about
    0.02. iterations: steps of the orthogonalizing iteration (`ops.orthogonal`), which is made at every `every`-th step
    of training; between them the latest direction is used again. precision: of the iteration (`auto`: that of the run's
    products).
    """

    lr: PositiveFloat | None = None
    scale: Literal["adamw", "spectral"] = "adamw"
    momentum: Beta = 0.95
    iterations: Annotated[int, Field(ge=1, le=10)] = 3
    every: Count = 1
    precision: Literal["auto", "float32", "bfloat16"] = "auto"


class OptimizerSpec(Spec):
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) on all parameters, or `muon` on matrices and AdamW on the rest.

    lr: the peak that the schedule scales. low_lr: that of parameters in which a layer amplifies small changes
    (`Sublayer.low_lr_parameters`; null: `lr`). weight_decay_on: `matrices` are the parameters of two or more dimensions
    that are neither embeddings nor biases; `all` are all parameters. cautious_decay: only where update and weight have
    one sign (Chen et al., arXiv 2510.12402).
    """

    kind: Literal["adamw", "muon"] = "adamw"
    lr: PositiveFloat = 1e-3
    low_lr: PositiveFloat | None = None
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    weight_decay_on: Literal["matrices", "all"] = "matrices"
    cautious_decay: bool = False
    muon: MuonSpec = MuonSpec()

    @model_validator(mode="after")
    def _muon_is_used(self) -> Self:
        if self.kind != "muon" and self.muon != MuonSpec():
            raise ValueError("muon: needs kind: muon")
        return self


class DistillationSpec(Spec):
    """Learning from the predictions of a teacher (`ops.distillation`), besides the text.

    teacher: a model folder, or a run's, with the tokenizer of the data. weight: the share of the divergence from the
    teacher in the objective; 1: the text only says where the teacher is asked. temperature: divides the logits of both
    models in the divergence.
    """

    teacher: Path
    weight: Fraction = 0.5
    temperature: PositiveFloat = 1.0


class TargetsSpec(Spec):
    """How much the targets of rows count in the loss (`data.target_weights`).

    roles: the weight of the tokens of each role's messages; the answers of the `assistant` count 1 and others 0 unless
    they are given. average: the loss is the mean over all targets of a step (`token`), or over its rows
    (`conversation`), in each of which it is the mean over the targets: a long answer then counts as much as a short
    one. Both are means with these weights.
    """

    roles: dict[Role, NonNegativeFloat] = Field(default_factory=dict)
    average: Literal["token", "conversation"] = "token"

    @model_validator(mode="after")
    def _some_count(self) -> Self:
        if not any(self._by_role.values()):
            raise ValueError("roles: all weights are 0; expected one above 0")
        return self

    @property
    def weights(self) -> TargetWeights:
        """The weights of the targets of rows."""
        return TargetWeights(self._by_role if self.roles else None, self.average == "conversation")

    @property
    def _by_role(self) -> dict[str, float]:
        return {ASSISTANT: 1.0, **dict[str, float](self.roles.items())}


class PreferenceSpec(Spec):
    """How a model learns from pairs of a preferred answer and another one (`training.objectives.preference`).

    kind: `dpo` and `ipo` compare with the model that the run starts from, whose log-probabilities are computed once;
    `orpo` does not, and trains on the preferred answers as well; `reward` makes a reward model, which gives a text a
    number. beta: how much it costs to leave the reference (dpo, ipo), or the weight of the odds ratio beside the
    cross-entropy (orpo). label_smoothing: of dpo: the share of pairs that are thought to be the wrong way round.
    """

    kind: Literal["dpo", "ipo", "orpo", "reward"] = "dpo"
    beta: PositiveFloat = 0.1
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0

    @model_validator(mode="after")
    def _smoothing_is_used(self) -> Self:
        if self.label_smoothing and self.kind != "dpo":
            raise ValueError(f"label_smoothing: {self.label_smoothing:g}: needs kind: dpo")
        if self.kind == "reward" and self.beta != 0.1:
            raise ValueError(f"beta: {self.beta:g}: kind: reward has none; expected the default")
        return self

    @property
    def has_reference(self) -> bool:
        """True if the loss compares with the model that the run starts from."""
        return self.kind in ("dpo", "ipo")


def reward_function(reward: str | None) -> tuple[Path, str] | None:
    """The file and the name of the function that `GrpoSpec.reward` names; None for a reward model and for checkers."""
    found = FUNCTION_OF_FILE.fullmatch(reward or "")
    return None if found is None else (Path(found["file"]), found["function"])


class GrpoSpec(Spec):
    """How a model learns from what its own answers earn (`training.objectives.grpo`).

    group: answers drawn to each prompt, which are compared with each other. max_tokens: of an answer. updates: steps
    that read the same answers. clip: bounds the ratio of probabilities in all but the first of these. kl: the weight of
    the divergence from the model that the run starts from. scale_by_std: divide advantages by the standard deviation of
    the group's rewards. reward: `FILE.py:FUNCTION`, called with the line of the prompt and the answer; anything else is
    the folder of a reward model (null: the checker of the prompt). checker_weight: what the score of the checker counts
    beside a reward model. held_out: prompts that are measured with each evaluation.
    """

    group: Annotated[int, Field(ge=2)] = 8
    max_tokens: Count = 64
    updates: Count = 1
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    kl: NonNegativeFloat = 0.0
    scale_by_std: bool = False
    reward: str | None = None
    checker_weight: NonNegativeFloat = 0.0
    held_out: Count = 64

    @property
    def needs_checker(self) -> bool:
        """Whether the checker of a prompt decides what its answers earn, alone or beside a reward model."""
        return self.reward is None or self.checker_weight > 0

    @model_validator(mode="after")
    def _checker_is_beside_a_model(self) -> Self:
        if self.checker_weight and (self.reward is None or reward_function(self.reward) is not None):
            raise ValueError(f"checker_weight: {self.checker_weight:g}: needs a reward model as reward")
        return self

    def check_room(self, context_length: int) -> None:
        """`UserError` if the longest answer leaves no token of the context for a prompt."""
        if self.max_tokens >= context_length:
            accepted = f"less than the context of {context_length:,} tokens, so that a prompt fits"
            raise UserError(field="training.grpo.max_tokens", value=self.max_tokens, accepted=accepted)


class ReplaySpec(Spec):
    """Text that a run on conversations reads besides, so that the model does not forget it (`data.replay`).

    data: a data folder of text, with the tokenizer of the model that the run starts from. share: of the sequences of a
    batch that are windows of the text.
    """

    data: Path
    share: Annotated[float, Field(gt=0, lt=1)] = 0.1


class LoraSpec(Spec):
    """Low-rank adaptation of the model that the run starts from (`training.lora`); its own weights are not trained.

    rank: of the parts. alpha: they are scaled by `alpha / rank`. parts: the linear maps of all sublayers, of the mixers
    alone, or of the feed-forwards alone. precision: what the weights of all linear maps of sublayers are rounded to and
    held in (`inference.weights`); the parts are float32.
    """

    rank: Count = 8
    alpha: PositiveFloat = 16.0
    parts: Literal["all", "mixers", "feed_forwards"] = "all"
    precision: Literal["float32", "int8", "int4"] = "float32"


class GrowthSpec(Spec):
    """Shorter windows and smaller batches at first; after the last entry of a list the run's own size applies.

    `[until, size]`, ascending: until that share of all steps (below 1), or that number of steps, a window has `size`
    tokens, a batch `size` sequences. keep_tokens: where windows are shorter, a batch has as many more of them, so that
    their length does not change its number of tokens.
    """

    context_length: tuple[tuple[PositiveFloat, Amount], ...] = ()
    batch_size: tuple[tuple[PositiveFloat, Extent], ...] = ()
    keep_tokens: bool = False

    @model_validator(mode="after")
    def _grows(self) -> Self:
        for field in ("context_length", "batch_size"):
            listed = getattr(self, field)
            for end, _ in listed:
                if end > 1 and end != int(end):
                    raise ValueError(f"{field}: until {end:g}: must be a share below 1, or a whole number of steps")
            for (end, size), (next_end, next_size) in pairwise(listed):
                if next_end < end or next_size <= size:
                    raise ValueError(f"{field}: [{next_end:g}, {next_size}] after [{end:g}, {size}]: must ascend")
            if len({end < 1 for end, _ in listed}) > 1:
                raise ValueError(f"{field}: shares and numbers of steps: give all ends in one of the two")
        if self.keep_tokens and not self.context_length:
            raise ValueError("keep_tokens: True: needs shorter windows: context_length: [[0.3, 128]]")
        return self


class ScheduleSpec(Spec):
    """The learning rate over the steps: a linear warm-up, then `kind` down to the end. Fractions are of the peak.

    The warm-up has `warmup_steps`, or a `warmup_share` of all steps (neither: a tenth). See `schedule.learning_rate`
    for the curves. decay_share, decay: for `stable`, the last share of the steps, in which the rate falls (null: a
    fifth), and its curve (null: `one_minus_sqrt`).
    """

    kind: Literal["cosine", "cosine_squared", "linear", "constant", "stable"] = "cosine"
    warmup_steps: NonNegativeInt | None = None
    warmup_share: Fraction | None = None
    start_fraction: Fraction = 0.0
    final_fraction: Fraction = 0.1
    decay_share: Fraction | None = None
    decay: Literal["one_minus_sqrt", "linear"] | None = None

    @model_validator(mode="after")
    def _decay_of_stable(self) -> Self:
        for field in ("decay_share", "decay"):
            if self.kind != "stable" and getattr(self, field) is not None:
                raise ValueError(f"{field}: {getattr(self, field)}: needs kind: stable")
        return self

    @model_validator(mode="after")
    def _one_warm_up(self) -> Self:
        if self.warmup_steps is not None and self.warmup_share is not None:
            raise ValueError(
                f"warmup_steps: {self.warmup_steps} and warmup_share: {self.warmup_share}: give one of the two"
                " (`set` training.schedule.warmup_steps=null clears that one)"
            )
        return self


class AveragingSpec(Spec):
    """The model is an average of the trained weights (`callbacks.saving.weight_of`).

    `ema`: all steps count, each `decay` times as much as the next one. `mean`: those of the last `share` count equally.
    """

    kind: Literal["ema", "mean"] = "ema"
    decay: Beta = 0.999
    share: Annotated[float, Field(gt=0, le=1)] = 0.2

    @model_validator(mode="after")
    def _fields_of_the_kind(self) -> Self:
        other, kind = ("share", "mean") if self.kind == "ema" else ("decay", "ema")
        if getattr(self, other) != type(self).model_fields[other].default:
            raise ValueError(f"{other}: {getattr(self, other)}: needs kind: {kind}")
        return self


class ClipSpec(Spec):
    """Gradients are clipped by their joint norm, or each element by its value, `at` this much; or not at all."""

    by: Literal["norm", "value", "none"] = "norm"
    at: PositiveFloat = 1.0


class GuardSpec(Spec):
    """What happens at a loss spike: `skip` skips its batch before the update, `rewind` returns to the last checkpoint.

    `rewind` skips all data from that checkpoint to the spike; a checkpoint that a stop made does not count. metric: a
    spike has a loss, a gradient norm, or `either`, that is not finite or lies more than `limit` robust deviations above
    the median of the last `window` steps. max_consecutive: the maximum number of consecutive spikes that are skipped,
    and of returns to the same checkpoint.
    """

    action: Literal["skip", "rewind"] = "skip"
    metric: Literal["loss", "gradient_norm", "either"] = "either"
    limit: PositiveFloat = 6.0
    window: Annotated[int, Field(ge=16, le=1 << 12)] = 128
    max_consecutive: Count = 5


class EvaluateSpec(Spec):
    """The fixed validation set: `tokens` of the validation split, the same ones every `every` steps and at the end.

    every: null: a tenth of the steps (rounded down), at most 100.
    calibrate_on: the text that calibrates a model that is not causal by itself: the start of the training split, or the
    empty prompt.
    """

    every: Amount | None = None
    tokens: Amount = 65536
    calibrate_on: CalibrationText = "train"


class CheckpointSpec(Spec):
    """A checkpoint every `every` steps, at a new best evaluation and at a stop; the `keep` newest and the best stay."""

    every: Amount = 500
    keep: Count = 2


class ParallelSpec(Spec):
    """How the processes that torchrun started share work and memory; the result does not depend on it.

    shard: the number of processes that share one copy of weights, gradients and optimizer state (1: each has its own),
    a divisor of their number. checkpointing: layers save only their input and compute the rest again in the backward
    pass.
    """

    shard: Count = 1
    checkpointing: bool = False


class LogSpec(Spec):
    """A line of metrics every `every` steps; null: every tenth of the steps (rounded down), at most 10."""

    every: Amount | None = None
