"""Learning in context: accuracy against the number of examples, without and with an instruction before them.

Of abilities in words solved questions stand before the one that is asked (Brown et al., arXiv 2005.14165, section 2);
`rules` has its examples within an item, so that the places of its answers are their number.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from linnet.evaluation.abilities.ability import Ability
from linnet.evaluation.abilities.measure import AbilityResult, AnswerCounts, measure
from linnet.evaluation.abilities.questions import TextAbility
from linnet.evaluation.abilities.rules import Rules
from linnet.inference.language_model import LanguageModel


@dataclass(frozen=True)
class ShotsPoint:
    """So many examples before the question, what came of it, and chance; or the reason why it was not measured."""

    shots: int
    chance: float
    score: AnswerCounts | None
    missing: str = ""

    def figures(self) -> dict[str, Any]:
        """Ready for JSON."""
        plain = {"shots": self.shots, "chance": self.chance, "missing": self.missing or None}
        if self.score is None:
            return plain
        measured = {
            "items": self.score.items,
            "right": self.score.share,
            "standard_error": self.score.standard_error,
            "above_chance": self.score.beats(self.chance),
        }
        return plain | measured


@dataclass(frozen=True)
class ShotsCurve:
    """One task, without examples and without an instruction in `ability`; a point for each number of examples.

    instructed: the same with the instruction; empty for an ability that has none.
    """

    ability: Ability
    plain: Sequence[ShotsPoint]
    instructed: Sequence[ShotsPoint] = ()

    @property
    def said(self) -> str:
        """The task for people: its sizes, without what is varied."""
        varied = ("shots=", "instruction=", "steps=false")
        return " ".join(word for word in self.ability.said.split() if not word.startswith(varied))

    def gains(self) -> Iterator[tuple[float, float] | None]:
        """At each number of examples what the instruction adds to the share, and the error of that; None if unknown.

        The two are of different questions: their variances add.
        """
        for without, told in zip(self.plain, self.instructed, strict=False):
            yield None if without.score is None or told.score is None else _gain(without.score, told.score)

    def figures(self) -> dict[str, Any]:
        """Ready for JSON."""
        points = {"plain": self.plain, "instructed": self.instructed}
        return {
            "ability": self.ability.model_dump(),
            **{name: [one.figures() for one in own] for name, own in points.items()},
        }


def _gain(without: AnswerCounts, told: AnswerCounts) -> tuple[float, float] | None:
    errors = without.standard_error, told.standard_error
    if errors[0] is None or errors[1] is None:
        return None
    return told.share - without.share, math.hypot(errors[0], errors[1])


def shot_tasks(abilities: Sequence[Ability]) -> list[Ability]:
    """What examples can be shown of among these: each once, whatever numbers of them and instructions it comes with."""
    found: list[Ability] = []
    for ability in abilities:
        plain = ability
        if isinstance(ability, TextAbility):
            plain = ability.model_copy(update={"shots": 0, "instruction": False})
        if isinstance(plain, TextAbility | Rules) and plain not in found:
            found.append(plain)
    return found


def shots_curve(
    model: LanguageModel,
    task: Ability,
    shots: Sequence[int],
    items: int,
    seed: int = 0,
    measured: Callable[[int], None] = lambda count: None,
) -> ShotsCurve:
    """Accuracy of one of `shot_tasks` at each number of examples, on so many items; `measured` hears of each."""
    if isinstance(task, Rules):
        found = measure(model, task, items, seed)
        measured(measurement_count(task, shots))
        return ShotsCurve(task, [_at_place(task, found, count) for count in shots])
    assert isinstance(task, TextAbility)

    def point(count: int, instruction: bool) -> ShotsPoint:
        asked = task.model_copy(update={"shots": count, "instruction": instruction})
        found = measure(model, asked, items, seed)
        measured(1)
        return ShotsPoint(count, asked.chance.answer, found.score, found.missing)

    return ShotsCurve(task, [point(count, False) for count in shots], [point(count, True) for count in shots])


def measurement_count(task: Ability, shots: Sequence[int]) -> int:
    """How often a task is measured for its curve."""
    return 1 if isinstance(task, Rules) else 2 * len(shots)


def _at_place(task: Rules, found: AbilityResult, shots: int) -> ShotsPoint:
    """Behind so many examples, of answers given the true ones before them: one that did not come yet is a guess."""
    if shots >= task.examples:
        return ShotsPoint(shots, math.nan, None, f"an item has {task.examples} examples")
    chance = 1 / (task.modulus - shots)
    if found.score is None:
        return ShotsPoint(shots, chance, None, found.missing)
    return ShotsPoint(shots, chance, AnswerCounts(found.score.asked_at[shots], found.score.right_at[shots]))
