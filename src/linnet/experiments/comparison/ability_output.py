"""What a comparison on one ability found: right answers against chance and bytes of state, a table and a picture."""

from collections.abc import Sequence
from typing import Any

from linnet.experiments.comparison.figures import ComparedFigures, Findings, Spread
from linnet.present import numbers
from linnet.present.plot import MARKS, Axis, Panel, Rule, Series, line_style
from linnet.present.table import MISSING, Table

COLUMNS = (
    "run", "seeds", "right, %", "whole answers, %", "above chance", "state, bytes", "parameters", "training FLOPs",
    "tokens/s",
)  # fmt: skip
FINAL_AT = 4
"""Of the columns, where that of final answers stands if there are any: behind the whole ones."""


def measures_ability(runs: Sequence[ComparedFigures]) -> bool:
    """Whether every outcome of these runs is of an ability, and there is one."""
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    return bool(outcomes) and all("ability" in outcome.evaluation for outcome in outcomes)


def ability_table(findings: Findings, seeds_said: str) -> Table:
    """A row for each run: how often it is right, then what that takes."""
    measured = [found for run in findings.runs for found in _measured(run)]
    first = measured[0]
    symbols = (
        "" if first["symbols_chance"] is None else f" of symbols, {100 * first['symbols_chance']:.2f} % by chance;"
    )
    ends = all("final_right" in found for found in measured)
    final = f" final: the end of what is written, {_chances(measured, 'final_chance')} by chance;" if ends else ""
    meaning = (
        f"{seeds_said}; right:{symbols} whole answers: {_chances(measured, 'chance')} by chance,"
        f" {first['items']:,} held-out items;{final} above chance: with how many seeds the whole answers are"
        " (binomial, 1 %); state: of one stream in float32, behind the longest item"
    )
    columns = (*COLUMNS[:FINAL_AT], "final, %", *COLUMNS[FINAL_AT:]) if ends else COLUMNS
    rows = [[one.name, *_cells(one, ends)] for one in findings.runs]
    return Table("Answers, and what they take", columns, rows, meaning)


def _chances(measured: Sequence[dict[str, Any]], name: str) -> str:
    """Where runs were trained on different forms of a question there are several."""
    values = sorted({found[name] for found in measured}, reverse=True)
    return f"{' or '.join(numbers.significant(100 * value) for value in values)} %"


def _measured(one: ComparedFigures) -> list[dict[str, Any]]:
    return [outcome.evaluation["ability"] for outcome in one.outcomes]


def _spread(one: ComparedFigures, name: str) -> Spread:
    return Spread.of([measured[name] for measured in _measured(one)])


def _state_bytes(one: ComparedFigures) -> int:
    """Of all seeds: they have one shape."""
    return int(one.outcomes[0].evaluation["state_bytes"])


def _cells(one: ComparedFigures, ends: bool) -> list[str]:
    if not one.outcomes or one.parameters is None:
        return [one.seeds, one.fate, *[MISSING] * (len(COLUMNS) - 3 + ends)]
    speed = one.tokens_per_s
    above = [measured["above_chance"] for measured in _measured(one)]
    return [
        one.seeds,
        _percent(_spread(one, "symbols_right")),
        _percent(_spread(one, "right")),
        *([_percent(_spread(one, "final_right"))] if ends else []),
        f"{sum(above)} of {len(above)}",
        numbers.grouped(_state_bytes(one)),
        numbers.grouped(one.parameters),
        MISSING if one.training_flops is None else numbers.scientific(one.training_flops),
        MISSING if speed is None else numbers.grouped(speed.mean),
    ]


def _percent(spread: Spread) -> str:
    mean = f"{100 * spread.mean:.1f}"
    return mean if spread.deviation is None else f"{mean} ± {100 * spread.deviation:.1f}"


def state_panel(figures: Sequence[ComparedFigures]) -> Panel:
    """Accuracy against bytes of state, a point for each run, from the lowest seed to the highest."""
    series = [_point(one, number) for number, one in enumerate(figures) if one.outcomes]
    chance = _measured(next(one for one in figures if one.outcomes))[0]["symbols_chance"]
    rules = [] if chance is None else [Rule(chance, "chance")]
    x, y = Axis("bytes of state", "log2", format=numbers.binary), Axis("share right", low=0.0, high=1.03)
    return Panel(x, y, series, "right answers against state", rules)


def _point(one: ComparedFigures, number: int) -> Series:
    """With the mark that the run's line has; hollow where all marks are taken."""
    right = _spread(one, "symbols_right")
    mark, hollow = line_style(number)[0], number // len(MARKS) % 2 == 1
    place, ends = [_state_bytes(one)], ([right.lowest], [right.highest])
    return Series(place, [right.mean], one.name, mark, number, *ends, large=hollow)
