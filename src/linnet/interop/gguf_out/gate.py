"""The gate before a GGUF file gets its name: ids, logits and greedy tokens are those of the model here.

The file is held to our model with the file's own numbers, so that a wrong name, order or angle cannot hide behind
rounding; what the rounding itself costs is measured beside it.

Legend: `T` tokens, `V` vocabulary.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.engine import new_state
from linnet.interop.gguf_out.file import GgufFile
from linnet.interop.gguf_out.reference import logits_of
from linnet.interop.gguf_out.rule import GgufTokenizer
from linnet.interop.gguf_out.tensors import rounded
from linnet.interop.parity import MOST_ERROR, SAMPLES, STEPS
from linnet.model.decoder import Decoder
from linnet.stories import story

TEXTS = (*SAMPLES, *(story(0, index).text for index in range(3)))
"""What tokenizers are compared on: texts that they cut in different ways, and stories."""

_PROMPT = 64


@dataclass(frozen=True)
class Agreement:
    """What one way of running a file and the model here had in common.

    error: the largest difference of logits, in units of their standard deviation; same: of `STEPS` greedy tokens, those
    that are the likeliest there too; the others are as likely within twice the error that is allowed.
    """

    by: str
    error: float
    same: int

    @property
    def figures(self) -> dict[str, float]:
        """For a record."""
        return {"logits_error": self.error, "same_tokens": self.same}

    def __str__(self) -> str:
        same = f"{self.same} of {STEPS} greedy tokens"
        return f"by {self.by}: {same} the same, logits within {self.error:.1e} of their spread"


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


@dataclass(frozen=True)
class Expected:
    """Random tokens and `STEPS` greedy ones behind them, `[T]`, and the logits at each of them, `[T, V]`."""

    tokens: Tensor
    logits: Tensor


@torch.no_grad()
def expected_of(decoder: Decoder) -> Expected:
    """What a model says, token by token with a state."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(decoder.spec.vocab_size, (_PROMPT,), generator=generator).tolist()
    state, rows, chunk = new_state(decoder, [tokens], STEPS), list[Tensor](), list(tokens)
    for _ in range(STEPS):
        rows.append(decoder(torch.tensor([chunk]), state)[0])
        chunk = [int(rows[-1][-1].argmax())]
        tokens += chunk
    return Expected(torch.tensor(tokens[:-1]), torch.cat(rows))


def with_stored_numbers(decoder: Decoder, weights: str) -> Decoder:
    """The model in float32 with every number as storing it leaves it."""
    found = copy.deepcopy(decoder).float().cpu().eval()
    found.load_state_dict(rounded(found.state_dict(), weights))
    return found


def check_file(file: GgufFile, expected: Expected, origin: str) -> Agreement:
    """`UserError` unless the file, computed by its own metadata, says what the model says."""
    by = "the file's own metadata"
    return compared(expected, logits_of(file, expected.tokens), MOST_ERROR, by, origin)


def compared(expected: Expected, logits_TV: Tensor, most: float, by: str, origin: str) -> Agreement:
    """`UserError` unless logits differ by `most` at the most, and so do what greedy tokens lie behind the likeliest."""
    spread = expected.logits.std()
    error = float((expected.logits - logits_TV).abs().max() / spread)
    if not error <= most:  # also for NaN
        said = f"logits by {by} differ by {error:.1e} of their spread from those of the model"
        raise UserError(f"{origin}: {said}: expected at most {most:g}")
    ours, theirs = (logits[-STEPS:] for logits in (expected.logits, logits_TV))
    chosen = ours.argmax(1)
    behind = (theirs.max(1).values - theirs.gather(1, chosen[:, None])[:, 0]) / spread
    if float(behind.max()) > 2 * most:
        step = int(behind.argmax())
        raise UserError(f"{origin}: step {step}: token {int(chosen[step])} here, {int(theirs[step].argmax())} by {by}")
    return Agreement(by, error, int((theirs.argmax(1) == chosen).sum()))


def check_ids(tokenizer: Tokenizer, encode: Callable[[str], list[int]], by: str, origin: str) -> int:
    """`UserError` unless both make the same ids of `TEXTS`; gives how many."""
    for text in TEXTS:
        ours, theirs = tokenizer.encode(text), encode(text)
        if ours != theirs:
            place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
            said = f"from token {place} on {theirs[place : place + 5]} by {by}"
            raise UserError(f"{origin}: {text[:40]!r}: {said}: expected {ours[place : place + 5]}, as here")
    return sum(len(tokenizer.encode(text)) for text in TEXTS)


def ids_by_rule(file: GgufFile) -> Callable[[str], list[int]]:
    """The tokenizer that a file's metadata amounts to."""
    return GgufTokenizer(file.metadata).encode


@torch.no_grad()
def rounding(weights: str, whole: Decoder, expected: Expected, stored: Decoder, tokenizer: Tokenizer) -> StorageLoss:
    """Of a model whose numbers are `whole`, and `expected` what it says."""
    theirs = stored(expected.tokens[None])[0]
    error = float((expected.logits - theirs).abs().max() / expected.logits.std())
    same = int((expected.logits.argmax(1) == theirs.argmax(1))[-STEPS:].sum())
    return StorageLoss(weights, error, same, (_bits_per_byte(whole, tokenizer), _bits_per_byte(stored, tokenizer)))


def _bits_per_byte(decoder: Decoder, tokenizer: Tokenizer) -> float:
    ids = [token for text in TEXTS[len(SAMPLES) :] for token in (tokenizer.end_id, *tokenizer.encode(text))]
    ids = ids[: decoder.spec.context_length + 1]
    loss = decoder(torch.tensor([ids[:-1]]), targets=torch.tensor([ids[1:]]))
    return float(loss.nats) / math.log(2) / int(tokenizer.token_bytes()[ids[1:]].sum())
