"""Continuous batching: streams of token ids join and leave a running batch at any step.

A stream is a prompt and what is generated behind it. Each scheduling step of the `Engine` decodes one token of every
running stream, all of a batch in one pass, and reads a piece of the prompts that wait, so that a long prompt does not
stop the other streams; of several long prompts each gets a piece in turn, and short ones are read together. Layers that
calibrate on their prompt, and prefixes, are read as one piece. Every stream has its own position, cache policy,
sampling, random numbers, stop ids and counts.

A stream gets the same tokens alone and among others, whatever joins or leaves, up to the rounding of products: those of
one row and of several may differ in the last bits, which decides between tokens only where their logits are equal but
for rounding. (In float64, where the tests compare, such ties do not occur in practice.)

Legend: `B` batch (rows), `T` tokens of the longest prompt or of a chunk, `V` vocabulary.
"""

import threading
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch

from linnet.core.errors import UserError, check_kind, check_whole, exceeds_memory, is_out_of_memory
from linnet.core.system import available_bytes, one_thread_in_forks
from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.prefill import EMPTY, PrefillContext, left_pad, new_state
from linnet.inference.prefix_store import PrefixStore, StoredStream, prefix_key
from linnet.inference.readers import CachedReader
from linnet.inference.request_checks import check_request
from linnet.inference.state import with_room
from linnet.inference.streams import Request, Stream, StreamBatch, choose_next
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.layers.cache_policy import FULL
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

__all__ = ["Engine", "Request", "Stream"]

MAX_BATCH = 32
"""Streams that run at the same time by default."""

CHUNK_TOKENS = 256
"""Tokens of prompts that are read between two decoding steps by default."""


class Engine:
    """Continues streams of one decoder, as many as `max_batch` at the same time; the others wait in order.

    One thread runs it, by calling `step` or by pulling events from streams (two that do it take turns). `submit` and
    `Stream.cancel` may be called from any thread, and do not wait for a step that is running. A stream that fails ends
    with its error; `step` does not raise it.
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
        between two decoding steps (None: any number). prefixes: is asked for the beginning of each prompt that has no
        state, and gets the states of such streams.

        `UserError` for another type, numbers below 1, and more ids than the decoder has. Processes that are forked from
        now on compute with one thread (`one_thread_in_forks`).
        """
        check_kind("decoder", decoder, Decoder, "a decoder, as LanguageModel.decoder")
        if prefixes is not None:
            check_kind("prefixes", prefixes, PrefixStore, "a PrefixStore")
        check_whole("max_batch", max_batch, 1)
        if chunk_tokens is not None:
            check_whole("chunk_tokens", chunk_tokens, 1)
        if vocab_size is not None:
            check_whole("vocab_size", vocab_size, 1, decoder.spec.vocab_size)
        one_thread_in_forks()
        self.decoder, self.vocab_size = decoder, vocab_size or decoder.spec.vocab_size
        self.max_batch, self.chunk_tokens, self.prefixes = max_batch, chunk_tokens, prefixes
        traits = [sublayer.traits for sublayer in decoder.sublayers]
        self._splits = all(each.exact_when_split and not each.calibrates for each in traits)
        self._waiting: deque[StreamBatch] = deque()
        self._batches: list[StreamBatch] = []
        self._cancelled: list[Stream] = []
        self._lock, self._stepping = threading.Lock(), threading.Lock()

    @property
    def running(self) -> int:
        """The number of streams that have begun and not ended."""
        with self._lock:
            return self._running()

    def _running(self) -> int:
        """The same, while the lock is held."""
        begun = (prompt for prompt in self._waiting if prompt.begun)
        return sum(len(batch.streams) for batch in (*self._batches, *begun))

    @property
    def waiting(self) -> int:
        """The number of streams of whose prompts nothing has been read."""
        with self._lock:
            prompts = [prompt for prompt in self._waiting if not prompt.begun]
        return sum(stream.finish_reason is None for prompt in prompts for stream in prompt.streams)

    def submit(self, request: Request) -> Stream:
        """Let a stream wait for its turn.

        `UserError` for what `check_request` refuses, and for a state for which there would be no memory if no other
        stream ran; nothing has changed then. A stream whose state does not fit now waits.
        """
        check_request(self.decoder, request, self.vocab_size)
        position = 0 if request.state is None else request.state.position
        splits = position > 0 or (self._splits and not request.context.prefixes)
        stream = Stream(request, self.step, self.cancel)
        prompt = StreamBatch([stream], splits=splits, planned=self._planned(request))
        with self._lock:
            readers = [batch.reader for batch in (*self._batches, *self._waiting)]  # a join may take them away
        held = sum(reader.state.nbytes for reader in readers if reader is not None)
        if self._needed_bytes(prompt) > available_bytes(self.decoder.device) + held:
            raise _no_memory(request)
        if request.on_accepted is not None:
            request.on_accepted(request)
        with self._lock:
            self._waiting.append(prompt)
        return stream

    def submit_together(
        self,
        requests: Sequence[Request],
        state: DecoderState,
        context: PrefillContext = EMPTY,
        record: AuxiliaryOutputs | None = None,
        copies: int = 1,
    ) -> list[Stream]:
        """Streams whose prompts are read as one chunk, with a state of all of them, which is advanced in place.

        The prompts have been checked. context: of all rows; record: collects auxiliary outputs of every pass; both
        instead of those of the requests. copies: so many requests in a row have the same prompt, which is one row of
        the state; they fork it behind the prompt. When a row ends before the others, they go on with another state, and
        the tensors of the given one are not those of its rows any more.
        """
        streams = [Stream(request, self.step, self.cancel) for request in requests]
        prompt = StreamBatch(streams, CachedReader(self.decoder, state, None, record, context), copies=copies)
        prompt.place()
        with self._lock:
            self._waiting.append(prompt)
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

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block no thread takes a step or frees a row: states and prefix store are only the caller's.

        Streams that are cancelled there are removed by the next step.
        """
        with self._stepping:
            yield

    def step(self) -> bool:
        """Decode one token of every running stream, then read a piece of the waiting prompts.

        Once a prompt has been read, the first token of its stream is chosen. False if there was nothing to do.
        """
        with self._stepping:
            if self._waiting or self._cancelled:
                return self._step_all()
            batches = self._batches
            for batch in batches:
                self._decode(batch)
            return bool(batches)

    def _step_all(self) -> bool:
        """`step` with streams that wait or were cancelled."""
        with torch.inference_mode():
            self._remove_cancelled()
            batches = self._batches
            for batch in batches:
                self._decode(batch)
            spent = 0
            while (prompt := self._next_prompt(spent)) is not None:
                spent += self._read(prompt)
            if spent:
                self._join_batches()
            return bool(batches or spent)

    def _decode(self, batch: StreamBatch) -> None:
        """One token of every stream of a batch, and what follows from it.

        To enter inference mode takes a fiftieth of the step of a small model, and native steps do not need it.
        """
        if batch.is_native:
            self._choose(batch)
        else:
            with torch.inference_mode():
                self._choose(batch)
        for stream in batch.streams:
            if stream.finish_reason is not None or stream.stored is not None:
                with torch.inference_mode():
                    self._settle(batch)
                break

    def _choose(self, batch: StreamBatch) -> None:
        """One token of every stream of a batch."""
        try:
            choose_next(batch.streams, batch.logits(), self.vocab_size)
        except Exception as error:
            batch.fail(error)
        except BaseException:
            self._interrupt(batch)
            raise

    def _interrupt(self, batch: StreamBatch) -> None:
        """End the streams of a pass that Ctrl-C has ended: some layers may have read a token, and others not."""
        batch.fail(RuntimeError("the stream was interrupted in the middle of a step"))
        with torch.inference_mode():
            self._settle(batch)

    def _settle(self, batch: StreamBatch) -> None:
        """Store states, free the rows of ended streams, and forget a batch without streams.

        Without memory for the copies that this needs, all streams of the batch end.
        """
        try:
            batch.store()
            batch.remove_ended()
        except Exception as error:
            batch.fail(error)
            batch.remove_all()
            if not is_out_of_memory(error):
                raise
        finally:
            if not batch.streams:
                with self._lock:
                    self._batches = [one for one in self._batches if one is not batch]

    def _next_prompt(self, spent: int) -> StreamBatch | None:
        """What is read next in this step, in which `spent` tokens of prompts have been read; None for nothing.

        A prompt for which there are no rows or no memory delays the prompts after it that have not begun. A prompt
        whose beginning is being read for another stream waits until the prefix store has it, and delays no other one.
        """
        if not self._waiting:
            return None
        with self._lock:
            prompts, running = list(self._waiting), self._running()
        begun = [prompt for prompt in prompts if prompt.begun]
        may_begin = True
        for prompt in prompts:
            if not prompt.begun:
                if self._begins_like(prompt, begun):
                    continue
                may_begin = may_begin and (running == 0 or running + len(prompt.streams) <= self.max_batch)
                if may_begin and self._needed_bytes(prompt) > available_bytes(self.decoder.device):
                    if running == 0:
                        prompt.fail(_no_memory(prompt.streams[0].request))
                        self._forget(prompt)
                        continue
                    may_begin = False
                if not may_begin:
                    continue
            if self.chunk_tokens is not None and spent and spent + self._piece(prompt) > self.chunk_tokens:
                return None
            return prompt if prompt.begun else self._with_companions(prompt, prompts, running, spent)
        return None

    def _with_companions(
        self, first: StreamBatch, prompts: Sequence[StreamBatch], running: int, spent: int
    ) -> StreamBatch:
        """A prompt and the short ones after it that fit into one pass, of which at most half is padding."""
        self._look_up(first)
        together, total = [first], first.longest
        for prompt in prompts[prompts.index(first) + 1 :] if self._is_plain(first) else ():
            longest, rows = max(prompt.longest, *(one.longest for one in together)), len(together) + 1
            limit = 2 * (total + prompt.longest)
            if self.chunk_tokens is not None:
                limit = min(limit, self.chunk_tokens - spent)
            needed = sum(self._needed_bytes(one) for one in (*together, prompt))
            if (
                running + rows > self.max_batch
                or longest * rows > limit
                or needed > available_bytes(self.decoder.device)
                or not self._is_plain(prompt)
                or self._shares(prompt, together)
            ):
                break
            together.append(prompt)
            total += prompt.longest
        if len(together) == 1:
            return first
        for prompt in together[1:]:
            self._look_up(prompt)
        streams = [stream for prompt in together for stream in prompt.streams]
        capacity = max(prompt.planned.capacity for prompt in together if prompt.planned is not None)
        try:
            state = self.decoder.initial_state(len(streams), capacity)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return first
        whole = StreamBatch(streams, CachedReader(self.decoder, state))
        with self._lock:
            rest = [prompt for prompt in self._waiting if prompt not in together]
            self._waiting = deque([whole, *rest])
        return whole

    def _is_plain(self, prompt: StreamBatch) -> bool:
        """True if a prompt may share a pass: no part has been read, it is one piece, and the cache policy is `full`."""
        planned = prompt.planned
        if prompt.begun or prompt.reader is not None or planned is None or self._piece(prompt) < prompt.longest:
            return False
        request = prompt.streams[0].request
        is_whole = request.context == EMPTY and request.first_chunk is None
        return is_whole and all(part.cache_policy == FULL for part in planned.sublayers)

    def _shares(self, prompt: StreamBatch, others: Sequence[StreamBatch]) -> bool:
        """True if the prefix store has states of the beginning of a prompt, or will have them from the others."""
        if self.prefixes is None or self._begins_like(prompt, others):
            return self.prefixes is not None
        return self.prefixes.longest(prompt.streams[0].tokens[:-1], self._prefix_key(prompt)) > 0

    def _begins_like(self, prompt: StreamBatch, others: Sequence[StreamBatch]) -> bool:
        """True if there is a prefix store, and one of the others has the same first tokens as a prompt."""
        if self.prefixes is None:
            return False
        size = self.prefixes.snapshot_tokens
        first = prompt.streams[0].tokens[:size]
        return any(stream.tokens[:size] == first for other in others for stream in other.streams)

    def _piece(self, prompt: StreamBatch) -> int:
        """The number of tokens of the next piece of a prompt; of several prompts, with padding."""
        longest = prompt.longest
        if prompt.splits and self.chunk_tokens is not None:
            longest = min(longest, self.chunk_tokens)
        stream = prompt.streams[0]
        if prompt.splits and stream.stored is not None:
            state = stream.rows or stream.request.state
            longest = min(longest, stream.stored.tokens_to_border(0 if state is None else state.position))
        if not prompt.splits and not prompt.begun and stream.request.first_chunk is not None:
            longest = min(longest, stream.request.first_chunk)
        return longest * prompt.rows

    def _read(self, prompt: StreamBatch) -> int:
        """Read a piece of a prompt, and choose the first tokens behind its end; returns the number of tokens."""
        piece, streams = self._piece(prompt), prompt.streams
        prompt.begun = True
        try:
            reader = prompt.reader = prompt.reader or self._new_reader(streams[0].request)
            if piece < prompt.longest * prompt.rows:
                reader.read(torch.tensor([streams[0].pending[:piece]], device=self.decoder.device))
                streams[0].pending = streams[0].pending[piece:]
                prompt.place()
                prompt.store()
                prompt.splits = prompt.splits or not streams[0].request.context.prefixes
                with self._lock:  # the next piece is of another prompt, if one waits
                    self._waiting.remove(prompt)
                    self._waiting.append(prompt)
                return piece
            rows = [stream.pending for stream in streams[:: prompt.copies]]
            tokens_BT, reader.padding = left_pad(rows, self.decoder.device)
            logits_BV = prompt.fork_rows(reader.logits(tokens_BT))
            prompt.place()
            choose_next(streams, logits_BV, self.vocab_size)
        except Exception as error:
            prompt.fail(error)
        except BaseException:
            self._forget(prompt)
            self._interrupt(prompt)
            raise
        self._forget(prompt)
        self._settle(prompt)
        if prompt.streams:
            with self._lock:
                self._batches = [*self._batches, prompt]
        return piece

    def _new_reader(self, request: Request) -> CachedReader:
        """A reader with a state for one stream."""
        if request.state is None:
            state = new_state(self.decoder, [request.prompt], request.max_tokens, request.cache_policy)
        else:
            state = with_room(request.state, request.state.position + len(request.prompt) + request.max_tokens)
            state = state.fork() if state is request.state and not request.hands_over_state else state
        return CachedReader(self.decoder, state, context=EMPTY if state.position else request.context)

    def _join_batches(self) -> None:
        """Let streams run in one batch where their states can be joined, all that are new in this step at once.

        Batches that together would need more memory than there is stay as they are.
        """
        groups: list[list[StreamBatch]] = []
        for batch in self._batches:
            group = next((group for group in groups if group[0].can_join(batch)), None)
            if group is None:
                groups.append([batch])
            else:
                group.append(batch)
        for first, *rest in groups:
            if not rest:
                continue
            device = self.decoder.device
            needed = first.state.absorb_nbytes(*(batch.state for batch in rest), frees=device.type == "cpu")
            if needed > available_bytes(device):
                continue
            with self._lock:
                self._batches = [batch for batch in self._batches if batch not in rest]
            try:
                first.join(rest)
            except Exception as error:  # the states are lost
                for batch in (first, *rest):
                    batch.fail(error)
                    self._settle(batch)

    def _forget(self, prompt: StreamBatch) -> None:
        """Take a prompt out of the queue."""
        with self._lock:
            self._waiting.remove(prompt)

    def _remove_cancelled(self) -> None:
        """Free the rows of cancelled streams, and forget those that wait."""
        if self._cancelled:
            self._settle_cancelled()

    @torch.inference_mode()
    def _settle_cancelled(self) -> None:
        with self._lock:
            self._cancelled.clear()
            prompts = [prompt for prompt in self._waiting if all(s.finish_reason is not None for s in prompt.streams)]
        for prompt in prompts:
            self._forget(prompt)
            self._settle(prompt)
        for batch in list(self._batches):
            self._settle(batch)

    def _look_up(self, prompt: StreamBatch) -> None:
        """Start a stream from the longest prefix of its prompt that the prefix store has, if there is one.

        From now on the states of the stream are added to the store, unless it continues a state whose tokens are not
        known.
        """
        if self.prefixes is None or prompt.reader is not None:
            return
        (stream,) = prompt.streams
        request, state = stream.request, prompt.planned or stream.request.state
        assert state is not None
        if len(request.read_tokens) != state.position or not request.is_stored:
            return
        stream.stored = StoredStream(self.prefixes, self._prefix_key(prompt), stream.tokens, state.is_croppable)
        capacity = len(request.prompt) + request.max_tokens
        try:
            found = stream.stored.find(capacity) if state.position == 0 else None
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            found = None  # it is read anew, if there is memory for that
        if found is not None:
            state, stream.cached_tokens = found
            stream.pending = stream.pending[stream.cached_tokens :]
            prompt.reader, prompt.splits = CachedReader(self.decoder, state), True
            prompt.place()

    def _prefix_key(self, prompt: StreamBatch) -> Hashable:
        """The key of a prompt of one stream in the prefix store."""
        (stream,) = prompt.streams
        request, state = stream.request, prompt.planned or stream.request.state
        assert state is not None
        return prefix_key(self.decoder, state, stream.tokens[: request.first_chunk], **vars(request.context))

    def _planned(self, request: Request) -> DecoderState | None:
        """The state that a stream needs, on the device meta; None if it is given."""
        if request.state is not None:
            return None
        tokens = len(request.prompt) + request.max_tokens
        try:
            return cache_policy_state(self.decoder, 1, tokens, request.cache_policy, device=torch.device("meta"))
        except (RuntimeError, TypeError, OverflowError) as error:
            if not exceeds_memory(error):
                raise
            raise _no_memory(request) from None

    def _needed_bytes(self, prompt: StreamBatch) -> int:
        """Bytes that will be allocated for the state of a prompt; 0 if it is there."""
        if prompt.reader is not None:
            return 0
        if prompt.planned is not None:
            return prompt.planned.nbytes
        (request,) = (stream.request for stream in prompt.streams)
        assert request.state is not None
        tokens = request.state.position + len(request.prompt) + request.max_tokens
        if request.hands_over_state and tokens <= request.state.capacity:
            return 0
        return max(request.state.nbytes, request.state.held_nbytes(tokens))


def _no_memory(request: Request) -> UserError:
    capacity = len(request.prompt) + request.max_tokens
    return UserError(f"no memory for the state of {capacity} tokens", field="max_tokens", value=request.max_tokens)
