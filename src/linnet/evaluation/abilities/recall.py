"""Finding what stood beside something: associative recall of many pairs, and the induction of one."""

import string
from random import Random
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from linnet.evaluation.abilities.ability import SIZES, Ability, symbols
from linnet.evaluation.abilities.item import Chance, Symbols

KEYS, VALUES, MOST_SYMBOLS = 0x4E00, 0x6E00, 512
"""Where the characters of keys and values begin: there are enough of them in a row, and none is in both."""

NOISE = string.digits
MARK = "!"


class Recall(Ability):
    """`pairs` of a key and its value, `distance` digits that mean nothing, then keys of which each wants its value.

    Keys and values of an item are all different. queries: how many keys are asked, each once; 0: all. key_symbols,
    value_symbols: how many there are to draw from. Chance: one of the values that stand there, not knowing whose it is;
    all that are asked, none named twice. After Arora et al., "Zoology" (arXiv 2312.04927), whose queries lie among the
    pairs.
    """

    kind: Literal["recall"] = "recall"
    pairs: int = Field(8, ge=2, le=256)
    distance: int = Field(0, ge=0, le=1 << 14)
    queries: int = Field(0, ge=0, le=256)
    key_symbols: int = Field(32, ge=2, le=MOST_SYMBOLS)
    value_symbols: int = Field(32, ge=2, le=MOST_SYMBOLS)

    @model_validator(mode="after")
    def _enough_symbols(self) -> Self:
        for field in ("key_symbols", "value_symbols"):
            if getattr(self, field) < self.pairs:
                raise ValueError(f"{field}: {getattr(self, field)}: expected at least `pairs`, {self.pairs}")
        if self.queries > self.pairs:
            raise ValueError(f"queries: {self.queries}: expected at most `pairs`, {self.pairs}: each is asked once")
        return self

    @property
    def asked(self) -> int:
        """How many keys are asked."""
        return self.queries or self.pairs

    @property
    def alphabet(self) -> str:
        """Keys, values, digits."""
        return symbols(KEYS, self.key_symbols) + symbols(VALUES, self.value_symbols) + NOISE * bool(self.distance)

    @property
    def chance(self) -> Chance:
        """Every order of the values is equally likely; what was asked before is not told, so each is a guess alone."""
        answer = 1.0
        for left in range(self.pairs, self.pairs - self.asked, -1):
            answer /= left
        return Chance(1 / self.pairs, answer)

    def draw(self, rng: Random) -> Symbols:
        """Keys, values and the order of the questions are drawn alone."""
        keys = rng.sample(symbols(KEYS, self.key_symbols), self.pairs)
        values = rng.sample(symbols(VALUES, self.value_symbols), self.pairs)
        shown = [symbol for pair in zip(keys, values, strict=True) for symbol in pair]
        shown += rng.choices(NOISE, k=self.distance)
        value_of = dict(zip(keys, values, strict=True))
        asked = rng.sample(keys, self.asked)
        return Symbols((*shown, *asked), (*(None,) * len(shown), *(value_of[key] for key in asked)))


class Induction(Ability):
    """A mark somewhere among letters and once more at the end: what followed it the first time? Chance: any letter.

    Olsson et al., "In-context Learning and Induction Heads" (arXiv 2209.11895).
    """

    kind: Literal["induction"] = "induction"
    length: Annotated[int, SIZES] = 32
    symbols: int = Field(16, ge=2, le=len(string.ascii_lowercase))

    @property
    def alphabet(self) -> str:
        """Letters and the mark."""
        return string.ascii_lowercase[: self.symbols] + MARK

    @property
    def chance(self) -> Chance:
        """Letters are independent and equally likely."""
        return Chance(1 / self.symbols, 1 / self.symbols)

    def draw(self, rng: Random) -> Symbols:
        """The first mark stands before any of the letters."""
        letters = rng.choices(string.ascii_lowercase[: self.symbols], k=self.length)
        place = rng.randrange(self.length)
        return Symbols.prompt_and_answer([*letters[:place], MARK, *letters[place:], MARK], [letters[place]])
