"""What can be believed of scores: which are chance, and which models differ."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linnet.evaluation.statistics import SIGNIFICANT, Estimate, holm_correction, mean_of, paired_difference
from linnet.evaluation.tasks.measure import SuiteResult, TaskResult

NO_CHANCE_LEVEL = "no chance known"
CHANCE = "not distinguishable from chance"
PLAIN = {"longest": "taking the longest", "shortest": "taking the shortest", "letter": "the commonest letter"}


def verdicts(tasks: Sequence[TaskResult]) -> list[tuple[float | None, str]]:
    """Of each task the p-value against guessing, corrected for their number (Holm), and a verdict in words.

    A score above chance that a plain way of choosing reaches as well is said to be no better than that.
    """
    corrected = holm_correction([task.p_value for task in tasks])
    return [(p_value, _words(task, p_value)) for task, p_value in zip(tasks, corrected, strict=True)]


def _words(task: TaskResult, p_value: float | None) -> str:
    if lost := int(np.isnan(task.values_N).sum()):
        return f"no score: of {lost:,} of {len(task.values_N):,} items the model gave no number"
    if task.chance is None:
        return NO_CHANCE_LEVEL
    if p_value is None or p_value >= SIGNIFICANT:
        return CHANCE
    if task.mean.value < task.chance:
        return "below chance"
    name, best = max(task.baselines.items(), key=lambda named: named[1])
    return f"above chance, not above {PLAIN[name]}" if task.mean.value <= best else "above chance"


@dataclass(frozen=True)
class ScoreDifference:
    """Of one task or average: the difference of two models, and its p-value corrected for the number of tasks."""

    name: str
    difference: Estimate
    corrected: float | None

    @property
    def verdict(self) -> str:
        """In words."""
        if not math.isfinite(self.difference.value):
            return "no score of one"
        if self.corrected is None or self.corrected >= SIGNIFICANT:
            return "no difference shown"
        return "better" if self.difference.value > 0 else "worse"


def compared(first: SuiteResult, second: SuiteResult) -> list[ScoreDifference]:
    """`second - first`, task by task on the same items, then the averages, which are not corrected for."""
    differences = [paired_difference(a.values_N, b.values_N) for a, b in zip(first.tasks, second.tasks, strict=True)]
    corrected = holm_correction([difference.p_value() for difference in differences])
    names = [task.task.name for task in first.tasks]
    found = [ScoreDifference(*row) for row in zip(names, differences, corrected, strict=True)]
    by_name = dict(zip(names, differences, strict=True))
    for average, of in first.suite.averages.items():
        mean = mean_of([by_name[name] for name in of])
        found.append(ScoreDifference(average, mean, mean.p_value()))
    return found
