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
from linnet.present import numbers
from linnet.present.show import write_json, write_parts

if TYPE_CHECKING:
    from linnet.evaluation.abilities.ability import Ability
    from linnet.evaluation.abilities.measure import AbilityResult
    from linnet.inference.language_model import LanguageModel
    from linnet.present.table import Table

ITEMS, MOST_SHOTS = 200, 64
COLUMNS = ("ability", "right, %", "chance, %", "symbols, %", "chance, %", "")
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
    from linnet.evaluation.abilities.registry import read_abilities, suite

    counts = None if tasks.shots is None else tasks.shot_counts(MOST_SHOTS)
    abilities = [ability for file in tasks.files or () for ability in read_abilities(file)] or suite()
    items, seed = tasks.limit or ITEMS, calibrated.seed or 0
    model = compute.read(calibrated, seed).load(models[0])
    measured = {"model": str(models[0]), "seed": seed, "weights": compute.weights}
    measured["calibration"] = calibrated.calibration
    figures: dict[str, object]
    if counts is not None:
        found, table = _against_shots(model, abilities, counts, items, seed, text.plot, tasks.files)
        figures = {**measured, "shots": counts, "in_context": found}
    else:
        from linnet.evaluation.abilities.measure import figures_of, measure_all

        answers = measure_all(model, abilities, items, seed)
        figures, table = {**measured, "abilities": figures_of(answers)}, _table(answers, items)
    if as_json:
        write_json(figures)
    else:
        write_parts(table)


def _check(ctx: typer.Context, models: Sequence[Path]) -> None:
    """`UserError` for several models, and for what the suite of abilities has no use for."""
    if len(models) > 1:
        raise UserError(f"{len(models)} models: the suite of abilities measures one; expected one")
    if given(ctx, ("plot",)) and not given(ctx, ("shots",)):
        raise UserError("goes with `shots` here", field="plot", value=said(ctx, "plot"))
    refuse(ctx, NO_USE, "the suite of abilities makes its own questions; leave it out")


def _against_shots(
    model: "LanguageModel",
    abilities: Sequence["Ability"],
    shots: Sequence[int],
    items: int,
    seed: int,
    plot: Path | None,
    files: Sequence[Path] | None,
) -> tuple[list[dict[str, object]], "Table"]:
    """Each task in words with each number of examples: its figures, and all as a table; drawn into `plot`."""
    from linnet.evaluation.abilities.in_context import measurement_count, shot_tasks, shots_curve
    from linnet.evaluation.abilities.in_context_output import shots_plot, shots_table
    from linnet.present.progress import progress

    tasks = shot_tasks(abilities)
    if not tasks:
        assert files
        raise UserError(f"{files[0]}: no ability that examples can be shown of; expected arithmetic, facts or rules")
    with progress("measuring", sum(measurement_count(task, shots) for task in tasks), "measurements") as advance:
        curves = [shots_curve(model, task, shots, items, seed, advance) for task in tasks]
    if plot is not None:
        if not any(point.score for curve in curves for point in curve.plain):
            raise UserError(f"--plot {plot}: nothing to draw: {curves[0].plain[0].missing}")
        shots_plot(curves).write(plot)
        note(f"plot: {plot}")
    return [curve.figures() for curve in curves], shots_table(curves, items)


def _table(found: Sequence["AbilityResult"], items: int) -> "Table":
    from linnet.evaluation.abilities.measure import above_chance
    from linnet.present.table import Table

    meaning = (
        f"right: whole answers, greedily, of {items:,} items each, with their standard error; symbols: those of"
        " answers, given the true ones before them; told from chance: two-sided, 5 % for all abilities together (Holm)"
    )
    rows = [[one.ability.said, *_cells(one, above)] for one, above in zip(found, above_chance(found), strict=True)]
    return Table("Abilities", COLUMNS, rows, meaning)


def _cells(one: "AbilityResult", above: bool) -> list[str]:
    if one.score is None:
        return ["", "", "", "", f"not measured: {one.missing}"]
    score, chance = one.score, one.ability.chance
    return [
        score.percent,
        numbers.percent_of(chance.answer),
        "" if chance.symbol is None else f"{100 * score.symbols:.1f}",
        "" if chance.symbol is None else numbers.percent_of(chance.symbol),
        _note(one, above),
    ]


def _note(one: "AbilityResult", above: bool) -> str:
    """What becomes of the final answer where steps are written before it, and whether chance could be as good."""
    from linnet.evaluation.statistics import NOT_ABOVE_CHANCE

    said = [] if above else [NOT_ABOVE_CHANCE]
    if one.final is not None and one.final is not one.score:
        said.insert(0, f"final answer {one.final.percent} % right")
    return "; ".join(said)
