"""What the LM Evaluation Harness logged of each item, in the form that suites have: items, scores, chance.

Legend: `N` items of a task.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from linnet.evaluation.tasks.items import TaskItem, one_hot
from linnet.evaluation.tasks.measure import SuiteResult, TaskResult
from linnet.evaluation.tasks.rows import plain_row
from linnet.evaluation.tasks.suite import Suite, SuiteTask

NAME = "LM Evaluation Harness"
CLOSE = 1e-9
"""A measure whose items' mean is so near the harness's own figure is that mean."""

Sample = dict[str, Any]


def result_of_harness(model: str, found: dict[str, Any]) -> SuiteResult:
    """Of each task its first measure that is a mean over items; tasks that have none are left out."""
    tasks = []
    for name, samples in found["samples"].items():
        result = _task(name, samples, found["results"][name], found["configs"][name])
        if result is not None:
            tasks.append(result)
    return SuiteResult(model, Suite(NAME, [task.task for task in tasks], {}), tasks)


def _task(name: str, samples: Sequence[Sample], figures: dict[str, Any], config: dict[str, Any]) -> TaskResult | None:
    """By the first filter of the answers, in the order of the items."""
    if not samples:
        return None
    kind = samples[0]["filter"]
    samples = sorted((one for one in samples if one["filter"] == kind), key=lambda one: int(one["doc_id"]))
    values = {measure: _values(samples, measure, figures.get(f"{measure},{kind}")) for measure in samples[0]["metrics"]}
    means = {measure: found for measure, found in values.items() if found is not None}
    if not means:
        return None
    score, *others = means
    chooses = config["output_type"] == "multiple_choice"
    items = [_item(name, sample, chooses, bool(np.isin(means[score], (0, 1)).all())) for sample in samples]
    also = {measure: float(means[measure].mean()) for measure in others}
    return TaskResult(SuiteTask(name, score, items, int(config.get("num_fewshot") or 0)), means[score], also)


def _values(samples: Sequence[Sample], measure: str, figure: object) -> Any:
    """The measure of each item, float64 `[N]`; None where the harness's figure is not their mean."""
    try:
        values_N = np.array([float(sample[measure]) for sample in samples])
    except (KeyError, TypeError, ValueError):
        return None
    known = isinstance(figure, int | float | np.number) and abs(values_N.mean() - float(figure)) < CLOSE
    return values_N if known else None


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
        plain = plain_row(task, sample["doc"])
        labels = plain["labels"] if "labels" in plain else one_hot(plain["gold"], count)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return labels if len(labels) == count and any(labels) else None
