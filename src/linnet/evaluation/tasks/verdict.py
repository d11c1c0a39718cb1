"""What can be believed of scores: which are chance, and which models differ."""

from collections.abc import Sequence
from dataclasses import dataclass

from linnet.evaluation.statistics import holm
from linnet.evaluation.tasks.measure import SuiteResult, TaskResult
from linnet.evaluation.tasks.scores import SIGNIFICANCE, Difference, difference_of, paired_difference

CHANCE = "not distinguishable from chance"
PLAIN = {"longest": "taking the longest", "shortest": "taking the shortest", "letter": "the commonest letter"}


def verdicts(tasks: Sequence[TaskResult]) -> list[tuple[float, str]]:
    """Of each task the probability of so much by guessing, corrected for their number (Holm), and a verdict in words.

    A score above chance that a plain way of choosing reaches as well is said to be no better than that.
    """
    corrected = holm([task.chance_probability for task in tasks])
    return [(probability, _words(task, probability)) for task, probability in zip(tasks, corrected, strict=True)]


def _words(task: TaskResult, probability: float) -> str:
    if not probability < SIGNIFICANCE:
        return CHANCE
    if task.value < task.chance:
        return "below chance"
    name, best = max(task.baselines.items(), key=lambda named: named[1])
    return f"above chance, not above {PLAIN[name]}" if task.value <= best else "above chance"


@dataclass(frozen=True)
class ComparedScores:
    """Of one task or average: the difference of two models, and its probability corrected for the number of tasks."""

    name: str
    difference: Difference
    corrected: float

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.corrected < SIGNIFICANCE:
            return "no difference shown"
        return "better" if self.difference.value > 0 else "worse"


def compared(first: SuiteResult, second: SuiteResult) -> list[ComparedScores]:
    """`second - first`, task by task on the same items, then the averages, which are not corrected for."""
    differences = [paired_difference(b.values_N, a.values_N) for a, b in zip(first.tasks, second.tasks, strict=True)]
    corrected = holm([difference.probability for difference in differences])
    names = [task.task.name for task in first.tasks]
    found = [ComparedScores(*row) for row in zip(names, differences, corrected, strict=True)]
    by_name = dict(zip(names, differences, strict=True))
    for average, of in first.suite.averages.items():
        mean = mean_difference([by_name[name] for name in of])
        found.append(ComparedScores(average, mean, mean.probability))
    return found


def mean_difference(differences: Sequence[Difference]) -> Difference:
    """The mean of differences of tasks that share no items."""
    errors = [each.standard_error for each in differences if each.standard_error is not None]
    value = sum(each.value for each in differences) / len(differences)
    known = len(errors) == len(differences)
    return difference_of(value, sum(error**2 for error in errors) ** 0.5 / len(differences) if known else None)
