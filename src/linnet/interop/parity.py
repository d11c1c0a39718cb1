"""The gate of every way in and out: what another program makes of the same text is what the model here makes of it.

Ids are the same, and logits within a stated error: token by token, over the greedy tokens of the model here. A token
that is the likeliest here then lies at most twice that error behind the likeliest there.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.cache_policy import cache_policy_state
from linnet.model.decoder import Decoder
from linnet.stories import story

MOST_ERROR = 1e-4
"""Of a logit, in units of the standard deviation of all of them: float32 in another order of operations."""
STEPS = 200
PROMPT = 64
SAMPLES = (
    'Once upon a time, there was a little bird.\n\nShe said: "I can\'t fly!"',
    "  two  spaces, a\ttab, 1234567 and 3.14",
    "Schönes Wetter, Здравствуй, 你好, नमस्ते, 🐦",
    "def f(x):\n    return x ** 2  # <b>code</b>\n",
)
"""Texts that tokenizers cut in different ways."""


def stories(count: int) -> tuple[str, ...]:
    """So many of linnet's corpus."""
    return tuple(story(0, index).text for index in range(count))


@dataclass(frozen=True)
class Expected:
    """Random tokens and `steps` greedy ones behind them, `[T]`, and the logits at each of them, `[T, V]`.

    Logits at the last `steps` tokens are those that greedy ones were chosen by.
    """

    tokens: Tensor
    logits: Tensor
    steps: int


@dataclass(frozen=True)
class Agreement:
    """What another program and the model here had in common.

    by: the other; error: the largest difference of logits, in units of their standard deviation, and how large it might
    have been; steps: greedy tokens compared, fewer than `STEPS` where learned positions end; same: those that are the
    likeliest there too.
    """

    by: str
    error: float
    most: float
    steps: int
    same: int

    @property
    def figures(self) -> dict[str, float]:
        """For a record."""
        tokens = {"greedy_tokens": self.steps, "same_tokens": self.same}
        return {"logits_error": self.error, "most_logits_error": self.most, **tokens}

    def __str__(self) -> str:
        ended = "" if self.steps == STEPS else " (learned positions end there)"
        same = f"{self.same} of {self.steps} greedy tokens the same{ended}"
        return f"by {self.by}: {same}, logits within {self.error:.1e} of their spread (accepted: {self.most:g})"


def in_float32(decoder: Decoder) -> Decoder:
    """A copy on the processor, for inference."""
    return copy.deepcopy(decoder).float().cpu().eval()


def most_tokens(decoder: Decoder) -> int:
    """How many tokens of a text are compared at most."""
    return decoder.spec.context_length if decoder.spec.embedding.positions == "learned" else STEPS + PROMPT


def random_tokens(decoder: Decoder) -> Tensor:
    """Two texts of tokens `[B, T]` that are the same whenever they are drawn."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(decoder.spec.vocab_size, (2, min(PROMPT, most_tokens(decoder))), generator=generator)


@torch.no_grad()
def expected_of(decoder: Decoder) -> Expected:
    """What a model says, token by token with a state; a short prompt leaves learned positions for the rest.

    The last greedy token is chosen and not read, so that it needs no position.
    """
    most = most_tokens(decoder)
    prompt = max(1, min(PROMPT, most - STEPS + 1), min(8, most - 1))
    steps = min(STEPS, most - prompt + 1)
    tokens = random_tokens(decoder)[0, :prompt].tolist()
    state, rows, chunk = cache_policy_state(decoder, 1, prompt + steps - 1), list[Tensor](), list(tokens)
    for _ in range(steps):
        rows.append(decoder(torch.tensor([chunk]), state)[0])
        chunk = [int(rows[-1][-1].argmax())]
        tokens += chunk
    return Expected(torch.tensor(tokens[:-1]), torch.cat(rows), steps)


def compared(expected: Expected, logits_TV: Tensor, most: float, by: str, origin: str) -> Agreement:
    """`UserError` unless logits differ by `most` at the most."""
    error = held_error(expected.logits, logits_TV, most, by, origin)
    ours, theirs = (logits[-expected.steps :].argmax(1) for logits in (expected.logits, logits_TV))
    return Agreement(by, error, most, expected.steps, int((ours == theirs).sum()))


def held_error(ours: Tensor, theirs: Tensor, most: float, by: str, origin: str) -> float:
    """`largest_error` of logits `[..., T, V]`; `UserError` where it is more than `most`, with the first such token."""
    errors_T = ((ours - theirs).abs() / ours.std()).amax(-1).reshape(-1, ours.shape[-2]).amax(0)
    wrong_T = ~(errors_T <= most)  # also for NaN
    if wrong_T.any():
        first = int(wrong_T.nonzero()[0])
        said = f"after {first + 1} tokens logits by {by} differ by {float(errors_T[first]):.1e} of their spread"
        raise UserError(f"{origin}: {said} from those of the model: expected at most {most:g}")
    return float(errors_T.max())


def largest_error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of logits, in units of the standard deviation of ours."""
    return float((ours - theirs).abs().max() / ours.std())


def bits_per_byte(logits_TV: Tensor, targets_T: Tensor, tokenizer: Tokenizer) -> float:
    """Of tokens by the logits before each."""
    counted = max(1, int(tokenizer.token_bytes()[targets_T.tolist()].sum()))
    return float(F.cross_entropy(logits_TV, targets_T, reduction="sum")) / math.log(2) / counted


def check_same_ids(
    tokenizer: Tokenizer, encode: Callable[[str], list[int]], by: str, origin: str, texts: Sequence[str]
) -> int:
    """`UserError` unless both make the same ids of each text; gives how many."""
    total = 0
    for text in texts:
        ours, theirs = tokenizer.encode(text), encode(text)
        if ours != theirs:
            place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
            said = f"from token {place} on {theirs[place : place + 5]} by {by}"
            raise UserError(f"{origin}: {text[:40]!r}: {said}: expected {ours[place : place + 5]}, as here")
        total += len(ours)
    return total
