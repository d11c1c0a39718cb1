"""Nearest words and analogies in a table of static word vectors.

Legend: `W` words, `E` width of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError, did_you_mean
from linnet.data.word_vectors import read_all_vectors


class Neighbor(NamedTuple):
    """A word, and its cosine similarity to what was asked for."""

    word: str
    cosine: float


@dataclass(frozen=True)
class WordVectors:
    """Words, each once, and their vectors `vectors_WE`; `origin` names the table in errors."""

    words: tuple[str, ...]
    vectors_WE: NDArray[np.float32]
    origin: str = "word vectors"

    @classmethod
    def read(cls, path: str | Path, most_words: int | None = None) -> "WordVectors":
        """Read a file of word vectors, the first `most_words` alone; `UserError` as from `read_vectors`."""
        words, vectors_WE = read_all_vectors(path, most_words)
        return cls(tuple(words), vectors_WE, str(path))

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def _unit_WE(self) -> NDArray[np.float32]:
        """The vectors divided by their lengths; a zero vector stays zero."""
        lengths_W1 = np.linalg.norm(self.vectors_WE, axis=1, keepdims=True)
        return np.asarray(self.vectors_WE / np.maximum(lengths_W1, np.finfo(np.float32).tiny), dtype=np.float32)

    def nearest(self, word: str, count: int = 10) -> list[Neighbor]:
        """The `count` words with the highest cosine similarity to a word, without itself."""
        return self._closest(self._unit_WE[self._row(word)], count, (word,))

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[Neighbor]:
        """Words that are to `c` as `b` is to `a`: nearest to b - a + c, each of length 1, without these three.

        This is 3CosAdd of Mikolov et al. (https://aclanthology.org/N13-1090/).
        """
        row_a, row_b, row_c = map(self._row, (a, b, c))
        target_E = self._unit_WE[row_b] - self._unit_WE[row_a] + self._unit_WE[row_c]
        return self._closest(target_E / max(float(np.linalg.norm(target_E)), 1e-30), count, (a, b, c))

    def _row(self, word: str) -> int:
        """The row of a word, as it is or else in lower case; `UserError` for an unknown one."""
        for spelling in (word, word.lower()):
            if spelling in self._rows:
                return self._rows[spelling]
        known = f"expected one of its {len(self.words):,} words"
        raise UserError(f"{self.origin}: no word {word!r}; {did_you_mean(word, self.words[:100_000], known)}")

    def _closest(self, target_E: NDArray[np.float32], count: int, without: Sequence[str]) -> list[Neighbor]:
        similarities_W = self._unit_WE @ target_E
        excluded = {self._row(word) for word in without}
        order = np.argsort(-similarities_W, kind="stable")[: count + len(excluded)].tolist()
        kept = [row for row in order if row not in excluded][:count]
        return [Neighbor(self.words[row], float(similarities_W[row])) for row in kept]
