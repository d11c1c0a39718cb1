"""Streams of token ids: what is asked of one, the tokens that it has got, and the choice of the next ones.

Legend: `B` batch (rows), `V` vocabulary.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.inference.cache_policy import CachePolicies
from linnet.inference.constrained import Grammar
from linnet.inference.prefill import EMPTY, PrefillContext
from linnet.inference.prefix_store import StoredStream
from linnet.inference.sampling import Sampling, TokenCounts, adjust, choose, fresh_seed
from linnet.layers.cache_policy import FULL
from linnet.model.state import DecoderState

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Request:
    """One stream to be continued.

    prompt: token ids, at least one; they stand behind what `state` has read. max_tokens: of the continuation.
    sampling: the choice of the next tokens, with the stream's own seed. stop_ids: the stream ends before the first of
    them. state: of ONE stream, which does not change: the engine advances a copy (`Stream.state`). cache_policy: if
    there is no state. context: encoder memory and prefix of the stream. counts: of its tokens, for penalties, prompt
    included; they are advanced (None: of the prompt). grammar: permits tokens; it is advanced. logprobs: also report
    the log-probability of each token, and this many of the likeliest tokens. keep_state: whether `Stream.state` is kept
    when the stream has ended.
    hands_over_state: the engine may advance `state` itself, so that nothing is copied. read_tokens: those that `state`
    has read, without which a prefix store cannot store the stream. first_chunk: the number of first tokens of the
    stream that layers calibrate on (None: the whole prompt).

    Log-probabilities are those of the model, as in vLLM: of the logits of its whole vocabulary, before bias, penalties,
    temperature and grammar.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling
    stop_ids: Collection[int] = ()
    state: DecoderState | None = None
    cache_policy: CachePolicies = FULL
    context: PrefillContext = EMPTY
    counts: TokenCounts | None = None
    grammar: Grammar | None = None
    logprobs: int | None = None
    keep_state: bool = True
    hands_over_state: bool = False
    read_tokens: Sequence[int] = ()
    first_chunk: int | None = None


@dataclass(frozen=True)
class Event:
    """One generated token.

    logprob: its log-probability. top: the likeliest token ids with theirs, the likeliest first. None if not requested.
    """

    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


class Stream(Iterator[Event]):
    """The continuation of one request. Pulling an event advances the engine, and with it all other streams.

    finish_reason: None while it goes on; "stop" before a stop id or at the end of a grammar, "length" after
    `max_tokens` tokens, "cancelled". pending: tokens of the stream that `state` has not read: the rest of the prompt,
    then the token that was chosen last, which may be a stop id. error: what ended the stream otherwise; pulling raises
    it, behind the events before it. events: those that have not been pulled. rows, row: the state that holds the
    stream, and its row there. tokens: all of the stream that are known, those of `pending` included. cached_tokens:
    those of the prompt whose state was in a prefix store. stored: the use of that store.
    """

    def __init__(self, request: Request, step: Callable[[], bool], cancel: Callable[["Stream"], None]) -> None:
        """step, cancel: methods of the engine; `step` advances all of its streams."""
        sampling = request.sampling
        self.request, self.pending = request, list(request.prompt)
        self.tokens = [*request.read_tokens, *request.prompt]
        self.cached_tokens = 0
        self.stored: StoredStream | None = None
        self.counts = TokenCounts(set(request.prompt)) if request.counts is None else request.counts
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.step, self._cancel = step, cancel
        self.events = deque[Event]()
        self._stop_ids, self._remaining = frozenset(request.stop_ids), request.max_tokens
        self._settings = replace(sampling, seed=None, drawn=0)
        self._generator: torch.Generator | None = None
        if not sampling.greedy:
            seed = fresh_seed() if sampling.seed is None else sampling.seed
            self._generator = torch.Generator().manual_seed(seed)
            torch.rand(sampling.drawn, dtype=torch.float64, generator=self._generator)
        self.rows, self.row = request.state, 0

    @property
    def state(self) -> DecoderState | None:
        """The state of this stream alone; None before the prompt is read, and without `keep_state` after the end.

        While other streams share the batch, and after the end, it is a copy; otherwise it is the state that the next
        step advances (`fork` it).
        """
        if self.rows is None or len(self.rows.positions) == 1:
            return self.rows
        return self.rows.select(torch.tensor([self.row]))

    def __next__(self) -> Event:
        while not self.events:
            if self.error is not None:
                raise self.error
            if self.finish_reason is not None:
                raise StopIteration
            self.step()
        return self.events.popleft()

    @property
    def met_stop_id(self) -> bool:
        """True if it ended before a stop id, which was chosen and is `pending`, but is no event."""
        return self.finish_reason == "stop" and self.pending[-1] in self._stop_ids

    def cancel(self) -> None:
        """End the stream, from any thread; its row is free before the next step. Nothing happens if it has ended."""
        self._cancel(self)

    def uniform(self) -> float:
        """The next random number of the stream's seed, in `(0, 1]`; 1 for greedy choice."""
        if self._generator is None:
            return 1.0
        return 1.0 - float(torch.rand(1, dtype=torch.float64, generator=self._generator))

    def append(self, token: int, logprob: float | None, top: list[tuple[int, float]] | None) -> None:
        """Add the token that was chosen behind all others; the stream may end with it."""
        grammar, self.pending = self.request.grammar, [token]
        self.counts.add(token)
        self.tokens.append(token)
        if token in self._stop_ids:
            self.finish_reason = "stop"
            return
        self.events.append(Event(token, logprob, top))
        self._remaining -= 1
        if grammar is not None:
            grammar.accept(token)
        if grammar is not None and grammar.is_finished:
            self.finish_reason = "stop"
        elif self._remaining == 0:
            self.finish_reason = "length"

    def fail(self, error: Exception) -> None:
        """End the stream because of an error."""
        self.error, self.finish_reason = error, self.finish_reason or "cancelled"


def choose_next(streams: Sequence[Stream], logits_BV: Tensor, vocab_size: int) -> None:
    """The next token of each stream, one of the first `vocab_size`; rows with equal settings are processed together."""
    rest = list(range(len(streams)))
    while rest:
        first = streams[rest[0]]
        alike = [row for row in rest if streams[row] is first or _alike(streams[row], first)]
        rest = [row for row in rest if row not in alike]
        rows = [streams[row] for row in alike]
        own_BV = logits_BV if len(rows) == len(streams) else logits_BV[alike]
        _choose_alike(rows, own_BV, vocab_size)


def _choose_alike(streams: Sequence[Stream], logits_BV: Tensor, vocab_size: int) -> None:
    """The next token of streams with equal settings."""
    settings = streams[0]._settings
    uniform_B = None
    if not settings.greedy:
        uniform_B = torch.tensor([stream.uniform() for stream in streams], dtype=torch.float64)
    try:
        adjusted_BV = adjust(logits_BV[:, :vocab_size], settings, [stream.counts for stream in streams])
        grammar = streams[0].request.grammar
        permitted_BV = None if grammar is None else grammar.mask_V()[None]
        chosen_B = choose(adjusted_BV, settings, uniform_B, permitted_BV)
    except UserError as error:
        for stream in streams:
            stream.fail(error)
        return
    tokens = chosen_B.tolist()
    for row, (stream, token) in enumerate(zip(streams, tokens, strict=True)):
        if stream.request.logprobs is None:
            stream.append(token, None, None)
        else:
            log_V = logits_BV[row].float().log_softmax(dim=-1)[:vocab_size]
            stream.append(token, float(log_V[token]), likeliest(log_V, stream.request.logprobs))


def _alike(one: Stream, other: Stream) -> bool:
    """True if the next tokens of two streams can be chosen together."""
    return one.request.grammar is other.request.grammar is None and one._settings == other._settings


def likeliest(log_V: Tensor, count: int) -> list[tuple[int, float]]:
    """The likeliest tokens, at most `count`, with their log-probabilities; the likeliest first."""
    top = log_V.topk(min(count, len(log_V)))
    return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))


def streams_of(
    requests: Sequence[Request], next_logits: Callable[[Tensor], Tensor], vocab_size: int, tokens_BT: Tensor
) -> list[Stream]:
    """Streams of any function of logits, without an engine; their prompts are `tokens_BT`, shorter ones padded.

    next_logits: from tokens `[B, T]`, which continue the ones before, to the logits `[B, V]` at the last of them. Rows
    of streams that have ended are computed until all have.
    """

    @torch.inference_mode()
    def step() -> bool:
        nonlocal tokens_BT
        running = [row for row, stream in enumerate(streams) if stream.finish_reason is None]
        if running:
            logits_BV = next_logits(tokens_BT)
            choose_next([streams[row] for row in running], logits_BV[running], vocab_size)
            tokens_BT = torch.tensor([stream.pending[-1:] for stream in streams], device=tokens_BT.device)
        return bool(running)

    def cancel(stream: Stream) -> None:
        stream.finish_reason = stream.finish_reason or "cancelled"

    streams = [Stream(request, step, cancel) for request in requests]
    return streams
