"""Continuous batching: streams of token ids join and leave a running batch at any step.

A stream is a prompt and what is generated behind it. Each scheduling step of the `Engine` decodes one token of every
running stream, all of a batch in one pass, and reads a piece of the prompts that wait, so that a long prompt does not
stop the other streams. Every stream has its own position, cache policy, sampling, random numbers, stop ids and counts.

A stream gets the same tokens alone and among others, whatever joins or leaves, up to the rounding of products: those of
one row and of several may differ in the last bits, which decides between tokens only where their logits are equal but
for rounding. (In float64, where the tests compare, such ties do not occur in practice.)

Legend: `B` batch (rows), `T` tokens of the longest prompt or of a chunk, `V` vocabulary.
"""

import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.system import available_bytes
from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.device import one_thread_in_forks
from linnet.inference.prefill import EMPTY, PrefillContext, check_prompts, left_pad, new_state
from linnet.inference.prefix_store import PrefixStore, StoredStream, prefix_key
from linnet.inference.readers import CachedReader, Caches, RecomputingReader, Step
from linnet.inference.sampling import Sampling, TokenCounts, check_bias, counts_of, fresh_seed
from linnet.inference.state import with_room
from linnet.inference.streams import Event, Grammar, Request, Stream, choose_next, streams_of
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.layers.cache_policy import FULL, CachePolicy, RecalibratingCache
from linnet.layers.registry import kinds_with_calibration
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

__all__ = ["Engine", "Event", "Grammar", "Request", "Stream", "decode"]

MAX_BATCH = 32
"""Streams that run at the same time by default."""

CHUNK_TOKENS = 256
"""Tokens of prompts that are read between two decoding steps by default."""


@dataclass(eq=False)
class Batch:
    """Streams that are read in one pass: row b of the reader's state is that of stream b.

    splits: whether the prompt may be read in several pieces. begun: whether a part of it has been read. reader: None
    for a prompt of one stream that has no state yet.
    """

    streams: list[Stream]
    reader: CachedReader | None = None
    splits: bool = False
    begun: bool = False

    @property
    def state(self) -> DecoderState:
        """The state of all rows."""
        assert self.reader is not None
        return self.reader.state

    def place(self) -> None:
        """Tell the streams their rows."""
        for row, stream in enumerate(self.streams):
            stream.rows, stream.row = self.state, row

    def store(self) -> None:
        """Let a prefix store have the states of streams that are at a border or have ended."""
        for row, stream in enumerate(self.streams):
            if stream.stored is not None and stream.error is None:
                stream.stored.save(self.state, row, ended=stream.finish_reason is not None)

    def remove_ended(self) -> None:
        """Free the rows of streams that have ended; they keep copies of them if they were asked to."""
        if all(stream.finish_reason is None for stream in self.streams):
            return
        running = [row for row, stream in enumerate(self.streams) if stream.finish_reason is None]
        for stream in self.streams:
            if stream.finish_reason is not None:
                stream.rows = stream.state if stream.request.keep_state and running else stream.rows
                stream.rows = stream.rows if stream.request.keep_state else None
        self.streams = [self.streams[row] for row in running]
        if self.streams:
            state = self.state.select(torch.tensor(running, device=self.device))
            self.reader = replace(self.reader, state=state)
            self.place()

    @property
    def device(self) -> torch.device:
        """The device of the states."""
        assert self.reader is not None
        return self.reader.decoder.device


class Engine:
    """Continues streams of one decoder, as many as `max_batch` at the same time; the others wait in order.

    One thread runs it, by calling `step` or by pulling events from streams (two that do it take turns). `submit` and
    `Stream.cancel` may be called from any thread, and do not wait for a step that is running.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        vocab_size: int | None = None,
        max_batch: int = MAX_BATCH,
        chunk_tokens: int | None = CHUNK_TOKENS,
        prefixes: PrefixStore | None = None,
    ) -> None:
        """vocab_size: only the first ids are chosen from (None: all of them). chunk_tokens: of prompts, which are read
        between two decoding steps (None: any number); layers that calibrate on their prompt read it as one chunk.
        prefixes: states of texts that were read before, which streams begin with and add to.

        Processes that are forked from now on compute with one thread (`one_thread_in_forks`).
        """
        one_thread_in_forks()
        self.decoder, self.vocab_size = decoder, vocab_size or decoder.spec.vocab_size
        self.max_batch, self.chunk_tokens, self.prefixes = max_batch, chunk_tokens, prefixes
        self._splits = all(
            sublayer.traits.exact_when_split and not sublayer.traits.calibrates for sublayer in decoder.sublayers
        )
        self._waiting: deque[Batch] = deque()
        self._batches: list[Batch] = []
        self._cancelled: list[Stream] = []
        self._lock, self._stepping = threading.Lock(), threading.Lock()

    @property
    def running(self) -> int:
        """The number of streams that have begun and not ended."""
        with self._lock:
            return sum(len(batch.streams) for batch in (*self._batches, *self._waiting) if batch.begun)

    @property
    def waiting(self) -> int:
        """The number of streams of whose prompts nothing has been read."""
        with self._lock:
            return sum(len(batch.streams) for batch in self._waiting if not batch.begun)

    def submit(self, request: Request) -> Stream:
        """Let a stream wait for its turn.

        `UserError` for an empty prompt, an id outside the vocabulary, more tokens than learned positions, a missing
        input, a logit bias outside the vocabulary, or a state for which there is no memory even if no other stream ran.
        """
        position = 0 if request.state is None else request.state.position
        check_prompts(self.decoder, [request.prompt], request.max_tokens, position)
        check_bias(request.sampling, self.vocab_size)
        check_memory_of_encoder(self.decoder, request.state, request.context)
        if self._planned_bytes(request) > available_bytes(self.decoder.device) + self._held_bytes():
            raise _no_memory(request)
        stream = Stream(request, self.step, self.cancel)
        splits = (self._splits or position > 0) and not request.context.prefixes
        with self._lock:
            self._waiting.append(Batch([stream], splits=splits))
        return stream

    def submit_together(
        self,
        requests: Sequence[Request],
        state: DecoderState,
        context: PrefillContext = EMPTY,
        record: AuxiliaryOutputs | None = None,
    ) -> list[Stream]:
        """Streams whose prompts are read as one chunk, with a state of all of them, which is advanced in place.

        The prompts have been checked. context: of all rows; record: collects auxiliary outputs of every pass; both
        instead of those of the requests. Rows that end leave the state, which from then on is no longer advanced.
        """
        streams = [Stream(request, self.step, self.cancel) for request in requests]
        batch = Batch(streams, CachedReader(self.decoder, state, None, record, context))
        batch.place()
        with self._lock:
            self._waiting.append(batch)
        return streams

    def cancel(self, stream: Stream) -> None:
        """See `Stream.cancel`."""
        with self._lock:
            if stream.finish_reason is not None:
                return
            stream.finish_reason = "cancelled"
            self._cancelled.append(stream)
        if self._stepping.acquire(blocking=False):
            try:
                self._remove_cancelled()
            finally:
                self._stepping.release()

    @torch.inference_mode()
    def step(self) -> bool:
        """Decode one token of every running stream, then read a piece of the waiting prompts.

        A prompt that has been read to its end gives the first token of its stream. False if there was nothing to do.
        """
        with self._stepping:
            self._remove_cancelled()
            found = False
            for batch in list(self._batches):
                self._decode(batch)
                found = True
            spent = 0
            while (prompt := self._next_prompt(spent)) is not None:
                spent += self._read(prompt)
            return found or spent > 0

    def _decode(self, batch: Batch) -> None:
        """One token of every stream of a batch."""
        assert batch.reader is not None
        tokens_B1 = torch.tensor([stream.pending for stream in batch.streams], device=self.decoder.device)
        try:
            logits_BV = batch.reader.logits(tokens_B1)
        except Exception as error:
            for stream in batch.streams:
                stream.fail(error)
        else:
            choose_next(batch.streams, logits_BV, self.vocab_size)
            batch.store()
        self._settle(batch)

    def _settle(self, batch: Batch) -> None:
        """Free the rows of ended streams, and forget a batch without streams."""
        batch.remove_ended()
        with self._lock:
            if not batch.streams and batch in self._batches:
                self._batches.remove(batch)

    def _next_prompt(self, spent: int) -> Batch | None:
        """The prompts whose next piece is read in this step, in which `spent` tokens have been read; None for none."""
        with self._lock:
            if not self._waiting:
                return None
            first = self._waiting[0]
            if self.chunk_tokens is not None and spent and spent + self._piece(first) > self.chunk_tokens:
                return None
            if first.begun:
                return first
            rows = sum(len(batch.streams) for batch in self._batches)
            if rows and rows + len(first.streams) > self.max_batch:
                return None
        if first.reader is None:
            (stream,) = first.streams
            if self._planned_bytes(stream.request) > available_bytes(self.decoder.device):
                if self._batches:
                    return None
                stream.fail(_no_memory(stream.request))
                with self._lock:
                    self._waiting.popleft()
                return self._next_prompt(spent)
        return first

    def _piece(self, prompt: Batch) -> int:
        """The number of tokens of the next piece of a prompt; of several prompts, with padding."""
        longest = max(len(stream.pending) for stream in prompt.streams)
        stream = prompt.streams[0]
        if prompt.splits and self.chunk_tokens is not None:
            longest = min(longest, self.chunk_tokens)
        if prompt.splits and stream.stored is not None:
            longest = min(longest, stream.stored.tokens_to_border(prompt.state.position))
        if not prompt.splits and not prompt.begun and stream.request.first_chunk is not None:
            longest = min(longest, stream.request.first_chunk)
        return longest * len(prompt.streams)

    def _read(self, prompt: Batch) -> int:
        """Read a piece of a prompt, and choose the first tokens behind its end; returns the number of tokens."""
        streams, piece = prompt.streams, 0
        try:
            reader = prompt.reader = prompt.reader or self._new_reader(prompt)
            piece, prompt.begun = self._piece(prompt), True
            if piece < len(streams[0].pending) * len(streams):
                (stream,) = streams
                reader.read(torch.tensor([stream.pending[:piece]], device=self.decoder.device))
                stream.pending = stream.pending[piece:]
                prompt.place()
                prompt.store()
                prompt.splits = prompt.splits or not stream.request.context.prefixes
                return piece
            tokens_BT, padding = left_pad([stream.pending for stream in streams], self.decoder.device)
            reader.padding = padding
            logits_BV = reader.logits(tokens_BT)
        except Exception as error:
            for stream in streams:
                stream.fail(error)
        else:
            prompt.place()
            running = [(row, stream) for row, stream in enumerate(streams) if stream.finish_reason is None]
            if len(running) < len(streams):
                logits_BV = logits_BV[[row for row, _ in running]]
            choose_next([stream for _, stream in running], logits_BV, self.vocab_size)
            prompt.store()
        with self._lock:
            self._waiting.remove(prompt)
        prompt.remove_ended()
        if prompt.streams:
            self._join(prompt)
        return piece

    def _new_reader(self, prompt: Batch) -> CachedReader:
        """A reader with a state for one stream: its own, one of the beginning of its prompt, or an empty one."""
        (stream,) = prompt.streams
        request = stream.request
        tokens = len(request.prompt) + request.max_tokens
        if self.prefixes is not None and (found := self._stored_beginning(stream, self.prefixes, tokens)) is not None:
            state, stream.cached_tokens = found
            stream.pending = stream.pending[stream.cached_tokens :]
            prompt.splits = True
            return CachedReader(self.decoder, state)
        if request.state is None:
            state = new_state(self.decoder, [request.prompt], request.max_tokens, request.cache_policy)
        else:
            state = with_room(request.state, request.state.position + tokens)
            state = state.fork() if state is request.state and not request.hands_over_state else state
        return CachedReader(self.decoder, state, context=request.context)

    def _stored_beginning(self, stream: Stream, prefixes: PrefixStore, tokens: int) -> tuple[DecoderState, int] | None:
        """A state of the beginning of a stream that has read nothing, and its tokens; None if there is none.

        tokens: the room of the state. From now on the stream adds its own states to the store, unless it continues a
        state whose tokens are not known.
        """
        request, state = stream.request, stream.request.state
        if state is None:
            meta = torch.device("meta")
            state = cache_policy_state(self.decoder, 1, tokens, request.cache_policy, device=meta)
        if len(request.read_tokens) != state.position:
            return None
        key = prefix_key(self.decoder, state, stream.tokens[: request.first_chunk], **vars(request.context))
        stream.stored = StoredStream(prefixes, key, stream.tokens, state.is_croppable)
        return stream.stored.find(tokens) if state.position == 0 else None

    def _join(self, prompt: Batch) -> None:
        """Let the streams of a prompt run, in a batch with others if their states can be joined."""
        assert prompt.reader is not None
        for batch in self._batches:
            assert batch.reader is not None
            if batch.reader.record is prompt.reader.record is None and can_join(batch.state, prompt.state):
                batch.reader = CachedReader(self.decoder, batch.state.join(prompt.state))
                batch.streams = batch.streams + prompt.streams
                batch.place()
                return
        with self._lock:
            self._batches.append(prompt)

    def _remove_cancelled(self) -> None:
        """Free the rows of cancelled streams, and forget those that wait."""
        with self._lock:
            if not self._cancelled:
                return
            self._cancelled.clear()
            for prompt in list(self._waiting):
                if all(stream.finish_reason is not None for stream in prompt.streams):
                    self._waiting.remove(prompt)
        for batch in list(self._batches):
            self._settle(batch)

    def _planned_bytes(self, request: Request) -> int:
        """Bytes that the state of a stream will take."""
        tokens = len(request.prompt) + request.max_tokens
        if request.state is not None:
            return request.state.nbytes + request.state.held_nbytes(tokens)
        try:
            meta = torch.device("meta")
            return cache_policy_state(self.decoder, 1, tokens, request.cache_policy, device=meta).nbytes
        except (RuntimeError, TypeError, OverflowError):  # more than a tensor can have
            raise _no_memory(request) from None

    def _held_bytes(self) -> int:
        """Bytes of the states of the streams that run."""
        with self._lock:
            return sum(batch.state.nbytes for batch in (*self._batches, *self._waiting) if batch.reader is not None)


def _no_memory(request: Request) -> UserError:
    capacity = len(request.prompt) + request.max_tokens
    return UserError(f"no memory for the state of {capacity} tokens", field="max_tokens", value=request.max_tokens)


def can_join(one: DecoderState, other: DecoderState) -> bool:
    """True if rows of two states can share a batch: equal cache policies and precision, both calibrated or not."""

    def described(state: DecoderState) -> list[tuple[object, ...]]:
        return [
            (
                type(part),
                {name: tensor.dtype for name, tensor in part.tensors().items()},
                {name: value for name, value in vars(part).items() if not isinstance(value, Tensor | None)},
            )
            for part in state.sublayers
        ]

    return described(one) == described(other)


def check_memory_of_encoder(decoder: Decoder, state: DecoderState | None, context: PrefillContext) -> None:
    """`UserError` if the model has an encoder, which has read no input."""
    if decoder.encoder is not None and context.memory is None and (state is None or not state.has_memory):
        raise UserError("missing: the model has an encoder, which reads it", field="input", accepted="some text")


def decode(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sampling: Sampling,
    stop_ids: Collection[int] = (),
    *,
    state: DecoderState | None = None,
    vocab_size: int | None = None,
    caches: Caches = Caches(),
    record: AuxiliaryOutputs | None = None,
    context: PrefillContext = EMPTY,
    counts: Sequence[TokenCounts] | None = None,
) -> Iterator[Step]:
    """Continue every prompt by up to `max_tokens` tokens; yields one `Step` after another until all rows have ended.

    A row ends before the first token that is in `stop_ids`, and is then no longer computed. The prompts are ONE chunk
    of the stream, so a mixer that calibrates on its first chunk calibrates on the whole prompt. Only the first
    `vocab_size` ids are chosen from (None: all of them). Row `b` has the seed of `sampling` plus `b`.

    `state` is advanced, with its own cache policies (None: `new_state`); `ValueError` if it has no room. It does not
    contain the last token yielded; if one of several rows ends before the others, it is up to date at the end of the
    iterator only. Without the KV-cache (`caches`) no state can be given. record: collects auxiliary outputs of every
    pass. context: of the prompts. counts: of the tokens of each row for penalties, prompts included, which are advanced
    (None: of the prompts). Processes that are forked from now on compute with one thread (`one_thread_in_forks`).

    Raises `UserError` at once for an empty prompt, an id outside the vocabulary, more tokens than learned positions, or
    if there is no calibration to leave out.
    """
    streams = decode_streams(
        decoder,
        prompts,
        max_tokens,
        sampling,
        stop_ids,
        state=state,
        vocab_size=vocab_size,
        caches=caches,
        record=record,
        context=context,
        counts=counts,
    )
    return _steps_of(streams, state)


def decode_streams(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sampling: Sampling,
    stop_ids: Collection[int] = (),
    *,
    state: DecoderState | None = None,
    vocab_size: int | None = None,
    caches: Caches = Caches(),
    record: AuxiliaryOutputs | None = None,
    context: PrefillContext = EMPTY,
    counts: Sequence[TokenCounts] | None = None,
    grammars: Sequence[Grammar] | None = None,
    logprobs: int | None = None,
) -> list[Stream]:
    """The streams of `decode`, one for each prompt. grammars: one for each; logprobs: see `Request`."""
    check_prompts(decoder, prompts, max_tokens, 0 if state is None else state.position)
    check_bias(sampling, vocab_size or decoder.spec.vocab_size)
    if not caches.calibration and not any(mixer.traits.calibrates for mixer in decoder.mixers):
        problem = f"the model has no {kinds_with_calibration()} layer that calibrates on its prompt; leave it out"
        raise UserError(problem, field="cache_policy", value=RecalibratingCache.name)
    check_memory_of_encoder(decoder, state, context)
    counts = counts_of(prompts) if counts is None else counts
    if not sampling.greedy and sampling.seed is None:
        sampling = replace(sampling, seed=fresh_seed())
    requests = [
        Request(
            prompt,
            max_tokens,
            sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + row) % 2**63),
            stop_ids,
            counts=count,
            grammar=None if grammars is None else grammars[row],
            logprobs=logprobs,
            keep_state=state is not None,
        )
        for row, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
    ]
    vocab_size = vocab_size or decoder.spec.vocab_size
    if not caches.kv:
        if state is not None:
            raise ValueError("a state is a KV-cache: with caches.kv off none can be given")
        one_thread_in_forks()
        tokens_BT, padding = left_pad(prompts, decoder.device)
        reader = RecomputingReader(decoder, padding, caches.calibration, record, context)
        return streams_of(requests, reader.logits, vocab_size, tokens_BT)
    own = state
    if own is None:
        policies: list[CachePolicy] = [FULL] * decoder.spec.layers
        own = new_state(decoder, prompts, max_tokens, caches.cache_policies(decoder, policies))
    needed, room = max(map(len, prompts)) + max_tokens, own.capacity - own.position
    if needed > room:
        raise ValueError(f"the state has room for {room} more tokens, {needed} are needed")
    engine = Engine(decoder, vocab_size=vocab_size, max_batch=len(prompts), chunk_tokens=None)
    return engine.submit_together(requests, own, context, record)


def _steps_of(streams: Sequence[Stream], state: DecoderState | None) -> Iterator[Step]:
    """The steps of streams that have begun together; `state` holds their rows in the end."""
    try:
        while any(stream.finish_reason is None for stream in streams):
            streams[0].step()
            for stream in streams:
                if stream.error is not None:
                    raise stream.error
            yield [stream.events.popleft().token if stream.events else None for stream in streams]
    finally:
        for stream in streams:
            stream.cancel()
        own = [stream.state for stream in streams]
        if state is not None and len(streams) > 1 and any(stream.rows is not state for stream in streams):
            first, *others = (one for one in own if one is not None)
            vars(state).update(vars(first.join(*others)))
