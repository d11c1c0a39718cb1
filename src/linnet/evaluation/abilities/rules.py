"""Learning in context: a rule that no model can know beforehand, told by examples alone."""

import math
from random import Random
from typing import Literal, Self

from pydantic import Field, model_validator

from linnet.evaluation.abilities.ability import Ability, symbols
from linnet.evaluation.abilities.item import Chance, Symbols

FIRST = 0x4E00
MOST_MODULUS = 97


class Rules(Ability):
    """A rule y = a x + b modulo a prime is drawn; `examples` times x is read, y is wanted, and y is read.

    The n-th answer has n - 1 examples before it, so that the places of the answers are accuracy against examples (after
    Garg et al., arXiv 2208.01066, section 2). Two examples tell the rule. Every x is another, so every y is; chance
    names one that did not come yet.
    """

    kind: Literal["rules"] = "rules"
    examples: int = Field(8, ge=1, le=MOST_MODULUS)
    modulus: int = Field(11, ge=3, le=MOST_MODULUS)

    @model_validator(mode="after")
    def _prime_and_enough(self) -> Self:
        if any(self.modulus % divisor == 0 for divisor in range(2, math.isqrt(self.modulus) + 1)):
            raise ValueError(f"modulus: {self.modulus}: expected a prime: then every rule has its inverse")
        if self.examples > self.modulus:
            raise ValueError(f"examples: {self.examples}: expected at most `modulus`, {self.modulus}: x are different")
        return self

    @property
    def alphabet(self) -> str:
        """A symbol for each number, as x and as y."""
        return symbols(FIRST, self.modulus)

    @property
    def chance(self) -> Chance:
        """For whom x mean nothing, the y are any different numbers in any order."""
        guesses = [1 / (self.modulus - before) for before in range(self.examples)]
        return Chance(math.fsum(guesses) / self.examples, math.prod(guesses))

    def draw(self, rng: Random) -> Symbols:
        """All rules and all orders of x are equally likely."""
        factor, shift = rng.randrange(1, self.modulus), rng.randrange(self.modulus)
        numbers = rng.sample(range(self.modulus), self.examples)
        read, wanted = list[str](), list[str | None]()
        for number in numbers:
            answer = self.alphabet[(factor * number + shift) % self.modulus]
            read += [self.alphabet[number], answer]
            wanted += [answer, None]
        return Symbols(read[:-1], wanted[:-1])
