"""How likely a model finds a text: nats, bits per byte, accuracy, from a causal evaluation.

Of a decoder that is not causal without a state, what its own whole-sequence pass would have claimed stands beside it;
the difference is the leak. `measure` does the reading.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch import Tensor

from linnet.core.errors import UserError
from linnet.ops.cross_entropy import IGNORE_INDEX


@dataclass(frozen=True)
class Likelihood:
    """Sums over the predicted tokens: negative log-likelihood in nats, tokens, UTF-8 bytes, right first guesses."""

    nats: float
    tokens: int
    bytes: int
    correct: int

    @classmethod
    def of_text(cls, nats: float, tokens: int, of_text: int, correct: int) -> Self:
        """`UserError` where the tokens hold no text."""
        if not tokens or not of_text:
            raise UserError(f"the {tokens} tokens to evaluate hold no text; evaluate more tokens")
        return cls(nats, tokens, of_text, correct)

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


def text_bytes(targets_BT: Tensor, token_bytes_V: Tensor) -> Tensor:
    """UTF-8 bytes of the text of the targets, summed, int64."""
    counted_BT = targets_BT != IGNORE_INDEX
    return (token_bytes_V[targets_BT.clamp(min=0)] * counted_BT).sum()
