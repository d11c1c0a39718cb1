"""The most probable segmentation of a text under a unigram model (Kudo, 2018), rounded as SentencePiece rounds it.

SentencePiece adds scores up in float32, from the start of the text on. Where two segmentations are equally good (`!!`
`!` and `!` `!!`), or nearly so far into a text, the rounding decides, and with it all that came before. So the sum is
carried from word to word here as well; but a word is searched anew only where rounding could decide.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

Spell = Callable[[str], list[int]]
Score = Any  # float or np.float32; a sum is rounded to what its terms are
Match = tuple[int, float, np.float32]  # the id of a piece, its score, and its score again

_MEMORY = 1 << 20
_LONGEST_KNOWN_WORD = 64
_RESET = 100_000.0  # beyond this SentencePiece subtracts the sum from all sums
_UNKNOWN_PENALTY = np.float32(10)
_HALF_ULP = 2.0**-24  # of a float32, relative to it
_EXACT, _ROUNDED = 1, 2  # which of a match's two scores
_NONE: Match = (-1, 0.0, np.float32(0))


@dataclass(frozen=True)
class _Path:
    """The best way through a text: tokens, the scores that were added, their sum, and the closest decision."""

    ids: list[int]
    scores: list[Score]
    total: Score
    margin: float


@dataclass(frozen=True)
class _Word:
    """What a word becomes as long as the sum before it is less than `limit`, in magnitude."""

    ids: list[int]
    scores: list[float]
    total: float
    limit: float


_LONG_WORD = _Word([], [], 0.0, -1.0)


class Unigram:
    """Pieces with their scores, and the search for the best ones."""

    def __init__(self, pieces: dict[str, tuple[int, float]], lowest: float, spell: Spell) -> None:
        """`pieces`: id and score of each. `lowest`: the lowest score of a normal piece.

        `spell` gives the tokens of a character that no piece has.
        """
        self._spell = spell
        self._unknown = _both(-1, np.float32(lowest) - _UNKNOWN_PENALTY)
        # The beginnings of pieces are there too, with None: a longer one may match.
        self._pieces: dict[str, Match | None] = {}
        for piece in pieces:
            self._pieces.update(dict.fromkeys(piece[:end] for end in range(1, len(piece))))
        self._pieces.update((piece, _both(*found)) for piece, found in pieces.items())
        self._longest = max(map(len, pieces), default=1)
        self._words: dict[str, _Word] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Token ids of a text given as words, parts such that no piece reaches from one into another."""
        ids: list[int] = []
        settled, added, rough = np.float32(0), list[float](), 0.0
        for text in words:
            word = self._words.get(text) or self._study(text)
            if abs(rough) < word.limit:
                ids += word.ids
                added += word.scores
                rough += word.total
            else:
                settled = np.add.accumulate(np.array([settled, *added], np.float32))[-1]
                path = self._best(text, settled, _ROUNDED)
                ids += path.ids
                settled, added, rough = path.total, [], float(path.total)
        return ids

    def _study(self, text: str) -> _Word:
        """Find out what a word becomes, and how large the sum before it may be for rounding not to matter.

        A sum of n float32 additions is off by n·2⁻²⁴ of its largest value at most, the difference of two by twice that.
        The factor 0.98 is for `rough`, a sum in float64.
        """
        if len(text) > _LONGEST_KNOWN_WORD:
            return _LONG_WORD
        path = self._best(text, 0.0, _EXACT)
        reach = sum(map(abs, path.scores)) - self._unknown[_EXACT] * len(text)
        tolerated = min(path.margin / (2 * len(text) * _HALF_ULP), _RESET)
        if len(self._words) >= _MEMORY:
            self._words.clear()
        word = self._words[text] = _Word(path.ids, path.scores, path.total, 0.98 * (tolerated - reach))
        return word

    def _best(self, text: str, before: Score, kind: int) -> _Path:
        """Viterbi. `before` is the sum so far; of two equal sums that with the longer last piece wins."""
        sums: list[Score] = [before] + [None] * len(text)
        lasts: list[tuple[int, int, Score]] = [(0, -1, before)] * len(sums)
        margins = [math.inf] * len(sums)
        for start in range(len(text)):
            if abs(sums[start]) > _RESET:
                self._reset(sums, start)
            here = sums[start]
            for end, found in self._matches(text, start):
                score = found[kind]
                total, best = here + score, sums[end]
                if best is None or total > best:
                    margins[end] = math.inf if best is None else total - best
                    sums[end], lasts[end] = total, (start, found[0], score)
                elif best - total < margins[end]:
                    margins[end] = best - total
        return self._trace(text, sums[-1], lasts, margins)

    def _reset(self, sums: list[Score], start: int) -> None:
        offset = sums[start]
        for end in range(start, min(start + self._longest + 1, len(sums))):
            if sums[end] is not None:
                sums[end] -= offset

    def _matches(self, text: str, start: int) -> list[tuple[int, Match]]:
        """The pieces that begin at `start`, behind where they end; -1 for a character that is none."""
        matches = []
        for end in range(start + 1, len(text) + 1):
            found = self._pieces.get(text[start:end], _NONE)
            if found is _NONE:
                break
            if found:
                matches.append((end, found))
        if not matches or matches[0][0] > start + 1:
            matches.append((start + 1, self._unknown))
        return matches

    def _trace(self, text: str, total: Score, lasts: list[tuple[int, int, Score]], margins: list[float]) -> _Path:
        """Follow the best last pieces back from the end."""
        end, margin, parts = len(text), math.inf, []
        while end:
            start, token, score = lasts[end]
            parts.append((self._spell(text[start:end]) if token < 0 else [token], score))
            margin = min(margin, margins[end])
            end = start
        parts.reverse()
        return _Path([token for ids, _ in parts for token in ids], [score for _, score in parts], total, margin)


def _both(token: int, score: float | np.float32) -> Match:
    return token, float(score), np.float32(score)
