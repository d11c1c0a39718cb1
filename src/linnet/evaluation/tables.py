"""What was measured, as tables."""

from collections.abc import Sequence

from linnet.evaluation.comparison import ModelComparison, PairDifference
from linnet.evaluation.measured import TextEvaluation
from linnet.evaluation.statistics import Estimate
from linnet.present import numbers
from linnet.present.table import Table


def measured_tables(found: TextEvaluation, given: Sequence[tuple[str, str, str]] = ()) -> list[Table]:
    """One model's figures, then its loss by source, by position, and with each cache policy. `given`: more first
    rows.
    """
    tables = [_figures(found, given)]
    if len(found.sources) > 1:
        tables.append(_sources(found))
    tables.append(_positions(found))
    if found.cache_policies:
        tables.append(_cache_policies(found))
    return tables


def comparison_tables(found: ModelComparison) -> list[Table]:
    """A row for each model, its sources behind it, and one for each pair."""
    rows = []
    for name, one in zip(found.names, found.measured, strict=True):
        sums = one.causal
        error = said(one.bits_per_byte)
        rows.append((name, error, f"{sums.nats_per_token:.4f}", f"{sums.accuracy:.1%}", numbers.grouped(sums.tokens)))
        if len(one.sources) > 1:
            rows += [(f" {source.name}", said(source.losses.bits_per_byte), "", "", "") for source in one.sources]
    losses = found.measured[0].losses
    documents, size = len(losses.bytes_N), f"{numbers.grouped(int(losses.bytes_N.sum()))} bytes"
    columns = ("model", "bits per byte", "nats per token", "accuracy", "tokens")
    meaning = (
        f"The same {numbers.grouped(documents)} documents, {size}, apart from each other; ± standard error over them."
    )
    if documents == 1:
        meaning = f"The same document, {size}; of a single one there is no standard error."
    meaning += " Tokens are each model's own."
    return [Table("", columns, rows, meaning), _pairs(found.pairs)]


def said(estimate: Estimate) -> str:
    """The value and its standard error, where there is one: `1.2345 ± 0.0067`."""
    error = "" if estimate.standard_error is None else f" ± {estimate.standard_error:.4f}"
    return f"{estimate.value:.4f}{error}"


def error_basis(estimate: Estimate) -> str:
    """What stands behind ±, where there is one."""
    return "" if estimate.count < 2 else f"; ± standard error over {numbers.grouped(estimate.count)} documents"


def _figures(found: TextEvaluation, given: Sequence[tuple[str, str, str]]) -> Table:
    sums, bits = found.causal, found.bits_per_byte
    rows = [("bits per byte", said(bits), f"causal{error_basis(bits)}")]
    if found.whole_sequence is not None and found.leak is not None:
        rows.append(("", f"{found.whole_sequence.bits_per_byte:.4f}", "whole sequence, sees the future"))
        rows.append(("leak", numbers.signed(found.leak, 4), "bits per byte that seeing the future gains"))
    rows += [
        ("nats", f"{sums.nats_per_token:.4f}", "per token"),
        ("perplexity", f"{sums.perplexity:,.2f}", "per token"),
        ("accuracy", f"{sums.accuracy:.1%}", "of tokens guessed first"),
        ("tokens", f"{sums.tokens:,}", f"{sums.bytes:,} bytes of text"),
        ("context", f"{found.context_length:,}", _windows_said(found)),
    ]
    return Table("", ("", "", ""), [*rows, *given], text=True)


def _windows_said(found: TextEvaluation) -> str:
    if found.single_pairs:
        return "tokens at most before one; each pair is read by itself, and its target alone counts"
    if found.stride is None:
        return "tokens at most before one; windows begin with a document where they can, and hold several"
    before = numbers.grouped(found.context_length - found.stride)
    return f"tokens at most before one, stride {numbers.grouped(found.stride)}: at least {before}; documents apart"


def _sources(found: TextEvaluation) -> Table:
    rows = [
        (
            one.name,
            said(one.losses.bits_per_byte),
            numbers.grouped(len(one.losses.bytes_N)),
            numbers.grouped(int(one.losses.bytes_N.sum())),
        )
        for one in found.sources
    ]
    return Table("Sources", ("source", "bits per byte", "documents", "bytes"), rows)


def _positions(found: TextEvaluation) -> Table:
    rows = [
        (
            numbers.grouped(one.begin) if one.end == one.begin + 1 else f"{one.begin:,} to {one.end - 1:,}",
            "" if one.bits_per_byte is None else said(one.bits_per_byte),
            f"{one.nats_per_token:.4f}",
            numbers.grouped(one.tokens),
        )
        for one in found.positions
    ]
    columns = ("tokens before", "bits per byte", "nats per token", "tokens")
    return Table("Loss by position", columns, rows, "Tokens before: of the window, behind its first.")


def _cache_policies(found: TextEvaluation) -> Table:
    rows = [
        (
            one.cache_policy.label,
            said(one.losses.bits_per_byte),
            "" if number == 0 else _signed(one.difference),
            numbers.grouped(one.state_bytes),
        )
        for number, one in enumerate(found.cache_policies)
    ]
    columns = ("cache policy", "bits per byte", "difference", "state bytes")
    meaning = (
        "Difference to the full cache, document by document. State: of the layers that have a choice, averaged over"
        " tokens."
    )
    return Table("Cache policies", columns, rows, meaning)


def _pairs(pairs: Sequence[PairDifference]) -> Table:
    rows = [
        (
            f"{pair.second} less {pair.first}",
            _signed(pair.difference),
            _interval_said(pair),
            f"{pair.better_share:.0%}",
            _verdict(pair),
        )
        for pair in pairs
    ]
    meaning = (
        "In bits per byte, document by document: ± standard error, and the interval that holds 95 % of such samples'"
    )
    corrected = f"{meaning} truths. Likelier: of the documents, by the first named." + (
        f" Told apart: with a chance of 5 % of any mistake among the {len(pairs)} pairs (Holm)."
        if len(pairs) > 1
        else ""
    )
    return Table("Differences", ("models", "difference", "interval", "likelier", "verdict"), rows, corrected)


def _interval_said(pair: PairDifference) -> str:
    interval = pair.difference.interval()
    return "" if interval is None else " to ".join(numbers.signed(end, 4) for end in interval)


def _verdict(pair: PairDifference) -> str:
    if pair.differs is None:
        return "not known: one document" if pair.difference.count == 1 else "not known: no numbers"
    return f"better, p = {pair.p_value:.2g}" if pair.differs else f"not told apart, p = {pair.p_value:.2g}"


def _signed(estimate: Estimate) -> str:
    error = "" if estimate.standard_error is None else f" ± {estimate.standard_error:.4f}"
    return f"{numbers.signed(estimate.value, 4)}{error}"
