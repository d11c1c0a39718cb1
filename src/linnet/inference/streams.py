"""Streams of token ids: their requests, the tokens generated so far, and the choice of the next tokens.

Legend: `B` batch (rows), `V` vocabulary.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.core.errors import is_out_of_memory
from linnet.inference.cache_policy import CachePolicies
from linnet.inference.constrained import Grammar
from linnet.inference.prefill import EMPTY, PrefillContext
from linnet.inference.prefix_store import StoredStream
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling, TokenCounts, adjust, choose_tokens, fresh_seed, uniform_numbers
from linnet.inference.speculative import Speculation
from linnet.layers.cache_policy import FULL
from linnet.model.state import DecoderState, rows_to_take

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Request:
    """One stream to be continued.

    prompt: token ids, at least one; they stand behind what `state` has read. max_tokens: of the continuation.
    sampling: the choice of the next tokens, with the stream's own seed. stop_ids: the stream ends before the first of
    them. state: of ONE stream; the engine advances a copy, which it takes when it begins to read the prompt
    (`Stream.state`). cache_policy: if there is no state. context: encoder memory and prefix of the stream. counts: of
    its tokens, for penalties, prompt included; they are advanced (None: of the prompt). grammar: permits tokens; it is
    advanced. logprobs: also report the log-probability of each token, and this many of the likeliest tokens.
    keep_state: whether `Stream.state` is kept when the stream has ended. hands_over_state: the engine may advance
    `state` itself, so that nothing is copied. read_tokens: those that `state` has read, without which a prefix store
    cannot store the stream. first_chunk: the number of first tokens of the stream that layers calibrate on (None: the
    whole prompt). is_stored: whether its states may be added to the engine's prefix store. speculation: guesses of its
    tokens, while it has no companions. on_accepted: is called with the request when an engine has accepted it, before
    anything else happens to it; what it raises refuses the request.

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
    is_stored: bool = True
    speculation: Speculation | None = None
    on_accepted: Callable[["Request"], None] | None = None


class Event(NamedTuple):
    """One generated token.

    logprob: its log-probability. top: the likeliest token ids with theirs, the likeliest first. None if not requested.
    """

    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


class Stream(Iterator[Event]):
    """The continuation of one request. Pulling an event advances the engine, and with it all other streams.

    finish_reason: None while it goes on; "stop" before a stop id or at the end of a grammar, "length" after
    `max_tokens` tokens, "cancelled", or "error". error: what ended the stream in the last case; pulling raises it,
    behind the events before it. pending: tokens of the stream that `state` has not read: the rest of the prompt, then
    the token that was chosen last, which may be a stop id. tokens: all of the stream that are known, those of `pending`
    included. remaining: how many may still be generated. cached_tokens: those of the prompt whose state was in a prefix
    store. stored: the use of that store. events: those that have not been pulled. rows, row: the state that holds the
    stream, and its row there. is_plain_greedy: its next token is the likeliest one, whatever came before.
    """

    def __init__(self, request: Request, step: Callable[[], bool], cancel: Callable[["Stream"], None]) -> None:
        """step, cancel: methods of the engine; `step` advances all of its streams."""
        sampling = request.sampling
        self.request, self.pending = request, list(request.prompt)
        self.counts = TokenCounts(request.prompt) if request.counts is None else request.counts
        self.tokens = [*request.read_tokens, *request.prompt]
        self.cached_tokens = 0
        self.stored: StoredStream | None = None
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.events = deque[Event]()
        self.rows: DecoderState | None = None
        self.row = 0
        self.settings = replace(sampling, seed=None, drawn=0)
        is_adjusted = bool(sampling.logit_bias) or sampling.penalizes
        plain = request.grammar is None and request.logprobs is None and not is_adjusted
        self.is_plain_greedy = sampling.greedy and plain
        self.step, self._cancel = step, cancel
        self._stop_ids, self.remaining = frozenset(request.stop_ids), request.max_tokens
        self._uniforms = uniform_numbers(fresh_seed() if sampling.seed is None else sampling.seed, sampling.drawn)

    @property
    def state(self) -> DecoderState | None:
        """The state of this stream alone, a copy while it runs.

        None before the prompt is read, and without `keep_state` after the end.
        """
        if self.rows is None:
            return None
        self.settle()
        if len(self.rows.positions) > 1:
            return self.rows.select(torch.tensor([self.row]))
        return self.rows.fork() if self.finish_reason is None else self.rows

    def __next__(self) -> Event:
        while True:
            has_ended = self.finish_reason is not None  # before the events: another thread may take the last step now
            if self.events:
                return self.events.popleft()
            if has_ended and self.error is not None:
                raise self.error
            if has_ended:
                raise StopIteration
            self.step()

    @property
    def met_stop_id(self) -> bool:
        """True if it ended before a stop id, which was chosen and is `pending`, but is no event."""
        return self.finish_reason == "stop" and self.pending[-1] in self._stop_ids

    def take(self) -> list[Event]:
        """The events that are ready; the engine is not advanced, and an error is not raised."""
        ready = []
        while self.events:
            ready.append(self.events.popleft())
        return ready

    def settle(self) -> None:
        """Remove guessed tokens from the state, before anything but the next step reads it."""
        if self.request.speculation is not None:
            self.request.speculation.settle()

    def cancel(self) -> None:
        """End the stream, from any thread; its row is free before the next step. Nothing happens if it has ended."""
        self._cancel(self)

    def uniform(self) -> float:
        """The next random number of the stream's seed, in `(0, 1]`; 1 for greedy choice."""
        return 1.0 if self.settings.greedy else next(self._uniforms)

    def append(self, token: int, logprob: float | None = None, top: list[tuple[int, float]] | None = None) -> None:
        """Add the token that was chosen behind all others; the stream may end with it."""
        if self.finish_reason is not None:  # cancelled since the step began
            return
        self.pending = [token]
        self.tokens.append(token)
        self.counts.add(token)
        if token in self._stop_ids:
            self.finish_reason = "stop"
            return
        self.remaining -= 1
        grammar = self.request.grammar
        if grammar is not None:
            grammar.accept(token)
        self.events.append(Event(token, logprob, top))
        if grammar is not None and grammar.is_finished:
            self.finish_reason = "stop"
        elif self.remaining == 0:
            self.finish_reason = "length"

    def fail(self, error: Exception) -> None:
        """End the stream because of an error."""
        if self.finish_reason is None:
            self.error, self.finish_reason = error, "error"

    def keep_state(self, has_companions: bool) -> None:
        """Keep the state of the ended stream if that was asked for: a copy if other streams go on with its rows.

        Without memory for a copy the stream ends with that error.
        """
        if not self.request.keep_state:
            self.rows = None
        elif has_companions:
            try:
                self.rows = self.state
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self.rows, self.error, self.finish_reason = None, error, "error"


@dataclass(eq=False)
class StreamBatch:
    """Streams that are read in one pass: row b of the reader's state is that of stream b.

    reader: None for a prompt of one stream that has no state yet. allocated: the number of streams with which its state
    was made or joined, for whose rows it has memory. has_failed: a pass has failed, so that the states are not those of
    the tokens. The other fields are of prompts that are not read to their end. splits: whether it may be read in
    several pieces. begun: whether a part of it has been read. planned: the state that it needs, on the device meta;
    None if it is given. copies: so many streams in a row share a row of the state until the prompt is read.
    """

    streams: list[Stream]
    reader: CachedReader | None = None
    splits: bool = False
    begun: bool = False
    planned: DecoderState | None = None
    copies: int = 1
    allocated: int = field(init=False)
    has_failed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.allocated = len(self.streams)

    @property
    def state(self) -> DecoderState:
        """The state of all rows."""
        assert self.reader is not None
        return self.reader.state

    @property
    def rows(self) -> int:
        """The number of rows of its state."""
        return len(self.streams) // self.copies

    @property
    def longest(self) -> int:
        """Tokens of the longest row that have not been read."""
        return max(len(stream.pending) for stream in self.streams)

    @property
    def is_native(self) -> bool:
        """True if its next token comes from a native step, which is no tensor operation."""
        in_use = self.reader is not None and self.reader.native is not None
        return in_use and self.streams[0].request.speculation is None

    def place(self) -> None:
        """Set the state and the row of each stream."""
        for row, stream in enumerate(self.streams):
            stream.rows, stream.row = self.state, row // self.copies

    def fork_rows(self, logits_BV: Tensor) -> Tensor:
        """Give each stream a row of its own behind the prompt; the logits of all streams, from those of the rows."""
        if self.copies == 1:
            return logits_BV
        assert self.reader is not None
        rows = torch.arange(self.rows, device=logits_BV.device).repeat_interleave(self.copies)
        self.reader, self.copies = replace(self.reader, state=self.state.select(rows)), 1
        return logits_BV[rows]

    def logits(self) -> Tensor:
        """Read the last token of each stream, with guesses if there is one stream: the logits `[B, V]` behind it."""
        assert self.reader is not None
        first = self.streams[0]
        if first.request.speculation is not None and len(self.streams) == 1 and self.reader.record is None:
            return first.request.speculation.logits(self.reader, first.tokens, len(first.tokens) + first.remaining)
        return self.reader.logits_behind([stream.pending[-1] for stream in self.streams])

    def is_due(self, row: int) -> bool:
        """True if the state of a stream is to be added to the prefix store now."""
        stream = self.streams[row]
        if stream.stored is None or self.has_failed or self.reader is None:
            return False
        return stream.stored.is_due(self.state.positions[row], stream.finish_reason is not None)

    def store(self) -> None:
        """Add the states of streams that have ended, or reached a snapshot position, to the prefix store.

        Without memory for the copy a stream goes on, and is not stored any more.
        """
        for row, stream in enumerate(self.streams):
            if self.is_due(row):
                stream.settle()
                assert stream.stored is not None
                try:
                    stream.stored.save(self.state, row)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    stream.stored = None

    def fail(self, error: Exception) -> None:
        """End all streams because of an error, in which their states may have been advanced in part."""
        self.has_failed = True
        for stream in self.streams:
            stream.fail(error)

    def remove_ended(self) -> None:
        """Free the rows of streams that have ended; a stream keeps a copy of its row if it was asked to.

        On a CPU the last rows move to the free places; all rows are copied when half of them are free.
        """
        running = [row for row, stream in enumerate(self.streams) if stream.finish_reason is None]
        ended = [stream for stream in self.streams if stream.finish_reason is not None]
        if not ended:
            return
        for stream in ended:
            stream.keep_state(has_companions=bool(running))
        in_place = self.reader is not None and self.reader.on_cpu and 2 * len(running) > self.allocated
        running = rows_to_take(running) if in_place else running
        self.streams = [self.streams[row] for row in running]
        if not self.streams and self.reader is not None and any(stream.rows is not None for stream in ended):
            self.reader.release()
        if self.streams and self.reader is not None:
            if in_place:
                state = self.state.take_rows(running)
            else:
                state = self.state.select(torch.tensor(running, device=self.reader.decoder.device))
                self.allocated = len(running)
            self.reader = replace(self.reader, state=state)
            self.place()

    def remove_all(self) -> None:
        """Forget all streams, which have ended; those that are to keep their states keep that of the batch."""
        for stream in self.streams:
            stream.keep_state(has_companions=False)
        self.streams = []

    def can_join(self, other: "StreamBatch") -> bool:
        """True if both can be one batch: the same cache policies and precision, and both calibrated or neither."""
        assert self.reader is not None and other.reader is not None
        if self.reader.record is not None or other.reader.record is not None:
            return False
        return self.state.form == other.state.form

    def join(self, others: Sequence["StreamBatch"]) -> None:
        """Add the streams of other batches, which are not used any more; after an error this one is not either."""
        batches = (self, *others)
        streams = [stream for batch in batches for stream in batch.streams]
        for stream in streams:
            if stream.request.speculation is not None:
                stream.request.speculation.release()
        assert self.reader is not None
        decoder, states = self.reader.decoder, [batch.state for batch in batches]
        for batch in batches:  # what steps hold of the tensors goes with their readers
            batch.reader = None
        for stream in streams:
            stream.rows = None
        self.reader = CachedReader(decoder, states[0].absorb(*states[1:]))
        self.streams = streams
        self.allocated = len(streams)
        self.place()


def choose_next(streams: Sequence[Stream], logits_BV: Tensor, vocab_size: int) -> None:
    """Choose the next token of each stream, one of the first `vocab_size`; rows with equal settings together.

    A stream that fails, as by logits that are not finite or by its grammar, ends with that error; the others go on.
    """
    if _choose_likeliest(streams, logits_BV, vocab_size):
        return
    if len(streams) == 1:
        _choose_alike(streams, logits_BV, vocab_size, _uniform_B(streams))
        return
    rest = list(range(len(streams)))
    while rest:
        first = streams[rest[0]]
        rows = [row for row in rest if _alike(streams[row], first)]
        rest = [row for row in rest if row not in rows] if len(rows) < len(rest) else []
        alike = [streams[row] for row in rows]
        own_BV = logits_BV if len(rows) == len(streams) else logits_BV[rows]
        _choose_alike(alike, own_BV, vocab_size, _uniform_B(alike))


def _uniform_B(streams: Sequence[Stream]) -> Tensor | None:
    """The next random number of each stream, float64; None for greedy choice."""
    if streams[0].settings.greedy:
        return None
    return torch.tensor([stream.uniform() for stream in streams], dtype=torch.float64)


def _choose_likeliest(streams: Sequence[Stream], logits_BV: Tensor, vocab_size: int) -> bool:
    """The likeliest token of every stream; False, and none is chosen, if one needs more or has logits not finite."""
    for stream in streams:  # `all` would take longer than the loop
        if not stream.is_plain_greedy:
            return False
    own_BV = logits_BV if logits_BV.shape[1] == vocab_size else logits_BV[:, :vocab_size]
    try:
        tokens = choose_tokens(own_BV, streams[0].settings, None)
    except Exception:  # which stream it is of is found row by row
        return False
    for stream, token in zip(streams, tokens, strict=True):
        stream.append(token)
    return True


def _choose_alike(streams: Sequence[Stream], logits_BV: Tensor, vocab_size: int, uniform_B: Tensor | None) -> None:
    """The next token of streams with equal settings, all with a grammar or none; `uniform_B` as of `choose`."""
    settings = streams[0].settings
    try:
        permitted_BV = None
        if streams[0].request.grammar is not None:
            permitted_BV = torch.stack([_permitted(stream, vocab_size) for stream in streams])
        own_BV = logits_BV if logits_BV.shape[1] == vocab_size else logits_BV[:, :vocab_size]
        adjusted_BV = adjust(own_BV, settings, [stream.counts for stream in streams])
        tokens = choose_tokens(adjusted_BV, settings, uniform_B, permitted_BV)
        has_logprobs = any(stream.request.logprobs is not None for stream in streams)
        log_BV = logits_BV.float().log_softmax(dim=-1)[:, :vocab_size] if has_logprobs else None
    except Exception as error:
        if len(streams) == 1:
            streams[0].fail(error)
            return
        for row, stream in enumerate(streams):
            own = slice(row, row + 1)
            _choose_alike([stream], logits_BV[own], vocab_size, None if uniform_B is None else uniform_B[own])
        return
    for row, (stream, token) in enumerate(zip(streams, tokens, strict=True)):
        count, logprob, top = stream.request.logprobs, None, None
        try:
            if count is not None and log_BV is not None:
                logprob, top = float(log_BV[row, token]), likeliest(log_BV[row], count) if count else []
            stream.append(token, logprob, top)
        except Exception as error:  # of its log-probabilities or its grammar
            stream.fail(error)


def _alike(one: Stream, other: Stream) -> bool:
    """True if the next tokens of two streams can be chosen together."""
    if one is other:
        return True
    have_grammar = one.request.grammar is not None, other.request.grammar is not None
    return have_grammar[0] == have_grammar[1] and one.settings == other.settings


def _permitted(stream: Stream, vocab_size: int) -> Tensor:
    """The tokens that a stream's grammar permits, truth values `[V]`; none beyond the grammar's own vocabulary."""
    assert stream.request.grammar is not None
    mask_V = stream.request.grammar.mask_V()[:vocab_size]
    return F.pad(mask_V, (0, vocab_size - len(mask_V)))


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
