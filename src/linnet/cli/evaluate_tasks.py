"""The part of `linnet evaluate` that asks tasks."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from linnet.cli.evaluate_options import MINIMAL_PAIRS, CalibrationOptions, ComputeOptions, TaskOptions, refuse
from linnet.cli.evaluate_report import AskedReport
from linnet.core.errors import UserError
from linnet.present.show import write_json, write_parts

if TYPE_CHECKING:
    from linnet.evaluation.tasks.harness_run import HarnessReport
    from linnet.evaluation.tasks.results import SuiteReport

OF_TEXT = (
    "data",
    "split",
    "limit_tokens",
    "context_length",
    "stride",
    "cache_policies",
    "plot",
    "tokens_at_once",
    "resamples",
)
"""Options that say how a text is read; tasks are read as they stand."""

OF_OWN_FILES = ("suite", "task_file", "train_text")
"""Options that mean nothing for tasks of the harness, which loads their data itself."""


def with_pairs(models: list[Path], tasks: TaskOptions) -> tuple[list[Path], TaskOptions]:
    """The models, and the file of `--suite minimal-pairs FILE`, which stands among them, as `files`.

    `UserError` where it cannot be told from them.
    """
    found = [path for path in models if path.is_file()]
    if tasks.suite != MINIMAL_PAIRS or tasks.files is not None or not found:
        return models, tasks
    others = [path for path in models if path not in found]
    if len(found) > 1 or not others:
        problem = f"{found[-1]}: a file; expected folders of models, and one file of pairs as `files`"
        raise UserError(f"{problem}: linnet evaluate MODEL --suite {MINIMAL_PAIRS} --files {found[-1]}")
    return others, replace(tasks, files=found)


def ask(
    ctx: typer.Context,
    models: list[Path],
    tasks: TaskOptions,
    calibrated: CalibrationOptions,
    compute: ComputeOptions,
    page: AskedReport,
    as_json: bool,
) -> None:
    """Measure and print; `UserError` for options of a text."""
    refuse(ctx, OF_TEXT, "says how a text is measured; leave it out for tasks")
    if calibrated.calibrate_on not in (None, "empty"):
        accepted = "tasks have no training split; use empty"
        raise UserError(accepted, field="calibrate_on", value=calibrated.calibrate_on)
    seed = calibrated.drawn_from or 0
    asked: dict[str, Any] = {"shots": tasks.shot_count, "limit": tasks.limit, "calibration": calibrated.calibration}
    asked |= {"seed": seed, "device": compute.device, "precision": compute.precision}
    found: SuiteReport | HarnessReport
    if tasks.tasks is not None:
        page.refuse_harness()
        refuse(ctx, OF_OWN_FILES, "does not go with `tasks`; leave it out")
        found = _by_harness(models, tasks.tasks, tasks.place, asked)
    else:
        from linnet.evaluation.tasks.measure import evaluate_suite

        asked |= {"task_file": tasks.task_file, "train_text": tasks.train_text}
        found = evaluate_suite(models, tasks.suite, tasks.place, **asked)
        page.write_tasks(found, compute.read(calibrated, seed))
    if as_json:
        write_json(found.to_dict())
    else:
        write_parts(*found.tables())


def _by_harness(models: list[Path], tasks: str, folder: Path | None, asked: dict[str, Any]) -> "HarnessReport":
    from linnet.evaluation.tasks.harness_run import evaluate_harness

    names = [name for part in tasks.split(",") if (name := part.strip())]
    return evaluate_harness(models, names, task_folder=folder, **asked)
