"""What a comparison found, as a table, as learning curves in the table's unit, and as the files in its folder.

A seed with which a run diverged is no part of its curve: its own is dotted, and an upright line tells where it ended.
"""

from collections.abc import Sequence
from pathlib import Path

from linnet.core.checksum import write_checked_json
from linnet.experiments.comparison.ability_output import ability_table, measures_ability, state_panel
from linnet.experiments.comparison.figures import ComparedFigures, Findings, Spread
from linnet.experiments.comparison.spec import CURVES, FIGURES
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series, line_style
from linnet.present.table import MISSING, Table

COLUMNS = (
    "run", "seeds", "bits per byte", "accuracy, %", "leak", "parameters", "training FLOPs", "tokens", "tokens/s",
)  # fmt: skip


def write_findings(findings: Findings, folder: Path) -> None:
    """Write `comparison.json` and `curves.png`."""
    write_checked_json(folder / FIGURES, findings.to_dict())
    draw(findings.runs, folder / CURVES, findings.name)


def findings_table(findings: Findings) -> Table:
    """A row for each run that is shown: how good it is, then what it cost."""
    if measures_ability(findings.runs):
        return ability_table(findings, _spread_said(findings))
    rows = [[one.name, *_cells(one)] for one in findings.runs]
    return Table("Held-out text, and training", COLUMNS, rows, meaning(findings))


def meaning(findings: Findings) -> str:
    """What the means are over, and what they were measured on."""
    return f"{_spread_said(findings)}; causal, on {_measured(findings)}; tokens/s: of the steps of training"


def _cells(one: ComparedFigures) -> list[str]:
    bits, accuracy, leak, speed = one.bits_per_byte, one.accuracy, one.leak, one.tokens_per_s
    if one.parameters is None or one.tokens is None or bits is None or accuracy is None:
        return [one.seeds, one.fate, *[MISSING] * (len(COLUMNS) - 3)]
    return [
        one.seeds,
        _with_spread(bits, 4, 1),
        _with_spread(accuracy, 2, 100),
        "none" if leak is None else numbers.signed(leak.mean, 4),
        numbers.grouped(one.parameters),
        MISSING if one.training_flops is None else numbers.scientific(one.training_flops),
        numbers.grouped(one.tokens),
        MISSING if speed is None else numbers.grouped(speed.mean),
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


MARGIN = 1.05
"""Of a logarithmic axis, about the curves."""


def draw(figures: Sequence[ComparedFigures], path: Path, title: str) -> None:
    """Draw a PNG, with bands from the lowest seed to the highest."""
    plot(figures, title).write(path)


def plot(figures: Sequence[ComparedFigures], title: str) -> Plot:
    """The axis is that of the runs that came to an end: a loss that runs away would leave the others a flat line."""
    drawn = [_curve(one, number) for number, one in enumerate(figures) if one.outcomes]
    lost = [series for number, one in enumerate(figures) for series in _lost_curves(one, number)]
    ends = [rule for number, one in enumerate(figures) for rule in _ends(one, number)]
    spreads = [spread for one in figures if one.outcomes for _, spread in one.curve]
    low = min((spread.lowest / MARGIN for spread in spreads), default=None)
    high = max((spread.highest * MARGIN for spread in spreads), default=None)
    y = Axis("held-out text, causal, bits per byte", "log", low=low, high=high)
    curves = Panel(Axis("step"), y, [*drawn, *lost], title, ends)
    return Plot([curves, state_panel(figures)] if measures_ability(figures) else [curves], (9.0, 5.2))


def _curve(one: ComparedFigures, number: int) -> Series:
    """Runs that were evaluated once have no line, so the points are drawn too."""
    steps, spreads = zip(*one.curve, strict=True) if one.curve else ((), ())
    low, high = [spread.lowest for spread in spreads], [spread.highest for spread in spreads]
    return Series(steps, [spread.mean for spread in spreads], one.name, line_style(number), number, low, high)


def _lost_curves(one: ComparedFigures, number: int) -> list[Series]:
    curves = [
        Series([p.step for p in each.curve], [p.bits_per_byte for p in each.curve], "", ".:", number)
        for each in one.broken_down
    ]
    return [*curves, Series([], [], _lost_said(one), ":", number)] if curves else []


def _ends(one: ComparedFigures, number: int) -> list[Rule]:
    ends = [each.step for each in one.broken_down if each.step is not None]
    return [Rule(step, style=":", color=number, upright=True) for step in ends]


def _lost_said(one: ComparedFigures) -> str:
    lost = len(one.broken_down)
    return f"{one.name}: {one.fate} with {lost} of {lost + len(one.outcomes)} seeds"
