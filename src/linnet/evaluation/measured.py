"""What measuring one model on a text gave."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linnet.core.files import json_safe
from linnet.evaluation.cache_policies import CachePolicyLoss
from linnet.evaluation.likelihood import DocumentLosses, Evaluation, Likelihood, PositionLoss, SourceLoss
from linnet.evaluation.statistics import Estimate


@dataclass(frozen=True)
class TextEvaluation:
    """The loss of each document, and of each part of a window; of each source where there are several.

    whole_sequence: the pass that sees the future, of a decoder that is not causal by itself. context_length: tokens of
    a window. stride: how many of a document's tokens each further window predicts; None where windows hold several
    documents. cache_policies: the same text with other ways of keeping the past, where they were asked for.
    single_pairs: a window is one pair.
    """

    losses: DocumentLosses
    positions: Sequence[PositionLoss]
    sources: Sequence[SourceLoss]
    whole_sequence: Likelihood | None
    context_length: int
    stride: int | None
    cache_policies: Sequence[CachePolicyLoss] = ()
    single_pairs: bool = False

    @property
    def causal(self) -> Likelihood:
        """The sums over all documents."""
        return self.losses.likelihood

    @property
    def leak(self) -> float | None:
        """Bits per byte by which the whole-sequence pass, which sees the future, looks better than the causal one."""
        return self._evaluation.leak

    @property
    def bits_per_byte(self) -> Estimate:
        """With its standard error over the documents."""
        return self.losses.bits_per_byte

    @property
    def _evaluation(self) -> Evaluation:
        return Evaluation(self.causal, self.whole_sequence)

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON: null for what is not finite."""
        bits = self.bits_per_byte
        told: dict[str, Any] = {
            **self._evaluation.figures(),
            "standard_error": bits.standard_error,
            "interval": None if (interval := bits.interval()) is None else list(interval),
            "documents": bits.count,
            "context_length": self.context_length,
            "stride": self.stride,
            "positions": [one.to_dict() for one in self.positions],
        }
        if len(self.sources) > 1:
            told["sources"] = [one.to_dict() for one in self.sources]
        if self.cache_policies:
            told["cache_policies"] = [one.figures() for one in self.cache_policies]
        ready: dict[str, Any] = json_safe(told)
        return ready
