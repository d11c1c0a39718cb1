"""The likelihood of a text under an n-gram model, which of its n-grams training never saw, and both for a reader.

Legend: `T` tokens of the text, `N` its documents, `C` contexts of one length.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Indices, Numbers
from linnet.core.errors import UserError
from linnet.data.pieces import ByteCounts
from linnet.evaluation.likelihood import DocumentLosses
from linnet.evaluation.results import error_basis, with_error
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.result import Picture, Result
from linnet.present.table import Table
from linnet.training.ngram.model import NONE, Level, NGram, max_lengths


@dataclass(frozen=True)
class SeenNGrams:
    """How many of the n-grams of one length in a text were seen in training.

    trained: different ones in training. once: those of them that were seen once (below the highest order: after one
    token). ngrams: occurrences in the text; never_seen: those of them that training did not have.
    """

    length: int
    trained: int
    once: int
    ngrams: int
    never_seen: int

    @property
    def share_never_seen(self) -> float | None:
        """Of the text's n-grams; None if no document is long enough for one."""
        return self.never_seen / self.ngrams if self.ngrams else None


@dataclass(frozen=True)
class NGramEvaluation(Result):
    """The loss of each document of a text, and for each length how many of its n-grams were seen.

    about: the model, the data folder and the split.
    """

    losses: DocumentLosses
    seen: list[SeenNGrams]
    vocab_size: int
    about: Mapping[str, str] = field(default_factory=dict)

    def title(self) -> str:
        return "An n-gram model"

    def facts(self) -> Mapping[str, str]:
        return self.about

    def to_dict(self) -> dict[str, Any]:
        found, bits = self.losses.likelihood, self.losses.bits_per_byte
        return {
            **self.about,
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
                    **{name: value for name, value in asdict(one).items() if name != "length"},
                    "share_never_seen": one.share_never_seen,
                }
                for one in self.seen
            ],
        }

    def tables(self) -> list[Table]:
        """The likelihood as in `linnet evaluate`; for each length, the n-grams possible, trained on and never seen."""
        one, bits = self.losses.likelihood, self.losses.bits_per_byte
        likelihood = [
            ("bits per byte", with_error(bits), f"causal{error_basis(bits)}"),
            ("perplexity", f"{one.perplexity:,.2f}", "per token"),
            ("accuracy", f"{one.accuracy:.1%}", "of tokens guessed first"),
            ("tokens", f"{one.tokens:,}", f"{one.bytes:,} bytes of text"),
        ]
        orders = [
            (
                str(one.length),
                numbers.scientific(float(self.vocab_size**one.length)),
                f"{one.trained:,}",
                f"{one.ngrams:,}",
                "" if one.share_never_seen is None else f"{one.share_never_seen:.1%}",
            )
            for one in self.seen
        ]
        note = "Never seen: the share of the n-grams in the text, each occurrence counted, that training did not have."
        columns = ("order", "possible", "different in training", "in the text", "never seen")
        return [Table("", ("", "", ""), likelihood, text=True), Table("N-grams", columns, orders, note)]

    def plots(self) -> list[Picture]:
        """The number of n-grams and the share of new ones, as curves over the order."""
        lengths = [one.length for one in self.seen]
        order = Axis("order", places={length: str(length) for length in lengths})
        possible = [float(self.vocab_size**length) for length in lengths]
        trained = [max(1, one.trained) for one in self.seen]
        counts = [
            Series(lengths, possible, "possible", "o-", 1),
            Series(lengths, trained, "different ones in training", "o-", 0),
        ]
        measured = [(one.length, one.share_never_seen) for one in self.seen if one.share_never_seen is not None]
        measured_lengths, values = [length for length, _ in measured], [share for _, share in measured]
        shares = Series(measured_lengths, values, "never seen in training", "o-", 2)
        count_axis = Axis("n-grams", scale="log", format=numbers.scientific)
        share_axis = Axis("share of the text's n-grams", format=lambda share: f"{share:.0%}", low=0.0, high=1.0)
        panels = [
            Panel(order, count_axis, counts, title="How many there are"),
            Panel(order, share_axis, [shares], title="How many are new"),
        ]
        caption = (
            "Possible n-grams grow with a power of the vocabulary, those of a text at most with its length: the longer"
            " they are, the more of those in a new text were never seen."
        )
        plot = Plot(panels, size=(5.0, 4.0), columns=2)
        return [Picture("never_seen", "The curse of dimensionality", plot, caption)]


def evaluate_tokens(model: NGram, tokens_T: Indices, byte_counts: ByteCounts[Indices]) -> NGramEvaluation:
    """Predict every token but the first from the tokens before it in its document.

    byte_counts: of the tokenizer. `UserError` if there is nothing to predict.
    """
    text_bytes_T = byte_counts.of(tokens_T, np.roll(tokens_T, 1))
    if not text_bytes_T[1:].any():
        raise UserError(f"the {max(0, len(tokens_T) - 1)} tokens to evaluate contain no text; evaluate more tokens")
    lengths_T = max_lengths(tokens_T, model.end_id)
    found_T, guesses_T = np.empty(len(tokens_T)), np.empty_like(tokens_T)
    likeliest, seen = LikeliestTokens(np.full(1, NONE), np.zeros(1)), list[SeenNGrams]()
    for length, (level, (contexts_T, ids_T)) in enumerate(zip(model.levels, model.ids(tokens_T), strict=True), start=1):
        found_T = level.interpolate(contexts_T, ids_T, found_T)
        likeliest = likeliest_after(level, likeliest, model.levels[length - 2].table.suffixes if length > 1 else None)
        known = contexts_T != NONE
        guesses_T[known] = likeliest.tokens_C[contexts_T[known]]
        # Single tokens are all in their table; those that training saw have a count.
        ids, counts = ids_T[lengths_T >= length], level.table.counts
        never = ids == NONE if length > 1 else counts[ids] == 0
        seen.append(SeenNGrams(length, int((counts > 0).sum()), int((counts == 1).sum()), len(ids), int(never.sum())))
    # Each token but the first counts for the document that it is in, or ends.
    ends_T = tokens_T == model.end_id
    documents = np.cumsum(ends_T)[:-1] - int(ends_T[0])
    nats_N, bytes_N, correct_N = (
        np.bincount(documents, values_T[1:]) for values_T in (-np.log(found_T), text_bytes_T, guesses_T == tokens_T)
    )
    losses = DocumentLosses(
        nats_N.astype(np.float64), np.bincount(documents), bytes_N.astype(np.int64), correct_N.astype(np.int64)
    )
    return NGramEvaluation(losses, seen, model.vocab_size)


@dataclass(frozen=True)
class LikeliestTokens:
    """The likeliest token after each context of one length, `[C]`, the lowest of equals; and its probability."""

    tokens_C: Indices
    probabilities_C: Numbers


def likeliest_after(level: Level, shorter: LikeliestTokens, suffixes: NDArray[Any] | None) -> LikeliestTokens:
    """The likeliest of the tokens seen after the context, or that of the shorter context times the backoff.

    suffixes: `[C]`, the shorter contexts; None for the empty context, which has none.
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


def order_figures(model: NGram) -> list[dict[str, Any]]:
    """For each length how many different n-grams are possible and were seen, and the discounts; ready for JSON."""
    return [
        {
            "order": length,
            "possible": float(model.vocab_size**length),
            "trained": int((table.counts > 0).sum()),
            "once": int((table.counts == 1).sum()),
            "discounts": list(level.discounts.amounts),
            "discounts_estimated": level.discounts.estimated,
        }
        for length, (table, level) in enumerate(zip(model.tables, model.levels, strict=True), start=1)
    ]


def order_table(model: NGram) -> Table:
    """The figures of `order_figures` as a table."""
    rows = [
        (
            str(one["order"]),
            numbers.scientific(one["possible"]),
            f"{one['trained']:,}",
            f"{one['once'] / max(1, one['trained']):.1%}",
            "  ".join(f"{amount:.3f}" for amount in one["discounts"]),
            "from the counts" if one["discounts_estimated"] else "default: too few counts",
        )
        for one in order_figures(model)
    ]
    meaning = "With count 1: seen once; below the highest order, seen after one token alone."
    columns = ("order", "possible", "different ones", "with count 1", "discounts of 1, 2, 3+", "discounts")
    return Table("N-grams", columns, rows, meaning=meaning)
