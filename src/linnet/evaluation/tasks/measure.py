"""Models on the tasks of files: `linnet evaluate --suite` and `--task-file`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linnet.evaluation.models import ModelOptions
from linnet.evaluation.tasks.contamination import overlaps_with
from linnet.evaluation.tasks.items import ScoreName
from linnet.evaluation.tasks.results import SuiteReport, SuiteResult, TaskResult
from linnet.evaluation.tasks.scorer import Advance, LoglikelihoodScorer, StateFactory, encode_requests
from linnet.evaluation.tasks.suite import Suite, SuiteTask, load_tasks
from linnet.inference.language_model import LanguageModel
from linnet.present.progress import progress

SINGLE_RIGHT: tuple[ScoreName, ...] = ("acc", "acc_norm", "acc_bytes")
"""The scores of items with one right choice."""


def evaluate_suite(
    models: Sequence[str | Path],
    suite: str | None = None,
    files: str | Path | None = None,
    *,
    task_file: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
    train_text: str | Path | None = None,
    device: str = "auto",
    precision: str | None = None,
    calibration: str | None = None,
    seed: int = 0,
) -> SuiteReport:
    """Measure model folders, or runs, on every item of a suite whose files are in `files`, or of a `task_file`.

    suite: a suite of linnet, or `minimal-pairs`, whose `files` is one file. shots: examples before each item. limit:
    items of each task. train_text: a text, or a folder, whose overlap with the items is reported. calibration, seed:
    what replaces the model's own calibration. `UserError` for missing files and invalid rows.
    """
    loaded = load_tasks(suite, files, task_file, shots, limit)
    overlaps = None if train_text is None else overlaps_with(loaded.tasks, Path(train_text))
    options = ModelOptions(None, device, calibration, precision, seed)
    results = [measure_suite(options.load(name), str(name), loaded) for name in models]
    return SuiteReport(results, overlaps, "" if train_text is None else str(train_text))


def measure_suite(model: LanguageModel, name: str, suite: Suite, fork: bool = True) -> SuiteResult:
    """Measure a model, called `name` in the results, on all items. fork: see `LoglikelihoodScorer`."""
    scorer = LoglikelihoodScorer(StateFactory.of_model(model), fork)
    total = sum(len(item.pairs) for task in suite.tasks for item in task.items)
    with progress(f"{name}: {suite.name}", total, "choices") as advance:
        results = [measure_task(model, scorer, task, advance) for task in suite.tasks]
    return SuiteResult(name, suite, results)


def measure_task(
    model: LanguageModel, scorer: LoglikelihoodScorer, task: SuiteTask, advance: Advance = lambda _: None
) -> TaskResult:
    """Measure a model on the items of one task."""
    requests = encode_requests(model.tokenizer, [pair for item in task.items for pair in item.pairs])
    log_likelihoods = iter(result.log_likelihood for result in scorer.score(requests, advance))
    by_item = [[next(log_likelihoods) for _ in item.pairs] for item in task.items]
    single = all(sum(item.labels) == 1 for item in task.items)
    others = [name for name in SINGLE_RIGHT if single and name != task.score]
    values = {
        name: np.array([item.score(name, found) for item, found in zip(task.items, by_item, strict=True)])
        for name in (task.score, *others)
    }
    return TaskResult(task, values[task.score], {name: float(values[name].mean()) for name in others})
