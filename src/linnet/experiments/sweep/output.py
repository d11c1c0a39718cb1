"""A sweep as a table, as a picture, as words, and as the files in its folder."""

from pathlib import Path

from linnet.core.checksum import write_checked_json
from linnet.experiments.sweep.asked import said
from linnet.experiments.sweep.findings import SweepFindings, SweptRun, values_said
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.table import MISSING, Table

FIGURES, PICTURE = "sweep.json", "sweep.png"
WIDE = 4
"""Values that differ so many times stand on a logarithmic axis."""


def write_findings(findings: SweepFindings, folder: Path) -> None:
    """Write `sweep.json` and `sweep.png`."""
    write_checked_json(folder / FIGURES, findings.to_dict())
    sweep_plot(findings).write(folder / PICTURE)


def sweep_table(findings: SweepFindings) -> Table:
    """A row for each value, the best one marked."""
    rows = [[said(run.value), *_cells(run, findings.best)] for run in findings.runs]
    columns = (findings.sweep.name, "bits per byte", "to the best", "steps", "time", "state")
    return Table("Held-out text, and training", columns, rows, _meaning(findings))


def _cells(run: SweptRun, best: SweptRun | None) -> list[str]:
    if run.bits_per_byte is None or run.seconds is None or run.steps is None:
        return [*[MISSING] * 4, run.state]
    assert best is not None and best.bits_per_byte is not None, "this one is finished"
    distance = "best" if run is best else numbers.signed(run.bits_per_byte - best.bits_per_byte, 4)
    cells = [f"{run.bits_per_byte:.4f}", distance, numbers.grouped(run.steps), numbers.duration(run.seconds)]
    return [*cells, run.state]


def _meaning(findings: SweepFindings) -> str:
    """What the figures are of, and what they cannot tell."""
    said_of = "causal, as evaluated at the end of each training; one seed: linnet compare tells how far seeds differ"
    precisions = {run.precision for run in findings.runs if run.precision is not None}
    if len(precisions) > 1:
        said_of += "; measured to be faster in different precisions: --set training.precision=float32 makes them alike"
    return said_of


def conclusion(findings: SweepFindings, folder: Path) -> str:
    """The best value, how to train with it, and what remains open; a line each."""
    best, name = findings.best, findings.sweep.name
    lines = [f"picture: {folder / PICTURE}"]
    if best is None:
        return lines[0]
    lines += [f"to train with the best {name}, {said(best.value)}: {' '.join(findings.flags)}"]
    if findings.steps is None:
        lines.append(f"trained with it already: {best.folder / 'model'}")
    return "\n".join([*lines, *edge_said(findings)])


def edge_said(findings: SweepFindings) -> list[str]:
    """A line where the best value has nothing beyond it."""
    if findings.best is None or findings.edge is None:
        return []
    beyond = "below" if findings.edge == "lowest" else "above"
    line = f"note: {said(findings.best.value)} is the {findings.edge} value, so a better one may lie {beyond} it"
    further = f"{findings.sweep.name}={values_said(findings.further)}"
    return [f"{line}: --sweep {further}" if findings.further else line]


def sweep_plot(findings: SweepFindings) -> Plot:
    """Bits per byte over the value; an upright line where one diverged."""
    finished = [run for run in findings.runs if run.bits_per_byte is not None]
    values, bits = [run.value for run in finished], [run.bits_per_byte or 0.0 for run in finished]
    series = [Series(values, bits, "", "o-")]
    if findings.best is not None and findings.best.bits_per_byte is not None:
        told = f"best: {said(findings.best.value)}, {findings.best.bits_per_byte:.4f}"
        series.append(Series([findings.best.value], [findings.best.bits_per_byte], told, "o", 1, large=True))
    rules = [
        Rule(run.value, f"{said(run.value)} {run.state}", ":", 3, upright=True)
        for run in findings.runs
        if run.diverged is not None
    ]
    low, high = findings.runs[0].value, findings.runs[-1].value
    x = Axis(f"training.{findings.sweep.path}", "log" if low > 0 and high >= WIDE * low else "linear")
    y = Axis("held-out text, causal, bits per byte")
    return Plot([Panel(x, y, series, findings.run.model.name, rules)], (8.0, 4.6))
