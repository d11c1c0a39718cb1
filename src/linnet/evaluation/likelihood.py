"""Likelihoods of text: nats, bits per byte and accuracy, summed by document and by position in a window.

For a decoder that is not causal by itself, the likelihood of its own whole-sequence pass is kept beside the causal one;
the difference is the leak. Shapes: `N` documents, `K` ranges of positions, `B` windows, `T` tokens, `V` vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.data.pieces import ByteCounts
from linnet.evaluation.statistics import Estimate, Floats, ratio
from linnet.ops.cross_entropy import IGNORE_INDEX, TokenLosses

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Likelihood:
    """Sums over predicted tokens: negative log-likelihood in nats, tokens, UTF-8 bytes, right first guesses."""

    nats: float
    tokens: int
    bytes: int
    correct: int

    @classmethod
    def of_text(cls, nats: float, tokens: int, text_bytes: int, correct: int) -> Self:
        """`UserError` if the tokens contain no text."""
        if not tokens or not text_bytes:
            raise UserError(f"the {tokens} tokens to evaluate contain no text; evaluate more tokens")
        return cls(nats, tokens, text_bytes, correct)

    @property
    def bits_per_byte(self) -> float:
        """The loss in bits per byte of text, comparable between tokenizers."""
        return self.nats / math.log(2) / self.bytes

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """`exp` of the loss per token; infinite if that overflows."""
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf

    @property
    def accuracy(self) -> float:
        """Share of tokens whose likeliest prediction is right."""
        return self.correct / self.tokens


@dataclass(frozen=True)
class Evaluation:
    """A causal likelihood, and that of the whole-sequence pass of a decoder that is not causal by itself."""

    causal: Likelihood
    whole_sequence: Likelihood | None = None

    @property
    def leak(self) -> float | None:
        """Bits per byte that the whole-sequence pass, which sees the future, gains over the causal one."""
        return None if self.whole_sequence is None else self.causal.bits_per_byte - self.whole_sequence.bits_per_byte

    def to_dict(self) -> dict[str, Any]:
        """The figures for JSON; None for what is not finite."""
        named: dict[str, Any] = {
            "bits_per_byte": self.causal.bits_per_byte,
            "perplexity": self.causal.perplexity,
            "accuracy": self.causal.accuracy,
            "nats_per_token": self.causal.nats_per_token,
            "tokens": self.causal.tokens,
            "bytes": self.causal.bytes,
        }
        if self.whole_sequence is not None:
            named |= {"whole_sequence_bits_per_byte": self.whole_sequence.bits_per_byte, "leak": self.leak}
        return dict(json_safe(named))

    def sums(self) -> dict[str, Any]:
        """All sums as plain data, from which `from_sums` restores the evaluation."""
        return {"causal": asdict(self.causal), "whole_sequence": self.whole_sequence and asdict(self.whole_sequence)}

    @classmethod
    def from_sums(cls, sums: dict[str, Any]) -> "Evaluation":
        """Restore what `sums` returned."""
        whole = sums["whole_sequence"]
        return cls(Likelihood(**sums["causal"]), whole and Likelihood(**whole))


def text_bytes(inputs_BT: Tensor, targets_BT: Tensor, byte_counts: ByteCounts[Tensor]) -> Tensor:
    """The sum of the UTF-8 bytes of the targets, each of which stands behind its input, int64."""
    counted_BT = targets_BT != IGNORE_INDEX
    return (byte_counts.of(targets_BT.clamp(min=0), inputs_BT) * counted_BT).sum()


@dataclass(frozen=True)
class DocumentLosses:
    """For each document: its loss in nats, predicted tokens, bytes of text, and tokens guessed right, `[N]`.

    sources: the number of each document's source; None if unknown.
    """

    nats_N: Floats
    tokens_N: Tokens
    bytes_N: Tokens
    correct_N: Tokens
    sources_N: Tokens | None = None

    @property
    def likelihood(self) -> Likelihood:
        """The sums; `UserError` without text."""
        counts = (int(sums_N.sum()) for sums_N in (self.tokens_N, self.bytes_N, self.correct_N))
        return Likelihood.of_text(float(self.nats_N.sum()), *counts)

    @property
    def bits_N(self) -> Floats:
        return self.nats_N / math.log(2)

    @property
    def bits_per_byte(self) -> Estimate:
        """With its standard error over the documents."""
        return ratio(self.bits_N, self.bytes_N)

    def subset(self, which_N: NDArray[np.bool_]) -> "DocumentLosses":
        """Some of the documents."""
        sources_N = None if self.sources_N is None else self.sources_N[which_N]
        tokens_N, bytes_N, correct_N = (counts_N[which_N] for counts_N in (self.tokens_N, self.bytes_N, self.correct_N))
        return DocumentLosses(self.nats_N[which_N], tokens_N, bytes_N, correct_N, sources_N)

    def by_source(self, names: Sequence[str]) -> "list[SourceLoss]":
        """The losses of each source that has text; empty if the sources are unknown."""
        if self.sources_N is None:
            return []
        found = [SourceLoss(name, self.subset(self.sources_N == number)) for number, name in enumerate(names)]
        return [one for one in found if one.losses.bytes_N.any()]


@dataclass(frozen=True)
class SourceLoss:
    """One source of a mixture, and the losses of its documents."""

    name: str
    losses: DocumentLosses

    def to_dict(self) -> dict[str, Any]:
        bits = self.losses.bits_per_byte
        return {
            "source": self.name,
            "documents": bits.count,
            "bytes": int(self.losses.bytes_N.sum()),
            "bits_per_byte": bits.value,
            "standard_error": bits.standard_error,
        }


@dataclass(frozen=True)
class PositionLoss:
    """The loss of predictions that have `begin` to `end` - 1 tokens of their window before the current one.

    bits_per_byte: with its error over documents; None if these targets contain no text.
    """

    begin: int
    end: int
    tokens: int
    nats_per_token: float
    bits_per_byte: Estimate | None

    def to_dict(self) -> dict[str, Any]:
        bits = self.bits_per_byte
        return {
            "begin": self.begin,
            "end": self.end,
            "tokens": self.tokens,
            "nats_per_token": self.nats_per_token,
            "bits_per_byte": None if bits is None else bits.value,
            "standard_error": None if bits is None else bits.standard_error,
        }


class LossSums:
    """Sums of losses by document and range of positions, while batches are read.

    The ranges of positions are bounded by 0, 1, 2, 4, 8, ... and the context length.
    """

    def __init__(self, documents: int, byte_counts: ByteCounts[Tokens], context_length: int) -> None:
        self._edges, self._byte_counts = [0, 1], byte_counts
        while self._edges[-1] < context_length:
            self._edges.append(min(2 * self._edges[-1], context_length))
        shape = documents, len(self._edges) - 1
        self._nats_NK = np.zeros(shape)
        self._tokens_NK, self._bytes_NK, self._correct_NK = (np.zeros(shape, np.int64) for _ in range(3))

    def add(self, each: TokenLosses, inputs_BT: Tensor, targets_BT: Tensor, documents_BT: Tensor) -> int:
        """Add the targets that count, each of which stands behind its input, and return their number."""
        counted_BT = targets_BT != IGNORE_INDEX
        inputs, targets = (x_BT[counted_BT].cpu().numpy() for x_BT in (inputs_BT, targets_BT))
        positions = counted_BT.nonzero()[:, 1].cpu().numpy()
        ranges = np.searchsorted(self._edges, positions, side="right") - 1
        cells = np.ravel_multi_index((documents_BT[counted_BT.cpu()].numpy(), ranges), self._nats_NK.shape)
        for sums_NK, of_target in (
            (self._nats_NK, each.nats[counted_BT].cpu().numpy()),
            (self._correct_NK, each.correct[counted_BT].long().cpu().numpy()),
            (self._bytes_NK, self._byte_counts.of(targets, inputs)),
            (self._tokens_NK, np.ones_like(targets)),
        ):
            np.add.at(sums_NK.reshape(-1), cells, of_target)  # one-dimensional indices are several times as fast
        return len(targets)

    @property
    def tokens_N(self) -> Tokens:
        """Predicted tokens of each document, also of those that were not read."""
        found: Tokens = self._tokens_NK.sum(1)
        return found

    def documents(self, sources_N: Tokens | None = None, bytes_N: Tokens | None = None) -> DocumentLosses:
        """The losses of the documents that were read. bytes: of their texts, if the tokens do not determine them."""
        bytes_N = self._bytes_NK.sum(1) if bytes_N is None else bytes_N
        tokens_N = self.tokens_N
        losses = DocumentLosses(self._nats_NK.sum(1), tokens_N, bytes_N, self._correct_NK.sum(1), sources_N)
        return losses.subset(tokens_N > 0)

    def positions(self) -> list[PositionLoss]:
        """The losses of each range of positions in which anything was predicted."""
        found = []
        for column, (begin, end) in enumerate(pairwise(self._edges)):
            read_N = self._tokens_NK[:, column] > 0
            if read_N.any():
                nats_N, bytes_N = self._nats_NK[read_N, column], self._bytes_NK[read_N, column]
                tokens = int(self._tokens_NK[:, column].sum())
                bits = ratio(nats_N / math.log(2), bytes_N) if bytes_N.any() else None
                found.append(PositionLoss(begin, end, tokens, float(nats_N.sum()) / tokens, bits))
        return found
