"""Modified Kneser-Ney smoothing, interpolated (Chen and Goodman, 1999, equations 23 to 26), over tables of counts.

A token's probability behind a context `c` of length `n - 1`, with the adjusted counts `a` of length `n`:

    p(w | c) = (a(c w) - D(a(c w))) / a(c) + backoff(c) p(w | c without its first token)
    a(c) = sum over w of a(c w), backoff(c) = sum over w of D(a(c w)) / a(c)

down to the empty context, behind which `p` is uniform over the vocabulary. `D(0) = 0`, and three discounts for counts
of 1, 2, and 3 or more come from how many n-grams have counts of 1 to 4. Behind any context all tokens sum to 1.

Legend: `T` tokens of a text, `G` different n-grams of one length, `C` contexts of one length, `V` vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.training.ngram.counts import NONE, NGramTable

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts where the counts determine none, as `lmplz --discount_fallback` has them."""


@dataclass(frozen=True)
class Discounts:
    """What is taken from counts of 1, 2, and 3 or more. `estimated`: from the counts; else they are `FALLBACK`."""

    amounts: tuple[float, float, float]
    estimated: bool

    def of(self, counts: Indices) -> Numbers:
        """The discount of each count."""
        return np.array([0.0, *self.amounts])[np.minimum(counts, 3)]


def estimate_discounts(counts: Indices) -> Discounts:
    """By Chen and Goodman's equation 26, where there are counts of 1, 2 and 3 and each discount is within its bounds.

    A discount of 0 counts as out of bounds: it would leave nothing for tokens that were not seen.
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
    """One length: its table, `probabilities` `[G]` behind their contexts, and `backoffs` `[C]` of the contexts.

    A context that nothing goes on from leaves all to the shorter one: its backoff is 1.
    """

    table: NGramTable
    discounts: Discounts
    probabilities: Numbers
    backoffs: Numbers


class NGram:
    """The model: probabilities of tokens behind the last `order - 1` tokens of their document."""

    def __init__(self, tables: Sequence[NGramTable], end_id: int) -> None:
        """`tables`: of lengths 1, 2, ... (`count_ngrams`). `end_id`: the token that stands between documents."""
        self.tables, self.end_id = list(tables), end_id

    @property
    def order(self) -> int:
        """Tokens of the longest n-grams."""
        return len(self.tables)

    @property
    def vocab_size(self) -> int:
        """Tokens that have a probability."""
        return self.tables[0].vocab_size

    @cached_property
    def levels(self) -> list[Level]:
        """Probabilities and backoffs of each length, float64."""
        found = list[Level]()
        for table in self.tables:
            found.append(_level(table, found[-1] if found else None))
        return found

    def ids(self, tokens_T: Indices) -> Iterator[tuple[Indices, Indices]]:
        """For each length the numbers of the contexts before, and of the n-grams that end at, each position, `[T]`.

        `NONE` for those that were never seen, or reach over the beginning of a document. A context may end with the
        end token; nothing goes on from it, so it leaves all to the shorter one.
        """
        ids_T = tokens_T
        yield np.zeros_like(tokens_T), ids_T
        for table in self.tables[1:]:
            contexts_T = np.concatenate([[NONE], ids_T[:-1]])
            ids_T = table.find(contexts_T, tokens_T)
            yield contexts_T, ids_T

    def token_probabilities(self, tokens_T: Indices) -> Numbers:
        """The probability of each token behind those before it, `[T]`; the first of all stands behind none."""
        found_T = np.empty(len(tokens_T))
        for level, (contexts_T, ids_T) in zip(self.levels, self.ids(tokens_T), strict=True):
            found_T = backed_off(level, contexts_T, ids_T, found_T)
        return found_T

    def next_probabilities(self, tokens_T: Indices) -> Numbers:
        """The probabilities of all tokens behind a text that is its document's so far, `[V]`.

        It begins with the end token, or is what is left of a longer one.
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


def backed_off(level: Level, contexts_T: Indices, ids_T: Indices, shorter_T: Numbers) -> Numbers:
    """Probabilities by n-grams of this length, `[T]`, from those by n-grams one shorter."""
    found_T, known, seen = shorter_T.copy(), contexts_T != NONE, ids_T != NONE
    found_T[known] *= level.backoffs[contexts_T[known]]
    found_T[seen] = level.probabilities[ids_T[seen]]
    return found_T


def _level(table: NGramTable, shorter: Level | None) -> Level:
    discounts = estimate_discounts(table.counts)
    taken = discounts.of(table.counts)
    contexts, size = table.contexts, 1 if shorter is None else len(shorter.table)
    totals, left = (np.bincount(contexts, weights, size) for weights in (table.counts, taken))
    backoffs = np.divide(left, totals, out=np.ones(size), where=totals > 0)
    lower = 1 / table.vocab_size if shorter is None else shorter.probabilities[table.suffixes]
    own = (table.counts - taken) / np.maximum(totals, 1)[contexts]
    return Level(table, discounts, own + backoffs[contexts] * lower, backoffs)
