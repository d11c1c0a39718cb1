"""Saying again what was read: all of it, what matters of it, or all of it in order."""

import math
import string
from random import Random
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from linnet.evaluation.abilities.ability import SIZES, Ability
from linnet.evaluation.abilities.item import Chance, Symbols

LETTERS = string.ascii_lowercase
THEN, NOISE = "|", "."


class Copying(Ability):
    """`length` letters, then the same again. Chance: a letter drawn evenly, whatever was read.

    Jelassi et al., "Repeat After Me" (arXiv 2402.01032).
    """

    kind: Literal["copying"] = "copying"
    length: Annotated[int, SIZES] = 16
    symbols: int = Field(16, ge=2, le=len(LETTERS))

    @property
    def alphabet(self) -> str:
        """The letters, and the sign that it is time."""
        return LETTERS[: self.symbols] + THEN

    @property
    def chance(self) -> Chance:
        """Letters are independent and equally likely."""
        return Chance(1 / self.symbols, self.symbols**-self.length)

    def draw(self, rng: Random) -> Symbols:
        """Letters may come again."""
        said = rng.choices(LETTERS[: self.symbols], k=self.length)
        return Symbols.prompt_and_answer([*said, THEN], said)


class SelectiveCopying(Ability):
    """`length` letters scattered among `noise` dots, then the letters alone. Chance as of copying.

    Gu and Dao, "Mamba" (arXiv 2312.00752, section 4.1).
    """

    kind: Literal["selective_copying"] = "selective_copying"
    length: Annotated[int, SIZES] = 8
    noise: Annotated[int, SIZES] = 24
    symbols: int = Field(16, ge=2, le=len(LETTERS))

    @property
    def alphabet(self) -> str:
        """The letters, the dot, and the sign that it is time."""
        return LETTERS[: self.symbols] + NOISE + THEN

    @property
    def chance(self) -> Chance:
        """Letters are independent and equally likely."""
        return Chance(1 / self.symbols, self.symbols**-self.length)

    def draw(self, rng: Random) -> Symbols:
        """All places are equally likely."""
        said = rng.choices(LETTERS[: self.symbols], k=self.length)
        prompt = [NOISE] * (self.length + self.noise)
        places = sorted(rng.sample(range(len(prompt)), self.length))
        for place, letter in zip(places, said, strict=True):
            prompt[place] = letter
        return Symbols.prompt_and_answer([*prompt, THEN], said)


class Sorting(Ability):
    """`length` different letters, then the same in the order of the alphabet.

    Chance: who has read nothing but knows which letter came last in the order names the one behind it. Of the n - v
    letters behind the letter v the m that are still to come are any, so the next is the first of them with probability
    m / (n - v).
    """

    kind: Literal["sorting"] = "sorting"
    length: Annotated[int, SIZES] = 8
    symbols: int = Field(16, ge=2, le=len(LETTERS))

    @model_validator(mode="after")
    def _some_are_left_out(self) -> Self:
        if self.length >= self.symbols:
            raise ValueError(
                f"length: {self.length}: expected fewer than `symbols`, {self.symbols}: they are different"
            )
        return self

    @property
    def alphabet(self) -> str:
        """The letters, and the sign that it is time."""
        return LETTERS[: self.symbols] + THEN

    @property
    def chance(self) -> Chance:
        """The mean over the places of the answer; of all of it, one of the choices of `length` letters."""
        choices = math.comb(self.symbols, self.length)
        right = self.length / self.symbols
        for place in range(1, self.length):
            left = self.length - place
            for letter in range(place, self.symbols - left + 1):
                drawn = math.comb(letter - 1, place - 1) * math.comb(self.symbols - letter, left) / choices
                right += drawn * left / (self.symbols - letter)
        return Chance(right / self.length, 1 / choices)

    def draw(self, rng: Random) -> Symbols:
        """All orders of all choices are equally likely."""
        said = rng.sample(LETTERS[: self.symbols], self.length)
        return Symbols.prompt_and_answer([*said, THEN], sorted(said))
