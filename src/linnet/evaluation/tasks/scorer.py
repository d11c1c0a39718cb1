"""Log-likelihoods of continuations after contexts, for many requests at once, by a causal decoder.

Requests with the same context share a state: the context is read once, and its state is forked for every continuation.
A request with a context of its own is read in one pass. Both give the same numbers except for rounding.

Shapes: `B` rows of a batch, `T` tokens, `N` predicted tokens, `D` width, `V` vocabulary.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.models import frozen_state
from linnet.inference.language_model import LanguageModel
from linnet.inference.prefill import left_pad
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, rows_of

TOKENS_AT_ONCE = 4096

FULL_BATCH_TOKENS, MIN_LENGTH_RATIO = 512, 0.8
"""A batch with at least this many tokens takes no row below this share of its longest one: padding costs compute."""

LOGITS_AT_ONCE = 1 << 23
"""Logits held at once: 32 MiB of float32."""

STATE_SHARE = 4
"""A fork counts as one token of its batch for every 4 tokens that its state has room for."""

Advance = Callable[[int], None]
Thing = TypeVar("Thing")


class StateFactory:
    """Empty states of a decoder that is measured.

    The layers of a decoder that is not causal by itself are calibrated on a text, so that no score depends on other
    inputs, nor on how they are batched.
    """

    def __init__(self, decoder: Decoder, calibration_1T: Tensor) -> None:
        """calibration_1T: token ids, int64 `[1, T]`. `UserError` for a model that reads pairs."""
        if decoder.encoder is not None or decoder.spec.prefix:
            raise UserError("a model of pairs (an encoder or a prefix): tasks are for decoders that read a text")
        self.decoder = decoder
        self._calibration_1T = calibration_1T
        self._frozen: DecoderState | None = None

    @classmethod
    def of_model(cls, model: LanguageModel) -> "StateFactory":
        """For a model, calibrated on the empty prompt (the end token alone) if it is not causal by itself."""
        return cls(model.decoder, torch.tensor([[model.tokenizer.end_id]]))

    def new_state(self, batch: int, capacity: int) -> DecoderState:
        """A state for `batch` streams of at most `capacity` tokens."""
        if self.decoder.causal:
            return self.decoder.initial_state(batch, capacity)
        if self._frozen is None or self._frozen.capacity < capacity:
            self._frozen = frozen_state(self.decoder, self._calibration_1T, 1, capacity)
        return rows_of(self._frozen, batch)


@dataclass(frozen=True)
class LoglikelihoodRequest:
    """Token ids of a context, which begins with the end token and is not empty, and of a continuation."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    def windows(self, length: int) -> "list[LoglikelihoodRequest]":
        """The request with the last tokens of its context that fit into the model's context length.

        The last token of the continuation is predicted, but not read. A continuation of more than `length` tokens is
        read in windows, as the LM Evaluation Harness reads whole texts: each token is predicted once, and the tokens
        before a window that fit are its context. Without a continuation there are none.
        """
        tokens, found = self.context + self.continuation, []
        for first in range(len(self.context), len(tokens), length):
            predicted = tokens[first : first + length]
            room = length + 1 - len(predicted)
            found.append(LoglikelihoodRequest(tokens[max(0, first - room) : first], predicted))
        return found


def encode_requests(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[LoglikelihoodRequest]:
    """Requests for pairs of a context and a continuation, split as the LM Evaluation Harness splits them.

    The end token, which begins a document, is placed before each. Spaces at the end of a context belong to the
    continuation, because tokens begin with them. Both are encoded as one text; the tokens after the first n are the
    continuation, where n is the number of tokens of the context alone. `UserError` for an empty continuation.
    """
    moved = []
    for context, continuation in pairs:
        trimmed = context.rstrip() if continuation else context
        moved.append((trimmed, context[len(trimmed) :] + continuation))
    contexts = list(dict.fromkeys(context for context, _ in moved))
    tokens_of = dict(zip(contexts, tokenizer.encode_batch(contexts), strict=True))
    wholes = tokenizer.encode_batch([context + continuation for context, continuation in moved])
    requests = []
    for (context, continuation), whole in zip(moved, wholes, strict=True):
        if not continuation or not whole:
            raise UserError("a continuation without a text: expected at least one character")
        # A tokenizer may merge all of the continuation into the last token of the context.
        split = min(len(tokens_of[context]), len(whole) - 1)
        context_ids = (tokenizer.end_id, *tokens_of[context][:split])
        requests.append(LoglikelihoodRequest(context_ids, tuple(whole[split:])))
    return requests


@dataclass(frozen=True)
class LoglikelihoodResult:
    """The log-likelihood of a continuation in nats; greedy: True if each of its tokens is the likeliest one."""

    log_likelihood: float
    greedy: bool

    @classmethod
    def of_windows(cls, windows: "Sequence[LoglikelihoodResult]") -> "LoglikelihoodResult":
        return cls(sum(one.log_likelihood for one in windows), all(one.greedy for one in windows))


@dataclass(frozen=True)
class _TokenScores:
    """For each predicted token: its log-probability, float64 `[N]`, and whether it is the likeliest, bool `[N]`."""

    nats: Tensor
    likeliest: Tensor

    def by_request(self, lengths: Sequence[int]) -> list[LoglikelihoodResult]:
        """Sums over the tokens of each request, which are consecutive."""
        parts = zip(*(torch.split(each_N, list(lengths)) for each_N in (self.nats, self.likeliest)), strict=True)
        return [LoglikelihoodResult(float(nats.sum()), bool(likeliest.all())) for nats, likeliest in parts]


@dataclass(frozen=True)
class LoglikelihoodScorer:
    """Scores requests by one decoder.

    fork: a context that several requests share is read once. tokens_at_once: tokens of a batch, including padding.
    """

    states: StateFactory
    fork: bool = True
    tokens_at_once: int = TOKENS_AT_ONCE

    @torch.inference_mode()
    def score(
        self, requests: Sequence[LoglikelihoodRequest], advance: Advance = lambda _: None
    ) -> list[LoglikelihoodResult]:
        """A result for each request, in their order; `advance` receives the number of requests done.

        Contexts that are too long lose their first tokens, and a continuation that is too long is read in windows
        (`LoglikelihoodRequest.windows`).
        """
        windows = [request.windows(self.states.decoder.spec.context_length) for request in requests]
        fitting = [window for of_request in windows for window in of_request]
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, request in enumerate(fitting):
            groups.setdefault(request.context, []).append(place)
        shared = [places for places in groups.values() if self.fork and len(places) > 1]
        forked = {place for places in shared for place in places}
        single = [place for place in range(len(fitting)) if place not in forked]
        results: dict[int, LoglikelihoodResult] = {}
        owners = [number for number, of_request in enumerate(windows) for _ in of_request]
        unread = Counter(owners)  # windows of each request

        def keep(places: list[int], found: list[LoglikelihoodResult]) -> None:
            results.update(zip(places, found, strict=True))
            unread.subtract(owners[place] for place in places)
            advance(len({owner for owner in map(owners.__getitem__, places) if not unread[owner]}))

        read_lengths = [len(request.context) + len(request.continuation) - 1 for request in fitting]
        for places in self._batches(single, read_lengths.__getitem__):
            keep(places, self._score_whole([fitting[place] for place in places]))
        for together in self._batches(shared, lambda group: len(fitting[group[0]].context)):
            found = self._score_forked([[fitting[place] for place in group] for group in together])
            keep([place for group in together for place in group], found)
        in_order = (results[place] for place in range(len(fitting)))
        return [LoglikelihoodResult.of_windows(list(islice(in_order, len(of_request)))) for of_request in windows]

    def _batches(self, things: Sequence[Thing], length: Callable[[Thing], int]) -> Iterator[list[Thing]]:
        """Batches of similar lengths, the longest first, so that a batch that is too large fails at once."""
        batch: list[Thing] = []
        for thing in sorted(things, key=length, reverse=True):
            longest = length(batch[0]) if batch else 0
            full = len(batch) * longest >= FULL_BATCH_TOKENS and length(thing) < MIN_LENGTH_RATIO * longest
            if batch and (full or (len(batch) + 1) * longest > self.tokens_at_once):
                yield batch
                batch = []
            batch.append(thing)
        if batch:
            yield batch

    def _score_whole(self, requests: Sequence[LoglikelihoodRequest]) -> list[LoglikelihoodResult]:
        """Read context and continuation in one pass."""
        decoder = self.states.decoder
        tokens_BT = right_pad([(*request.context, *request.continuation[:-1]) for request in requests], decoder.device)
        state = None if decoder.causal else self.states.new_state(*tokens_BT.shape)
        hidden_BTD = decoder.hidden(tokens_BT, state)
        firsts = [len(request.context) - 1 for request in requests]
        rows, columns, targets = _predicted(firsts, [request.continuation for request in requests])
        scores = _token_scores(decoder, hidden_BTD[rows, columns], targets)
        return scores.by_request([len(request.continuation) for request in requests])

    def _score_forked(self, groups: Sequence[Sequence[LoglikelihoodRequest]]) -> list[LoglikelihoodResult]:
        """Read every context once, then its continuations; the results are concatenated group by group."""
        decoder = self.states.decoder
        contexts = [group[0].context for group in groups]
        continuations = [request.continuation for group in groups for request in group]
        group_N = torch.tensor([row for row, group in enumerate(groups) for _ in group])
        capacity = max(map(len, contexts)) + max(map(len, continuations))
        state = self.states.new_state(len(groups), capacity)
        tokens_BT, padding = left_pad(contexts, decoder.device)
        last_BD = decoder.hidden(tokens_BT, state, padding=padding)[:, -1]
        starts = torch.tensor([tokens[0] for tokens in continuations], device=decoder.device)
        first = _token_scores(decoder, last_BD, starts, group_N.to(decoder.device))

        # The tokens after the first one are read by forks of the context's state.
        rest = [LoglikelihoodResult(0.0, True)] * len(continuations)
        longer = [place for place, tokens in enumerate(continuations) if len(tokens) > 1]
        state_tokens = state.capacity // STATE_SHARE
        for places in self._batches(longer, lambda place: max(state_tokens, len(continuations[place]))):
            tails = [continuations[place] for place in places]
            fork = state.select(group_N[places])
            hidden_BTD = decoder.hidden(right_pad([tail[:-1] for tail in tails], decoder.device), fork)
            rows, columns, targets = _predicted([0] * len(tails), [tail[1:] for tail in tails])
            scores = _token_scores(decoder, hidden_BTD[rows, columns], targets)
            for place, result in zip(places, scores.by_request([len(tail) - 1 for tail in tails]), strict=True):
                rest[place] = result
        return [
            LoglikelihoodResult(
                float(first.nats[place]) + after.log_likelihood, bool(first.likeliest[place]) and after.greedy
            )
            for place, after in enumerate(rest)
        ]


def right_pad(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids `[B, T]` with id 0 after shorter rows, which a causal decoder does not see."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)


def _predicted(firsts: Sequence[int], targets: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and columns of the hidden vectors that predict, and the targets: in each row from column `first` on."""
    rows = torch.tensor([row for row, tokens in enumerate(targets) for _ in tokens])
    columns = torch.tensor(
        [first + i for first, tokens in zip(firsts, targets, strict=True) for i in range(len(tokens))]
    )
    return rows, columns, torch.tensor([token for tokens in targets for token in tokens])


def _token_scores(decoder: Decoder, hidden_BD: Tensor, targets_N: Tensor, rows_N: Tensor | None = None) -> _TokenScores:
    """Scores of targets given hidden vectors; rows_N: the vector of each target, if several targets share one."""
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
    return _TokenScores(nats_N.cpu(), likeliest_N.cpu())
