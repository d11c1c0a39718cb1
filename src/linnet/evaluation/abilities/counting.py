"""Keeping a number: how often a letter came, and how deep the brackets are."""

import string
from random import Random
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from linnet.evaluation.abilities.ability import SIZES, Ability
from linnet.evaluation.abilities.item import Chance, Symbols

NUMBERS = string.digits + string.ascii_uppercase
NGRAM, OTHERS, HOW_MANY = "a", "bcdefgh", "?"
OPEN, CLOSE = "()"


class Counting(Ability):
    """`length` letters of which some, none to `most`, are an `a`: how many? Every number is equally likely."""

    kind: Literal["counting"] = "counting"
    length: Annotated[int, SIZES] = 24
    most: int = Field(9, ge=1, lt=len(NUMBERS))

    @model_validator(mode="after")
    def _there_is_room(self) -> Self:
        if self.most > self.length:
            raise ValueError(f"most: {self.most}: expected at most `length`, {self.length}")
        return self

    @property
    def alphabet(self) -> str:
        """Letters, numbers as one symbol each, and the question mark."""
        return NGRAM + OTHERS + NUMBERS[: self.most + 1] + HOW_MANY

    @property
    def chance(self) -> Chance:
        """Any number."""
        return Chance(1 / (self.most + 1), 1 / (self.most + 1))

    def draw(self, rng: Random) -> Symbols:
        """The number first, then places, which are equally likely."""
        count = rng.randint(0, self.most)
        letters = [*NGRAM * count, *rng.choices(OTHERS, k=self.length - count)]
        rng.shuffle(letters)
        return Symbols.prompt_and_answer([*letters, HOW_MANY], [NUMBERS[count]])


class Brackets(Ability):
    """`length` brackets, and behind each the depth that they have come to, 0 to `max_depth`.

    Each bracket opens or closes with equal probability, where both can be. Chance: the likeliest depth at each place,
    and the likeliest course of all of them, for who has read nothing.
    """

    kind: Literal["brackets"] = "brackets"
    length: Annotated[int, SIZES] = 32
    max_depth: int = Field(8, ge=2, lt=len(NUMBERS))

    @property
    def alphabet(self) -> str:
        """Brackets, and depths as one symbol each."""
        return OPEN + CLOSE + NUMBERS[: self.max_depth + 1]

    @property
    def chance(self) -> Chance:
        """From the depths' transitions, forward; the true depths before a place are not told."""
        steps_DD = np.zeros((self.max_depth + 1, self.max_depth + 1))
        for depth in range(self.max_depth + 1):
            ways = [way for way in (depth - 1, depth + 1) if 0 <= way <= self.max_depth]
            steps_DD[depth, ways] = 1 / len(ways)
        at_D = likeliest_D = np.eye(self.max_depth + 1)[0]
        right = 0.0
        for _ in range(self.length):
            at_D, likeliest_D = at_D @ steps_DD, (likeliest_D[:, None] * steps_DD).max(axis=0)
            right += float(at_D.max())
        return Chance(right / self.length, float(likeliest_D.max()))

    def draw(self, rng: Random) -> Symbols:
        """A walk that turns back at both ends."""
        depth, read, wanted = 0, [], []
        for _ in range(self.length):
            opens = depth == 0 or (depth < self.max_depth and rng.random() < 0.5)
            depth += 1 if opens else -1
            read.append(OPEN if opens else CLOSE)
            wanted.append(NUMBERS[depth])
        return Symbols(read, wanted)
