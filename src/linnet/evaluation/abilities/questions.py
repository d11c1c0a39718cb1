"""Abilities in plain text: examples before the question, an instruction before all, steps before the answer."""

from abc import abstractmethod
from random import Random
from typing import ClassVar

from pydantic import Field

from linnet.evaluation.abilities.ability import Ability
from linnet.evaluation.abilities.item import Chance, Question


class TextAbility(Ability):
    """A question in words.

    shots: so many others with their answers stand before it. instruction: a sentence that tells what to do stands
    before all. steps: the answer is written with the steps that lead to it, and is right where they are.
    """

    told: ClassVar[str]
    """The instruction."""

    shots: int = Field(0, ge=0, le=64)
    instruction: bool = False
    steps: bool = False

    @property
    def alphabet(self) -> str:
        """Any tokenizer can spell text."""
        return ""

    @property
    @abstractmethod
    def guesses(self) -> tuple[float, ...]:
        """Chance of each step, the answer last."""

    @property
    def chance(self) -> Chance:
        """Of the answer; with steps, of all of them."""
        answer = 1.0
        for guess in self.guesses if self.steps else self.guesses[-1:]:
            answer *= guess
        return Chance(None, answer)

    @abstractmethod
    def question(self, rng: Random) -> Question:
        """One question by itself."""

    def draw(self, rng: Random) -> Question:
        """With all that stands before it."""
        shown = [self.question(rng) for _ in range(self.shots)]
        asked = self.question(rng)
        lines = [self.told] if self.instruction else []
        lines += [one.prompt + one.answer for one in shown]
        return Question("\n".join([*lines, asked.prompt]), asked.answer, asked.final)
