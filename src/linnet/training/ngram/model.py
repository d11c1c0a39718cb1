"""N-gram counts, and modified Kneser-Ney smoothing over them (Chen and Goodman, 1999, equations 23 to 26).

An n-gram is numbered by its place in the sorted table of its length. Its key combines the number of its context (the
n-gram without its last token) and its last token, so that a key fits 64 bits for any order, and the n-grams with one
context are adjacent.

The probability of a token after a context `c` of length `n - 1`, with the adjusted counts `a` of length `n`, is

    p(w | c) = (a(c w) - D(a(c w))) / a(c) + backoff(c) p(w | c without its first token)
    a(c) = sum over w of a(c w), backoff(c) = sum over w of D(a(c w)) / a(c)

down to the empty context, after which `p` is uniform over the vocabulary. `D(0) = 0`; three discounts, for counts of 1,
2, and 3 or more, follow from how many n-grams have counts of 1 to 4. After any context the probabilities sum to 1.

Legend: `T` tokens of the text, `G` different n-grams of one length, `C` contexts of one length, `V` vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Indices, Numbers
from linnet.core.bounds import MAX_NGRAM_ORDER

NONE = -1
"""In place of an n-gram's number: it was never seen, or would extend beyond the beginning of a document."""

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts where the counts determine none, as in `lmplz --discount_fallback`."""

BeforeLength = Callable[[int], object]
"""Called with the length of the n-grams that are counted next."""


@dataclass(frozen=True)
class NGramTable:
    """The different n-grams of one length, sorted by `keys`.

    keys: `[G]`, the number of the context times `V`, plus the last token.
    counts: `[G]`, how often it was seen; below the highest order, after how many different tokens, unless a document
    begins with it, so that nothing precedes it (Kneser and Ney, 1995; as in KenLM).
    suffixes: `[G]`, the number of the n-gram without its first token.
    The table of single tokens has the whole vocabulary, with counts of 0 as well; their context is the empty one.
    """

    keys: Indices
    counts: NDArray[Any]
    suffixes: NDArray[Any]
    vocab_size: int

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def contexts(self) -> Indices:
        """The number of each n-gram's context, `[G]`, ascending."""
        return self.keys // self.vocab_size

    def find(self, contexts_T: Indices, tokens_T: Indices) -> Indices:
        """The numbers of n-grams by context and last token, `[T]`; `NONE` if there is none, or no context."""
        found_T = np.full(len(tokens_T), NONE, dtype=np.int64)
        known = np.flatnonzero(contexts_T != NONE)
        if not len(self) or not len(known):
            return found_T
        searched = contexts_T[known] * self.vocab_size + tokens_T[known]
        places = np.minimum(np.searchsorted(self.keys, searched), len(self) - 1)
        hits = self.keys[places] == searched
        found_T[known[hits]] = places[hits]
        return found_T


def max_lengths(tokens_T: Indices, end_id: int) -> Indices:
    """The length of the longest n-gram that may end at each position, `[T]`: from the end token before its document.

    The first token of all is not predicted and has 0. An end token belongs to the document before it if it is the last
    token of an n-gram, and to the one after it if it is the first.
    """
    places_T = np.arange(len(tokens_T))
    ends_T = np.maximum.accumulate(np.where(tokens_T == end_id, places_T, 0))
    found_T = np.zeros(len(tokens_T), dtype=np.int64)
    found_T[1:] = places_T[1:] - ends_T[:-1] + 1
    return found_T


def count_ngrams(
    tokens_T: Indices, end_id: int, vocab_size: int, order: int, before: BeforeLength = lambda length: None
) -> list[NGramTable]:
    """The tables of lengths 1 to `order` of a text in which `end_id` stands before each document and at the end."""
    assert len(tokens_T) > 1 and tokens_T[0] == end_id and 1 <= order <= MAX_NGRAM_ORDER
    tables, begins_document = list[NGramTable](), list[NDArray[np.bool_]]()
    for table in _raw_tables(tokens_T, end_id, vocab_size, order, before):
        if not tables:
            begins_document.append(np.zeros(vocab_size, dtype=bool))
        else:
            # A lower order counts the different tokens that n-grams one longer put before each of its own.
            first = np.arange(vocab_size) == end_id if len(tables) == 1 else begins_document[-1]
            begins_document.append(first[table.contexts])
            shorter = tables[-1]
            preceding = np.bincount(table.suffixes, minlength=len(shorter))
            counts = narrow(np.where(begins_document[-2], shorter.counts, preceding))
            tables[-1] = NGramTable(shorter.keys, counts, shorter.suffixes, vocab_size)
        tables.append(table)
    return tables


def _raw_tables(
    tokens_T: Indices, end_id: int, vocab_size: int, order: int, before: BeforeLength
) -> Iterator[NGramTable]:
    """The tables with the counts of the highest order: how often each n-gram was seen."""
    before(1)
    counts = np.bincount(tokens_T[1:], minlength=vocab_size)
    yield NGramTable(np.arange(vocab_size), narrow(counts), np.zeros(vocab_size, np.int32), vocab_size)
    ids_T, lengths_T = tokens_T, np.minimum(max_lengths(tokens_T, end_id), order).astype(np.int8)
    for length in range(2, order + 1):
        before(length)
        places = np.flatnonzero(lengths_T >= length)
        table, ids = _table(ids_T[places - 1], tokens_T[places], ids_T[places], vocab_size)
        ids_T = np.full(len(tokens_T), NONE, dtype=np.int64)
        ids_T[places] = ids
        yield table


def _table(contexts: Indices, tokens: Indices, suffixes: Indices, vocab_size: int) -> tuple[NGramTable, Indices]:
    """The table of n-grams that are listed one by one, and the number of each."""
    keys = contexts * vocab_size + tokens
    order = np.argsort(keys)
    keys = keys[order]
    is_new = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=is_new[1:])
    firsts = np.flatnonzero(is_new)
    counts = np.diff(firsts, append=len(keys))
    ids = np.empty_like(keys)
    ids[order] = np.cumsum(is_new) - 1
    return NGramTable(keys[firsts], narrow(counts), narrow(suffixes[order[firsts]]), vocab_size), ids


def narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """As int32 if that holds them."""
    return numbers.astype(np.int32 if not len(numbers) or numbers.max() < 1 << 31 else np.int64)


@dataclass(frozen=True)
class Discounts:
    """What is subtracted from counts of 1, 2, and 3 or more. estimated: from the counts; else they are `FALLBACK`."""

    amounts: tuple[float, float, float]
    estimated: bool


def estimate_discounts(counts: Indices) -> Discounts:
    """By Chen and Goodman's equation 26, if there are counts of 1, 2 and 3 and each discount is within its bounds.

    A discount of 0 is out of bounds: it would leave nothing for tokens that were not seen.
    """
    of_count = np.bincount(np.minimum(counts, 5), minlength=6).astype(float)
    if not of_count[1:4].all():
        return Discounts(FALLBACK, estimated=False)
    share = of_count[1] / (of_count[1] + 2 * of_count[2])
    first, second, third = (k - (k + 1) * share * of_count[k + 1] / of_count[k] for k in (1, 2, 3))
    if not (0 < first <= 1 and 0 < second <= 2 and 0 < third <= 3):
        return Discounts(FALLBACK, estimated=False)
    return Discounts((float(first), float(second), float(third)), estimated=True)


@dataclass(frozen=True)
class Level:
    """One length: its table, `probabilities` `[G]` after their contexts, and `backoffs` `[C]` of the contexts.

    A context that nothing follows leaves everything to the shorter one: its backoff is 1.
    """

    table: NGramTable
    discounts: Discounts
    probabilities: Numbers
    backoffs: Numbers

    def interpolate(self, contexts_T: Indices, ids_T: Indices, shorter_T: Numbers) -> Numbers:
        """Probabilities by n-grams of this length, `[T]`, from those by n-grams one shorter."""
        found_T, known, seen = shorter_T.copy(), contexts_T != NONE, ids_T != NONE
        found_T[known] *= self.backoffs[contexts_T[known]]
        found_T[seen] = self.probabilities[ids_T[seen]]
        return found_T


class NGram:
    """The model: probabilities of tokens after the last `order - 1` tokens of their document."""

    def __init__(self, tables: Sequence[NGramTable], end_id: int) -> None:
        """tables: of lengths 1, 2, ... (`count_ngrams`). end_id: the token between documents."""
        self.tables, self.end_id = list(tables), end_id
        self.order, self.vocab_size = len(self.tables), self.tables[0].vocab_size

    @cached_property
    def levels(self) -> list[Level]:
        """Probabilities and backoffs of each length, float64."""
        found = list[Level]()
        for table in self.tables:
            shorter = found[-1] if found else None
            discounts = estimate_discounts(table.counts)
            taken = np.array([0.0, *discounts.amounts])[np.minimum(table.counts, 3)]
            contexts, size = table.contexts, 1 if shorter is None else len(shorter.table)
            totals, left = (np.bincount(contexts, weights, size) for weights in (table.counts, taken))
            backoffs = np.divide(left, totals, out=np.ones(size), where=totals > 0)
            lower = 1 / table.vocab_size if shorter is None else shorter.probabilities[table.suffixes]
            own = (table.counts - taken) / np.maximum(totals, 1)[contexts]
            found.append(Level(table, discounts, own + backoffs[contexts] * lower, backoffs))
        return found

    def ids(self, tokens_T: Indices) -> Iterator[tuple[Indices, Indices]]:
        """For each length the numbers of the contexts before, and of the n-grams that end at, each position, `[T]`.

        `NONE` for those that were never seen, or extend beyond the beginning of a document. A context may end with the
        end token; nothing follows it, so it leaves everything to the shorter one.
        """
        ids_T = tokens_T
        yield np.zeros_like(tokens_T), ids_T
        for table in self.tables[1:]:
            contexts_T = np.concatenate([[NONE], ids_T[:-1]])
            ids_T = table.find(contexts_T, tokens_T)
            yield contexts_T, ids_T

    def token_probabilities(self, tokens_T: Indices) -> Numbers:
        """The probability of each token after those before it, `[T]`; the first of all has none before it."""
        found_T = np.empty(len(tokens_T))
        for level, (contexts_T, ids_T) in zip(self.levels, self.ids(tokens_T), strict=True):
            found_T = level.interpolate(contexts_T, ids_T, found_T)
        return found_T

    def next_probabilities(self, tokens_T: Indices) -> Numbers:
        """The probabilities of all tokens after a text, `[V]`.

        The text is that of one document so far: it begins with the end token, or is the tail of a longer one.
        """
        assert len(tokens_T), "a document begins with the end token"
        tail = tokens_T[max(0, len(tokens_T) - self.order + 1) :]
        found_V = self.levels[0].probabilities.copy()
        for (_, ids), level in zip(self.ids(tail), self.levels[1:], strict=False):
            if ids[-1] == NONE:
                break
            first = ids[-1] * self.vocab_size
            begin, end = np.searchsorted(level.table.keys, [first, first + self.vocab_size])
            found_V *= level.backoffs[ids[-1]]
            found_V[level.table.keys[begin:end] - first] = level.probabilities[begin:end]
        return found_V
