"""Losses of tokens, added up by document and by position, and what follows from the sums.

Legend: `N` documents, `K` parts of a window, `B` windows of a batch, `T` tokens, `V` vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from linnet.evaluation.likelihood import Likelihood
from linnet.evaluation.statistics import Estimate, Floats, ratio
from linnet.evaluation.windows import Tokens
from linnet.ops.cross_entropy import IGNORE_INDEX, TokenLosses


@dataclass(frozen=True)
class DocumentLosses:
    """Of each document its loss in nats, its predicted tokens, its bytes of text, and the tokens guessed right, `[N]`.

    sources: the number of each one's source; None where nobody knows.
    """

    nats_N: Floats
    tokens_N: Tokens
    bytes_N: Tokens
    correct_N: Tokens
    sources_N: Tokens | None = None

    @property
    def likelihood(self) -> Likelihood:
        """The sums; `UserError` where there is no text."""
        counts = (int(sums_N.sum()) for sums_N in (self.tokens_N, self.bytes_N, self.correct_N))
        return Likelihood.of_text(float(self.nats_N.sum()), *counts)

    @property
    def bits_N(self) -> Floats:
        """The loss in bits."""
        return self.nats_N / math.log(2)

    @property
    def bits_per_byte(self) -> Estimate:
        """With its standard error over the documents."""
        return ratio(self.bits_N, self.bytes_N)

    def chosen(self, which_N: NDArray[np.bool_]) -> "DocumentLosses":
        """Some of the documents."""
        return DocumentLosses(
            self.nats_N[which_N],
            self.tokens_N[which_N],
            self.bytes_N[which_N],
            self.correct_N[which_N],
            None if self.sources_N is None else self.sources_N[which_N],
        )


@dataclass(frozen=True)
class PositionLoss:
    """Of the predictions that have from `begin` to before `end` tokens of their window before the one they are made at.

    `bits_per_byte`: with its error over documents; None where these targets hold no text.
    """

    begin: int
    end: int
    tokens: int
    nats_per_token: float
    bits_per_byte: Estimate | None

    def figures(self) -> dict[str, Any]:
        """The numbers by name."""
        bits = self.bits_per_byte
        told = (None, None) if bits is None else (bits.value, bits.standard_error)
        losses = dict(zip(("bits_per_byte", "standard_error"), told, strict=True))
        return {
            "begin": self.begin,
            "end": self.end,
            "tokens": self.tokens,
            "nats_per_token": self.nats_per_token,
            **losses,
        }


def position_edges(context_length: int) -> list[int]:
    """Where parts of a window begin and end: 0, 1, 2, 4, 8, ... up to the context length."""
    edges = [0, 1]
    while edges[-1] < context_length:
        edges.append(min(2 * edges[-1], context_length))
    return edges


class LossSums:
    """The sums, while batches are read."""

    def __init__(self, documents: int, token_bytes_V: Tokens, context_length: int) -> None:
        self._edges, self._token_bytes_V = position_edges(context_length), token_bytes_V
        shape = documents, len(self._edges) - 1
        self._nats_NK = np.zeros(shape)
        self._tokens_NK, self._bytes_NK, self._correct_NK = (np.zeros(shape, np.int64) for _ in range(3))

    def add(self, each: TokenLosses, targets_BT: Tensor, documents_BT: Tensor) -> int:
        """Add the targets that count; how many these are."""
        counted_BT = targets_BT != IGNORE_INDEX
        targets = targets_BT[counted_BT].cpu().numpy()
        positions = counted_BT.nonzero()[:, 1].cpu().numpy()
        parts = np.searchsorted(self._edges, positions, side="right") - 1
        cells = np.ravel_multi_index((documents_BT[counted_BT.cpu()].numpy(), parts), self._nats_NK.shape)
        for sums_NK, of_target in (
            (self._nats_NK, each.nats[counted_BT].cpu().numpy()),
            (self._correct_NK, each.correct[counted_BT].long().cpu().numpy()),
            (self._bytes_NK, self._token_bytes_V[targets]),
            (self._tokens_NK, np.ones_like(targets)),
        ):
            np.add.at(sums_NK.reshape(-1), cells, of_target)  # of one dimension, which is several times as fast
        return len(targets)

    def documents(self, sources_N: Tokens | None = None, bytes_N: Tokens | None = None) -> DocumentLosses:
        """Of those of which anything was read. bytes: of their texts, where the tokens do not say it."""
        bytes_N = self._bytes_NK.sum(1) if bytes_N is None else bytes_N
        found = DocumentLosses(
            self._nats_NK.sum(1), self._tokens_NK.sum(1), bytes_N, self._correct_NK.sum(1), sources_N
        )
        return found.chosen(found.tokens_N > 0)

    def positions(self) -> list[PositionLoss]:
        """Of each part of a window in which anything was predicted."""
        return [
            self._position(part, begin, end)
            for part, (begin, end) in enumerate(pairwise(self._edges))
            if self._tokens_NK[:, part].any()
        ]

    def _position(self, part: int, begin: int, end: int) -> PositionLoss:
        read_N = self._tokens_NK[:, part] > 0
        nats_N, bytes_N = self._nats_NK[read_N, part], self._bytes_NK[read_N, part]
        tokens = int(self._tokens_NK[:, part].sum())
        bits = ratio(nats_N / math.log(2), bytes_N) if bytes_N.any() else None
        return PositionLoss(begin, end, tokens, float(nats_N.sum()) / tokens, bits)


@dataclass(frozen=True)
class SourceLoss:
    """One source of a mixture, and its documents' losses."""

    name: str
    losses: DocumentLosses

    def figures(self) -> dict[str, Any]:
        """The numbers by name."""
        bits = self.losses.bits_per_byte
        return {
            "source": self.name,
            "documents": bits.count,
            "bytes": int(self.losses.bytes_N.sum()),
            "bits_per_byte": bits.value,
            "standard_error": bits.standard_error,
        }


def by_source(losses: DocumentLosses, names: Sequence[str]) -> list[SourceLoss]:
    """Those of each source that has text among the documents; none where nobody knows the sources."""
    if losses.sources_N is None:
        return []
    found = [SourceLoss(name, losses.chosen(losses.sources_N == number)) for number, name in enumerate(names)]
    return [one for one in found if one.losses.bytes_N.any()]
