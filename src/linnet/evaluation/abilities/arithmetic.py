"""Two additions or subtractions, one after the other."""

from random import Random
from typing import ClassVar, Literal

from pydantic import Field

from linnet.evaluation.abilities.item import Question
from linnet.evaluation.abilities.questions import TextAbility


class Arithmetic(TextAbility):
    """`7 + 5 - 3 =`, and 9; every number on the way is 0 to `most`, and each is equally likely."""

    told: ClassVar[str] = "Add and subtract from left to right."

    kind: Literal["arithmetic"] = "arithmetic"
    most: int = Field(20, ge=1, le=10_000)

    @property
    def guesses(self) -> tuple[float, ...]:
        """The first result, then the second."""
        return (1 / (self.most + 1),) * 2

    def question(self, rng: Random) -> Question:
        """The results are drawn, and what leads to them follows."""
        first, between, last = (rng.randint(0, self.most) for _ in range(3))
        then = _change(between, last)
        steps = f" {between} {then} =" if self.steps else ""
        return Question(f"{first} {_change(first, between)} {then} =", f"{steps} {last}")


def _change(before: int, after: int) -> str:
    return f"+ {after - before}" if after >= before else f"- {before - after}"
