"""Reading a text with an n-gram model: its likelihood, and which of its n-grams training never saw.

Legend: `T` tokens of the text, `N` its documents, `C` contexts of one length.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Indices, Numbers
from linnet.core.errors import UserError
from linnet.evaluation.likelihood import DocumentLosses, Likelihood
from linnet.training.ngram.counts import NONE, reaches
from linnet.training.ngram.kneser_ney import Level, NGram, backed_off


@dataclass(frozen=True)
class SeenNGrams:
    """Of the n-grams of one length in a text, how many training saw.

    trained: different ones in training. once: those of them that were seen once (below the highest order: behind one
    token). ngrams: in the text, each time that one stands there; `never_seen` of these.
    """

    length: int
    trained: int
    once: int
    ngrams: int
    never_seen: int

    @property
    def share_never_seen(self) -> float | None:
        """Of the text's n-grams; None where no document is long enough for one."""
        return self.never_seen / self.ngrams if self.ngrams else None


@dataclass(frozen=True)
class NGramEvaluation:
    """The loss of each document of a text, and of each length what was seen of its n-grams."""

    losses: DocumentLosses
    seen: list[SeenNGrams]
    vocab_size: int

    @property
    def likelihood(self) -> Likelihood:
        """The sums over all documents."""
        return self.losses.likelihood

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        found, bits = self.likelihood, self.losses.bits_per_byte
        return {
            "bits_per_byte": found.bits_per_byte,
            "standard_error": bits.standard_error,
            "interval": None if (interval := bits.interval()) is None else list(interval),
            "documents": bits.count,
            "perplexity": found.perplexity,
            "accuracy": found.accuracy,
            "nats_per_token": found.nats_per_token,
            "tokens": found.tokens,
            "bytes": found.bytes,
            "orders": [
                {
                    "order": one.length,
                    "possible": float(self.vocab_size**one.length),
                    "trained": one.trained,
                    "once": one.once,
                    "ngrams": one.ngrams,
                    "never_seen": one.never_seen,
                    "share_never_seen": one.share_never_seen,
                }
                for one in self.seen
            ],
        }


def read(model: NGram, tokens_T: Indices, token_bytes_V: Indices) -> NGramEvaluation:
    """Every token but the first is predicted once, from the tokens before it in its document.

    `token_bytes_V`: bytes of text of each token. `UserError` where there is nothing to predict.
    """
    if not token_bytes_V[tokens_T[1:]].any():
        raise UserError(f"the {max(0, len(tokens_T) - 1)} tokens to evaluate hold no text; evaluate more tokens")
    reaches_T = reaches(tokens_T, model.end_id)
    found_T, guesses_T = np.empty(len(tokens_T)), np.empty_like(tokens_T)
    likeliest, seen = LikeliestTokens(np.full(1, NONE), np.zeros(1)), list[SeenNGrams]()
    for length, (level, (contexts_T, ids_T)) in enumerate(zip(model.levels, model.ids(tokens_T), strict=True), start=1):
        found_T = backed_off(level, contexts_T, ids_T, found_T)
        likeliest = likeliest_behind(level, likeliest, model.levels[length - 2].table.suffixes if length > 1 else None)
        known = contexts_T != NONE
        guesses_T[known] = likeliest.tokens_C[contexts_T[known]]
        seen.append(_seen(length, level, ids_T[reaches_T >= length]))
    losses = _by_document(-np.log(found_T), guesses_T == tokens_T, token_bytes_V[tokens_T], tokens_T == model.end_id)
    return NGramEvaluation(losses, seen, model.vocab_size)


def _by_document(
    nats_T: Numbers, right_T: NDArray[np.bool_], bytes_T: Indices, ends_T: NDArray[np.bool_]
) -> DocumentLosses:
    """Of each token but the first, for the document that it is in or ends: the sums, as of every other model."""
    documents = np.cumsum(ends_T)[:-1] - int(ends_T[0])
    nats_N, bytes_N, right_N = (np.bincount(documents, values_T[1:]) for values_T in (nats_T, bytes_T, right_T))
    return DocumentLosses(
        nats_N.astype(np.float64), np.bincount(documents), bytes_N.astype(np.int64), right_N.astype(np.int64)
    )


def _seen(length: int, level: Level, ids: Indices) -> SeenNGrams:
    """Single tokens are all in their table; those that training saw have a count."""
    counts = level.table.counts
    never = ids == NONE if length > 1 else counts[ids] == 0
    return SeenNGrams(length, int((counts > 0).sum()), int((counts == 1).sum()), len(ids), int(never.sum()))


@dataclass(frozen=True)
class LikeliestTokens:
    """The likeliest token behind each context of one length, `[C]`, of equals the lowest; and its probability."""

    tokens_C: Indices
    probabilities_C: Numbers


def likeliest_behind(level: Level, shorter: LikeliestTokens, suffixes: NDArray[Any] | None) -> LikeliestTokens:
    """One of those seen behind the context, or the likeliest behind the shorter one, faded by the backoff.

    `suffixes`: `[C]`, the shorter contexts; None for the empty context, which has none.
    """
    lower = np.zeros(1, dtype=np.int64) if suffixes is None else suffixes
    tokens_C, found_C = shorter.tokens_C[lower].copy(), level.backoffs * shorter.probabilities_C[lower]
    contexts, keys = level.table.contexts, level.table.keys
    if not len(keys):
        return LikeliestTokens(tokens_C, found_C)
    firsts = np.flatnonzero(np.diff(contexts, prepend=NONE))
    highest = np.maximum.reduceat(level.probabilities, firsts)
    is_highest = level.probabilities == np.repeat(highest, np.diff(firsts, append=len(keys)))
    places = np.flatnonzero(is_highest)
    places = places[np.flatnonzero(np.diff(contexts[places], prepend=NONE))]
    owners, own = contexts[places], keys[places] % level.table.vocab_size
    better = (highest > found_C[owners]) | ((highest == found_C[owners]) & (own < tokens_C[owners]))
    tokens_C[owners[better]], found_C[owners[better]] = own[better], highest[better]
    return LikeliestTokens(tokens_C, found_C)
