"""Parity check of every import and export: another program must compute what the model here computes.

Token ids must be the same, and logits within a stated error, token by token, over the greedy tokens of the model here.
The likeliest token here is then at most twice that error behind the likeliest token there.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.cache_policy import cache_policy_state
from linnet.model.decoder import Decoder, decoder_with_weights
from linnet.stories import story

MAX_ERROR = 1e-4
"""Largest error of a logit, in standard deviations of all logits: float32 in another order of operations."""
STEPS = 200
PROMPT = 64
SAMPLES = (
    'Once upon a time, there was a little bird.\n\nShe said: "I can\'t fly!"',
    "  two  spaces, a\ttab, 1234567 and 3.14",
    "Schönes Wetter, Здравствуй, 你好, नमस्ते, 🐦",
    "def f(x):\n    return x ** 2  # <b>code</b>\n",
)
"""Texts that tokenizers split in different ways."""

StoredType = Literal["float32", "bfloat16", "float16"]


def sample_stories(count: int) -> tuple[str, ...]:
    """Return stories of the built-in corpus."""
    return tuple(story(0, index).text for index in range(count))


@dataclass(frozen=True)
class Expected:
    """Random tokens followed by `steps` greedy ones, `[T]`, and the logits at each of them, `[T, V]`.

    The greedy tokens were chosen by the logits at the last `steps` tokens.
    """

    tokens: Tensor
    logits: Tensor
    steps: int


@dataclass(frozen=True)
class Agreement:
    """Agreement between another program and the model here.

    by: the other program. error: the largest difference of logits in standard deviations; accepted: its limit. steps:
    greedy tokens compared, fewer than `STEPS` if learned positions end before. same: how many of them are the likeliest
    in the other program too.
    """

    by: str
    error: float
    accepted: float
    steps: int
    same: int

    @property
    def figures(self) -> dict[str, float]:
        tokens = {"greedy_tokens": self.steps, "same_tokens": self.same}
        return {"logits_error": self.error, "accepted_logits_error": self.accepted, **tokens}

    def __str__(self) -> str:
        ended = "" if self.steps == STEPS else " (learned positions end there)"
        same = f"{self.same} of {self.steps} greedy tokens the same{ended}"
        return f"by {self.by}: {same}, {logits_within(self.error)} (accepted: {self.accepted:g})"


def logits_within(error: float) -> str:
    """Return how close logits are, in units of their spread, in words."""
    return f"logits within {error:.1e} of their spread" if error else "identical logits"


def in_float32(decoder: Decoder) -> Decoder:
    """Return a copy on the CPU for inference."""
    return copy.deepcopy(decoder).float().cpu().eval()


def random_tokens(decoder: Decoder) -> Tensor:
    """Return two texts of random tokens `[B, T]`, the same for every call."""
    generator, length = torch.Generator().manual_seed(0), PROMPT
    if decoder.spec.embedding.positions == "learned":
        length = min(PROMPT, decoder.spec.context_length)
    return torch.randint(decoder.spec.vocab_size, (2, length), generator=generator)


@torch.no_grad()
def expected_of(decoder: Decoder) -> Expected:
    """Run a model token by token with a state; with learned positions the prompt is short.

    The last greedy token is chosen but not read, so it needs no position.
    """
    prompt, steps = PROMPT, STEPS
    if decoder.spec.embedding.positions == "learned":
        length = decoder.spec.context_length
        prompt = max(1, min(PROMPT, length - STEPS + 1), min(8, length - 1))
        steps = min(STEPS, length - prompt + 1)
    tokens = random_tokens(decoder)[0, :prompt].tolist()
    state, rows, chunk = cache_policy_state(decoder, 1, prompt + steps - 1), list[Tensor](), list(tokens)
    for _ in range(steps):
        rows.append(decoder(torch.tensor([chunk]), state)[0])
        chunk = [int(rows[-1][-1].argmax())]
        tokens += chunk
    return Expected(torch.tensor(tokens[:-1]), torch.cat(rows), steps)


def compare(expected: Expected, logits_TV: Tensor, accepted: float, by: str, origin: str) -> Agreement:
    """Compare the logits of another program; `UserError` if they differ by more than `accepted`."""
    error = check_logits(expected.logits, logits_TV, accepted, by, origin)
    ours, theirs = (logits[-expected.steps :].argmax(1) for logits in (expected.logits, logits_TV))
    return Agreement(by, error, accepted, expected.steps, int((ours == theirs).sum()))


def check_logits(ours: Tensor, theirs: Tensor, accepted: float, by: str, origin: str) -> float:
    """Return the `largest_error` of logits `[..., T, V]`; `UserError` names the first token above `accepted`."""
    errors_T = ((ours - theirs).abs() / ours.std()).amax(-1).reshape(-1, ours.shape[-2]).amax(0)
    wrong_T = ~(errors_T <= accepted)  # also for NaN
    if wrong_T.any():
        first = int(wrong_T.nonzero()[0])
        problem = f"after {first + 1} tokens logits by {by} differ by {float(errors_T[first]):.1e} of their spread"
        raise UserError(f"{origin}: {problem} from those of the model: expected at most {accepted:g}")
    return float(errors_T.max())


def largest_error(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of logits, in standard deviations of ours."""
    return float((ours - theirs).abs().max() / ours.std())


def bits_per_byte(logits_TV: Tensor, tokens_T: Tensor, tokenizer: Tokenizer) -> float:
    """Return bits per byte of all tokens but the first, from the logits behind each but the last."""
    inputs_T, targets_T = tokens_T[:-1], tokens_T[1:]
    counted = max(1, int(tokenizer.byte_counts().to("cpu").of(targets_T, inputs_T).sum()))
    return float(F.cross_entropy(logits_TV, targets_T, reduction="sum")) / math.log(2) / counted


def check_same_ids(
    tokenizer: Tokenizer,
    encode: Callable[[str], list[int]],
    by: str,
    origin: str,
    texts: Sequence[str],
    special: bool = True,
) -> int:
    """Raise `UserError` unless both produce the same ids for each text, and for texts with each added token.

    special: also those with the names of special tokens, which are ordinary text. Returns the number of ids of `texts`.
    """
    total = 0
    names = [name for name, is_special in tokenizer.added_tokens.items() if special or not is_special]
    for text in (*texts, *(f"Say {name}, or{name}{name}" for name in names)):
        ours, theirs = tokenizer.encode(text), encode(text)
        if ours != theirs:
            place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
            actual = f"from token {place} on {theirs[place : place + 5]} by {by}"
            raise UserError(f"{origin}: {text[:40]!r}: {actual}: expected {ours[place : place + 5]}, as here")
        total += len(ours) if text in texts else 0
    return total


@dataclass(frozen=True)
class Rounding:
    """Effect of rounding weights, over random tokens.

    error: the largest difference of logits in standard deviations. same: the share of positions where the likeliest
    token stays the same.
    """

    dtype: str
    error: float
    same: float

    @property
    def figures(self) -> dict[str, float]:
        return {"rounding_logits_error": self.error, "rounding_same_tokens": self.same}

    def __str__(self) -> str:
        return (
            f"weights of {self.dtype}: logits within {self.error:.1e} of their spread of those before,"
            f" the likeliest token the same at {self.same:.1%} of positions"
        )


@torch.no_grad()
def round_weights(decoder: Decoder, dtype: str) -> tuple[Decoder, Rounding]:
    """Return the decoder with its weights in `dtype`, and the effect of the rounding.

    `UserError` for another type than a `StoredType`, and for a weight that is too large for it.
    """
    if dtype not in get_args(StoredType):
        raise UserError(field="precision", value=dtype, accepted=f"one of {', '.join(get_args(StoredType))}")
    before = decoder.state_dict()
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in before.items()}
    for name, tensor in tensors.items():
        if not tensor.isfinite().all() and before[name].isfinite().all():
            problem = f"tensor {name} has a weight of {float(before[name].abs().max()):.3g}, too large for it"
            raise UserError(problem, field="precision", value=dtype)
    after = decoder_with_weights(decoder.spec, tensors)
    tokens_BT = random_tokens(decoder)
    before_BTV, after_BTV = (in_float32(model)(tokens_BT) for model in (decoder, after))
    same = float((before_BTV.argmax(dim=-1) == after_BTV.argmax(dim=-1)).double().mean())
    return after, Rounding(dtype, largest_error(before_BTV, after_BTV), same)
