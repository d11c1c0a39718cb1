"""Learning in context: accuracy against the number of examples, without and with an instruction.

For abilities in words, solved questions are placed before the question (Brown et al., arXiv 2005.14165, section 2).
`rules` has its examples within an item, so the accuracy at each place of its answers is the curve.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from linnet.core.errors import UserError
from linnet.evaluation.abilities.contract import Ability, TextAbility
from linnet.evaluation.abilities.measure import AnswerCounts, measure
from linnet.evaluation.abilities.symbols import Rules
from linnet.evaluation.models import ModelOptions
from linnet.evaluation.statistics import NOT_ABOVE_CHANCE
from linnet.inference.language_model import LanguageModel
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture, Result
from linnet.present.table import Table

COLUMNS = ("task", "examples", "right, %", "with instruction, %", "difference", "chance, %", "")
PANEL_INCHES = (5.6, 4.0)


@dataclass(frozen=True)
class ShotsPoint:
    """The score with `shots` examples before the question, or the reason why it was not measured."""

    shots: int
    chance: float
    score: AnswerCounts | None
    missing: str = ""

    def to_dict(self) -> dict[str, Any]:
        plain = {"shots": self.shots, "chance": self.chance, "missing": self.missing or None}
        if self.score is None:
            return plain
        return plain | {
            "items": self.score.items,
            "right": self.score.accuracy,
            "standard_error": self.score.standard_error,
            "above_chance": self.score.beats(self.chance),
        }


@dataclass(frozen=True)
class ShotsCurve:
    """One task with a point for each number of examples; `ability` is the task without examples and instruction.

    instructed: the points with an instruction; empty for an ability that has none.
    """

    ability: Ability
    plain: Sequence[ShotsPoint]
    instructed: Sequence[ShotsPoint] = ()

    @property
    def label(self) -> str:
        """The task and its sizes, without what is varied."""
        varied = ("shots=", "instruction=", "steps=false")
        return " ".join(word for word in self.ability.label.split() if not word.startswith(varied))

    def gains(self) -> list[tuple[float, float] | None]:
        """At each number of examples: the accuracy gained by the instruction, and its standard error; None if unknown.

        The two scores are of different questions, so their variances add.
        """
        found: list[tuple[float, float] | None] = []
        for plain, instructed in zip(self.plain, self.instructed, strict=False):
            errors = [None if point.score is None else point.score.standard_error for point in (plain, instructed)]
            if plain.score is None or instructed.score is None or errors[0] is None or errors[1] is None:
                found.append(None)
            else:
                gain = instructed.score.accuracy - plain.score.accuracy
                found.append((gain, math.hypot(errors[0], errors[1])))
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "ability": self.ability.model_dump(),
            "plain": [point.to_dict() for point in self.plain],
            "instructed": [point.to_dict() for point in self.instructed],
        }


def shot_tasks(abilities: Sequence[Ability]) -> list[Ability]:
    """The abilities that examples can be shown of, each once and without examples and instruction."""
    found: list[Ability] = []
    for ability in abilities:
        plain = ability
        if isinstance(ability, TextAbility):
            plain = ability.model_copy(update={"shots": 0, "instruction": False})
        if isinstance(plain, TextAbility | Rules) and plain not in found:
            found.append(plain)
    return found


def measurement_count(task: Ability, shots: Sequence[int]) -> int:
    """How often a task is measured for its curve."""
    return 1 if isinstance(task, Rules) else 2 * len(shots)


def shots_curve(
    model: LanguageModel,
    task: Ability,
    shots: Sequence[int],
    items: int,
    seed: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> ShotsCurve:
    """The accuracy of one of `shot_tasks` at each number of examples; `advance` receives the measurements done."""
    if isinstance(task, Rules):
        result = measure(model, task, items, seed)
        advance(measurement_count(task, shots))
        points = []
        for count in shots:
            # The answer after `count` true examples: a guess is one of the numbers that did not occur yet.
            chance = 1 / (task.modulus - count) if count < task.examples else math.nan
            if count >= task.examples:
                points.append(ShotsPoint(count, chance, None, f"an item has {task.examples} examples"))
            elif result.score is None:
                points.append(ShotsPoint(count, chance, None, result.missing))
            else:
                at_place = AnswerCounts(result.score.asked_at[count], result.score.right_at[count])
                points.append(ShotsPoint(count, chance, at_place))
        return ShotsCurve(task, points)
    assert isinstance(task, TextAbility)

    def point(count: int, instruction: bool) -> ShotsPoint:
        ability = task.model_copy(update={"shots": count, "instruction": instruction})
        result = measure(model, ability, items, seed)
        advance(1)
        return ShotsPoint(count, ability.chance.answer, result.score, result.missing)

    return ShotsCurve(task, [point(count, False) for count in shots], [point(count, True) for count in shots])


@dataclass(frozen=True)
class ShotsReport(Result):
    """The curves of one model, with `items` items for each point."""

    model: str
    options: ModelOptions
    items: int
    shots: Sequence[int]
    curves: Sequence[ShotsCurve]

    def to_dict(self) -> dict[str, Any]:
        curves = [curve.to_dict() for curve in self.curves]
        options = {name: getattr(self.options, name) for name in ("seed", "precision", "calibration")}
        return {"model": self.model, **options, "shots": list(self.shots), "in_context": curves}

    def tables(self) -> list[Table]:
        """A row for each task and number of examples."""
        rows = []
        for curve in self.curves:
            gains = curve.gains() or [None] * len(curve.plain)
            instructed: Sequence[ShotsPoint | None] = curve.instructed or [None] * len(curve.plain)
            for number, (point, other, gain) in enumerate(zip(curve.plain, instructed, gains, strict=True)):
                scores = [one.score.percent if one and one.score else "" for one in (point, other)]
                difference = "" if gain is None else f"{100 * gain[0]:+.1f} ± {100 * gain[1]:.1f}"
                chance = "" if math.isnan(point.chance) else numbers.percent_of(point.chance)
                name = curve.label if number == 0 else " "
                rows.append([name, str(point.shots), *scores, difference, chance, _note(point, other)])
        note = (
            f"right: whole answers of {self.items:,} items each, decoded greedily, with their standard error;"
            " with instruction: the same after a line that says what to do; difference: of the two, with its error"
        )
        return [Table("Accuracy against examples", COLUMNS, rows, note)]

    def plots(self) -> list[Picture]:
        """A panel for each task that was measured; `UserError` if none was."""
        panels = [_panel(curve) for curve in self.curves if any(point.score for point in curve.plain)]
        if not panels:
            raise UserError(f"nothing to draw: {self.curves[0].plain[0].missing}")
        plot = Plot(panels, PANEL_INCHES, columns=min(2, len(panels)))
        return [Picture("shots", "Accuracy against examples", plot, "Bands are standard errors.")]


def _note(point: ShotsPoint, instructed: ShotsPoint | None) -> str:
    if point.missing:
        return f"not measured: {point.missing}"
    measured = [one for one in (point, instructed) if one is not None and one.score is not None]
    above = [one.score is not None and one.score.beats(one.chance) for one in measured]
    if all(above):
        return ""
    return NOT_ABOVE_CHANCE if not any(above) else f"one of the two {NOT_ABOVE_CHANCE}"


def _panel(curve: ShotsCurve) -> Panel:
    lines = []
    named = [(curve.plain, "without instruction"), (curve.instructed, "with instruction")]
    for number, (points, name) in enumerate(named):
        if points:
            scores = [(point.shots, point.score) for point in points if point.score is not None]
            low = [score.accuracy - (score.standard_error or 0) for _, score in scores]
            high = [score.accuracy + (score.standard_error or 0) for _, score in scores]
            shots, shares = [shots for shots, _ in scores], [score.accuracy for _, score in scores]
            lines.append(Series(shots, shares, name, "o-", number, low, high))
    # A chance level that is the same everywhere is a rule, another one a dashed line.
    known = [point for point in curve.plain if not math.isnan(point.chance)]
    chances = {point.chance for point in known}
    rules = [Rule(chances.pop(), "chance")] if len(chances) == 1 else []
    if chances:
        lines.append(Series([p.shots for p in known], [p.chance for p in known], "chance", "--", 7))
    x = Axis("examples before the question", "symlog", places={point.shots: str(point.shots) for point in curve.plain})
    return Panel(x, Axis("share right", low=0.0, high=1.03), lines, curve.label, rules)
