"""One question, and how it becomes a row of tokens with targets where an answer is wanted."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from linnet.data.labels import LabeledRow
from linnet.data.tokenizer import Tokenizer
from linnet.ops.cross_entropy import IGNORE_INDEX


class Chance(NamedTuple):
    """How often the best guess is right that knows the ability's rules, and of an item no more than its page says.

    symbol: of one wanted symbol, given the true ones before it; None where answers are words. answer: of all of them.
    """

    symbol: float | None
    answer: float


class SymbolEncoder:
    """What a tokenizer makes of symbols and of text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.text_ids = tokenizer.encode
        self.end_id = tokenizer.end_id
        self.symbol_id = cache(self._symbol_id)

    def _symbol_id(self, symbol: str) -> int | None:
        ids = self.text_ids(symbol)
        return ids[0] if len(ids) == 1 else None

    def can_encode(self, alphabet: Iterable[str]) -> bool:
        """Whether each of these symbols is one token."""
        return all(self.symbol_id(symbol) is not None for symbol in alphabet)


class AbilityItem(ABC):
    """One question with its answer."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What is read before the last answer is given, as one text: two items that share it are the same question."""

    @abstractmethod
    def row(self, speech: SymbolEncoder) -> LabeledRow:
        """Tokens as a model reads them, an end token first, and what is wanted behind each."""


@dataclass(frozen=True)
class Symbols(AbilityItem):
    """Symbols of one character each; `wanted` has the answer that is to follow from all up to its place, or None.

    An answer need not be the next symbol: what is wanted may never be read.
    """

    read: Sequence[str]
    wanted: Sequence[str | None]

    @classmethod
    def prompt_and_answer(cls, prompt: Sequence[str], answer: Sequence[str]) -> "Symbols":
        """The answer follows the prompt, symbol by symbol; each is read before the next is wanted."""
        return cls((*prompt, *answer[:-1]), (*(None,) * (len(prompt) - 1), *answer))

    @property
    def identity(self) -> str:
        """All that is read."""
        return "".join(self.read)

    def row(self, speech: SymbolEncoder) -> LabeledRow:
        """`speech` has to know the symbols."""
        tokens, targets = [speech.end_id], [IGNORE_INDEX]
        for symbol, wanted in zip(self.read, self.wanted, strict=True):
            tokens.append(_known(speech, symbol))
            targets.append(IGNORE_INDEX if wanted is None else _known(speech, wanted))
        return LabeledRow(tokens, targets)


def _known(speech: SymbolEncoder, symbol: str) -> int:
    token = speech.symbol_id(symbol)
    assert token is not None, f"{symbol!r} is more than one token"
    return token


@dataclass(frozen=True)
class Question(AbilityItem):
    """A text and the text that is to follow, which begins with the blank before its first word.

    final: how the answer ends, of one in sentences: what remains of it without the steps before. None of another.
    """

    prompt: str
    answer: str
    final: str | None = field(default=None, repr=False)

    @property
    def identity(self) -> str:
        """The prompt."""
        return self.prompt

    def row(self, speech: SymbolEncoder) -> LabeledRow:
        """Both are encoded by themselves: where the answer begins, a token begins."""
        prompt, answer = speech.text_ids(self.prompt), speech.text_ids(self.answer)
        return LabeledRow([speech.end_id, *prompt, *answer[:-1]], [*[IGNORE_INDEX] * len(prompt), *answer])
