"""Tasks of the LM Evaluation Harness by name: running them, and their results in the form of linnet's suites.

Shapes: `N` items of a task.
"""

import logging
import os
import random
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import numpy as np

from linnet.core.errors import UserError, did_you_mean, note
from linnet.core.files import json_safe
from linnet.evaluation.models import ModelOptions
from linnet.evaluation.statistics import Floats
from linnet.evaluation.tasks.items import TaskItem, normalize_row, one_hot
from linnet.evaluation.tasks.measure import SuiteReport, TaskResult, TaskSuiteResult
from linnet.evaluation.tasks.suite import SuiteTask, TaskSuite
from linnet.inference.language_model import LanguageModel
from linnet.present.result import Result
from linnet.present.table import MISSING, Table

SUITE_NAME = "LM Evaluation Harness"

MEAN_TOLERANCE = 1e-9
"""A measure is the mean over items if the items' mean is this close to the harness's figure."""

MULTIPLE_CHOICE = "multiple_choice"
"""The harness's output type of tasks whose items have choices."""

STANDARD_ERROR = 2
"""File descriptor of standard error, which started programs write to."""

FEW_SHOT_SEED = 1234
"""The harness's own seed for drawing examples, and for NumPy."""

ASKED_ITSELF = ", which is asked itself"

MAX_LOGGED = 100
"""Errors that the harness logs before it raises another one without their cause."""

RESAMPLES = 100
"""Bootstrap samples for the errors of measures that are not means; errors of means are computed exactly."""

Sample = dict[str, Any]


@dataclass(frozen=True)
class HarnessReport(Result):
    """For each model the harness's figures for each task: its measures by name (`acc,none`), with their errors.

    items: numbers of items. scores: for each model the first measure of each task, item by item; the other models are
    compared with the first. remarks: for each model and task, items that were not asked as the harness says.
    """

    models: Sequence[str]
    results: Sequence[dict[str, dict[str, Any]]]
    items: Sequence[dict[str, int]]
    scores: Sequence[TaskSuiteResult]
    remarks: Sequence[dict[str, list[str]]]

    def tables(self) -> list[Table]:
        """The tables of a suite, then for each model a row for each measure of each task, as the harness names them."""
        tables = SuiteReport(self.scores).tables() if self.scores[0].tasks else []
        figures = zip(self.models, self.results, self.items, self.remarks, strict=True)
        for model, results, items, remarks in figures:
            rows = []
            for task, measures in results.items():
                for measure, value in _figures(measures).items():
                    if "_stderr," not in measure and isinstance(value, float):
                        error = measures.get(measure.replace(",", "_stderr,", 1))
                        shown = f"{error:.4f}" if isinstance(error, float) else MISSING
                        count = str(items.get(task, MISSING))
                        rows.append((task, measure.removesuffix(",none"), f"{value:.4f}", shown, count))
            columns = ("task", "measure", "value", "±", "items")
            note = ". ".join(f"{task}: {'; '.join(said)}" for task, said in remarks.items())
            tables.append(Table(f"{model}: all measures, as the harness names them", columns, rows, note))
        return tables

    def to_dict(self) -> dict[str, Any]:
        scores = SuiteReport(self.scores).to_dict()
        models = [
            {
                "model": score["model"],
                "tasks": {task: _figures(measures) for task, measures in results.items()},
                "items": items,
                "scores": score["tasks"],
                "remarks": remarks,
            }
            for results, items, score, remarks in zip(
                self.results, self.items, scores["models"], self.remarks, strict=True
            )
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
    loaded = _load_tasks(tasks, manager, shots, limit)
    found = [_run(options.load(name), loaded, limit) for name in models]
    items = [{task: int(count["effective"]) for task, count in one["n-samples"].items()} for one in found]
    names = [str(name) for name in models]
    scores, remarks = results_of_harness(names, found), [one["remarks"] for one in found]
    return HarnessReport(names, [one["results"] for one in found], items, scores, remarks)


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


def _load_tasks(tasks: Sequence[str], manager: Any, shots: int | None, limit: int | None) -> dict[str, Any]:
    """Each task, or group of tasks, with its data; `UserError` for one that cannot be asked, before a model is read.

    Examples and seeds are set as `lm_eval.simple_evaluate` sets them.
    """
    found = {}
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    for name in tasks:
        with quiet(), _errors_of_task(name):
            _set_seeds()
            found[name] = manager.load([name])
            for task in found[name]["tasks"].values():
                own = task.get_config("num_fewshot")
                task.set_config(key="num_fewshot", value=own or 0 if shots is None or own == 0 else shots)
                task.set_fewshot_seed(FEW_SHOT_SEED)
                task.build_all_requests(limit=limit)
        for task in found[name]["tasks"].values():
            if _examples(task).endswith(ASKED_ITSELF):
                note(f"{task.config.task}: examples {_examples(task)}: an item can find its own answer among them")
    return found


def _set_seeds() -> None:
    random.seed(0)
    np.random.seed(FEW_SHOT_SEED)


def _examples(task: Any) -> str:
    """Where the examples of a task with examples come from, as the harness selects them; empty without examples."""
    config, few_shot = task.config, task.fewshot_cfg
    if not config.num_fewshot:
        return ""
    if few_shot.split is None and few_shot.samples is not None:
        return "of its own"
    split = few_shot.split or config.training_split or config.validation_split or config.test_split
    # The harness leaves the item itself out only if the split of the examples has the name of the test split.
    is_asked = split == (config.test_split or config.validation_split) and few_shot.split != config.test_split
    return f"from split {split}" + (ASKED_ITSELF if is_asked else "")


def _run(model: LanguageModel, loaded: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """The harness's results of all tasks, `remarks` of the model's answers, and `examples`, their sources, by task."""
    import lm_eval

    from linnet.evaluation.tasks.harness import HarnessModel

    asked = HarnessModel(model)
    found: dict[str, Any] = {"results": {}, "samples": {}, "configs": {}, "n-samples": {}, "examples": {}}
    for name, tasks in loaded.items():
        with quiet(), _errors_of_task(name):
            _set_seeds()
            for task in tasks["tasks"].values():
                task.set_fewshot_seed(FEW_SHOT_SEED)
                found["examples"][task.config.task] = _examples(task)
            one = lm_eval.evaluate(asked, tasks, limit=limit, bootstrap_iters=RESAMPLES, log_samples=True)
            for part in ("results", "samples", "configs", "n-samples"):
                found[part] |= one[part]
    return {**found, "remarks": asked.remarks()}


@contextmanager
def _errors_of_task(name: str) -> Iterator[None]:
    """Raise whatever the harness raises as a `UserError` that names the task; errors of the model stay as they are."""
    logged = MemoryHandler(MAX_LOGGED, flushLevel=sys.maxsize)
    logged.setLevel(logging.ERROR)
    logging.getLogger("lm_eval").addHandler(logged)
    try:
        yield
    except UserError as error:
        raise UserError(error.problem or str(error), field="tasks", value=name) from None
    except OSError as error:
        raise UserError(f"the data is missing and cannot be loaded ({error})", field="tasks", value=name) from None
    except Exception as error:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any(file.endswith(str(Path("tasks", "harness.py"))) for file in files):
            raise
        reasons = [f"{type(error).__name__}: {error}", *(record.getMessage() for record in logged.buffer)]
        raise UserError(f"the harness cannot ask it ({'; '.join(reasons)})", field="tasks", value=name) from None
    finally:
        logging.getLogger("lm_eval").removeHandler(logged)


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
    examples = found[0].get("examples", {}).get(name) or None
    task = SuiteTask(name, score, items, int(config.get("num_fewshot") or 0), examples, shots_of_harness=True)
    ties = [_tied(task, own) if chooses else 0 for own in samples]
    other_scores = [{measure: float(means[measure][n].mean()) for measure in others} for n in range(len(found))]
    return [TaskResult(task, *parts) for parts in zip(means[score], other_scores, ties, strict=True)]


def _tied(task: SuiteTask, samples: Sequence[Sample]) -> int:
    """The number of items whose right choice is known, and which the order of equally likely choices decides."""
    found = 0
    for item, sample in zip(task.items, samples, strict=True):
        log_likelihoods = [float(response[0]) for response in sample["filtered_resps"]]
        found += bool(item.labels) and item.is_tied(task.score, log_likelihoods[: len(item.labels)])
    return found


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
