"""Decontamination: which texts contain much of a document that a model is evaluated on, by n-grams of words.

A text overlaps an evaluation document by the share of that document's distinct n-grams that it contains. So a long text
that quotes a test item is found, and one that shares a common phrase with a long document is not.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.data.minhash import Hashes, hash_shingles, hash_words

_BATCH_TEXTS = 1024
_ARRAYS = ("owners", "ngrams", "starts", "ends", "totals")


class OverlapSpec(Spec):
    """ngram_words: words of an n-gram. share: the least share of an evaluation document's n-grams that a text must have
    in order to overlap it; 0: a single n-gram is enough.
    """

    ngram_words: int = Field(default=13, ge=1, le=100)
    share: float = Field(default=0.5, ge=0, le=1)


class EvaluationIndex:
    """The n-grams of all evaluation documents: 12 bytes for each n-gram of each document.

    short: how many documents have fewer words than an n-gram; only a text that is equal to one overlaps it.
    """

    def __init__(self, documents: Iterable[str], spec: OverlapSpec) -> None:
        self.spec = spec
        self.short = 0
        hashes, owners, totals = list[Hashes](), list[NDArray[np.int32]](), list[int]()
        batch: list[str] = []

        def add() -> None:
            words, lengths = hash_words(batch)
            self.short += int((lengths < spec.ngram_words).sum())
            found, counts = hash_shingles(words, lengths, spec.ngram_words)
            for ngrams in np.split(found, np.cumsum(counts)[:-1]):
                different = np.unique(ngrams)
                hashes.append(different)
                owners.append(np.full(len(different), len(totals), dtype=np.int32))
                totals.append(len(different))
            batch.clear()

        for text in documents:
            batch.append(text)
            if len(batch) == _BATCH_TEXTS:
                add()
        if batch:
            add()
        if not any(totals):
            raise UserError("the evaluation documents have no words")
        every = np.concatenate(hashes)
        order = np.argsort(every, kind="stable")
        self._owners = np.concatenate(owners)[order]
        self._ngrams, self._starts = np.unique(every[order], return_index=True)
        self._ends = np.append(self._starts[1:], len(every))
        self._totals = np.array(totals)

    def save(self, folder: Path) -> None:
        """Write the index into a folder from which processes can map it into memory, so that they share it."""
        folder.mkdir(exist_ok=True)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, f"_{name}"))

    @classmethod
    def map(cls, folder: Path, spec: OverlapSpec) -> Self:
        """The index that was saved in a folder."""
        index = cls.__new__(cls)
        index.spec, index.short = spec, 0
        for name in _ARRAYS:
            setattr(index, f"_{name}", np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
        return index

    @property
    def documents(self) -> int:
        """The number of evaluation documents."""
        return len(self._totals)

    def match(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """The evaluation document that each text overlaps most, the first of several; -1 for none."""
        return self.match_words(*hash_words(texts))

    def match_words(self, words: Hashes, lengths: NDArray[np.int64]) -> NDArray[np.int32]:
        """`match` for texts whose words are hashed already (`hash_words`)."""
        matches = np.full(len(lengths), -1, dtype=np.int32)
        found, counts = hash_shingles(words, lengths, self.spec.ngram_words)
        places = np.minimum(np.searchsorted(self._ngrams, found), len(self._ngrams) - 1)
        hits = np.flatnonzero(self._ngrams[places] == found)
        if not len(hits):
            return matches
        texts = np.repeat(np.arange(len(lengths)), counts)[hits]
        # Each n-gram counts once for a text, however often it has it.
        pairs = np.unique(np.stack([texts, places[hits]]), axis=1)
        begins, sizes = self._starts[pairs[1]], self._ends[pairs[1]] - self._starts[pairs[1]]
        offsets = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        both = np.stack([np.repeat(pairs[0], sizes), self._owners[np.repeat(begins, sizes) + offsets]])
        (text, owner), shared = np.unique(both, axis=1, return_counts=True)
        shares = shared / self._totals[owner]
        enough = shares >= self.spec.share
        text, owner, shares = text[enough], owner[enough], shares[enough]
        best_last = np.lexsort((-owner, shares, text))
        matches[text[best_last]] = owner[best_last]
        return matches
