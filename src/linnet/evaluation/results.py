"""Results of evaluating models on text: one model (`TextEvaluation`), or several on the same documents.

All models read the same bytes whatever their tokenizers, so bits per byte are compared, document by document.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from linnet.core.files import json_safe
from linnet.evaluation.documents import Coverage
from linnet.evaluation.evaluator import CachePolicyLoss
from linnet.evaluation.likelihood import DocumentLosses, Evaluation, Likelihood, PositionLoss, SourceLoss
from linnet.evaluation.statistics import (
    RESAMPLES,
    SIGNIFICANT,
    Estimate,
    Interval,
    bootstrap_interval,
    holm_correction,
    paired_difference,
)
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series, line_style
from linnet.present.result import Picture, Result
from linnet.present.table import Table

POSITIONS_CAPTION = (
    "Bits per byte by the place of the predicted token in its window, with a band of the standard error. The first has"
    " no token of the window before it."
)


def with_error(estimate: Estimate, signed: bool = False) -> str:
    """The value and its standard error, if it has one: `1.2345 ± 0.0067`. signed: with the sign of a difference."""
    value = numbers.signed(estimate.value, 4) if signed else f"{estimate.value:.4f}"
    return value if estimate.standard_error is None else f"{value} ± {estimate.standard_error:.4f}"


def error_basis(estimate: Estimate) -> str:
    """What the standard error is computed over, for a note after a value; empty without an error."""
    return "" if estimate.count < 2 else f"; ± standard error over {numbers.grouped(estimate.count)} documents"


@dataclass(frozen=True)
class TextEvaluation(Result):
    """The loss of one model on each document, by position in a window, and by source if there are several.

    whole_sequence: the pass that sees the future, for a decoder that is not causal by itself. context_length: tokens of
    a window. stride: targets of each further window of a document; None if windows contain several documents.
    cache_policies: the losses on the same text with other cache policies, if requested. row_reading: of windows that
    are a row each, how they are read, in words. about: the model, the text and the options. stored_bits_per_byte: the
    figure before the weights were converted to another precision. coverage: what was read of the text, if less than all
    of it can be.
    """

    losses: DocumentLosses
    positions: Sequence[PositionLoss]
    sources: Sequence[SourceLoss]
    whole_sequence: Likelihood | None
    context_length: int
    stride: int | None
    cache_policies: Sequence[CachePolicyLoss] = ()
    row_reading: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    stored_bits_per_byte: float | None = None
    coverage: Coverage | None = None

    @property
    def causal(self) -> Likelihood:
        """The sums over all documents."""
        return self.losses.likelihood

    @property
    def leak(self) -> float | None:
        """Bits per byte that the whole-sequence pass, which sees the future, gains over the causal one."""
        return Evaluation(self.causal, self.whole_sequence).leak

    @property
    def bits_per_byte(self) -> Estimate:
        """With its standard error over the documents."""
        return self.losses.bits_per_byte

    def to_dict(self) -> dict[str, Any]:
        bits = self.bits_per_byte
        figures: dict[str, Any] = {
            **self.about,
            **Evaluation(self.causal, self.whole_sequence).to_dict(),
            "standard_error": bits.standard_error,
            "interval": None if (interval := bits.interval()) is None else list(interval),
            "documents": bits.count,
            "context_length": self.context_length,
            "stride": self.stride,
            "positions": [one.to_dict() for one in self.positions],
        }
        if len(self.sources) > 1:
            figures["sources"] = [one.to_dict() for one in self.sources]
        if self.cache_policies:
            figures["cache_policies"] = [one.to_dict() for one in self.cache_policies]
        if self.stored_bits_per_byte is not None:
            figures["bits_per_byte_as_stored"] = self.stored_bits_per_byte
        if self.coverage is not None and self.coverage.share < 1:
            figures["read"] = self.coverage.to_dict()
        return dict(json_safe(figures))

    def tables(self) -> list[Table]:
        """The figures, then the loss by source, by position, and with each cache policy."""
        tables = [_figures_table(self)]
        if len(self.sources) > 1:
            rows = [
                (
                    one.name,
                    with_error(one.losses.bits_per_byte),
                    numbers.grouped(len(one.losses.bytes_N)),
                    numbers.grouped(int(one.losses.bytes_N.sum())),
                )
                for one in self.sources
            ]
            tables.append(Table("Sources", ("source", "bits per byte", "documents", "bytes"), rows))
        rows = [
            (
                numbers.grouped(one.begin) if one.end == one.begin + 1 else f"{one.begin:,} to {one.end - 1:,}",
                "" if one.bits_per_byte is None else with_error(one.bits_per_byte),
                f"{one.nats_per_token:.4f}",
                numbers.grouped(one.tokens),
            )
            for one in self.positions
        ]
        columns = ("tokens before", "bits per byte", "nats per token", "tokens")
        note = "Tokens before: tokens of the window before the one from which the next is predicted."
        tables.append(Table("Loss by position", columns, rows, note))
        if self.cache_policies:
            tables.append(_cache_policies_table(self.cache_policies))
        return tables

    def plots(self) -> list[Picture]:
        plot = Plot([positions_panel([str(self.about.get("model", ""))], [self])], (9.0, 4.6))
        return [Picture("positions", "Loss by position", plot, POSITIONS_CAPTION)]


def _figures_table(found: TextEvaluation) -> Table:
    sums, bits = found.causal, found.bits_per_byte
    rows = [("bits per byte", with_error(bits), f"causal{error_basis(bits)}")]
    if found.whole_sequence is not None and found.leak is not None:
        rows.append(("", f"{found.whole_sequence.bits_per_byte:.4f}", "whole sequence, sees the future"))
        rows.append(("leak", numbers.signed(found.leak, 4), "bits per byte gained by seeing the future"))
    if found.row_reading:
        windows = f"tokens at most before one; {found.row_reading}"
    elif found.stride is None:
        windows = "tokens at most before one; windows begin with a document if possible, and contain several"
    else:
        before, stride = numbers.grouped(found.context_length - found.stride), numbers.grouped(found.stride)
        windows = f"tokens at most before one, stride {stride}: at least {before}; documents are separate"
    rows += [
        ("nats", f"{sums.nats_per_token:.4f}", "per token"),
        ("perplexity", f"{sums.perplexity:,.2f}", "per token"),
        ("accuracy", f"{sums.accuracy:.1%}", "of tokens are the likeliest prediction"),
        ("tokens", f"{sums.tokens:,}", f"{sums.bytes:,} bytes of text"),
        ("context", f"{found.context_length:,}", windows),
    ]
    if found.coverage is not None and found.coverage.share < 1:
        rows.append(("read", f"{found.coverage.share:.1%}", found.coverage.describe()))
    stored, calibration = found.stored_bits_per_byte, found.about.get("calibration")
    if stored is not None:
        loss = f"{bits.value - stored:+.4f} bits/byte"
        rows.append((f"{found.about['precision']} costs", loss, f"against the weights as stored, {stored:.4f}"))
    if calibration is not None:
        seed = found.about.get("seed")
        drawn = "" if seed is None else f", drawn from seed {seed}"
        rows.append(("calibration", calibration, f"replaces the model's own{drawn}"))
    return Table("", ("", "", ""), rows, text=True)


def _cache_policies_table(losses: Sequence[CachePolicyLoss]) -> Table:
    rows = [
        (
            one.cache_policy.label,
            with_error(one.losses.bits_per_byte),
            "" if number == 0 else with_error(one.difference, signed=True),
            numbers.grouped(one.state_bytes),
        )
        for number, one in enumerate(losses)
    ]
    columns = ("cache policy", "bits per byte", "difference", "state bytes")
    note = (
        "Difference from the full cache, document by document. State: of the layers with a choice of policies, averaged"
        " over tokens."
    )
    return Table("Cache policies", columns, rows, note)


def positions_panel(names: Sequence[str], evaluations: Sequence[TextEvaluation]) -> Panel:
    """Bits per byte over the position in a window: a line for each model, with a band of its standard error."""
    lines = []
    for number, (name, evaluation) in enumerate(zip(names, evaluations, strict=True)):
        known = [(one, one.bits_per_byte) for one in evaluation.positions if one.bits_per_byte is not None]
        known = [(one, bits) for one, bits in known if math.isfinite(bits.value)]
        # Each range is drawn at its middle. Places count from one, as the axis is logarithmic.
        middles = [1 + (one.begin + one.end - 1) / 2 for one, _ in known]
        values = [bits.value for _, bits in known]
        errors = [bits.standard_error or 0.0 for _, bits in known]
        low = [value - error for value, error in zip(values, errors, strict=True)]
        high = [value + error for value, error in zip(values, errors, strict=True)]
        lines.append(Series(middles, values, name, line_style(number), number, low=low, high=high))
    x = Axis("place of the predicted token in its window", "log2", numbers.grouped)
    return Panel(x, Axis("bits per byte"), lines)


@dataclass(frozen=True)
class PairDifference:
    """The second model's bits per byte minus the first's: below 0 the second is better.

    p_value: of no difference, corrected for the number of pairs (Holm); None with one document. resampled: the
    bootstrap interval. better_share: share of the documents that are likelier for the second model.
    """

    first: str
    second: str
    difference: Estimate
    p_value: float | None
    resampled: Interval | None
    better_share: float

    @property
    def differs(self) -> bool | None:
        """True if the difference is significant; None if unknown."""
        return None if self.p_value is None else self.p_value < SIGNIFICANT

    @property
    def verdict(self) -> str:
        if self.p_value is None:
            return "unknown: one document" if self.difference.count == 1 else "unknown: no numbers"
        return f"better, p = {self.p_value:.2g}" if self.differs else f"not significant, p = {self.p_value:.2g}"

    def to_dict(self) -> dict[str, Any]:
        interval = self.difference.interval()
        return {
            "first": self.first,
            "second": self.second,
            "difference": self.difference.value,
            "standard_error": self.difference.standard_error,
            "interval": None if interval is None else list(interval),
            "bootstrap_interval": None if self.resampled is None else list(self.resampled),
            "p_value": self.p_value,
            "differs": self.differs,
            "better_share": self.better_share,
        }


@dataclass(frozen=True)
class ModelComparison(Result):
    """The evaluations of several models on the same documents, and every pair of them, the better model second."""

    names: Sequence[str]
    evaluations: Sequence[TextEvaluation]
    pairs: Sequence[PairDifference]
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        names: Sequence[str],
        evaluations: Sequence[TextEvaluation],
        resamples: int = RESAMPLES,
        about: Mapping[str, Any] | None = None,
    ) -> "ModelComparison":
        """Compare models that were evaluated on the same documents."""
        bytes_N = evaluations[0].losses.bytes_N
        assert all(np.array_equal(one.losses.bytes_N, bytes_N) for one in evaluations), "other documents"
        found = []
        for first, second in combinations(zip(names, evaluations, strict=True), 2):
            improves = second[1].bits_per_byte.value < first[1].bits_per_byte.value
            worse, better = (first, second) if improves else (second, first)
            before, after = worse[1].losses, better[1].losses
            difference = paired_difference(before.bits_N, after.bits_N, bytes_N)
            resampled = bootstrap_interval(after.bits_N - before.bits_N, bytes_N, resamples)
            better_share = float((after.bits_N < before.bits_N).mean())
            found.append(PairDifference(worse[0], better[0], difference, None, resampled, better_share))
        corrected = holm_correction([pair.difference.p_value() for pair in found])
        pairs = tuple(replace(pair, p_value=p) for pair, p in zip(found, corrected, strict=True))
        return cls(tuple(names), tuple(evaluations), pairs, about or {})

    def to_dict(self) -> dict[str, Any]:
        models = [{"model": name, **one.to_dict()} for name, one in zip(self.names, self.evaluations, strict=True)]
        return {**self.about, **json_safe({"models": models, "pairs": [pair.to_dict() for pair in self.pairs]})}

    def tables(self) -> list[Table]:
        """A row for each model with its sources, then one for each pair."""
        rows = []
        for name, one in zip(self.names, self.evaluations, strict=True):
            sums, bits = one.causal, with_error(one.bits_per_byte)
            tokens = numbers.grouped(sums.tokens)
            rows.append((name, bits, f"{sums.nats_per_token:.4f}", f"{sums.accuracy:.1%}", tokens))
            if len(one.sources) > 1:
                sources = ((source.name, with_error(source.losses.bits_per_byte)) for source in one.sources)
                rows += [(f" {source}", bits, "", "", "") for source, bits in sources]
        losses = self.evaluations[0].losses
        documents, size = len(losses.bytes_N), f"{numbers.grouped(int(losses.bytes_N.sum()))} bytes"
        note = (
            f"The same {numbers.grouped(documents)} separate documents, {size}; ± standard error over the documents."
            if documents > 1
            else f"The same document, {size}; a single one has no standard error."
        )
        coverage = self.evaluations[0].coverage
        if coverage is not None and coverage.share < 1:
            note += f" Read: {coverage.share:.1%} {coverage.describe()}."
        columns = ("model", "bits per byte", "nats per token", "accuracy", "tokens")
        return [Table("", columns, rows, f"{note} Tokens are those of each model's tokenizer."), self._pairs_table()]

    def _pairs_table(self) -> Table:
        rows = []
        for pair in self.pairs:
            interval = " to ".join(numbers.signed(end, 4) for end in pair.difference.interval() or ())
            names = f"{pair.second} minus {pair.first}"
            difference = with_error(pair.difference, signed=True)
            rows.append((names, difference, interval, f"{pair.better_share:.0%}", pair.verdict))
        note = (
            "In bits per byte, document by document: ± standard error, and the 95 % confidence interval. Likelier:"
            " share of the documents that are likelier for the first named model."
        )
        if len(self.pairs) > 1:
            note += f" Verdicts: at most 5 % chance of any error among the {len(self.pairs)} pairs (Holm)."
        return Table("Differences", ("models", "difference", "interval", "likelier", "verdict"), rows, note)

    def plots(self) -> list[Picture]:
        plot = Plot([positions_panel(self.names, self.evaluations)], (9.0, 4.6))
        return [Picture("positions", "Loss by position", plot, POSITIONS_CAPTION)]
