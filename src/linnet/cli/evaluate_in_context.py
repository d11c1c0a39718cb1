"""`linnet evaluate --suite abilities --shots`: accuracy against the number of examples."""

from collections.abc import Sequence
from pathlib import Path

from linnet.cli.console import note
from linnet.cli.report import echo_json, echo_parts
from linnet.core.errors import UserError


def measure_in_context(
    model: Path,
    files: Sequence[Path],
    shots: Sequence[int],
    items: int,
    seed: int,
    device: str,
    weights: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure each task in words of the suite, or of files, with each number of examples; print and draw."""
    from linnet.evaluation.abilities.in_context import runs_of, shots_curve, tasks_of
    from linnet.evaluation.abilities.in_context_output import shots_plot, shots_table
    from linnet.evaluation.abilities.registry import read_suite, suite
    from linnet.inference.language_model import load
    from linnet.present.progress import progress

    tasks = tasks_of([one for file in files for one in read_suite(file)] if files else suite())
    if not tasks:
        raise UserError(f"{files[0]}: no ability that examples can be shown of; expected arithmetic, facts or rules")
    speaker = load(model, device, weights)
    with progress("measuring", sum(runs_of(task, shots) for task in tasks), "measurements") as advance:
        curves = [shots_curve(speaker, task, shots, items, seed, advance) for task in tasks]
    if plot is not None:
        if not any(point.score for curve in curves for point in curve.plain):
            raise UserError(f"--plot {plot}: nothing to draw: {curves[0].plain[0].missing}")
        shots_plot(curves).write(plot)
        note(f"plot: {plot}")
    if as_json:
        measured = {"model": str(model), "seed": seed, "weights": weights, "shots": list(shots)}
        echo_json({**measured, "in_context": [curve.figures() for curve in curves]})
    else:
        echo_parts(shots_table(curves, items))
