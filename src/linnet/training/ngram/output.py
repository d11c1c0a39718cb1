"""What was found about an n-gram model, as tables and pictures."""

from typing import Any

from linnet.evaluation.tables import error_basis, said
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.result import Picture
from linnet.present.table import Table
from linnet.training.ngram.kneser_ney import NGram
from linnet.training.ngram.reading import NGramEvaluation


def order_figures(model: NGram) -> list[dict[str, Any]]:
    """Of each length: how many different n-grams there can be and are, and the discounts; ready for JSON."""
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
    """The same for a reader."""
    rows = [
        (
            str(one["order"]),
            numbers.scientific(one["possible"]),
            f"{one['trained']:,}",
            _share(one["once"] / max(1, one["trained"])),
            "  ".join(f"{amount:.3f}" for amount in one["discounts"]),
            "from the counts" if one["discounts_estimated"] else "given: too few counts",
        )
        for one in order_figures(model)
    ]
    said = "With count 1: seen once; below the highest order, seen behind one token alone."
    columns = ("order", "possible", "different ones", "with count 1", "discounts of 1, 2, 3+", "discounts")
    return Table("N-grams", columns, rows, meaning=said)


def likelihood_table(found: NGramEvaluation) -> Table:
    """How good the model is, in the rows of `linnet evaluate`."""
    one, bits = found.likelihood, found.losses.bits_per_byte
    rows = [
        ("bits per byte", said(bits), f"causal{error_basis(bits)}"),
        ("perplexity", f"{one.perplexity:,.2f}", "per token"),
        ("accuracy", f"{one.accuracy:.1%}", "of tokens guessed first"),
        ("tokens", f"{one.tokens:,}", f"{one.bytes:,} bytes of text"),
    ]
    return Table("", ("", "", ""), rows, text=True)


def seen_table(found: NGramEvaluation) -> Table:
    """The curse of dimensionality: of each length, how many there can be, were trained on, and were never seen."""
    rows = [
        (
            str(one.length),
            numbers.scientific(float(found.vocab_size**one.length)),
            f"{one.trained:,}",
            f"{one.ngrams:,}",
            "" if one.share_never_seen is None else _share(one.share_never_seen),
        )
        for one in found.seen
    ]
    said = "Never seen: of the text's n-grams, each time that one stands there, those that training did not have."
    return Table(
        "N-grams", ("order", "possible", "different in training", "in the text", "never seen"), rows, meaning=said
    )


def seen_picture(found: NGramEvaluation) -> Picture:
    """The same as two curves over the order."""
    lengths = [one.length for one in found.seen]
    places = Axis("order", places={length: str(length) for length in lengths})
    counts = Panel(
        places,
        Axis("n-grams", scale="log", format=numbers.scientific),
        [
            Series(lengths, [float(found.vocab_size**length) for length in lengths], "possible", "o-", 1),
            Series(lengths, [max(1, one.trained) for one in found.seen], "different ones in training", "o-", 0),
        ],
        title="How many there are",
    )
    measured = [one for one in found.seen if one.share_never_seen is not None]
    shares = Panel(
        places,
        Axis("share of the text's n-grams", format=lambda share: f"{share:.0%}", low=0.0, high=1.0),
        [
            Series(
                [one.length for one in measured], [one.share_never_seen or 0.0 for one in measured],
                "never seen in training", "o-", 2,
            )
        ],
        title="How many are new",
    )  # fmt: skip
    return Picture(
        "never_seen",
        "The curse of dimensionality",
        Plot([counts, shares], size=(5.0, 4.0), columns=2),
        "Possible n-grams grow with a power of the vocabulary, those of a text at most with its length: the longer "
        "they are, the more of those in a new text were never seen.",
    )


def _share(share: float) -> str:
    return f"{share:.1%}"
