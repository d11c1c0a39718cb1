"""What the LM Evaluation Harness logged of each item, in the form that suites have: items, scores, chance.

Legend: `N` items of a task.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from linnet.evaluation.statistics import Floats
from linnet.evaluation.tasks.items import TaskItem, one_hot
from linnet.evaluation.tasks.measure import SuiteResult, TaskResult
from linnet.evaluation.tasks.rows import normalize_row
from linnet.evaluation.tasks.suite import Suite, SuiteTask

NAME = "LM Evaluation Harness"
CLOSE = 1e-9
"""A measure whose items' mean is so near the harness's own figure is that mean."""

CHOICE = "multiple_choice"
"""The kind of the harness's tasks whose items have choices."""

Sample = dict[str, Any]


def results_of_harness(models: Sequence[str], found: Sequence[dict[str, Any]]) -> list[SuiteResult]:
    """Of each model each task's first measure that is a mean over items; tasks that have none are left out.

    Measure and labels are decided once, by what all models came to: they are compared item by item, and one that gives
    no numbers is told with the others.
    """
    by_task = [_results(name, [one["samples"][name] for one in found], found) for name in found[0]["samples"]]
    known = [results for results in by_task if results]
    suite = Suite(NAME, [results[0].task for results in known], {})
    return [SuiteResult(model, suite, [results[n] for results in known]) for n, model in enumerate(models)]


def _results(name: str, logged: Sequence[Sequence[Sample]], found: Sequence[dict[str, Any]]) -> list[TaskResult]:
    """One task: of each model, by the first filter of the answers, in the order of the items."""
    if not logged[0]:
        return []
    kind, measures = logged[0][0]["filter"], logged[0][0]["metrics"]
    samples = [sorted((s for s in own if s["filter"] == kind), key=lambda s: int(s["doc_id"])) for own in logged]
    means: dict[str, list[Floats]] = {}
    for measure in measures:
        values = _values(samples, measure, [one["results"][name].get(f"{measure},{kind}") for one in found])
        means |= {} if values is None else {measure: values}
    if not means:
        return []
    score, *others = means
    config = found[0]["configs"][name]
    every = np.concatenate(means[score])
    one_right, chooses = bool(np.isin(every[~np.isnan(every)], (0, 1)).all()), config["output_type"] == CHOICE
    items = [_item(name, sample, chooses, one_right) for sample in samples[0]]
    task = SuiteTask(name, score, items, int(config.get("num_fewshot") or 0))
    also = [{measure: float(means[measure][n].mean()) for measure in others} for n in range(len(found))]
    return [TaskResult(task, values_N, rest) for values_N, rest in zip(means[score], also, strict=True)]


def _values(samples: Sequence[Sequence[Sample]], measure: str, figures: Sequence[object]) -> list[Floats] | None:
    """The measure of each item, float64 `[N]`, of each model; None where the harness's figures are not their means."""
    try:
        values = [np.array([float(sample[measure]) for sample in own]) for own in samples]
    except (KeyError, TypeError, ValueError):
        return None
    are_means = [_is_mean(values_N, figure) for values_N, figure in zip(values, figures, strict=True)]
    return values if all(are_means) else None


def _is_mean(values_N: Floats, figure: object) -> bool:
    """Of what are no numbers the mean is none."""
    if not isinstance(figure, int | float | np.number):
        return False
    return bool(np.isclose(values_N.mean(), float(figure), rtol=0, atol=CLOSE, equal_nan=True))


def _item(task: str, sample: Sample, chooses: bool, one_right: bool) -> TaskItem:
    """With labels where it is known which choices are right; without choices elsewhere."""
    pairs = [(str(context), str(continuation)) for context, continuation, *_ in _asked(sample)] if chooses else []
    contexts, continuations = [before for before, _ in pairs], [after.strip() for _, after in pairs]
    labels = _labels(task, sample, continuations, one_right) if pairs else None
    if labels is None:
        return TaskItem.of_answer(str(sample["arguments"][0][0]))
    if len(set(continuations)) == 1 < len(set(contexts)):
        return TaskItem.of_contexts(contexts, continuations[0], labels)
    return TaskItem.of_choices(contexts[0], continuations, labels)


def _asked(sample: Sample) -> Sequence[Any]:
    """Without the choices alone, which a measure of mutual information asks for behind all others."""
    asked: Sequence[Any] = sample["arguments"]
    return asked[: len(asked) // 2] if "acc_mutual_info" in sample["metrics"] else asked


def _labels(task: str, sample: Sample, choices: Sequence[str], one_right: bool) -> list[int] | None:
    """1 for each right choice: the target's, or what the rows of a set that is known say; None: not known."""
    target, count = sample["target"], len(choices)
    if one_right and isinstance(target, str) and choices.count(target.strip()) == 1:
        target = choices.index(target.strip())
    if one_right and isinstance(target, int) and 0 <= target < count:
        return one_hot(target, count)
    try:
        plain = normalize_row(task, sample["doc"])
        labels = plain["labels"] if "labels" in plain else one_hot(plain["gold"], count)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return labels if len(labels) == count and any(labels) else None
