"""What `linnet train --sweep` does: one training for each value of a field; print which was best."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from linnet.cli.console import check_out_folder, interruptions_reported, invocation, note

if TYPE_CHECKING:
    from linnet.training.spec import RunSpec


def show_sweep(text: str, run: "RunSpec", out: Path, steps: int | None, as_json: bool) -> None:
    """Train all values and print the table; the exit code is 1 where all diverged."""
    from linnet.cli.console import show
    from linnet.experiments.runner import Runner
    from linnet.experiments.sweep.output import conclusion, sweep_table
    from linnet.experiments.sweep.run import sweep

    check_out_folder(out, "--out")
    with interruptions_reported():
        findings = sweep(text, run, out, Runner(note, invocation()), steps)
    length = "all steps" if steps is None else f"{steps:,} steps each"
    facts = {"of": f"training.{findings.sweep.path}, {len(findings.runs)} values, {length}"}
    figures = {"folder": str(out), **findings.to_dict()}
    show("Sweep", facts, figures, [sweep_table(findings)], list, None, as_json, conclusion(findings, out))
    if findings.best is None:
        note("error: every value diverged; lower values, or a longer warm-up, may not")
        raise typer.Exit(1)
