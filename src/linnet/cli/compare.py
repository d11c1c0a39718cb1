"""`linnet compare`: several models trained on the same text, with the spread between seeds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.cli.console import invocation, note, stopped_in_a_line
from linnet.core import numbers

if TYPE_CHECKING:
    from linnet.experiments.comparison.figures import ComparedFigures, Findings, Spread

NOTHING = "–"


def compare(
    comparison: Annotated[
        Path, typer.Argument(metavar="FILE", help="A YAML file: text, tokenizer, model, training, seeds, runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder to make, or one to go on with. If not given: runs/NAME, for a file NAME.yaml.",
            show_default=False,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a field of model or training, for all runs (repeatable)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train several models on the same text, each with several seeds, and compare them.

    FILE says what the models have in common and in what each run differs; docs/comparison.md has every field, and
    ablations/pldr.yaml is an example. All models are evaluated on the same held-out documents, and causally: no
    prediction depends on the text after it. A PLDR-LLM, whose training pass sees the future, is read with a frozen
    operator; leak is what its own pass would have claimed beyond that.

    Prints a table: bits per byte (lower is better) and accuracy, the mean over the seeds ± the standard deviation. DIR
    gets the same as comparison.json, the curves of all runs as curves.png, the prepared text (data), and every run
    (runs). Ctrl-C saves and stops; the same command goes on, and trains nothing twice.

    A run that diverges with a seed is left out of the means; the table, the curves and the exit code (1) say so, and
    the other runs go on. The same command does not train it again; remove its folder in DIR/runs to have it tried anew.

    Example: linnet compare ablations/pldr.yaml

    Example: linnet compare ablations/pldr.yaml --out runs/ablation --json

    Example: linnet compare ablations/pldr.yaml --out runs/short --set training.steps=100 --set training.threads=1
    """
    from linnet.core.allocator import keep_freed_memory
    from linnet.experiments.comparison.layout import CURVES
    from linnet.experiments.comparison.run import compare as run_comparison
    from linnet.experiments.comparison.spec import ComparisonSpec

    folder = out or Path("runs") / comparison.stem
    spec = ComparisonSpec.load(comparison, changes or [])
    keep_freed_memory()
    with stopped_in_a_line():
        findings = run_comparison(spec, folder, note, invocation(), str(comparison))
    if as_json:
        import json

        typer.echo(json.dumps({"folder": str(folder), **findings.plain()}, indent=2, allow_nan=False))
    else:
        _print_table(findings, len(spec.seeds))
        typer.echo(f"curves: {folder / CURVES}")
    if findings.broken_down:
        note(f"error: {_said_lost(findings, len(spec.runs) * len(spec.seeds))}")
        raise typer.Exit(1)


def _print_table(findings: "Findings", seeds: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("run", no_wrap=True)
    for heading in ("parameters", "tokens", "seeds", "bits per byte", "accuracy, %", "leak"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in findings.runs:
        table.add_row(one.name, *_cells(one))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(table)
    for each in findings.broken_down:
        console.print(str(each))
    console.print(_spread_said(seeds, bool(findings.broken_down)))


def _cells(one: "ComparedFigures") -> list[str]:
    bits, accuracy, leak = one.bits_per_byte, one.accuracy, one.leak
    if one.parameters is None or one.tokens is None or bits is None or accuracy is None:
        return [NOTHING, NOTHING, one.seeds, one.fate, NOTHING, NOTHING]
    return [
        numbers.grouped(one.parameters),
        numbers.grouped(one.tokens),
        one.seeds,
        _with_spread(bits, 4, 1),
        _with_spread(accuracy, 2, 100),
        "none" if leak is None else numbers.signed(leak.mean, 4),
    ]


def _with_spread(spread: "Spread", decimals: int, scale: float) -> str:
    mean = f"{scale * spread.mean:.{decimals}f}"
    return mean if spread.deviation is None else f"{mean} ± {scale * spread.deviation:.{decimals}f}"


def _spread_said(seeds: int, some_lost: bool) -> str:
    if seeds == 1:
        return "one seed: nothing is known of the spread"
    over = "the seeds that were trained to the end" if some_lost else f"{seeds} seeds"
    return f"mean ± standard deviation over {over}; causal, on the same held-out documents"


def _said_lost(findings: "Findings", trained: int) -> str:
    lost = findings.broken_down
    diverged = ", ".join(f"{each.run} (seed {each.seed}, step {each.step})" for each in lost if each.step is not None)
    waiting = ", ".join(f"{each.run} (seed {each.seed})" for each in lost if each.step is None)
    also = f"; not trained for want of their operators: {waiting}" if waiting else ""
    return f"{len(lost)} of {trained} trainings have no result: diverged: {diverged}{also}"
