"""The part of `linnet evaluate` that reads a text: one model, or several on the same documents."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from linnet.cli.console import invocation, note
from linnet.cli.evaluate_options import CalibrationOptions, ComputeOptions, TextOptions, refuse
from linnet.cli.evaluate_report import AskedReport
from linnet.core.errors import UserError
from linnet.present.show import show

if TYPE_CHECKING:
    from linnet.evaluation.results import ModelComparison, TextEvaluation

OF_TASKS = ("files", "shots", "limit", "train_text")
"""Options that mean something for tasks alone."""

RESAMPLES = 1000


def measure_text(
    ctx: typer.Context,
    models: list[Path],
    text: TextOptions,
    calibrated: CalibrationOptions,
    compute: ComputeOptions,
    resamples: int | None,
    page: AskedReport,
    as_json: bool,
) -> None:
    """Measure and print; `UserError` for options of tasks."""
    refuse(ctx, OF_TASKS, "goes with `suite`, `task_file` or `tasks`")
    if text.data is None:
        raise UserError("nothing to measure on; expected one of `data`, `suite`, `task_file` and `tasks`")
    text.check_plot()
    if len(models) > 1:
        if text.cache_policies is not None:
            raise UserError(f"--cache-policy {' '.join(text.cache_policies)}: goes with one model")
        _several(models, text, calibrated, compute, resamples or RESAMPLES, page, as_json)
    elif resamples is not None:
        raise UserError(f"--bootstrap {resamples}: goes with several models")
    else:
        _one(models[0], text, calibrated, compute, as_json)


def _where(text: TextOptions, calibrated: CalibrationOptions, compute: ComputeOptions) -> dict[str, Any]:
    """Arguments of `evaluate` that one model and several have in common."""
    return {
        "data": text.data,
        "split": text.split,
        "limit_tokens": text.limit_tokens,
        "context_length": text.context_length,
        "calibrate_on": calibrated.calibrate_on,
        "calibration": calibrated.calibration,
        "seed": calibrated.drawn_from or 0,
        "device": compute.device,
        "precision": compute.precision,
        "stride": text.stride,
        "tokens_at_once": compute.tokens_at_once,
    }


def _one(
    model: Path, text: TextOptions, calibrated: CalibrationOptions, compute: ComputeOptions, as_json: bool
) -> None:
    from linnet.evaluation.text import evaluate

    where = _where(text, calibrated, compute)
    found = evaluate(model, cache_policies=text.cache_policies, **where)
    twice = text.data is not None and (text.data.is_dir() or text.data.is_file())  # a pipe is read once
    if compute.precision is not None and twice:
        stored = evaluate(model, **{**where, "precision": None}).bits_per_byte.value
        found = replace(found, stored_bits_per_byte=stored)
    _show(found, text.plot, as_json)


def _several(
    models: list[Path],
    text: TextOptions,
    calibrated: CalibrationOptions,
    compute: ComputeOptions,
    resamples: int,
    page: AskedReport,
    as_json: bool,
) -> None:
    from linnet.evaluation.text import evaluate_models

    where = _where(text, calibrated, compute)
    found = evaluate_models(models, resamples=resamples, **where)
    page.write_text(found, where["data"], compute.read(calibrated, calibrated.drawn_from))
    _show(found, text.plot, as_json)


def _show(found: "TextEvaluation | ModelComparison", plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        from linnet.present.plot import Plot

        (picture,) = found.plots()
        assert isinstance(picture.drawing, Plot)
        picture.drawing.write(plot)
        note(f"plot: {plot}")
    show(found, invocation(), as_json)
