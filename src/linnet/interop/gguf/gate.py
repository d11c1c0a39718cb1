"""The gate before a GGUF file gets its name: ids, logits and greedy tokens are those of the model here (`parity`).

The file is held to our model with the file's own numbers, so that a wrong name, order or angle cannot hide behind
rounding; what the rounding itself costs is measured beside it.

Legend: `T` tokens, `V` vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from linnet.data.tokenizer import Tokenizer
from linnet.interop.gguf.file import GgufFile
from linnet.interop.gguf.reference import logits_of
from linnet.interop.gguf.rule import GgufTokenizer
from linnet.interop.gguf.tensors import rounded
from linnet.interop.parity import (
    MOST_ERROR,
    SAMPLES,
    STEPS,
    Agreement,
    Expected,
    bits_per_byte,
    compared,
    in_float32,
    largest_error,
    stories,
)
from linnet.model.decoder import Decoder

TOLD = stories(3)
TEXTS = (*SAMPLES, *TOLD)
"""What tokenizers are compared on: texts that they cut in different ways, and stories."""


@dataclass(frozen=True)
class StorageLoss:
    """What storing a model in fewer bits costs.

    error: as of `Agreement`, at the tokens that the whole model prefers; same: of `STEPS` tokens, those that the
    rounded one prefers too; bits_per_byte: of stories, before and after.
    """

    weights: str
    error: float
    same: int
    bits_per_byte: tuple[float, float]

    @property
    def figures(self) -> dict[str, float]:
        """For a record."""
        before, after = self.bits_per_byte
        lost = {"logits_error": self.error, "greedy_tokens_kept": self.same}
        return {**lost, "bits_per_byte": before, "bits_per_byte_stored": after}

    def __str__(self) -> str:
        before, after = self.bits_per_byte
        moved = f"rounding to {self.weights} moves logits by {self.error:.1e} of their spread at the most"
        kept = f"{self.same} of {STEPS} greedy tokens stay"
        return f"{moved}, {kept}; {before:.3f} bits per byte of stories become {after:.3f}"


def with_stored_numbers(decoder: Decoder, weights: str) -> Decoder:
    """The model in float32 with every number as storing it leaves it."""
    found = in_float32(decoder)
    found.load_state_dict(rounded(found.state_dict(), weights))
    return found


def check_file(file: GgufFile, expected: Expected, origin: str) -> Agreement:
    """`UserError` unless the file, computed by its own metadata, says what the model says."""
    by = "the file's own metadata"
    return compared(expected, logits_of(file, expected.tokens), MOST_ERROR, by, origin)


def ids_by_rule(file: GgufFile) -> Callable[[str], list[int]]:
    """The tokenizer that a file's metadata amounts to."""
    return GgufTokenizer(file.metadata).encode


@torch.no_grad()
def rounding(weights: str, whole: Decoder, expected: Expected, stored: Decoder, tokenizer: Tokenizer) -> StorageLoss:
    """Of a model whose numbers are `whole`, and `expected` what it says."""
    theirs = stored(expected.tokens[None])[0]
    error = largest_error(expected.logits, theirs)
    same = int((expected.logits.argmax(1) == theirs.argmax(1))[-STEPS:].sum())
    return StorageLoss(weights, error, same, (_bits_per_byte(whole, tokenizer), _bits_per_byte(stored, tokenizer)))


def _bits_per_byte(decoder: Decoder, tokenizer: Tokenizer) -> float:
    """Of stories, each behind the end token, as far as the context reaches."""
    ids = [token for text in TOLD for token in (tokenizer.end_id, *tokenizer.encode(text))]
    tokens_T = torch.tensor(ids[: decoder.spec.context_length + 1])
    return bits_per_byte(decoder(tokens_T[None, :-1])[0], tokens_T[1:], tokenizer)
