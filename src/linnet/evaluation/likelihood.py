"""How likely a model finds a text: nats, bits per byte, accuracy, from a causal evaluation.

A decoder that is not causal without a state reads each window with an operator frozen from another text
(`frozen.frozen_state`). What its own whole-sequence pass would have claimed is measured beside it; the difference is
the leak.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.evaluation.frozen import frozen_state
from linnet.model.decoder import Decoder
from linnet.model.pairs import loss_of_rows
from linnet.model.state import DecoderState, rows_of
from linnet.ops.cross_entropy import IGNORED

Windows = Iterable[tuple[Tensor, Tensor]]
"""Inputs and targets, int64 `[B, T]` each; targets that are `IGNORED` do not count: at the end of a row, or in the
input of a pair.
"""

Total = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Likelihood:
    """Sums over the predicted tokens: negative log-likelihood in nats, tokens, UTF-8 bytes, right first guesses."""

    nats: float
    tokens: int
    bytes: int
    correct: int

    @property
    def bits_per_byte(self) -> float:
        """The loss in bits per byte of text: comparable between tokenizers."""
        return self.nats / math.log(2) / self.bytes

    @property
    def nats_per_token(self) -> float:
        """The cross-entropy per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """`exp` of the cross-entropy per token; infinite where that overflows."""
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf

    @property
    def accuracy(self) -> float:
        """The share of tokens whose most likely prediction is right."""
        return self.correct / self.tokens


@dataclass(frozen=True)
class Evaluation:
    """A causal likelihood, and beside it the whole-sequence pass of a decoder that is not causal by itself."""

    causal: Likelihood
    whole_sequence: Likelihood | None = None

    @property
    def leak(self) -> float | None:
        """Bits per byte by which the whole-sequence pass, which sees the future, looks better than the causal one."""
        return None if self.whole_sequence is None else self.causal.bits_per_byte - self.whole_sequence.bits_per_byte

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON: null for what is not finite."""
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
        return {name: value if math.isfinite(value) else None for name, value in named.items()}

    def sums(self) -> dict[str, Any]:
        """Everything, for saving; `from_sums` reads it."""
        return {"causal": asdict(self.causal), "whole_sequence": self.whole_sequence and asdict(self.whole_sequence)}

    @classmethod
    def from_sums(cls, sums: dict[str, Any]) -> "Evaluation":
        """What `sums` wrote."""
        whole = sums["whole_sequence"]
        return cls(Likelihood(**sums["causal"]), whole and Likelihood(**whole))


@torch.no_grad()
def evaluate(
    decoder: Decoder,
    windows: Windows,
    token_bytes_V: Tensor,
    calibration_1T: Tensor | None = None,
    total: Total = lambda sums: sums,
) -> Evaluation:
    """The causal likelihood and, for a decoder that is not causal by itself, its whole-sequence pass (see `leak`).

    `token_bytes_V`: bytes of text of each token. `calibration_1T`: the text that freezes the operator of a decoder
    that is not causal without a state; it must not be part of the windows. A causal decoder does not use it. `total`
    adds up what several processes found, each in its part of the windows. `UserError` where the targets hold no text
    at all.
    """
    causal, whole = (_Sums(token_bytes_V, decoder.device, total) for _ in range(2))
    frozen: DecoderState | None = None
    for inputs, targets in windows:
        inputs_BT, targets_BT = inputs.to(decoder.device), targets.to(decoder.device)
        batch, length = inputs_BT.shape
        if decoder.causal:
            causal.add(decoder, inputs_BT, targets_BT, None)
            continue
        assert calibration_1T is not None, "a decoder that is not causal needs a calibration text"
        if frozen is None or frozen.capacity < length:
            frozen = frozen_state(decoder, calibration_1T, 1, length)
        causal.add(decoder, inputs_BT, targets_BT, rows_of(frozen, batch))
        _add_whole(whole, decoder, inputs_BT, targets_BT)
    return Evaluation(causal.likelihood(), None if decoder.causal else whole.likelihood())


def _add_whole(sums: "_Sums", decoder: Decoder, inputs_BT: Tensor, targets_BT: Tensor) -> None:
    """Each row without the ignored targets at its end: what stands beside a row must not be part of its sequence."""
    places_T = torch.arange(1, targets_BT.shape[1] + 1, device=targets_BT.device)
    lengths_B = (places_T * (targets_BT != IGNORED)).amax(dim=1)
    for length in sorted(set(lengths_B.tolist())):
        rows = lengths_B == length
        sums.add(decoder, inputs_BT[rows, :length], targets_BT[rows, :length], None)


class _Sums:
    """Sums that stay on the device until they are asked for."""

    def __init__(self, token_bytes_V: Tensor, device: torch.device, total: Total) -> None:
        self._token_bytes_V, self._total = token_bytes_V.to(device), total
        self._nats = torch.zeros((), dtype=torch.float64, device=device)
        counts = torch.zeros(3, dtype=torch.int64, device=device)
        self._bytes, self._tokens, self._correct = counts.unbind()

    def add(self, decoder: Decoder, inputs_BT: Tensor, targets_BT: Tensor, state: DecoderState | None) -> None:
        loss = loss_of_rows(decoder, inputs_BT, targets_BT, state)
        self._nats += loss.nats
        self._correct += loss.correct
        self._bytes += text_bytes(targets_BT, self._token_bytes_V)
        self._tokens += (targets_BT != IGNORED).sum()

    def likelihood(self) -> Likelihood:
        nats = float(self._total(self._nats))
        of_text, tokens, correct = self._total(torch.stack([self._bytes, self._tokens, self._correct])).tolist()
        if not tokens or not of_text:
            raise UserError(f"the {tokens} tokens to evaluate hold no text; evaluate more tokens")
        return Likelihood(nats, tokens, of_text, correct)


def text_bytes(targets_BT: Tensor, token_bytes_V: Tensor) -> Tensor:
    """UTF-8 bytes of the text of the targets, summed, int64."""
    counted_BT = targets_BT != IGNORED
    return (token_bytes_V[targets_BT.clamp(min=0)] * counted_BT).sum()
