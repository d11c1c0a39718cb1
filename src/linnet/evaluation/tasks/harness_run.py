"""Running tasks of the LM Evaluation Harness, by name, and what it found."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.core.guess import did_you_mean
from linnet.evaluation.subject import ModelOptions
from linnet.evaluation.tasks.harness_items import results_of_harness
from linnet.evaluation.tasks.interface import SuiteReport
from linnet.evaluation.tasks.measure import SuiteResult
from linnet.evaluation.tasks.tables import finite
from linnet.present.table import MISSING, Table

STANDARD_ERROR = 2
"""Its number, which started programs write to."""

RESAMPLES = 100
"""Behind the errors of measures that are no means; those of means are computed."""


@dataclass(frozen=True)
class HarnessReport:
    """Of each model what the harness gives for each task: its measures by name (`acc,none`), with their errors.

    scores: of each model the tasks' first measures, item by item; the first model is what others are compared with.
    """

    models: Sequence[str]
    results: Sequence[dict[str, dict[str, Any]]]
    samples: Sequence[dict[str, int]]
    scores: Sequence[SuiteResult]

    def tables(self) -> list[Table]:
        """As of a suite, then of each model a row for each measure of each task, as the harness names them."""
        own = zip(self.models, self.results, self.samples, strict=True)
        scored = SuiteReport(self.scores).tables() if self.scores[0].tasks else []
        return [*scored, *(_table(*each) for each in own)]

    def figures(self) -> dict[str, Any]:
        """Ready for JSON."""
        scored = SuiteReport(self.scores).figures()
        named = zip(self.results, self.samples, scored["models"], strict=True)
        models = [
            {
                "model": told["model"],
                "tasks": {task: _plain(found) for task, found in tasks.items()},
                "items": items,
                "scores": told["tasks"],
            }
            for tasks, items, told in named
        ]
        return {"models": models, "differences": scored["differences"]}


def evaluate_harness(
    models: Sequence[str | Path],
    tasks: Sequence[str],
    *,
    shots: int | None = None,
    limit: int | None = None,
    device: str = "auto",
    weights: str | None = None,
    calibration: str | None = None,
    seed: int = 0,
    task_folder: str | Path | None = None,
) -> HarnessReport:
    """Ask model folders, or runs', tasks of the `lm_eval` package, which loads their data itself.

    tasks: names that it knows, or that YAML files in `task_folder` define. shots, limit: as the harness has them; each
    task's own number of examples if not given. operator, seed: what replaces the model's own calibration.
    `UserError` where the package is not installed, for a name that it does not know, and for data that is not there.
    """
    manager = _manager(tasks, task_folder)
    read = ModelOptions(None, device, calibration, weights, seed)
    found = [_run(read.load(name), tasks, manager, shots, limit) for name in models]
    counts = [{task: int(n["effective"]) for task, n in each["n-samples"].items()} for each in found]
    names = [str(name) for name in models]
    return HarnessReport(names, [each["results"] for each in found], counts, results_of_harness(names, found))


def _manager(tasks: Sequence[str], folder: str | Path | None) -> Any:
    """What knows all of the tasks: the folder's files alone where that is enough, which saves reading thousands."""
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
            raise UserError(
                did_you_mean(task, manager.all_tasks, "the harness has no such task"), field="tasks", value=task
            )
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
        raise UserError(f"the data is not there and cannot be loaded ({error})", field="tasks") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without a terminal nothing is written to standard error, by programs that are started neither: bars, and git's
    complaint where it is asked for a commit and there is none. What goes wrong is raised all the same.
    """
    if sys.stderr.isatty():
        yield
        return
    sys.stderr.flush()
    kept = os.dup(STANDARD_ERROR)
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
            os.dup2(nowhere.fileno(), STANDARD_ERROR)
            yield
    finally:
        os.dup2(kept, STANDARD_ERROR)
        os.close(kept)


def _table(model: str, results: dict[str, dict[str, Any]], items: dict[str, int]) -> Table:
    rows = []
    for task, found in results.items():
        for measure, value in _plain(found).items():
            if "_stderr," not in measure and isinstance(value, float):
                error = found.get(measure.replace(",", "_stderr,", 1))
                shown = f"{error:.4f}" if isinstance(error, float) else MISSING
                rows.append((task, measure.removesuffix(",none"), f"{value:.4f}", shown, str(items.get(task, MISSING))))
    return Table(f"{model}: all measures, as the harness names them", ("task", "measure", "value", "±", "items"), rows)


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """Numbers by measure; null for what is not finite or not known."""
    numbers = {name: value for name, value in found.items() if name not in ("alias", "sample_len", "name")}
    return {name: finite(float(value)) if _is_number(value) else None for name, value in numbers.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or type(value).__module__ == "numpy"
