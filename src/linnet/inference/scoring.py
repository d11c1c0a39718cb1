"""Log-probabilities and hidden states of given tokens, in passes over batches of them.

Legend: `B` rows, `T` tokens of the longest row, `V` vocabulary, `D` model width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from linnet.inference.prefill import left_pad
from linnet.inference.streams import Event, likeliest
from linnet.model.decoder import Decoder

TOKENS_AT_ONCE = 8192
"""Of a pass, with padding."""

LOGITS_AT_ONCE = 1 << 24
"""Elements of the logits that exist at the same time."""


@torch.inference_mode()
def token_log_probabilities(
    decoder: Decoder, rows: Sequence[Sequence[int]], vocab_size: int, top: int = 0
) -> list[list[Event]]:
    """For each row of token ids, an event for each token behind the first.

    Log-probabilities are of the whole vocabulary; `top`: of so many of the likeliest tokens below `vocab_size`.
    """
    found: list[list[Event]] = [[] for _ in rows]
    at_once = max(1, LOGITS_AT_ONCE // decoder.spec.vocab_size)
    for number, hidden_TD in _hidden(decoder, rows):
        targets = rows[number][1:]
        for start in range(0, len(targets), at_once):
            own = targets[start : start + at_once]
            log_TV = decoder.logits(hidden_TD[start : start + len(own)]).float().log_softmax(dim=-1)
            values = log_TV.gather(1, torch.tensor(own, device=log_TV.device)[:, None])[:, 0].tolist()
            for log_V, token, value in zip(log_TV[:, :vocab_size], own, values, strict=True):
                found[number].append(Event(token, value, likeliest(log_V, top) if top else None))
    return found


@torch.inference_mode()
def mean_hidden(decoder: Decoder, rows: Sequence[Sequence[int]]) -> Tensor:
    """`[N, D]`, float32: the mean of what the head reads over the tokens of each row behind the first, if there are."""
    means: dict[int, Tensor] = {}
    for number, hidden_TD in _hidden(decoder, rows):
        means[number] = hidden_TD[min(1, len(hidden_TD) - 1) :].float().mean(dim=0)
    return torch.stack([means[number] for number in range(len(rows))]) if rows else torch.empty(0, decoder.spec.d_model)


@torch.inference_mode()
def last_values(decoder: Decoder, rows: Sequence[Sequence[int]]) -> list[float]:
    """The value that a reward model gives to each row at its last token (`Decoder.values`)."""
    found = {number: float(decoder.values(hidden_TD[-1:])) for number, hidden_TD in _hidden(decoder, rows)}
    return [found[number] for number in range(len(rows))]


def _hidden(decoder: Decoder, rows: Sequence[Sequence[int]]) -> Iterator[tuple[int, Tensor]]:
    """The number of each row and the output of `Decoder.hidden` for it, `[T, D]`; rows of like lengths are one pass."""
    waiting = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    while waiting:
        longest = len(rows[waiting[-1]])
        batch = waiting[-max(1, TOKENS_AT_ONCE // longest) :]
        waiting = waiting[: -len(batch)]
        tokens_BT, padding = left_pad([rows[number] for number in batch], decoder.device)
        hidden_BTD = decoder.hidden(tokens_BT, padding=padding)
        for number, hidden_TD in zip(batch, hidden_BTD, strict=True):
            yield number, hidden_TD[longest - len(rows[number]) :]
