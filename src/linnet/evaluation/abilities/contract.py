"""The contract of abilities: generated questions with sizes, a seed, an exact chance level and exact answers.

An item is either a row of symbols with targets at some of them (`SymbolItem`), or a prompt and its answer as text
(`Question`). Which items an ability has depends on its sizes, the seed and the split alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count as count_from
from random import Random
from typing import ClassVar, NamedTuple

from pydantic import Field

from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.data.data_folder import TokenRow
from linnet.data.split import Split, below, content_hash
from linnet.data.tokenizer import Tokenizer
from linnet.ops.cross_entropy import IGNORE_INDEX

HELD_OUT = 0.1
"""Share of all possible questions that is held out for validation, selected by a hash of the question."""

MAX_DRAWS = 1000
"""Draws for one item. If none of them belongs to the requested split, the ability has too few different questions."""

PURPOSE = b"ability"

SIZES = Field(gt=0, le=1 << 14)
"""Bounds of lengths and distances in symbols."""


class Chance(NamedTuple):
    """Accuracy of the best guess that knows the rules of the ability but only the visible part of an item.

    symbol: for one target symbol, given the true symbols before it; None for answers in text. answer: for all targets.
    """

    symbol: float | None
    answer: float


class SymbolEncoder:
    """Token ids of symbols and texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode, self.end_id = tokenizer.encode, tokenizer.end_id

        @cache
        def symbol_id(symbol: str) -> int | None:
            ids = tokenizer.encode(symbol)
            return ids[0] if len(ids) == 1 else None

        self.symbol_id = symbol_id

    def can_encode(self, alphabet: Iterable[str]) -> bool:
        """True if each of these symbols is one token."""
        return all(self.symbol_id(symbol) is not None for symbol in alphabet)


class AbilityItem(ABC):
    """One question with its answer."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The visible text up to the last answer: two items that share it are the same question."""

    @abstractmethod
    def row(self, encoder: SymbolEncoder) -> TokenRow:
        """Input tokens, the end token first, and the target after each of them (`IGNORE_INDEX` where there is none)."""


@dataclass(frozen=True)
class SymbolItem(AbilityItem):
    """Symbols of one character each; `targets` has the expected answer after each symbol, or None.

    A target is not always the next symbol: a model may never read it.
    """

    symbols: Sequence[str]
    targets: Sequence[str | None]

    @classmethod
    def prompt_and_answer(cls, prompt: Sequence[str], answer: Sequence[str]) -> "SymbolItem":
        """An answer that follows the prompt symbol by symbol; each symbol is read before the next is predicted."""
        return cls((*prompt, *answer[:-1]), (*(None,) * (len(prompt) - 1), *answer))

    @property
    def identity(self) -> str:
        return "".join(self.symbols)

    def row(self, encoder: SymbolEncoder) -> TokenRow:
        def token_of(symbol: str) -> int:
            token = encoder.symbol_id(symbol)
            assert token is not None, f"{symbol!r} is not one token"
            return token

        tokens = [encoder.end_id, *map(token_of, self.symbols)]
        targets = [IGNORE_INDEX, *(IGNORE_INDEX if target is None else token_of(target) for target in self.targets)]
        return TokenRow(tokens, targets)


@dataclass(frozen=True)
class Question(AbilityItem):
    """A prompt and its answer, which begins with the space before its first word.

    final: the end of an answer that is a sentence, which is the answer without intermediate steps; None otherwise.
    """

    prompt: str
    answer: str
    final: str | None = field(default=None, repr=False)

    @property
    def identity(self) -> str:
        return self.prompt

    def row(self, encoder: SymbolEncoder) -> TokenRow:
        # Prompt and answer are encoded separately, so that a token begins where the answer begins.
        prompt, answer = encoder.encode(self.prompt), encoder.encode(self.answer)
        return TokenRow([encoder.end_id, *prompt, *answer[:-1]], [*[IGNORE_INDEX] * len(prompt), *answer])


class Ability(Spec):
    """One kind of question at one size."""

    kind: str

    @property
    def alphabet(self) -> str:
        """All symbols that can occur, sorted; empty if the items are text, which every tokenizer can encode."""
        return ""

    @property
    @abstractmethod
    def chance(self) -> Chance:
        """The exact chance level."""

    @abstractmethod
    def draw(self, rng: Random) -> AbilityItem:
        """One item from the random numbers alone."""

    def items(self, count: int, seed: int = 0, split: Split = "validation") -> Iterator[AbilityItem]:
        """`count` items. No question is in both splits, whatever the seeds.

        Items depend on the arguments alone: not on the platform, and not on the number of items. `UserError` if a split
        has no question.
        """
        for index in range(count):
            rng = Random(f"linnet ability {self.kind} {seed} {split} {index}")
            for draws in count_from(1):
                item = self.draw(rng)
                held_out = below(content_hash(item.identity, PURPOSE), HELD_OUT)
                if held_out == (split == "validation"):
                    yield item
                    break
                if draws > MAX_DRAWS:
                    raise UserError(f"{self.label}: too few different questions to hold some out; choose larger sizes")

    @property
    def label(self) -> str:
        """The kind and its sizes as text: `recall pairs=8 values=16`."""
        sizes = {name: value for name, value in self.model_dump().items() if name != "kind"}
        as_text = {name: str(value).lower() if isinstance(value, bool) else value for name, value in sizes.items()}
        return " ".join([self.kind, *(f"{name}={value}" for name, value in as_text.items())])


class TextAbility(Ability):
    """Questions in words.

    shots: number of solved questions before the question. instruction: a sentence before everything that says what to
    do. steps: the answer contains the steps that lead to it and is right only if the steps are.
    """

    instruction_text: ClassVar[str]

    shots: int = Field(0, ge=0, le=64)
    instruction: bool = False
    steps: bool = False

    @property
    @abstractmethod
    def guesses(self) -> tuple[float, ...]:
        """Chance level of each step, the answer last."""

    @property
    def chance(self) -> Chance:
        answer = 1.0
        for guess in self.guesses if self.steps else self.guesses[-1:]:
            answer *= guess
        return Chance(None, answer)

    @abstractmethod
    def question(self, rng: Random) -> Question:
        """One question without examples and instruction."""

    def draw(self, rng: Random) -> Question:
        examples = [self.question(rng) for _ in range(self.shots)]
        asked = self.question(rng)
        lines = [self.instruction_text] if self.instruction else []
        lines += [example.prompt + example.answer for example in examples]
        return Question("\n".join([*lines, asked.prompt]), asked.answer, asked.final)


def symbol_range(first: int, count: int) -> str:
    """`count` consecutive characters from a code point on."""
    return "".join(chr(first + number) for number in range(count))
