"""Abilities whose items are single symbols: copying, sorting, counting, recall, rules and state tracking."""

import math
import string
from functools import cache
from itertools import permutations
from random import Random
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from linnet.evaluation.abilities.contract import SIZES, Ability, Chance, SymbolItem, symbol_range

LETTERS = string.ascii_lowercase
NUMBERS = string.digits + string.ascii_uppercase
SEPARATOR, DOT, MARK = "|", ".", "!"
COUNTED, OTHERS, HOW_MANY = "a", "bcdefgh", "?"
OPEN, CLOSE = "()"

KEYS, VALUES, MAX_SYMBOLS = 0x4E00, 0x6E00, 512
"""First code points of keys and values, and how many of each there are at most; the two ranges do not overlap."""

NUMERALS, MAX_MODULUS = KEYS, 97
ELEMENTS, POINTS = KEYS, {"s3": 3, "s5": 5}


class Copying(Ability):
    """`length` letters, then the same letters again. Chance: any letter, whatever was read.

    Jelassi et al., "Repeat After Me" (arXiv 2402.01032).
    """

    kind: Literal["copying"] = "copying"
    length: Annotated[int, SIZES] = 16
    symbols: int = Field(16, ge=2, le=len(LETTERS))

    @property
    def alphabet(self) -> str:
        return LETTERS[: self.symbols] + SEPARATOR

    @property
    def chance(self) -> Chance:
        return Chance(1 / self.symbols, self.symbols**-self.length)

    def draw(self, rng: Random) -> SymbolItem:
        letters = rng.choices(LETTERS[: self.symbols], k=self.length)
        return SymbolItem.prompt_and_answer([*letters, SEPARATOR], letters)


class SelectiveCopying(Ability):
    """`length` letters scattered among `noise` dots, then the letters alone. Chance: as for copying.

    Gu and Dao, "Mamba" (arXiv 2312.00752, section 4.1).
    """

    kind: Literal["selective_copying"] = "selective_copying"
    length: Annotated[int, SIZES] = 8
    noise: Annotated[int, SIZES] = 24
    symbols: int = Field(16, ge=2, le=len(LETTERS))

    @property
    def alphabet(self) -> str:
        return LETTERS[: self.symbols] + DOT + SEPARATOR

    @property
    def chance(self) -> Chance:
        return Chance(1 / self.symbols, self.symbols**-self.length)

    def draw(self, rng: Random) -> SymbolItem:
        letters = rng.choices(LETTERS[: self.symbols], k=self.length)
        prompt = [DOT] * (self.length + self.noise)
        positions = sorted(rng.sample(range(len(prompt)), self.length))
        for position, letter in zip(positions, letters, strict=True):
            prompt[position] = letter
        return SymbolItem.prompt_and_answer([*prompt, SEPARATOR], letters)


class Sorting(Ability):
    """`length` different letters, then the same letters in alphabetical order."""

    kind: Literal["sorting"] = "sorting"
    length: Annotated[int, SIZES] = 8
    symbols: int = Field(16, ge=2, le=len(LETTERS))

    @model_validator(mode="after")
    def _some_letters_are_left_out(self) -> Self:
        if self.length >= self.symbols:
            raise ValueError(
                f"length: {self.length}: expected fewer than `symbols`, {self.symbols}: they are different"
            )
        return self

    @property
    def alphabet(self) -> str:
        return LETTERS[: self.symbols] + SEPARATOR

    @property
    def chance(self) -> Chance:
        """The best guess knows the letter before in sorted order, and names the next letter of the alphabet.

        Of the n - v letters after letter v, any m are still to come, so the next letter is the first of them with
        probability m / (n - v). This is averaged over the places of the answer. The whole answer is one of the choices
        of `length` letters.
        """
        choices = math.comb(self.symbols, self.length)
        right = self.length / self.symbols
        for place in range(1, self.length):
            remaining = self.length - place
            for letter in range(place, self.symbols - remaining + 1):
                drawn = math.comb(letter - 1, place - 1) * math.comb(self.symbols - letter, remaining) / choices
                right += drawn * remaining / (self.symbols - letter)
        return Chance(right / self.length, 1 / choices)

    def draw(self, rng: Random) -> SymbolItem:
        letters = rng.sample(LETTERS[: self.symbols], self.length)
        return SymbolItem.prompt_and_answer([*letters, SEPARATOR], sorted(letters))


class Counting(Ability):
    """How many of `length` letters are an `a`? Every number from 0 to `max_count` is equally likely."""

    kind: Literal["counting"] = "counting"
    length: Annotated[int, SIZES] = 24
    max_count: int = Field(9, ge=1, lt=len(NUMBERS))

    @model_validator(mode="after")
    def _letters_suffice(self) -> Self:
        if self.max_count > self.length:
            raise ValueError(f"max_count: {self.max_count}: expected at most `length`, {self.length}")
        return self

    @property
    def alphabet(self) -> str:
        """Letters, one symbol for each number, and the question mark."""
        return COUNTED + OTHERS + NUMBERS[: self.max_count + 1] + HOW_MANY

    @property
    def chance(self) -> Chance:
        return Chance(1 / (self.max_count + 1), 1 / (self.max_count + 1))

    def draw(self, rng: Random) -> SymbolItem:
        count = rng.randint(0, self.max_count)
        letters = [*COUNTED * count, *rng.choices(OTHERS, k=self.length - count)]
        rng.shuffle(letters)
        return SymbolItem.prompt_and_answer([*letters, HOW_MANY], [NUMBERS[count]])


class Brackets(Ability):
    """`length` brackets; the target after each is the nesting depth, 0 to `max_depth`.

    Each bracket opens or closes with equal probability where both are possible.
    """

    kind: Literal["brackets"] = "brackets"
    length: Annotated[int, SIZES] = 32
    max_depth: int = Field(8, ge=2, lt=len(NUMBERS))

    @property
    def alphabet(self) -> str:
        """Brackets, and one symbol for each depth."""
        return OPEN + CLOSE + NUMBERS[: self.max_depth + 1]

    @property
    def chance(self) -> Chance:
        """The likeliest depth at each place, and the likeliest sequence of depths, computed from the transitions.

        The guess does not use the true depths before a place.
        """
        steps_DD = np.zeros((self.max_depth + 1, self.max_depth + 1))
        for depth in range(self.max_depth + 1):
            reachable = [other for other in (depth - 1, depth + 1) if 0 <= other <= self.max_depth]
            steps_DD[depth, reachable] = 1 / len(reachable)
        at_D = likeliest_D = np.eye(self.max_depth + 1)[0]
        right = 0.0
        for _ in range(self.length):
            at_D, likeliest_D = at_D @ steps_DD, (likeliest_D[:, None] * steps_DD).max(axis=0)
            right += float(at_D.max())
        return Chance(right / self.length, float(likeliest_D.max()))

    def draw(self, rng: Random) -> SymbolItem:
        depth, brackets, depths = 0, [], []
        for _ in range(self.length):
            opens = depth == 0 or (depth < self.max_depth and rng.random() < 0.5)
            depth += 1 if opens else -1
            brackets.append(OPEN if opens else CLOSE)
            depths.append(NUMBERS[depth])
        return SymbolItem(brackets, depths)


class Recall(Ability):
    """`pairs` of a key and its value, `distance` digits without a meaning, then keys, each with its value as target.

    All keys and values of an item differ. queries: number of keys asked, each once; 0: all. key_symbols, value_symbols:
    number of symbols to draw from. After Arora et al., "Zoology" (arXiv 2312.04927), whose queries are among the pairs.
    """

    kind: Literal["recall"] = "recall"
    pairs: int = Field(8, ge=2, le=256)
    distance: int = Field(0, ge=0, le=1 << 14)
    queries: int = Field(0, ge=0, le=256)
    key_symbols: int = Field(32, ge=2, le=MAX_SYMBOLS)
    value_symbols: int = Field(32, ge=2, le=MAX_SYMBOLS)

    @model_validator(mode="after")
    def _enough_symbols(self) -> Self:
        for field in ("key_symbols", "value_symbols"):
            if getattr(self, field) < self.pairs:
                raise ValueError(f"{field}: {getattr(self, field)}: expected at least `pairs`, {self.pairs}")
        if self.queries > self.pairs:
            raise ValueError(f"queries: {self.queries}: expected at most `pairs`, {self.pairs}: each is asked once")
        return self

    @property
    def alphabet(self) -> str:
        """Keys, values and digits."""
        digits = string.digits if self.distance else ""
        return symbol_range(KEYS, self.key_symbols) + symbol_range(VALUES, self.value_symbols) + digits

    @property
    def chance(self) -> Chance:
        """The guess is one of the values shown; for all keys together, no value twice.

        Every order of the values is equally likely, and the true values before a place are not visible, so each target
        is a guess of its own.
        """
        answer = 1.0
        for remaining in range(self.pairs, self.pairs - (self.queries or self.pairs), -1):
            answer /= remaining
        return Chance(1 / self.pairs, answer)

    def draw(self, rng: Random) -> SymbolItem:
        keys = rng.sample(symbol_range(KEYS, self.key_symbols), self.pairs)
        values = rng.sample(symbol_range(VALUES, self.value_symbols), self.pairs)
        shown = [symbol for pair in zip(keys, values, strict=True) for symbol in pair]
        shown += rng.choices(string.digits, k=self.distance)
        value_of = dict(zip(keys, values, strict=True))
        asked = rng.sample(keys, self.queries or self.pairs)
        return SymbolItem((*shown, *asked), (*(None,) * len(shown), *(value_of[key] for key in asked)))


class Induction(Ability):
    """A mark among letters, and the mark again at the end: which letter followed it the first time? Chance: any letter.

    Olsson et al., "In-context Learning and Induction Heads" (arXiv 2209.11895).
    """

    kind: Literal["induction"] = "induction"
    length: Annotated[int, SIZES] = 32
    symbols: int = Field(16, ge=2, le=len(LETTERS))

    @property
    def alphabet(self) -> str:
        return LETTERS[: self.symbols] + MARK

    @property
    def chance(self) -> Chance:
        return Chance(1 / self.symbols, 1 / self.symbols)

    def draw(self, rng: Random) -> SymbolItem:
        letters = rng.choices(LETTERS[: self.symbols], k=self.length)
        place = rng.randrange(self.length)
        return SymbolItem.prompt_and_answer([*letters[:place], MARK, *letters[place:], MARK], [letters[place]])


class Rules(Ability):
    """`examples` pairs of a number x and y = a x + b modulo a prime; y is predicted after x and read afterwards.

    The n-th answer has n - 1 examples before it, so the accuracy at each place is the accuracy against the number of
    examples (after Garg et al., arXiv 2208.01066, section 2). Two examples determine the rule. All x differ, hence all
    y.
    """

    kind: Literal["rules"] = "rules"
    examples: int = Field(8, ge=1, le=MAX_MODULUS)
    modulus: int = Field(11, ge=3, le=MAX_MODULUS)

    @model_validator(mode="after")
    def _prime_and_enough(self) -> Self:
        if any(self.modulus % divisor == 0 for divisor in range(2, math.isqrt(self.modulus) + 1)):
            raise ValueError(f"modulus: {self.modulus}: expected a prime: then every rule has its inverse")
        if self.examples > self.modulus:
            raise ValueError(f"examples: {self.examples}: expected at most `modulus`, {self.modulus}: x are different")
        return self

    @property
    def alphabet(self) -> str:
        """One symbol for each number, used for x and for y."""
        return symbol_range(NUMERALS, self.modulus)

    @property
    def chance(self) -> Chance:
        """The guess is a y that did not occur yet: without the x, the y are different numbers in any order."""
        guesses = [1 / (self.modulus - before) for before in range(self.examples)]
        return Chance(math.fsum(guesses) / self.examples, math.prod(guesses))

    def draw(self, rng: Random) -> SymbolItem:
        factor, shift = rng.randrange(1, self.modulus), rng.randrange(self.modulus)
        numbers = rng.sample(range(self.modulus), self.examples)
        symbols, targets = list[str](), list[str | None]()
        for number in numbers:
            answer = self.alphabet[(factor * number + shift) % self.modulus]
            symbols += [self.alphabet[number], answer]
            targets += [answer, None]
        return SymbolItem(symbols[:-1], targets[:-1])


@cache
def elements(points: int) -> tuple[tuple[int, ...], ...]:
    """All permutations of `points` points, in lexicographic order."""
    return tuple(permutations(range(points)))


class Tracking(Ability):
    """`length` permutations of a group; the target after each is the product of all so far. Chance: any element.

    The word problem of S5 is complete for NC1, that of S3 is solvable (Barrington, 1989). What this means for state
    space models and transformers: Merrill, Petty and Sabharwal, "The Illusion of State" (arXiv 2404.08819).
    """

    kind: Literal["tracking"] = "tracking"
    group: Literal["s3", "s5"] = "s3"
    length: Annotated[int, SIZES] = 16

    @property
    def alphabet(self) -> str:
        """One symbol for each element, used for what is read and for the answer."""
        return symbol_range(ELEMENTS, math.factorial(POINTS[self.group]))

    @property
    def chance(self) -> Chance:
        order = math.factorial(POINTS[self.group])
        return Chance(1 / order, order**-self.length)

    def draw(self, rng: Random) -> SymbolItem:
        group = elements(POINTS[self.group])
        symbol_of = dict(zip(group, self.alphabet, strict=True))
        permutations_read = [rng.choice(group) for _ in range(self.length)]
        state, states = tuple(range(POINTS[self.group])), []
        for permutation in permutations_read:
            state = tuple(permutation[point] for point in state)
            states.append(symbol_of[state])
        return SymbolItem([symbol_of[permutation] for permutation in permutations_read], states)
