"""Measuring models beside their likelihood: tasks, abilities, what they write, and how fast."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linnet.core.files import json_safe
from linnet.evaluation.abilities.measure import AbilityResult, above_chance, measure_all
from linnet.evaluation.models import ModelOptions
from linnet.evaluation.statistics import Estimate
from linnet.evaluation.tasks.measure import measure_suite
from linnet.evaluation.tasks.results import SuiteResult, verdicts
from linnet.experiments.demo.measure import DECODE_RUNS, decode_speeds, describe_machine, write_story
from linnet.experiments.side_by_side.record import AbilityScore, Beside, DecodingSpeed, TaskScore, WrittenText
from linnet.experiments.side_by_side.wanted import Wanted, WantedAbilities, WantedSamples, WantedSpeed
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling


def measure_beside(folders: Mapping[str, Path], wanted: Wanted, read: ModelOptions) -> dict[str, Beside]:
    """Of each model folder, or run's, by the name that the page calls it; `UserError` for questions that are missing.

    The models are read together: their speeds are measured in turns, so that what else the machine does meets all.
    read: with which calibrations, and in which precision.
    """
    models = {name: read.load(folder) for name, folder in folders.items()}
    suite = None if wanted.tasks is None else wanted.tasks.load()
    speeds = [None] * len(models) if wanted.speed is None else _speeds([*models.values()], wanted.speed, read.precision)
    return {
        name: Beside(
            decoding=speed,
            tasks=[] if suite is None else task_scores(measure_suite(model, name, suite)),
            abilities=[] if wanted.abilities is None else _abilities(model, name, wanted.abilities),
            samples=[] if wanted.samples is None else _samples(model, wanted.samples),
        )
        for (name, model), speed in zip(models.items(), speeds, strict=True)
    }


def task_scores(result: SuiteResult) -> list[TaskScore]:
    """The tasks of a suite, whose items are choices, with their verdicts; then its averages."""
    scores = [
        _task_score(task.task.name, task.mean, task.chance, task.mean.count, verdict=verdict)
        for task, (_, verdict) in zip(result.tasks, verdicts(result.tasks), strict=True)
    ]
    return scores + [_task_score(one.name, one.mean, one.chance, one.items, averaged=True) for one in result.averages]


def _task_score(name: str, mean: Estimate, chance: float | None, items: int, **more: Any) -> TaskScore:
    assert chance is not None, name
    value, error = json_safe(mean.value), json_safe(mean.standard_error)
    return TaskScore(task=name, value=value, standard_error=error, chance=chance, items=items, **more)


def _abilities(model: LanguageModel, name: str, wanted: WantedAbilities) -> list[AbilityScore]:
    found = measure_all(model, wanted.load(), wanted.items, wanted.seed, f"{name}: abilities")
    return [_ability_score(one, above) for one, above in zip(found, above_chance(found), strict=True)]


def _ability_score(found: AbilityResult, above_chance: bool) -> AbilityScore:
    said, chance, score = found.ability.label, found.ability.chance.answer, found.score
    if score is None:
        return AbilityScore(ability=said, chance=chance, missing=found.missing)
    return AbilityScore(
        ability=said,
        chance=chance,
        items=score.items,
        right=score.accuracy,
        standard_error=score.standard_error,
        above_chance=above_chance,
    )


def _samples(model: LanguageModel, wanted: WantedSamples) -> list[WrittenText]:
    stories = [write_story(model, prompt, wanted.sampling, wanted.tokens) for prompt in wanted.prompts]
    return [WrittenText(prompt=one.prompt, text=one.continuation, complete=one.complete) for one in stories]


def _speeds(models: Sequence[LanguageModel], wanted: WantedSpeed, precision: str | None) -> list[DecodingSpeed]:
    machine = describe_machine(models[0].decoder.device, "float32")
    machine |= {} if precision is None else {"precision": precision}
    room = min(model.spec.context_length for model in models) - 2  # learned positions end there
    tokens = max(1, min(wanted.tokens, room))
    speeds = decode_speeds(models, "", Sampling(seed=0), tokens)
    return [DecodingSpeed(tokens_per_s=one, runs=DECODE_RUNS, tokens=tokens, machine=machine) for one in speeds]
