"""Byte-pair encoding as SentencePiece does it: any two neighbours may merge whose concatenation is a piece."""

import heapq
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from linnet.data.sentencepiece.unigram import Spell

_MEMORY = 1 << 20
_LONGEST_KNOWN_WORD = 64
_DEEPEST_SPLIT = 100  # SentencePiece's own limit


class Bpe:
    """Pieces with their ranks: of all pairs in a word the one with the lowest rank merges first, then the leftmost.

    `symbols` never merge. `unused` pieces merge, and are taken apart again in the end. `spell` gives the tokens of a
    character that no piece has.
    """

    def __init__(
        self,
        pieces: dict[str, tuple[int, float]],
        symbols: Iterable[str],
        unused: frozenset[str],
        spell: Spell,
    ) -> None:
        """`pieces`: id and rank of each."""
        self._pieces = pieces
        self._symbols = frozenset(symbols)
        longest_first = sorted(self._symbols, key=len, reverse=True)
        self._first_units = re.compile("|".join([*map(re.escape, longest_first), "."]), re.DOTALL)
        self._unused = unused
        self._spell = spell
        self._words: dict[str, list[int]] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Token ids of a text given as words, parts such that no piece reaches from one into another."""
        ids: list[int] = []
        for text in words:
            ids += self._words.get(text) or self._encode_word(text)
        return ids

    def _encode_word(self, text: str) -> list[int]:
        merging = _Merging(self._first_units.findall(text), self._symbols, self._rank)
        merging.run()
        ids = [token for unit in merging.units if unit for token in self._tokens(unit, merging.origins, 0)]
        if len(self._words) >= _MEMORY:
            self._words.clear()
        if len(text) <= _LONGEST_KNOWN_WORD:
            self._words[text] = ids
        return ids

    def _rank(self, piece: str) -> float | None:
        found = self._pieces.get(piece)
        return None if found is None else found[1]

    def _tokens(self, unit: str, origins: dict[str, tuple[str, str]], depth: int) -> list[int]:
        """The token of a unit; for one that is unused those of the two that it was made of."""
        if unit not in self._pieces:
            return self._spell(unit)
        if unit not in self._unused or depth > _DEEPEST_SPLIT:
            return [self._pieces[unit][0]]
        if unit not in origins:
            return self._spell(unit)
        return [token for part in origins[unit] for token in self._tokens(part, origins, depth + 1)]


@dataclass
class _Merging:
    """The units of a word as they merge; a unit that went into its left neighbour is empty.

    `origins`: the two units that every piece was made of, the same two wherever it occurs.
    """

    units: list[str]
    frozen: frozenset[str]
    rank: Callable[[str], float | None]
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)

    def run(self) -> None:
        """Merge until no pair is left."""
        count = len(self.units)
        self._left, self._right = list(range(-1, count - 1)), [*range(1, count), -1]
        self._fixed = [unit in self.frozen for unit in self.units]
        self._queue: list[tuple[float, int, int, str]] = []
        for left in range(count - 1):
            self._offer(left, left + 1)
        while self._queue:
            _, left, right, piece = heapq.heappop(self._queue)
            if self.units[left] and self.units[right] and len(self.units[left] + self.units[right]) == len(piece):
                self._merge(left, right)

    def _offer(self, left: int, right: int) -> None:
        if left < 0 or right < 0 or self._fixed[left] or self._fixed[right]:
            return
        piece = self.units[left] + self.units[right]
        if (rank := self.rank(piece)) is not None:
            heapq.heappush(self._queue, (rank, left, right, piece))
            self.origins[piece] = self.units[left], self.units[right]

    def _merge(self, left: int, right: int) -> None:
        self.units[left] += self.units[right]
        self.units[right] = ""
        after = self._right[left] = self._right[right]
        if after >= 0:
            self._left[after] = left
        self._offer(self._left[left], left)
        self._offer(left, after)
