"""The measures of a suite: what can be measured of a trained model, the settings of each, and the records it leaves.

`bits per byte` is always measured; everything else is asked for in the section `measures` of a suite's file.
"""

import os
import platform
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, Self

import psutil
import torch
from pydantic import Field, model_validator

from linnet import __version__
from linnet.core.bounds import MAX_NGRAM_ORDER, MAX_TASK_SHOTS
from linnet.core.errors import UserError, did_you_mean
from linnet.core.files import json_safe
from linnet.core.spec import Count, Seed, Spec, read_yaml
from linnet.core.system import processor_name
from linnet.data.prompts import ChatPrompt
from linnet.evaluation.abilities.contract import Ability
from linnet.evaluation.abilities.measure import above_chance, measure_all
from linnet.evaluation.abilities.suite import default_abilities as ability_suite
from linnet.evaluation.abilities.suite import read_abilities
from linnet.evaluation.instructions.measure import answer_prompts, default_prompts, load_prompts
from linnet.evaluation.instructions.report import InstructionReport
from linnet.evaluation.tasks.measure import TaskSuiteResult, measure_suite, verdicts
from linnet.evaluation.tasks.suite import TaskSuite, load_tasks, suite_spec
from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.decode import decode
from linnet.inference.language_model import LanguageModel
from linnet.inference.readers import finish_captured_steps
from linnet.inference.sampling import MIN_TEMPERATURE, Sampling
from linnet.inference.step_packages import ordinary_steps
from linnet.layers.registry import inspections
from linnet.model.cost import model_cost
from linnet.model.decoder import meta_decoder
from linnet.model.spec import ModelSpec
from linnet.present import numbers
from linnet.present.progress import progress
from linnet.stories.instructions import KINDS

METRICS = (
    "bits_per_byte", "accuracy", "parameters", "training_tokens", "training_tokens_per_s", "decode_tokens_per_s",
    "decode_100_tokens_ms", "weights_bytes", "state_bytes_1k", "state_bytes_64k", "state_bytes_1M",
)  # fmt: skip
"""Figures that a published column can name, besides tasks and their averages (accuracy and tasks in per cent)."""

NGRAM = "n-gram"
"""The name of a baseline among the runs of a suite."""

CONTEXTS = tuple(1 << power for power in range(10, 21))
"""Lengths of text, in tokens, for which memory is computed: 1k to 1M."""

DECODE_TOKENS, DECODE_RUNS, WARM_UP_TOKENS = 200, 5, 20


class TaskMeasure(Spec):
    """Multiple-choice tasks, as `linnet evaluate` asks them: a `suite` with its `files`, or a `task_file`."""

    suite: str | None = None
    files: str | None = None
    task_file: str | None = None
    shots: int | None = Field(None, ge=0, le=MAX_TASK_SHOTS)
    limit: Count | None = None

    def load(self) -> TaskSuite:
        """The tasks; `UserError` for files that cannot be read and for a task with the name of another figure."""
        found = load_tasks(self.suite, self.files, self.task_file, self.shots, self.limit)
        for name in found.names:
            if name in METRICS:
                raise UserError(f"{name}: is the name of a figure that is not a task; rename the file of the task")
        return found


class AbilityMeasure(Spec):
    """`items` generated questions of each ability: those described in `files`, or the built-in list."""

    items: Count = 200
    files: list[str] = Field(default_factory=list)
    seed: Seed = 0

    def load(self) -> list[Ability]:
        """The abilities; `UserError` for a file that cannot be read."""
        return [ability for file in self.files for ability in read_abilities(file)] or ability_suite()


class InstructionMeasure(Spec):
    """Greedy answers that pass their checkers: prompts of `files`, or `items` of each type and split of the stories.

    types: of the stories; all by default.
    """

    items: Count = 20
    types: tuple[str, ...] = ()
    files: list[str] = Field(default_factory=list)
    seed: Seed = 0

    @model_validator(mode="after")
    def _types_fit(self) -> Self:
        if self.types and self.files:
            raise ValueError(f"types: {', '.join(self.types)}: are of the stories; leave out files")
        check_types(self.types)
        return self

    def load(self) -> list[ChatPrompt]:
        """The prompts; `UserError` for a file that cannot be read."""
        if self.files:
            return load_prompts(self.files, self.items)
        return default_prompts(self.items, self.seed, self.types)


def check_types(types: Sequence[str]) -> None:
    """`ValueError` for a type of instructions that the story world does not have."""
    for name in types:
        if name not in KINDS:
            accepted = f"expected some of {', '.join(KINDS)}"
            raise ValueError(f"types: {did_you_mean(name, KINDS, accepted)}")


class SampleMeasure(Spec):
    """Text that every model writes after the same prompts, sampled with the same seed.

    tokens: the most for each prompt; null: as many as the context has room for.
    """

    prompts: list[str] = Field(default_factory=lambda: [""], min_length=1)
    tokens: Count | None = 100
    temperature: Annotated[float, Field(ge=0)] = 0.8
    top_p: float = Field(1.0, ge=0, le=1)
    seed: Seed = 0


class SpeedMeasure(Spec):
    """Decoding speed of one stream: `tokens` after the prompt in each of five runs, the models taking turns."""

    tokens: Count = 200
    prompt: str = ""
    temperature: Annotated[float, Field(ge=0)] = 0.8
    top_p: float = Field(1.0, ge=0, le=1)
    seed: Seed = 0


class TrainingSpeedMeasure(Spec):
    """Time of a training step, with random weights: medians, the runs taking turns."""


class DecodingSpeedMeasure(Spec):
    """Tokens per second of one decoded stream, with random weights: medians, the runs taking turns."""


class NGramMeasure(Spec):
    """A baseline: an n-gram model of that order, which counts all of the training text."""

    order: int = Field(5, ge=1, le=MAX_NGRAM_ORDER)


class NameRecallMeasure(Spec):
    """How often the right name is the likeliest where a held-out story mentions somebody again (built-in stories)."""

    documents: Count = 300


class ScoreMeasure(Spec):
    """Scores of a task suite, models as rows.

    columns: the task (or average) of the suite under each heading. calibrations: replacements for the calibration of
    models that have some, each a further row: `identity`, `random` (drawn from `seed`), or a file. without_kv_cache:
    adds a row in which every choice is read with its whole context instead of a shared state.
    """

    suite: str
    columns: dict[str, str] = Field(min_length=1)
    calibrations: list[str] = Field(default_factory=list)
    seed: Seed = 0
    without_kv_cache: bool = False

    def check(self) -> None:
        """`UserError` for an unknown suite, or a column that is no task or average of it."""
        suite = suite_spec(self.suite)
        known = [*(task.name for task in suite.tasks), *suite.averages]
        for heading, task in self.columns.items():
            if task not in known:
                accepted = f"expected one of {', '.join(known)}"
                message = "; ".join(part for part in (did_you_mean(task, known, ""), accepted) if part)
                raise UserError(message, field=f"columns.{heading}", value=task)


class OtherModel(Spec):
    """A Transformers model to time against: from a `config` (with `model_type`) and random weights, or a `folder`."""

    name: str = Field(min_length=1)
    config: dict[str, Any] | None = None
    folder: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.config is None) == (self.folder is None):
            raise ValueError("expected one of config, folder")
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError("config.model_type: missing; expected a kind of model that Transformers has, as gpt_neo")
        return self


class CacheTimes(Spec):
    """Time to generate `tokens` after a random prompt, with each cache setting, and that of other models."""

    prompt_tokens: Count = 12
    tokens: Count = 100
    runs: Count = 5
    seed: Seed = 0
    against: list[OtherModel] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [other.name for other in self.against]
        if len(set(names)) < len(names):
            raise ValueError(f"against: {', '.join(names)}: expected each name once")
        return self


class Measures(Spec):
    """What is measured of every model; sections that are left out are not measured.

    likelihood: `full` measures all held-out text after training; `recorded` takes the last evaluation of the training.
    inspections: options of `linnet inspect NAME`, by its name, for inspections that need no data; models without the
    inspected layers are left out. Paths are relative to the working folder.
    """

    likelihood: Literal["full", "recorded"] = "full"
    name_recall: NameRecallMeasure | None = None
    tasks: TaskMeasure | None = None
    abilities: AbilityMeasure | None = None
    instructions: InstructionMeasure | None = None
    samples: SampleMeasure | None = None
    speed: SpeedMeasure | None = None
    training_speed: TrainingSpeedMeasure | None = None
    decoding_speed: DecodingSpeedMeasure | None = None
    ngram: NGramMeasure | None = None
    scores: ScoreMeasure | None = None
    inspections: dict[str, dict[str, Any]] = Field(default_factory=dict)
    cache_times: CacheTimes | None = None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a YAML file with these sections; `UserError` names the field that is wrong."""
        plain = read_yaml(path)
        if not isinstance(plain, dict):
            raise UserError(f"{path}: expected a mapping with some of {', '.join(cls.model_fields)}")
        return cls.parse(plain, str(path))

    def check(self, origin: str) -> None:
        """`UserError` (after `origin`) if a file of questions cannot be read; called before anything takes time."""
        task_files = [] if self.tasks is None else [self.tasks.files, self.tasks.task_file]
        ability_files: list[str | None] = [] if self.abilities is None else [*self.abilities.files]
        prompt_files: list[str | None] = [] if self.instructions is None else [*self.instructions.files]
        for name, section, paths in (
            ("tasks", self.tasks, task_files),
            ("abilities", self.abilities, ability_files),
            ("instructions", self.instructions, prompt_files),
        ):
            if section is None:
                continue
            try:
                section.load()
            except UserError as error:
                relative = [path for path in paths if path is not None and not Path(path).is_absolute()]
                gone = [path for path in relative if not Path(path).exists()]
                where = f"; {gone[0]} is looked for in the working folder, {Path.cwd()}" if gone else ""
                raise UserError(f"{origin}: {name}: {error}{where}") from None
        if self.scores is not None:
            try:
                self.scores.check()
            except UserError as error:
                raise UserError(f"{origin}: scores.{error}") from None
        known = {name: one for name, one in inspections().items() if one.data != "required"}
        for name, options in self.inspections.items():
            if name not in known:
                raise UserError(f"{origin}: inspections.{name}: expected one of {', '.join(known)}")
            known[name].options.parse(options, f"{origin}: inspections.{name}")
        for name, sampled in (("samples", self.samples), ("speed", self.speed)):
            if sampled is not None and 0 < sampled.temperature < MIN_TEMPERATURE:
                raise UserError(f"{origin}: {name}: temperature: {sampled.temperature}: expected 0 or more than 1e-6")


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes needed to decode one stream in float32, exact: weights, and state by tokens of text.

    state_bytes: with every token kept. policy_state_bytes: with each cache policy that the layers bring, by its label.
    """

    weights_bytes: int
    state_bytes: dict[int, int]
    policy_state_bytes: dict[str, dict[int, int]] = field(default_factory=dict)

    @classmethod
    def from_spec(cls, spec: ModelSpec, lengths: Sequence[int] = CONTEXTS) -> "MemoryFigures":
        cost, decoder = model_cost(spec), meta_decoder(spec)
        with_policy: dict[str, dict[int, int]] = defaultdict(dict)
        for kind in {kind for layer in decoder.layers for kind in layer.mixer.cache_policies}:
            for tokens in lengths:
                for policy in kind.comparison(tokens):
                    state = cache_policy_state(decoder, 1, tokens, policy, device=torch.device("meta"))
                    with_policy[policy.label][tokens] = state.nbytes
        full = {tokens: cost.state_bytes(tokens) for tokens in lengths}
        return cls(cost.weights_bytes("float32"), full, dict(sorted(with_policy.items())))

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "MemoryFigures":
        """The figures of a record; records of linnet 0.1 have none of cache policies."""

        def by_tokens(sizes: Mapping[str, int]) -> dict[int, int]:
            return {int(tokens): size for tokens, size in sizes.items()}

        policies = {label: by_tokens(sizes) for label, sizes in plain.get("policy_state_bytes", {}).items()}
        return cls(plain["weights_bytes"], by_tokens(plain["state_bytes"]), policies)

    def total(self, tokens: int) -> int:
        """Weights and state together."""
        return self.weights_bytes + self.state_bytes[tokens]

    def to_dict(self) -> dict[str, Any]:
        def by_text(sizes: Mapping[int, int]) -> dict[str, int]:
            return {str(tokens): size for tokens, size in sizes.items()}

        policies = {label: by_text(sizes) for label, sizes in self.policy_state_bytes.items()}
        state = by_text(self.state_bytes)
        return {"weights_bytes": self.weights_bytes, "state_bytes": state, "policy_state_bytes": policies}


class TaskScore(Spec):
    """Score of a task, or of an average of tasks (`averaged`, without verdict). Shares, not per cent; None if NaN."""

    task: str
    value: float | None
    standard_error: float | None
    chance: float
    items: int
    verdict: str = ""
    averaged: bool = False


class AbilityScore(Spec):
    """Share of whole answers that are right; None if it could not be measured, for the reason in `missing`."""

    ability: str
    chance: float
    items: int = 0
    right: float | None = None
    standard_error: float | None = None
    above_chance: bool = False
    missing: str = ""


class InstructionScore(Spec):
    """Share of the answers of a group of prompts that pass their checkers. chance: None where none can be told."""

    group: str
    followed: float
    standard_error: float | None
    chance: float | None
    items: int
    above_chance: bool = False


class WrittenText(Spec):
    """A prompt and its continuation. complete: the model ended the text itself."""

    prompt: str
    text: str
    complete: bool


class DecodingSpeed(Spec):
    """Tokens per second of one stream: the median of `runs` runs of `tokens` tokens; `machine`: facts by name."""

    tokens_per_s: float
    runs: int
    tokens: int
    machine: dict[str, str]


class ModelMeasures(Spec):
    """Results of the measures that compare finished models. seed: of the training that made the model."""

    seed: int | None = None
    speed: DecodingSpeed | None = None
    tasks: list[TaskScore] = Field(default_factory=list)
    abilities: list[AbilityScore] = Field(default_factory=list)
    instructions: list[InstructionScore] = Field(default_factory=list)
    samples: list[WrittenText] = Field(default_factory=list)


def measure_models(
    models: Mapping[str, LanguageModel], measures: Measures, precision: str | None = None
) -> dict[str, ModelMeasures]:
    """Measure models by name; `UserError` for questions that are missing or do not fit.

    Their speeds are measured in turns, so that other load of the machine affects all of them. precision: what the
    weights were converted to, which is recorded with the speed.
    """
    tasks = None if measures.tasks is None else measures.tasks.load()
    speeds: Sequence[DecodingSpeed | None] = [None] * len(models)
    if (timed := measures.speed) is not None:
        every = list(models.values())
        machine = describe_machine(every[0].decoder.device, "float32")
        machine |= {} if precision is None else {"precision": precision}
        tokens = tokens_with_room(every, timed.prompt, timed.tokens)
        sampled = Sampling(timed.temperature, top_p=timed.top_p, seed=timed.seed)
        found = decode_speeds(every, timed.prompt, sampled, tokens)
        speeds = [DecodingSpeed(tokens_per_s=one, runs=DECODE_RUNS, tokens=tokens, machine=machine) for one in found]
    asked = None if measures.instructions is None else measures.instructions.load()
    prompts, sampling = list[str](), Sampling()
    limit: int | None = None
    if (written := measures.samples) is not None:
        prompts, limit = written.prompts, written.tokens
        sampling = Sampling(written.temperature, top_p=written.top_p, seed=written.seed)
    return {
        name: ModelMeasures(
            speed=speed,
            tasks=[] if tasks is None else task_scores(measure_suite(model, name, tasks)),
            abilities=[] if measures.abilities is None else _ability_scores(model, name, measures.abilities),
            instructions=[] if asked is None else _instruction_scores(model, name, asked),
            samples=[write_text(model, prompt, sampling, limit) for prompt in prompts],
        )
        for (name, model), speed in zip(models.items(), speeds, strict=True)
    }


def task_scores(result: TaskSuiteResult) -> list[TaskScore]:
    """Scores of the tasks, with their verdicts against chance, then of the averages."""
    rows = [
        (one.task.name, one.mean, one.chance, one.mean.count, verdict, False)
        for one, (_, verdict) in zip(result.tasks, verdicts(result.tasks), strict=True)
    ]
    averages = [result.average(name) for name in result.suite.averages]
    rows += [(one.name, one.mean, one.chance, one.items, "", True) for one in averages]
    scores = []
    for name, mean, chance, items, verdict, averaged in rows:
        assert chance is not None, name
        value, error = json_safe(mean.value), json_safe(mean.standard_error)
        about: dict[str, Any] = {"chance": chance, "items": items, "verdict": verdict, "averaged": averaged}
        scores.append(TaskScore(task=name, value=value, standard_error=error, **about))
    return scores


def _ability_scores(model: LanguageModel, name: str, settings: AbilityMeasure) -> list[AbilityScore]:
    measured = measure_all(model, settings.load(), settings.items, settings.seed, f"{name}: abilities")
    scores = []
    for one, above in zip(measured, above_chance(measured), strict=True):
        about: dict[str, Any] = {"ability": one.ability.label, "chance": one.ability.chance.answer}
        if one.score is None:
            scores.append(AbilityScore(**about, missing=one.missing))
        else:
            right = {"right": one.score.accuracy, "standard_error": one.score.standard_error}
            scores.append(AbilityScore(**about, **right, items=one.score.items, above_chance=above))
    return scores


def _instruction_scores(model: LanguageModel, name: str, prompts: Sequence[ChatPrompt]) -> list[InstructionScore]:
    scores = answer_prompts(model, name, prompts)
    return [
        InstructionScore(
            group=group,
            followed=row["followed"],
            standard_error=row["standard_error"],
            chance=row["chance"],
            items=row["prompts"],
            above_chance=row["above_chance"],
        )
        for group, row in InstructionReport(prompts, [scores]).figures(scores).items()
    ]


def write_text(model: LanguageModel, prompt: str, sampling: Sampling, max_tokens: int | None = None) -> WrittenText:
    """Continue the prompt for as long as the context allows, for at most `max_tokens` tokens."""
    limit = max(1, model.spec.context_length - len(model.prompt_tokens(prompt)))
    limit = limit if max_tokens is None else min(limit, max_tokens)
    continuation = model.stream(prompt, limit, sampling)
    with ordinary_steps():  # one compiled in the background would take processors from what is measured next
        text = "".join(continuation)
    return WrittenText(prompt=prompt, text=text, complete=continuation.figures.tokens < limit)


def tokens_with_room(models: Sequence[LanguageModel], prompt: str, tokens: int = DECODE_TOKENS) -> int:
    """How many of `tokens` all models have room for behind the prompt: learned positions end at the context length."""
    room = min(model.spec.context_length - len(model.prompt_tokens(prompt)) - 1 for model in models)
    return max(1, min(tokens, room))


def decode_speeds(
    models: Sequence[LanguageModel], prompt: str, sampling: Sampling, tokens: int = DECODE_TOKENS
) -> list[float]:
    """Tokens per second of each model while it continues the prompt as one stream: the median of several runs.

    The models take turns, so that other load of the machine affects all of them. The pass over the prompt is not
    counted. Steps that can be compiled are compiled first: the speed is that behind the first minute.
    """
    speeds: list[list[float]] = [[] for _ in models]
    with progress("preparing decoding steps", len(models), "models") as advance:
        for model in models:
            _tokens_per_s(model, prompt, sampling, min(WARM_UP_TOKENS, tokens))
            finish_captured_steps(model.decoder)
            _tokens_per_s(model, prompt, sampling, min(WARM_UP_TOKENS, tokens))
            advance(1)
    with progress("decode speed", DECODE_RUNS * len(models), "runs") as advance:
        for _ in range(DECODE_RUNS):
            for model, own in zip(models, speeds, strict=True):
                own.append(_tokens_per_s(model, prompt, sampling, tokens))
                advance(1)
    return [median(own) for own in speeds]


def _tokens_per_s(model: LanguageModel, prompt: str, sampling: Sampling, tokens: int) -> float:
    steps = decode(model.decoder, [model.prompt_tokens(prompt)], tokens + 1, sampling)
    next(steps)  # the prompt, and the first token after it
    start_s = time.perf_counter()
    made = sum(1 for _ in steps)
    assert made == tokens
    return tokens / (time.perf_counter() - start_s)


def describe_machine(device: torch.device, precision: str) -> dict[str, str]:
    """Facts about this machine by name. precision: of the products in training."""
    facts = {
        "processor": processor_name(),
        "cores": f"{os.cpu_count()}, of which PyTorch uses {torch.get_num_threads()}",
        "memory": numbers.binary(psutil.virtual_memory().total),
    }
    if device.type == "cuda":
        facts["GPU"] = torch.cuda.get_device_name(device)
    return facts | {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "precision": precision if precision == "float32" else f"{precision} products in training, else float32",
        "linnet": __version__,
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
    }
