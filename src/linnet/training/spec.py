"""The typed description of a training run, from YAML and `section.key=value` overrides."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, field_validator, model_validator

from linnet.core.errors import UserError, note
from linnet.core.spec import Amount, Count, Extent, Seed, Spec, override, read_assignment, read_yaml
from linnet.data.fill_in_the_middle import FillInTheMiddle
from linnet.data.mixture import MixtureField
from linnet.model.folder import model_folder, read_description
from linnet.model.spec import ModelSpec
from linnet.training.recipe import (
    AUTO,
    FINE_TUNING_SHARE,
    LOW_LR,
    NO_LOW_LR_PARAMETERS,
    PREFERENCE_SHARE,
    automatic,
    has_low_lr_parameters,
    merge_fields,
    read_recipe,
)
from linnet.training.schedule import Growth, resolved_growth, steps_for
from linnet.training.sections import (
    AveragingSpec,
    CheckpointSpec,
    ClipSpec,
    DistillationSpec,
    EvaluateSpec,
    GrowthSpec,
    GrpoSpec,
    GuardSpec,
    LogSpec,
    LoraSpec,
    OptimizerSpec,
    ParallelSpec,
    PreferenceSpec,
    ReplaySpec,
    ScheduleSpec,
    TargetsSpec,
)

DEFAULT_STEPS = 1000
WARMUP_SHARE = 0.1

LONGEST_INTERVALS = {"evaluate": 100, "log": 10}
"""By section, the `every` of long runs, in steps; short ones are divided into tenths."""


def default_interval(section: str, steps: int) -> int:
    """The `every` of a section, `evaluate` or `log`, in a run of so many steps that does not give it."""
    return min(LONGEST_INTERVALS[section], max(1, steps // 10))


def has_default_interval(run: "RunSpec", section: str) -> bool:
    """True if the `every` of a resolved run is the default for its number of steps."""
    steps = run.training.steps
    return steps is not None and bool(getattr(run.training, section).every == default_interval(section, steps))


class TrainingSpec(Spec):
    """How a model is trained.

    A step takes `gradient_accumulation` batches of `batch_size` sequences of `context_length` tokens (null: the
    model's); its gradient is that of the mean over all of their tokens. The length is `steps` or `tokens`, not both
    (neither: 1000 steps).
    windows: `stream` cuts the split into windows wherever they fall, differently in each epoch; with `documents` a
    window begins with a document, or continues one that is longer than a window (`data.loader`), and is filled with
    what follows. It is for many short documents: a window that begins in the middle of one teaches a model little.
    With `packed` a window is filled with whole documents and padding (`data.packing`): each epoch predicts every token
    once, and only documents longer than a window are cut. `tokens` then counts the padding.
    document_mask: true: documents in the same window do not see each other.
    targets: how much the targets of rows (conversations, pairs) count in the loss.
    mixture: the share of each source of the data, or a file with it (`data.mixture`); null: the text as it is, once in
    an epoch. It cannot be combined with `growth`.
    fill_in_the_middle: documents of each batch that are rearranged (`data.rearranged_batches`); null: none.
    embedding_from: a file of static word vectors (`data.word_vectors`), from which the tokens with a word in it start,
    scaled to the root mean square of the random ones (`initialization.embedding_std`); null: none.
    growth: `context_length` and `batch_size` are the sizes at the end of the run.
    averaging: of the weights that are evaluated and saved as the model; null: those of the last step.
    z_loss: coefficient of `log^2 Z` in the objective, which keeps the logits from drifting (PaLM uses 1e-4).
    distillation: a teacher whose predictions the model learns as well; null: none.
    preference: how the model learns from pairs of answers (docs/preferences.md); null: the data are no such pairs.
    grpo: how the model learns from rewards for its own answers (docs/grpo.md); null: the data are no prompts.
    replay: text that a run on conversations reads besides (docs/conversations.md); null: none.
    lora: trains low-rank parts beside the linear maps of the model that the run starts from; null: trains all weights.
    penalties: terms that kinds of layers can add to the objective, by the name that the kind gives them, with the
    coefficient of each term; a term that is left out has the kind's default. guard: what happens at loss spikes; null:
    nothing, except that one that is not finite ends the run.
    precision: of products; weights, optimizer state and sums are float32. `auto` is bfloat16 on a CUDA device that has
    it; on a processor the faster one, which is measured when the run begins and stored with it (`training.machine`).
    threads: null leaves the choice to PyTorch.
    """

    batch_size: Extent = 8
    gradient_accumulation: Count = 1
    context_length: Amount | None = None
    windows: Literal["stream", "documents", "packed"] = "stream"
    document_mask: bool = False
    targets: TargetsSpec = TargetsSpec()
    steps: Amount | None = None
    tokens: Amount | None = None
    mixture: MixtureField | None = None
    fill_in_the_middle: FillInTheMiddle | None = None
    embedding_from: Path | None = None
    growth: GrowthSpec = GrowthSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    averaging: AveragingSpec | None = None
    clip: ClipSpec = ClipSpec()
    z_loss: NonNegativeFloat = 0.0
    distillation: DistillationSpec | None = None
    preference: PreferenceSpec | None = None
    grpo: GrpoSpec | None = None
    replay: ReplaySpec | None = None
    lora: LoraSpec | None = None
    penalties: dict[str, dict[str, NonNegativeFloat]] = Field(default_factory=dict)
    guard: GuardSpec | None = None
    seed: Seed = 0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    threads: Count | None = None
    compile: bool = False
    evaluate: EvaluateSpec = EvaluateSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    log: LogSpec = LogSpec()
    parallel: ParallelSpec = ParallelSpec()
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()

    @classmethod
    def _keys(cls) -> Collection[str]:
        """With `recipe`, which `run_of` replaces by the fields of that recipe."""
        return ("recipe", *cls.model_fields)

    @field_validator("trackers", mode="before")
    @classmethod
    def _trackers_are_listed(cls, trackers: Any) -> Any:
        if not isinstance(trackers, list | tuple):
            raise ValueError("must be a list of tensorboard and wandb, as in [wandb]")
        return trackers

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if self.steps is not None and self.tokens is not None:
            raise ValueError(
                f"steps: {self.steps} and tokens: {self.tokens}: give one of the two"
                " (`set` training.steps=null clears that one)"
            )
        if self.mixture is not None and self.growth != GrowthSpec():
            raise ValueError("mixture: cannot be combined with growth; expected one of the two")
        if self.distillation is not None and self.z_loss:
            raise ValueError(f"distillation: cannot be combined with z_loss: {self.z_loss:g}; expected z_loss: 0")
        for field in ("distillation", "z_loss"):
            if (self.preference is not None or self.grpo is not None) and getattr(self, field):
                raise ValueError(f"{field}: cannot be combined with preference or grpo; expected the default")
        if self.preference is not None and self.grpo is not None:
            raise ValueError("grpo: cannot be combined with preference; expected one of the two")
        if self.compile and self.distillation is not None:
            raise ValueError("compile: True: cannot be combined with distillation; expected compile: false")
        for field, excluded in (
            (f"optimizer.kind: {self.optimizer.kind}", self.optimizer.kind != "adamw"),
            (f"parallel.shard: {self.parallel.shard}", self.parallel.shard > 1),
            ("compile: True", self.compile),
        ):
            if self.lora is not None and excluded:
                raise ValueError(f"{field}: cannot be combined with lora; expected the default")
        if self.compile and self.document_mask:
            raise ValueError(
                "compile: True: needs document_mask: false; with the mask, shapes differ from batch to batch"
            )
        return self


class RunSpec(Spec):
    """A whole run: which model, which data folder, how it is trained.

    start_from: a model folder, or a run's, whose weights the model begins with; null: random weights.
    """

    model: ModelSpec
    start_from: Path | None = None
    data: Path
    training: TrainingSpec = TrainingSpec()

    @model_validator(mode="after")
    def _one_start_of_the_embedding(self) -> Self:
        if self.start_from is None and self.training.lora is not None:
            raise ValueError("training.lora: trains parts of a model that exists; `start_from` is missing")
        if self.start_from is None and self.training.preference is not None:
            raise ValueError("training.preference: changes the answers of a model that exists; `start_from` is missing")
        if self.start_from is None and self.training.grpo is not None:
            raise ValueError("training.grpo: changes the answers of a model that exists; `start_from` is missing")
        makes_reward = self.training.preference is not None and self.training.preference.kind == "reward"
        if self.model.head.value != makes_reward:
            found = f"model.head.value: {self.model.head.value}"
            kind = "only a reward model has it" if self.model.head.value else "a reward model needs it"
            raise ValueError(f"{found}: {kind} (training.preference.kind: reward)")
        if self.start_from is not None and self.training.embedding_from is not None:
            raise ValueError(
                f"training.embedding_from: {self.training.embedding_from}: cannot be combined with `start_from`, whose"
                " weights have token vectors of their own (`set` training.embedding_from=null keeps these)"
            )
        return self

    def resolved(self) -> Self:
        """A copy with every derived length filled in.

        These are `context_length`, `steps`, `schedule.warmup_steps`, `growth`, `evaluate.every` and `log.every`.
        `UserError` if they do not fit each other or the model.
        """
        training = self.training
        context = training.context_length or self.model.context_length
        if context > self.model.context_length:
            raise UserError(
                f"training.context_length: {context}: must be at most the model's, {self.model.context_length}"
                f" (`set` model.context_length={context} makes a model for more)"
            )
        steps = training.steps or DEFAULT_STEPS
        if training.tokens is not None:
            steps = steps_for(
                training.tokens, training.growth, training.batch_size, context, training.gradient_accumulation
            )
        growth = resolved_growth(training.growth, steps, training.batch_size, context)
        warmup = training.schedule.warmup_steps
        if warmup is None:
            share = training.schedule.warmup_share
            warmup = round((WARMUP_SHARE if share is None else share) * steps)
        if warmup > steps:
            raise UserError(
                f"training.schedule.warmup_steps: {warmup}: must be at most the {steps} steps of the run"
                " (warmup_share: 0.1 follows their number)"
            )
        lengths: dict[str, Any] = {"context_length": context, "steps": steps, "tokens": None, "growth": growth}
        lengths["schedule"] = training.schedule.model_copy(update={"warmup_steps": warmup, "warmup_share": None})
        for name, section in (("evaluate", training.evaluate), ("log", training.log)):
            if section.every is None:
                lengths[name] = section.model_copy(update={"every": default_interval(name, steps)})
        return self.model_copy(update={"training": training.model_copy(update=lengths)})

    @property
    def steps(self) -> int:
        steps = self.resolved().training.steps
        assert steps is not None
        return steps

    @property
    def growth(self) -> Growth:
        """The sizes of each step of a resolved run."""
        spec = self.training
        assert spec.steps is not None and spec.context_length is not None, "an unresolved run"
        return Growth(spec.growth, spec.steps, spec.batch_size, spec.context_length, spec.gradient_accumulation)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `RunSpec.parse` reads back, ready for YAML."""
        return self.model_dump(mode="json")


def read_run(
    config: str | Path | None = None,
    model: str | Path | ModelSpec | Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    assignments: list[str] | None = None,
    recipe: str | Path | None = None,
    start_from: str | Path | None = None,
    training: Mapping[str, Any] | None = None,
) -> RunSpec:
    """A run from a YAML file with the sections `model`, `data`, `training`, and from the other arguments.

    `model` (a preset's name, a YAML file, a model folder, a description, typed or as plain data), `data` and
    `start_from` (a model folder, whose description is used if no model is given) replace the file's. The fields of
    `recipe` (`auto`, or as in `read_recipe`) are overridden by the file's `training`, and these by `training`.
    `assignments` (`training.steps=200`, `model.context_length=256`) come last. `UserError` names the wrong field.
    """
    plain = {} if config is None else read_yaml(config)
    if not isinstance(plain, dict):
        raise UserError(f"{config}: expected a mapping with model, data, training, found {type(plain).__name__}")
    plain = dict(plain)
    for fields in ({"recipe": str(recipe)} if recipe is not None else None, training):
        if fields is not None:
            plain["training"] = merge_fields(plain.get("training") or {}, dict(fields))
    if model is not None:
        described = model.model_dump() if isinstance(model, ModelSpec) else model
        plain["model"] = dict(described) if isinstance(described, Mapping) else str(described)
    if data is not None:
        plain["data"] = str(data)
    if start_from is not None:
        plain["start_from"] = str(start_from)
    run = run_of(plain, assignments or [], str(config) if config is not None else "run")
    of_training = [each for each in assignments or [] if read_assignment(each)[0].startswith("training")]
    named = override({"training": plain.get("training") or {}}, of_training)["training"]
    if named.get("recipe") == AUTO:
        note(_chosen(run))
    low_lr = (named.get("optimizer") or {}).get("low_lr")  # without that of a recipe, which is for many models
    if low_lr is not None and not has_low_lr_parameters(run.model):
        note(f"training.{LOW_LR}: {low_lr}: {NO_LOW_LR_PARAMETERS}; it changes nothing")
    return run


def run_of(plain: dict[str, Any], assignments: list[str], origin: str, assigned_by: str = "`set` ") -> RunSpec:
    """A run from plain data, changed by assignments (`training.steps=200`).

    `UserError` names the wrong field, after `origin`, or after `assigned_by` if an assignment gave its value.
    """
    plain = dict(plain)
    if plain.get("model") is None and plain.get("start_from") is not None:
        plain["model"] = str(model_folder(plain["start_from"]))
    described = plain.get("model")
    if isinstance(described, str):
        plain["model"] = read_description(described)
    plain = override(plain, assignments)
    assigned = [read_assignment(assignment)[0] for assignment in assignments]
    if not plain.keys() <= RunSpec.model_fields.keys():
        RunSpec.parse(plain, origin, assigned, assigned_by)  # names the unknown section: a mistyped one is missing
    if "model" in assigned and not isinstance(plain.get("model"), dict):
        value = plain.get("model")
        raise UserError(f"{assigned_by}model: {value!r}: expected its fields one by one, as in model.d_model: 128")
    for section in ("model", "data"):
        if plain.get(section) is None:
            file = "a `config` file" if origin == "run" else origin
            raise UserError(f"{section}: missing; give `{section}`, or a section {section!r} in {file}")
    if makes_reward_model(plain.get("training")):
        plain["model"] = merge_fields(plain["model"], {"head": {"value": True}})
    of_model = [field.removeprefix("model.") for field in assigned if field.startswith("model.")]
    source = described if isinstance(described, str) else f"{origin}: model"
    plain["model"] = ModelSpec.parse(plain["model"], source, of_model, f"{assigned_by}model.")
    training = plain.get("training")
    if isinstance(training, dict) and "recipe" in training:
        own = {name: value for name, value in training.items() if name != "recipe"}
        recipe, fields = training["recipe"], dict[str, Any]()
        if recipe == AUTO:
            fields = _automatic(RunSpec.parse({**plain, "training": own}, origin, assigned, assigned_by))
        elif recipe is not None:
            fields = read_recipe(recipe)
        if own.get("tokens") is not None:
            fields.pop("steps", None)  # the other way to give the length
        plain["training"] = merge_fields(fields, own)
        if recipe == AUTO and "tokens" in fields and plain.get("start_from") is not None:
            # The steps that make them in windows: conversations, pairs and prompts have no number of tokens.
            length = RunSpec.parse(plain, origin, assigned, assigned_by).resolved().training.steps
            plain["training"] |= {"tokens": None, "steps": length}
    return RunSpec.parse(plain, origin, assigned, assigned_by)


def makes_reward_model(training: Any) -> bool:
    """True if a section `training`, plain or typed, describes a reward model, whose description has `head.value`."""
    plain = training.model_dump() if isinstance(training, TrainingSpec) else training
    preference = plain.get("preference") if isinstance(plain, dict) else None
    return isinstance(preference, dict) and preference.get("kind") == "reward"


def _automatic(run: RunSpec) -> dict[str, Any]:
    """The recipe for a run's model, and for its tokens and batch if it gives them."""
    training, resolved = run.training, run.resolved()
    stage = resolved.growth.stage(resolved.steps)
    has_batch = training.steps is not None or {"batch_size", "gradient_accumulation"} & training.model_fields_set
    has_length = training.steps is not None or training.tokens is not None
    tokens = resolved.growth.tokens(0, resolved.steps) if has_length else None
    step_tokens = stage.step_tokens if has_batch else None
    share = 1.0
    if run.start_from is not None:
        preference = training.preference
        share = PREFERENCE_SHARE if preference is not None and preference.has_reference else FINE_TUNING_SHARE
    return automatic(run.model, stage.context_length, tokens, step_tokens, share)


def _chosen(run: RunSpec) -> str:
    """What the recipe `auto` and the fields beside it make of a run, in one line."""
    training = run.resolved().training
    optimizer, schedule = training.optimizer, training.schedule
    preference = training.preference
    pairs = " on pairs of answers" if preference is not None and preference.has_reference else ""
    fine_tuning = "" if run.start_from is None else f" (of fine-tuning{pairs})"
    accumulation = "" if training.gradient_accumulation == 1 else f"{training.gradient_accumulation} x "
    return (
        f"recipe {AUTO}: {optimizer.kind}, learning rate {optimizer.lr:g}{fine_tuning}, {training.steps:,} steps of"
        f" {accumulation}{training.batch_size} x {training.context_length} tokens, {schedule.warmup_steps:,} of them"
        f" warm-up, then {schedule.kind} to {schedule.final_fraction * optimizer.lr:g}"
    )
