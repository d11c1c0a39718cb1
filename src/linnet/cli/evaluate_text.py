"""The part of `linnet evaluate` that reads a text: one model, or several on the same documents."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from linnet.cli.console import note
from linnet.cli.evaluate_options import CalibrationOptions, ComputeOptions, TextOptions, refuse
from linnet.cli.evaluate_report import AskedReport
from linnet.core.errors import UserError
from linnet.present.show import write_json, write_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from linnet.evaluation.measured import TextEvaluation

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
    from linnet.evaluation.interface import evaluate as measured

    where, drawn_from = _where(text, calibrated, compute), calibrated.drawn_from
    found = measured(model, cache_policies=text.cache_policies, **where)
    twice = text.data is not None and (text.data.is_dir() or text.data.is_file())  # a pipe is read once
    stored = None
    if compute.precision is not None and twice:
        stored = measured(model, **{**where, "precision": None}).bits_per_byte.value
    _draw(text.plot, [str(model)], [found])
    if as_json:
        beside = {} if stored is None else {"bits_per_byte_as_stored": stored}
        write_json({"model": str(model), **_on(text, where, drawn_from), **found.figures(), **beside})
        return
    from linnet.evaluation.tables import measured_tables

    rows: list[tuple[str, str, str]] = []
    if stored is not None:
        lost = f"{found.bits_per_byte.value - stored:+.4f} bits/byte"
        rows.append((f"{compute.precision} costs", lost, f"against the weights as stored, {stored:.4f}"))
    if where["calibration"] is not None:
        drawn = "" if drawn_from is None else f", drawn from seed {drawn_from}"
        rows.append(("calibration", where["calibration"], f"in the place of the model's own{drawn}"))
    write_parts(*measured_tables(found, rows))


def _several(
    models: list[Path],
    text: TextOptions,
    calibrated: CalibrationOptions,
    compute: ComputeOptions,
    resamples: int,
    page: AskedReport,
    as_json: bool,
) -> None:
    from linnet.evaluation.interface import evaluate_models

    where = _where(text, calibrated, compute)
    found = evaluate_models(models, resamples=resamples, **where)
    _draw(text.plot, found.names, found.measured)
    page.write_text(found, where["data"], compute.read(calibrated, calibrated.drawn_from))
    if as_json:
        write_json({**_on(text, where, calibrated.drawn_from), **found.figures()})
        return
    from linnet.evaluation.tables import comparison_tables

    write_parts(*comparison_tables(found))


def _on(text: TextOptions, where: dict[str, Any], drawn_from: int | None) -> dict[str, Any]:
    """What was read, and how; a file has no sides."""
    assert text.data is not None
    split = text.split or ("validation" if text.data.is_dir() else None)
    replaced = {"calibration": where["calibration"], "seed": drawn_from}
    return {"data": str(text.data), "split": split, **replaced, "precision": where["precision"]}


def _draw(plot: Path | None, names: "Sequence[str]", measured: "Sequence[TextEvaluation]") -> None:
    if plot is not None:
        from linnet.evaluation.pictures import positions_plot

        positions_plot(names, measured).write(plot)
        note(f"plot: {plot}")
