"""How likely a continuation is behind a context, for many requests at once.

Requests of one context share a state: the context is read once, and forked for every continuation. A request that has
its context for itself is read in one pass. Both give the same numbers but for rounding.

Legend: `B` rows of a batch, `T` tokens, `N` predicted tokens, `D` width, `V` vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.evaluation.tasks.streams import StateFactory, right_pad
from linnet.inference.prefill import left_pad
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

TOKENS_AT_ONCE = 4096
"""Tokens of a batch, padding included."""

ENOUGH_TOKENS, LIKE = 512, 0.8
"""A batch of so many tokens takes no row of less than this share of its longest: padding costs as much as text."""

LOGITS_AT_ONCE = 1 << 23
"""Of the logits that are held at once: 32 MiB of float32."""

STATE_SHARE = 4
"""A fork's state counts as one token in its batch for so many that it has room for."""

Advance = Callable[[int], None]
Thing = TypeVar("Thing")


@dataclass(frozen=True)
class LoglikelihoodRequest:
    """Token ids: of the text before, its begin of a document included, and of what may follow; neither is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    def within(self, length: int) -> "LoglikelihoodRequest":
        """With the last tokens of the context that a model of this context length can read before the continuation.

        The last token of the continuation is predicted, not read. `UserError` where not even that leaves a context.
        """
        room = length + 1 - len(self.continuation)
        if room < 1:
            found = f"a continuation of {len(self.continuation)} tokens"
            raise UserError(f"{found}: the model reads {length} at once; expected a shorter one")
        return self if len(self.context) <= room else LoglikelihoodRequest(self.context[-room:], self.continuation)


@dataclass(frozen=True)
class LoglikelihoodResult:
    """The log-likelihood of a continuation in nats, and whether each of its tokens is the likeliest."""

    log_likelihood: float
    greedy: bool


class LoglikelihoodScorer:
    """Scores requests by one decoder. `fork`: read a context that several requests share once."""

    def __init__(self, streams: StateFactory, fork: bool = True, tokens_at_once: int = TOKENS_AT_ONCE) -> None:
        self._streams, self._fork, self._tokens_at_once = streams, fork, tokens_at_once

    @torch.inference_mode()
    def score(
        self, requests: Sequence[LoglikelihoodRequest], advance: Advance = lambda _: None
    ) -> list[LoglikelihoodResult]:
        """A score for each request, in their order; `advance` is told how many are done.

        Contexts that are too long lose their first tokens (`LoglikelihoodRequest.within`).
        """
        fitting = [request.within(self._streams.context_length) for request in requests]
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, request in enumerate(fitting):
            groups.setdefault(request.context, []).append(place)
        shared = [places for places in groups.values() if self._fork and len(places) > 1]
        forked = {place for places in shared for place in places}
        alone = [place for place in range(len(fitting)) if place not in forked]
        scores: dict[int, LoglikelihoodResult] = {}
        for places in self._batches(alone, lambda place: _length(fitting[place])):
            scores |= zip(places, self._of_pairs([fitting[place] for place in places]), strict=True)
            advance(len(places))
        for together in self._batches(shared, lambda group: len(fitting[group[0]].context)):
            found = self._of_contexts([[fitting[place] for place in group] for group in together])
            places = [place for group in together for place in group]
            scores |= zip(places, found, strict=True)
            advance(len(places))
        return [scores[place] for place in range(len(fitting))]

    def _batches(self, things: Sequence[Thing], length: Callable[[Thing], int]) -> Iterator[list[Thing]]:
        """Things of like lengths together, the longest first: what is too large shows at once."""
        batch: list[Thing] = []
        for thing in sorted(things, key=length, reverse=True):
            longest = length(batch[0]) if batch else 0
            enough = len(batch) * longest >= ENOUGH_TOKENS and length(thing) < LIKE * longest
            if batch and (enough or (len(batch) + 1) * longest > self._tokens_at_once):
                yield batch
                batch = []
            batch.append(thing)
        if batch:
            yield batch

    def _of_pairs(self, requests: Sequence[LoglikelihoodRequest]) -> list[LoglikelihoodResult]:
        """Context and continuation in one pass."""
        decoder = self._streams.decoder
        tokens_BT = right_pad([(*request.context, *request.continuation[:-1]) for request in requests], decoder.device)
        state = self._streams.single_pass_state(*tokens_BT.shape)
        hidden_BTD = decoder.hidden(tokens_BT, state)
        firsts = [len(request.context) - 1 for request in requests]
        rows, places, targets = _predicted(firsts, [request.continuation for request in requests])
        found = _log_likelihoods(decoder, hidden_BTD[rows, places], targets)
        return _by_request(found, [len(request.continuation) for request in requests])

    def _of_contexts(self, groups: Sequence[Sequence[LoglikelihoodRequest]]) -> list[LoglikelihoodResult]:
        """Every context once, then all continuations of each; one score after the other, group by group."""
        decoder = self._streams.decoder
        contexts = [group[0].context for group in groups]
        requests = [request for group in groups for request in group]
        of_group = torch.tensor([row for row, group in enumerate(groups) for _ in group])
        capacity = max(map(len, contexts)) + max(len(request.continuation) for request in requests)
        state = self._streams.new_state(len(groups), capacity)
        tokens_BT, padding = left_pad(contexts, decoder.device)
        last_BD = decoder.hidden(tokens_BT, state, padding=padding)[:, -1]
        starts = torch.tensor([request.continuation[0] for request in requests], device=decoder.device)
        first = _log_likelihoods(decoder, last_BD, starts, of_group.to(decoder.device))
        rest = self._of_rests(state, of_group, [request.continuation for request in requests])
        return [
            LoglikelihoodResult(
                float(first.nats[place]) + after.log_likelihood, bool(first.likeliest[place]) and after.greedy
            )
            for place, after in enumerate(rest)
        ]

    def _of_rests(
        self, state: DecoderState, of_group: Tensor, continuations: Sequence[tuple[int, ...]]
    ) -> list[LoglikelihoodResult]:
        """Scores of all but the first token of each continuation, behind a fork of its group's row of the state."""
        decoder = self._streams.decoder
        scores = [LoglikelihoodResult(0.0, True)] * len(continuations)
        longer = [place for place, tokens in enumerate(continuations) if len(tokens) > 1]
        least = state.capacity // STATE_SHARE
        for places in self._batches(longer, lambda place: max(least, len(continuations[place]))):
            rests = [continuations[place] for place in places]
            fork = state.select(of_group[places])
            hidden_BTD = decoder.hidden(right_pad([rest[:-1] for rest in rests], decoder.device), fork)
            rows, columns, targets = _predicted([0] * len(rests), [rest[1:] for rest in rests])
            found = _log_likelihoods(decoder, hidden_BTD[rows, columns], targets)
            for place, score in zip(places, _by_request(found, [len(rest) - 1 for rest in rests]), strict=True):
                scores[place] = score
        return scores


@dataclass(frozen=True)
class _Predicted:
    """Of each predicted token: its log-probability, float64 `[N]`, and whether it is the likeliest, bool `[N]`."""

    nats: Tensor
    likeliest: Tensor


def _length(request: LoglikelihoodRequest) -> int:
    return len(request.context) + len(request.continuation) - 1


def _predicted(firsts: Sequence[int], targets: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and places that predict, and what: of each row its targets from place `first` on."""
    rows = torch.tensor([row for row, tokens in enumerate(targets) for _ in tokens])
    columns = torch.tensor(
        [first + i for first, tokens in zip(firsts, targets, strict=True) for i in range(len(tokens))]
    )
    return rows, columns, torch.tensor([token for tokens in targets for token in tokens])


def _log_likelihoods(
    decoder: Decoder, hidden_BD: Tensor, targets_N: Tensor, rows_N: Tensor | None = None
) -> _Predicted:
    """Of each target given its hidden vector; `rows_N`: which vector is whose, where several targets share one."""
    targets_N = targets_N.to(hidden_BD.device)
    rows_N = torch.arange(len(targets_N), device=hidden_BD.device) if rows_N is None else rows_N
    nats_N = torch.empty(len(targets_N), dtype=torch.float64, device=hidden_BD.device)
    likeliest_N = torch.empty(len(targets_N), dtype=torch.bool, device=hidden_BD.device)
    step = max(1, LOGITS_AT_ONCE // decoder.spec.vocab_size)
    for first in range(0, len(hidden_BD), step):
        logits_nV = decoder.logits(hidden_BD[first : first + step])
        logits_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32))
        here_N = (rows_N >= first) & (rows_N < first + step)
        rows_n, targets_n = rows_N[here_N] - first, targets_N[here_N]
        nats_N[here_N] = (logits_nV[rows_n, targets_n] - logits_nV.logsumexp(dim=-1)[rows_n]).double()
        likeliest_N[here_N] = logits_nV.argmax(dim=-1)[rows_n] == targets_n
    return _Predicted(nats_N.cpu(), likeliest_N.cpu())


def _by_request(found: _Predicted, lengths: Sequence[int]) -> list[LoglikelihoodResult]:
    """Sums over each request's tokens, which lie one after the other."""
    parts = zip(*(torch.split(each_N, list(lengths)) for each_N in (found.nats, found.likeliest)), strict=True)
    return [LoglikelihoodResult(float(nats.sum()), bool(likeliest.all())) for nats, likeliest in parts]
