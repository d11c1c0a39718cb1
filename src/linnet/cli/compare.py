"""`linnet compare`: several models trained on the same text, with the spread between seeds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet import numbers
from linnet.cli.console import invocation, note

if TYPE_CHECKING:
    from linnet.evaluation.comparison.figures import ComparedFigures, Spread


def compare(
    comparison: Annotated[Path, typer.Argument(metavar="FILE", help="YAML: text, model, training, seeds, runs.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder to make, or one to go on with; runs/FILE if not given.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train several models on the same text with several seeds, and compare them.

    DIR gets comparison.json, curves.png (loss and accuracy of the validation set), the prepared text and every run. All
    models are evaluated causally on the same held-out documents; one that is not causal by itself with a frozen
    operator. Ctrl-C saves and stops; the same command goes on.

    Example: linnet compare ablations/pldr.yaml
    """
    from linnet.evaluation.comparison.layout import CURVES
    from linnet.evaluation.comparison.run import ComparisonStopped
    from linnet.evaluation.comparison.run import compare as run_comparison
    from linnet.evaluation.comparison.spec import ComparisonSpec
    from linnet.training.loop import BrokenDownError

    folder = out or Path("runs") / comparison.stem
    spec = ComparisonSpec.load(comparison)
    try:
        figures = run_comparison(spec, folder, note, invocation(), str(comparison))
    except BrokenDownError as error:
        note(f"error: {error}")
        raise typer.Exit(1) from None
    except ComparisonStopped as stop:
        note(f"{stop}; the same command goes on")
        raise typer.Exit(1) from None
    if as_json:
        import json

        report = {"name": spec.name, "folder": str(folder), "runs": [one.plain() for one in figures]}
        typer.echo(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print_table(figures, len(spec.seeds))
        typer.echo(f"curves: {folder / CURVES}")


def _print_table(figures: "list[ComparedFigures]", seeds: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("run", no_wrap=True)
    for heading in ("parameters", "tokens", "bits per byte", "accuracy, %", "leak"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in figures:
        leak = "none" if one.leak is None else numbers.signed(one.leak.mean, 4)
        bits, accuracy = _with_spread(one.bits_per_byte, 4, 1), _with_spread(one.accuracy, 2, 100)
        table.add_row(one.name, f"{one.parameters:,}", f"{one.tokens:,}", bits, accuracy, leak)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(table)
    console.print(_spread_said(seeds))


def _with_spread(spread: "Spread", decimals: int, scale: float) -> str:
    mean = f"{scale * spread.mean:.{decimals}f}"
    return mean if spread.deviation is None else f"{mean} ± {scale * spread.deviation:.{decimals}f}"


def _spread_said(seeds: int) -> str:
    if seeds == 1:
        return "one seed: nothing is known of the spread"
    return f"mean ± standard deviation over {seeds} seeds; causal, on the same held-out documents"
