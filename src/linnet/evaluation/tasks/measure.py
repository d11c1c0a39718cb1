"""Asking a model the items of tasks, and the scores that come of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from linnet.evaluation.statistics import Estimate, Floats, mean, mean_of, p_value_against_chance
from linnet.evaluation.tasks.baselines import baselines
from linnet.evaluation.tasks.encoding import encode_pairs
from linnet.evaluation.tasks.items import ScoreName
from linnet.evaluation.tasks.scorer import Advance, LoglikelihoodResult, LoglikelihoodScorer
from linnet.evaluation.tasks.streams import StateFactory
from linnet.evaluation.tasks.suite import Suite, SuiteTask
from linnet.inference.language_model import LanguageModel
from linnet.present.progress import progress

ONE_RIGHT: tuple[ScoreName, ...] = ("acc", "acc_norm", "acc_bytes")
"""The scores of items of which one choice is right."""


@dataclass(frozen=True)
class TaskResult:
    """What a model reached: the score of each item, what guessing gives of it, and the plain ways of choosing.

    values_N, chances_N: float64 `[N]`. also: means of the other scores. baselines: see `baselines.baselines`.
    """

    task: SuiteTask
    values_N: Floats
    also: dict[str, float]

    @cached_property
    def mean(self) -> Estimate:
        """The score, with its standard error over the items."""
        return mean(self.values_N)

    @cached_property
    def chances_N(self) -> Floats | None:
        """What guessing gives of each item; None where there are no choices to guess among."""
        if not all(item.labels for item in self.task.items):
            return None
        return np.array([item.chance for item in self.task.items])

    @property
    def chance(self) -> float | None:
        """What guessing gives."""
        return None if self.chances_N is None else float(self.chances_N.mean())

    @cached_property
    def p_value(self) -> float | None:
        """Of no more and no less than chance (`statistics.p_value_against_chance`); not corrected for several tasks."""
        return None if self.chances_N is None else p_value_against_chance(self.values_N, self.chances_N)

    @cached_property
    def baselines(self) -> dict[str, float]:
        """The scores of choices made without reading the question; none where there are no choices."""
        return {} if self.chances_N is None else baselines(self.task.items)

    def of_items(self, keep_N: NDArray[np.bool_]) -> "TaskResult | None":
        """The same of some of its items; None where none is left. The other scores are left out."""
        if not keep_N.any():
            return None
        items = [item for item, kept in zip(self.task.items, keep_N, strict=True) if kept]
        return TaskResult(replace(self.task, items=items), self.values_N[keep_N], {})


@dataclass(frozen=True)
class AveragedScore:
    """A mean of scores of tasks, each counting alike. chance: the mean of theirs; None where one is not known."""

    name: str
    mean: Estimate
    chance: float | None
    items: int


@dataclass(frozen=True)
class SuiteResult:
    """What a model reached in the tasks of a suite."""

    model: str
    suite: Suite
    tasks: Sequence[TaskResult]

    def average(self, name: str) -> AveragedScore:
        """One of the suite's averages."""
        tasks = [task for task in self.tasks if task.task.name in self.suite.averages[name]]
        chances = [task.chance for task in tasks if task.chance is not None]
        chance = sum(chances) / len(tasks) if len(chances) == len(tasks) else None
        return AveragedScore(name, mean_of([task.mean for task in tasks]), chance, sum(t.mean.count for t in tasks))

    @property
    def averages(self) -> list[AveragedScore]:
        """All of the suite's averages."""
        return [self.average(name) for name in self.suite.averages]


def streams_of(model: LanguageModel) -> StateFactory:
    """StateFactory of a model; one that is not causal by itself has the operator of the empty prompt, the end token."""
    return StateFactory(model.decoder, torch.tensor([[model.tokenizer.end_id]]))


def measure_suite(model: LanguageModel, name: str, suite: Suite, fork: bool = True) -> SuiteResult:
    """Ask a model all items; `name` is what the results call it. `fork`: see `scorer.LoglikelihoodScorer`."""
    scorer = LoglikelihoodScorer(streams_of(model), fork)
    total = sum(len(item.pairs) for task in suite.tasks for item in task.items)
    with progress(f"{name}: {suite.name}", total, "choices") as advance:
        found = [measure_task(model, scorer, task, advance) for task in suite.tasks]
    return SuiteResult(name, suite, found)


def measure_task(
    model: LanguageModel, scorer: LoglikelihoodScorer, task: SuiteTask, advance: Advance = lambda _: None
) -> TaskResult:
    """Ask a model the items of one task."""
    requests = encode_pairs(model.tokenizer, [pair for item in task.items for pair in item.pairs])
    return result_of(task, scorer.score(requests, advance))


def result_of(task: SuiteTask, scored: Sequence[LoglikelihoodResult]) -> TaskResult:
    """From the scores of all choices of all items, one after the other."""
    likelihoods, start = [], 0
    for item in task.items:
        likelihoods.append([one.log_likelihood for one in scored[start : start + len(item.pairs)]])
        start += len(item.pairs)
    one_right = all(sum(item.labels) == 1 for item in task.items)
    others = [name for name in ONE_RIGHT if one_right and name != task.score]
    values = {
        name: np.array([item.score(name, found) for item, found in zip(task.items, likelihoods, strict=True)])
        for name in (task.score, *others)
    }
    return TaskResult(task, values[task.score], {name: float(values[name].mean()) for name in others})
