"""What a comparison found, as a table, and as the files in its folder."""

from pathlib import Path

from linnet.core.files import write_json
from linnet.experiments.comparison.figures import ComparedFigures, Findings, Spread
from linnet.experiments.comparison.layout import CURVES, FIGURES
from linnet.experiments.comparison.plot import draw
from linnet.present import numbers
from linnet.present.table import Table

NOTHING = "–"
COLUMNS = (
    "run", "seeds", "bits per byte", "accuracy, %", "leak", "parameters", "training FLOPs", "tokens", "tokens/s",
)  # fmt: skip


def write_findings(findings: Findings, folder: Path) -> None:
    """Write `comparison.json` and `curves.png`."""
    write_json(folder / FIGURES, findings.plain())
    draw(findings.runs, folder / CURVES, findings.name)


def findings_table(findings: Findings) -> Table:
    """A row for each run that is shown: how good it is, then what it cost."""
    rows = [[one.name, *_cells(one)] for one in findings.runs]
    return Table("Held-out text, and training", COLUMNS, rows, meaning(findings))


def meaning(findings: Findings) -> str:
    """What the means are over, and what they were measured on."""
    return f"{_spread_said(findings)}; causal, on {_measured(findings)}; tokens/s: of the steps of training"


def _cells(one: ComparedFigures) -> list[str]:
    bits, accuracy, leak, speed = one.bits_per_byte, one.accuracy, one.leak, one.tokens_per_s
    if one.parameters is None or one.tokens is None or bits is None or accuracy is None:
        return [one.seeds, one.fate, *[NOTHING] * (len(COLUMNS) - 3)]
    return [
        one.seeds,
        _with_spread(bits, 4, 1),
        _with_spread(accuracy, 2, 100),
        "none" if leak is None else numbers.signed(leak.mean, 4),
        numbers.grouped(one.parameters),
        NOTHING if one.training_flops is None else numbers.scientific(one.training_flops),
        numbers.grouped(one.tokens),
        NOTHING if speed is None else numbers.grouped(speed.mean),
    ]


def _with_spread(spread: Spread, decimals: int, scale: float) -> str:
    mean = f"{scale * spread.mean:.{decimals}f}"
    return mean if spread.deviation is None else f"{mean} ± {scale * spread.deviation:.{decimals}f}"


def _spread_said(findings: Findings) -> str:
    seeds = {len(run.outcomes) + len(run.broken_down) for run in findings.runs}
    if seeds == {1}:
        return "one seed: nothing is known of the spread"
    every = f"{max(seeds)} seeds" if len(seeds) == 1 else "the seeds of each run"
    over = "the seeds that were trained to the end" if findings.broken_down else every
    return f"mean ± standard deviation over {over}"


def _measured(findings: Findings) -> str:
    """The text: where runs were evaluated on more or less of it, a difference may come from that."""
    tokens = sorted({outcome.evaluation["tokens"] for run in findings.runs for outcome in run.outcomes})
    if len(tokens) < 2:
        return f"the same held-out documents{f', {numbers.grouped(tokens[0])} tokens' if tokens else ''}"
    least, most = numbers.grouped(tokens[0]), numbers.grouped(tokens[-1])
    return f"{least} to {most} held-out tokens, not the same of all: linnet evaluate measures each on all of them"
