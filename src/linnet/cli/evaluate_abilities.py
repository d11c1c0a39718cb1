"""`linnet evaluate --suite abilities`: generated questions against chance, also against the number of examples."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from linnet.cli.console import note
from linnet.cli.evaluate_options import (
    CalibrationOptions,
    ComputeOptions,
    TaskOptions,
    TextOptions,
    given,
    refuse,
    said,
)
from linnet.cli.evaluate_tasks import OF_TEXT
from linnet.core.errors import UserError
from linnet.present.show import write_json, write_parts

if TYPE_CHECKING:
    from linnet.evaluation.abilities.in_context import ShotsReport
    from linnet.evaluation.abilities.measure import AbilityReport

MOST_SHOTS = 64
NO_USE = (*(name for name in OF_TEXT if name != "plot"), "calibrate_on", "task_file", "tasks", "train_text")
"""Options that mean nothing to questions which the suite makes itself; `plot` goes with numbers of examples."""


def measure_abilities(
    ctx: typer.Context,
    models: Sequence[Path],
    tasks: TaskOptions,
    text: TextOptions,
    calibrated: CalibrationOptions,
    compute: ComputeOptions,
    as_json: bool,
) -> None:
    """Measure the suite, or the abilities of files, and print them; where --shots are given against those."""
    _check(ctx, models)
    text.check_plot()
    from linnet.evaluation.abilities.suite import ITEMS, evaluate_abilities, evaluate_shots

    options, items = compute.read(calibrated, calibrated.seed or 0), tasks.limit or ITEMS
    found: ShotsReport | AbilityReport
    if tasks.shots is None:
        found = evaluate_abilities(models[0], tasks.files or (), items, options)
    else:
        found = evaluate_shots(models[0], tasks.shot_counts(MOST_SHOTS), tasks.files or (), items, options)
        if text.plot is not None:
            found.plot().write(text.plot)
            note(f"plot: {text.plot}")
    if as_json:
        write_json(found.to_dict())
    else:
        write_parts(*found.tables())


def _check(ctx: typer.Context, models: Sequence[Path]) -> None:
    """`UserError` for several models, and for what the suite of abilities has no use for."""
    if len(models) > 1:
        raise UserError(f"{len(models)} models: the suite of abilities measures one; expected one")
    if given(ctx, ("plot",)) and not given(ctx, ("shots",)):
        raise UserError("goes with `shots` here", field="plot", value=said(ctx, "plot"))
    refuse(ctx, NO_USE, "the suite of abilities makes its own questions; leave it out")
