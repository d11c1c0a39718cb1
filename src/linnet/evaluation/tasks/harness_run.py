"""Tasks of the LM Evaluation Harness by name: running them, and their results in the form of linnet's suites.

Shapes: `N` items of a task.
"""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linnet.core.errors import UserError, did_you_mean
from linnet.core.files import json_safe
from linnet.evaluation.models import ModelOptions
from linnet.evaluation.statistics import Floats
from linnet.evaluation.tasks.items import TaskItem, normalize_row, one_hot
from linnet.evaluation.tasks.measure import SuiteReport, TaskResult, TaskSuiteResult
from linnet.evaluation.tasks.suite import SuiteTask, TaskSuite
from linnet.present.result import Result
from linnet.present.table import MISSING, Table

SUITE_NAME = "LM Evaluation Harness"

MEAN_TOLERANCE = 1e-9
"""A measure is the mean over items if the items' mean is this close to the harness's figure."""

MULTIPLE_CHOICE = "multiple_choice"
"""The harness's output type of tasks whose items have choices."""

STANDARD_ERROR = 2
"""File descriptor of standard error, which started programs write to."""

RESAMPLES = 100
"""Bootstrap samples for the errors of measures that are not means; errors of means are computed exactly."""

Sample = dict[str, Any]


@dataclass(frozen=True)
class HarnessReport(Result):
    """For each model the harness's figures for each task: its measures by name (`acc,none`), with their errors.

    items: numbers of items. scores: for each model the first measure of each task, item by item; the other models are
    compared with the first.
    """

    models: Sequence[str]
    results: Sequence[dict[str, dict[str, Any]]]
    items: Sequence[dict[str, int]]
    scores: Sequence[TaskSuiteResult]

    def tables(self) -> list[Table]:
        """The tables of a suite, then for each model a row for each measure of each task, as the harness names them."""
        tables = SuiteReport(self.scores).tables() if self.scores[0].tasks else []
        for model, results, items in zip(self.models, self.results, self.items, strict=True):
            rows = []
            for task, measures in results.items():
                for measure, value in _figures(measures).items():
                    if "_stderr," not in measure and isinstance(value, float):
                        error = measures.get(measure.replace(",", "_stderr,", 1))
                        shown = f"{error:.4f}" if isinstance(error, float) else MISSING
                        count = str(items.get(task, MISSING))
                        rows.append((task, measure.removesuffix(",none"), f"{value:.4f}", shown, count))
            columns = ("task", "measure", "value", "±", "items")
            tables.append(Table(f"{model}: all measures, as the harness names them", columns, rows))
        return tables

    def to_dict(self) -> dict[str, Any]:
        scores = SuiteReport(self.scores).to_dict()
        models = [
            {
                "model": score["model"],
                "tasks": {task: _figures(measures) for task, measures in results.items()},
                "items": items,
                "scores": score["tasks"],
            }
            for results, items, score in zip(self.results, self.items, scores["models"], strict=True)
        ]
        return {"models": models, "differences": scores["differences"]}


def _figures(measures: dict[str, Any]) -> dict[str, Any]:
    """Numbers by measure; None for what is not finite or not a number."""
    return {
        name: json_safe(float(value)) if isinstance(value, int | float | np.generic) else None
        for name, value in measures.items()
        if name not in ("alias", "sample_len", "name")
    }


def evaluate_harness(
    models: Sequence[str | Path],
    tasks: Sequence[str],
    *,
    shots: int | None = None,
    limit: int | None = None,
    device: str = "auto",
    precision: str | None = None,
    calibration: str | None = None,
    seed: int = 0,
    task_folder: str | Path | None = None,
) -> HarnessReport:
    """Measure model folders, or runs, on tasks of the `lm_eval` package, which loads their data itself.

    tasks: names that the package knows, or that YAML files in `task_folder` define. shots, limit: as in the harness;
    None: each task's own number of examples, all items. calibration, seed: what replaces the model's own calibration.
    `UserError` if the package is not installed, for unknown names, and for data that cannot be loaded.
    """
    manager = _task_manager(tasks, task_folder)
    options = ModelOptions(None, device, calibration, precision, seed)
    found = [_run(options.load(name), tasks, manager, shots, limit) for name in models]
    items = [{task: int(count["effective"]) for task, count in one["n-samples"].items()} for one in found]
    names = [str(name) for name in models]
    return HarnessReport(names, [one["results"] for one in found], items, results_of_harness(names, found))


def _task_manager(tasks: Sequence[str], folder: str | Path | None) -> Any:
    """A task manager that knows all of the tasks.

    Only the files of the folder are read if they suffice, because the package's own are thousands.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        problem = f"need lm_eval: pip install 'linnet[tasks]' ({error})"
        raise UserError(f"the harness's tasks {problem}; `suite` and `task_file` do not") from None
    include = None if folder is None else str(folder)
    manager = TaskManager(include_path=include, include_defaults=False)
    if not set(manager.all_tasks).issuperset(tasks):
        manager = TaskManager(include_path=include)
    for task in tasks:
        if task not in manager.all_tasks:
            problem = did_you_mean(task, manager.all_tasks, "the harness has no such task")
            raise UserError(problem, field="tasks", value=task)
    return manager


def _run(model: Any, tasks: Sequence[str], manager: Any, shots: int | None, limit: int | None) -> dict[str, Any]:
    import lm_eval

    from linnet.evaluation.tasks.harness import HarnessModel

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        with quiet():
            found = lm_eval.simple_evaluate(
                HarnessModel(model),
                tasks=list(tasks),
                num_fewshot=shots,
                limit=limit,
                task_manager=manager,
                log_samples=True,
                bootstrap_iters=RESAMPLES,
                verbosity="ERROR",
            )
        return dict(found)
    except (OSError, ConnectionError) as error:
        raise UserError(f"the data is missing and cannot be loaded ({error})", field="tasks") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Discard standard error, also of started programs, unless it is a terminal; errors are still raised.

    The harness writes progress bars, and asks git for a commit, which complains if there is none.
    """
    if sys.stderr.isatty():
        yield
        return
    sys.stderr.flush()
    saved = os.dup(STANDARD_ERROR)
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
            os.dup2(nowhere.fileno(), STANDARD_ERROR)
            yield
    finally:
        os.dup2(saved, STANDARD_ERROR)
        os.close(saved)


def results_of_harness(models: Sequence[str], found: Sequence[dict[str, Any]]) -> list[TaskSuiteResult]:
    """For each model, each task's first measure that is a mean over items; tasks without one are left out.

    Measure and labels are selected from the results of all models together, because they are compared item by item; a
    model without numbers is reported with the others.
    """
    by_task = [_task_results(name, [one["samples"][name] for one in found], found) for name in found[0]["samples"]]
    known = [results for results in by_task if results]
    suite = TaskSuite(SUITE_NAME, [results[0].task for results in known], {})
    return [TaskSuiteResult(model, suite, [results[n] for results in known]) for n, model in enumerate(models)]


def _task_results(name: str, logged: Sequence[Sequence[Sample]], found: Sequence[dict[str, Any]]) -> list[TaskResult]:
    """One task: the result of each model, by the first answer filter, in the order of the items."""
    if not logged[0]:
        return []
    kind, measures = logged[0][0]["filter"], logged[0][0]["metrics"]
    samples = [sorted((s for s in own if s["filter"] == kind), key=lambda s: int(s["doc_id"])) for own in logged]
    means: dict[str, list[Floats]] = {}
    for measure in measures:
        values = _item_values(samples, measure, [one["results"][name].get(f"{measure},{kind}") for one in found])
        means |= {} if values is None else {measure: values}
    if not means:
        return []
    score, *others = means
    config = found[0]["configs"][name]
    every = np.concatenate(means[score])
    one_right = bool(np.isin(every[~np.isnan(every)], (0, 1)).all())
    chooses = config["output_type"] == MULTIPLE_CHOICE
    items = [_item(name, sample, chooses, one_right) for sample in samples[0]]
    task = SuiteTask(name, score, items, int(config.get("num_fewshot") or 0))
    other_scores = [{measure: float(means[measure][n].mean()) for measure in others} for n in range(len(found))]
    return [TaskResult(task, values_N, rest) for values_N, rest in zip(means[score], other_scores, strict=True)]


def _item_values(samples: Sequence[Sequence[Sample]], measure: str, figures: Sequence[object]) -> list[Floats] | None:
    """The measure of each item, float64 `[N]`, of each model; None if the harness's figures are not their means."""
    try:
        values = [np.array([float(sample[measure]) for sample in own]) for own in samples]
    except (KeyError, TypeError, ValueError):
        return None
    for values_N, figure in zip(values, figures, strict=True):
        if not isinstance(figure, int | float | np.number):
            return None
        if not np.isclose(values_N.mean(), float(figure), rtol=0, atol=MEAN_TOLERANCE, equal_nan=True):
            return None
    return values


def _item(task: str, sample: Sample, chooses: bool, one_right: bool) -> TaskItem:
    """With labels if it is known which choices are right; otherwise without choices."""
    requests: Sequence[Any] = sample["arguments"]
    if "acc_mutual_info" in sample["metrics"]:  # its second half asks for the choices without their contexts
        requests = requests[: len(requests) // 2]
    pairs = [(str(context), str(continuation)) for context, continuation, *_ in requests] if chooses else []
    contexts, continuations = [before for before, _ in pairs], [after.strip() for _, after in pairs]
    labels = _labels(task, sample, continuations, one_right) if pairs else None
    if labels is None:
        context = str(sample["arguments"][0][0])
        return TaskItem(((context, ""),), (), (), (), (context,))
    if len(set(continuations)) == 1 < len(set(contexts)):
        return TaskItem.of_contexts(contexts, continuations[0], labels)
    return TaskItem.of_choices(contexts[0], continuations, labels)


def _labels(task: str, sample: Sample, choices: Sequence[str], one_right: bool) -> list[int] | None:
    """1 for each right choice: from the target, or from the row of a known data set; None if unknown."""
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
