"""Accuracy against examples, as tables and as a plot."""

from collections.abc import Sequence

from linnet.evaluation.abilities.in_context import ShotsCurve, ShotsPoint
from linnet.evaluation.statistics import NOT_ABOVE_CHANCE
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.table import Table

COLUMNS = ("task", "examples", "right, %", "with instruction, %", "difference", "chance, %", "")
PANEL_INCHES = (5.6, 4.0)


def shots_table(curves: Sequence[ShotsCurve], items: int) -> Table:
    """A row for each task and number of examples."""
    meaning = (
        f"right: whole answers, greedily, of {items:,} items each, with their standard error; with instruction: the"
        " same behind a line that says what to do; difference: of the two, with the error of a difference"
    )
    return Table("Accuracy against examples", COLUMNS, [row for curve in curves for row in _rows(curve)], meaning)


def _rows(curve: ShotsCurve) -> list[list[str]]:
    """The task's name stands once."""
    rows, gains = [], list(curve.gains()) or [None] * len(curve.plain)
    told: Sequence[ShotsPoint | None] = curve.instructed or [None] * len(curve.plain)
    for number, (point, instructed, gain) in enumerate(zip(curve.plain, told, gains, strict=True)):
        name = curve.said if number == 0 else " "
        difference = "" if gain is None else f"{100 * gain[0]:+.1f} ± {100 * gain[1]:.1f}"
        chance = "" if point.chance != point.chance else numbers.percent_of(point.chance)
        cells = [_share(point), _share(instructed), difference, chance, _note(point, instructed)]
        rows.append([name, str(point.shots), *cells])
    return rows


def _share(point: ShotsPoint | None) -> str:
    if point is None or point.score is None:
        return ""
    return point.score.percent


def _note(point: ShotsPoint, instructed: ShotsPoint | None) -> str:
    if point.missing:
        return f"not measured: {point.missing}"
    known = [one for one in (point, instructed) if one is not None and one.score is not None]
    above = [one.score is not None and one.score.beats(one.chance) for one in known]
    if all(above):
        return ""
    return NOT_ABOVE_CHANCE if not any(above) else f"one of the two {NOT_ABOVE_CHANCE}"


def shots_plot(curves: Sequence[ShotsCurve]) -> Plot:
    """A panel for each task that was measured: shares with their errors, and the line of chance."""
    panels = [_panel(curve) for curve in curves if any(point.score for point in curve.plain)]
    return Plot(panels, PANEL_INCHES, columns=min(2, len(panels)))


def _panel(curve: ShotsCurve) -> Panel:
    named = [(curve.plain, "without instruction"), (curve.instructed, "with instruction")]
    lines = [_line(points, name, number) for number, (points, name) in enumerate(named) if points]
    shots = {point.shots: str(point.shots) for point in curve.plain}
    x = Axis("examples before the question", "symlog", places=shots)
    chances = {point.chance for point in curve.plain if point.chance == point.chance}
    rules = [Rule(chances.pop(), "chance")] if len(chances) == 1 else []
    if chances:
        known = [point for point in curve.plain if point.chance == point.chance]
        lines.append(Series([p.shots for p in known], [p.chance for p in known], "chance", "--", 7))
    return Panel(x, Axis("share right", low=0.0, high=1.03), lines, curve.said, rules)


def _line(points: Sequence[ShotsPoint], name: str, number: int) -> Series:
    known = [(point.shots, point.score) for point in points if point.score is not None]
    share = [score.share for _, score in known]
    low = [score.share - (score.standard_error or 0) for _, score in known]
    high = [score.share + (score.standard_error or 0) for _, score in known]
    return Series([shots for shots, _ in known], share, name, "o-", number, low, high)
