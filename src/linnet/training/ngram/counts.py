"""Counting: the n-grams of a text, of every length up to the order, as sorted arrays.

An n-gram is numbered by its place in the table of its length. Its key is made of its context's number and its last
token, so that a key fits 64 bits whatever the order, and the n-grams that go on from one context stand together.

Legend: `T` tokens of the text, `G` different n-grams of one length, `V` vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Indices

MOST_ORDER = 40
"""A longer n-gram has been seen once, or is copied text."""

NONE = -1
"""In the place of an n-gram's number: it was never seen, or would reach over the beginning of a document."""

Before = Callable[[int], object]
"""Called with the length of the n-grams that are to be counted next."""


@dataclass(frozen=True)
class NGramTable:
    """The different n-grams of one length, sorted by `keys`.

    keys: `[G]`, the number of the context (the n-gram without its last token) times `V`, plus the last token.
    counts: `[G]`, how often it was seen; below the highest order, behind how many different tokens, unless a document
    begins with it: then nothing stands before it (Kneser and Ney, 1995; as in KenLM).
    suffixes: `[G]`, the number of the n-gram without its first token.
    The table of single tokens has all of the vocabulary, also with count 0; they have the one empty context.
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
        """The numbers of n-grams by context and last token, `[T]`; `NONE` where there is none, or no context."""
        found_T = np.full(len(tokens_T), NONE, dtype=np.int64)
        known = np.flatnonzero(contexts_T != NONE)
        if not len(self) or not len(known):
            return found_T
        wanted = contexts_T[known] * self.vocab_size + tokens_T[known]
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self) - 1)
        hits = self.keys[places] == wanted
        found_T[known[hits]] = places[hits]
        return found_T


def reaches(tokens_T: Indices, end_id: int) -> Indices:
    """How long an n-gram may be that ends at each position, `[T]`: back to the end token before its document.

    The first token of all is no prediction, and has 0. An end token belongs to the document before it where it is the
    last of an n-gram, and to the one behind it where it is the first.
    """
    places_T = np.arange(len(tokens_T))
    ends_T = np.maximum.accumulate(np.where(tokens_T == end_id, places_T, 0))
    found_T = np.zeros(len(tokens_T), dtype=np.int64)
    found_T[1:] = places_T[1:] - ends_T[:-1] + 1
    return found_T


def count_ngrams(
    tokens_T: Indices, end_id: int, vocab_size: int, order: int, before: Before = lambda length: None
) -> list[NGramTable]:
    """The tables of lengths 1 to `order` of a text in which `end_id` stands before each document and at the end."""
    assert len(tokens_T) > 1 and tokens_T[0] == end_id and 1 <= order <= MOST_ORDER
    tables, begun = list[NGramTable](), list[NDArray[np.bool_]]()
    for table in _raw_tables(tokens_T, end_id, vocab_size, order, before):
        if not tables:
            begun.append(np.zeros(vocab_size, dtype=bool))
        else:
            first = np.arange(vocab_size) == end_id if len(tables) == 1 else begun[-1]
            begun.append(first[table.contexts])
            tables[-1] = _continued(tables[-1], table, begun[-2])
        tables.append(table)
    return tables


def _raw_tables(tokens_T: Indices, end_id: int, vocab_size: int, order: int, before: Before) -> Iterator[NGramTable]:
    """Those with the counts of the highest order: how often each n-gram was seen."""
    before(1)
    counts = np.bincount(tokens_T[1:], minlength=vocab_size)
    yield NGramTable(np.arange(vocab_size), narrow(counts), np.zeros(vocab_size, np.int32), vocab_size)
    ids_T, reaches_T = tokens_T, np.minimum(reaches(tokens_T, end_id), order).astype(np.int8)
    for length in range(2, order + 1):
        before(length)
        places = np.flatnonzero(reaches_T >= length)
        table, ids = _table(ids_T[places - 1], tokens_T[places], ids_T[places], vocab_size)
        ids_T = np.full(len(tokens_T), NONE, dtype=np.int64)
        ids_T[places] = ids
        yield table


def _table(contexts: Indices, tokens: Indices, suffixes: Indices, vocab_size: int) -> tuple[NGramTable, Indices]:
    """The table of n-grams that are given one by one, and the number of each."""
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


def _continued(table: NGramTable, longer: NGramTable, begun: NDArray[np.bool_]) -> NGramTable:
    """With the counts of a lower order: the number of different tokens that n-grams one longer put before each."""
    behind = np.bincount(longer.suffixes, minlength=len(table))
    return NGramTable(table.keys, narrow(np.where(begun, table.counts, behind)), table.suffixes, table.vocab_size)


def narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """As int32 where that holds them."""
    return numbers.astype(np.int32 if not len(numbers) or numbers.max() < 1 << 31 else np.int64)
