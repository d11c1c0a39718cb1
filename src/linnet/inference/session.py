"""A stream of text that can be fed, continued, forked, rewound, observed, saved and loaded."""

import copy
import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self, Unpack, overload

import torch

from linnet.core.errors import UserError, check_kind, check_text, check_whole, note
from linnet.inference.cache_policy import (
    CachePolicies,
    SublayerContents,
    cache_policy_state,
    layer_cache_policies,
    observe,
    open_ended_policies,
)
from linnet.inference.constrained import Constraint, Grammar, constraint_of
from linnet.inference.continuation import Completion, Continuation
from linnet.inference.engine import Engine
from linnet.inference.language_model import LanguageModel
from linnet.inference.prefill import PrefillContext, PrefillInputs, new_state, prefill_inputs
from linnet.inference.prefix_store import PrefixStore, prefix_key
from linnet.inference.request_checks import check_request
from linnet.inference.sampling import (
    Sampling,
    SamplingSettings,
    TokenCounts,
    check_sampling,
    fresh_seed,
    sampling_of,
)
from linnet.inference.speculative import DraftModel, KeptDraft, speculation_of
from linnet.inference.state import (
    SNAPSHOT,
    read_state,
    restored_snapshots,
    restored_state,
    save_state,
    snapshot_tensors,
    with_room,
)
from linnet.inference.stream_record import STREAM, TOKENS, GeneratedRun, read_record
from linnet.inference.streams import Event, FinishReason, Request, Stream
from linnet.inference.text_events import TextEvent, TextEvents, stop_texts
from linnet.inference.weights import fingerprint, precision_of
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.model.state import DecoderState

SNAPSHOT_BYTES = 2**28
"""Bytes of the snapshots of a session and its forks by default."""


class SessionSettings(SamplingSettings, total=False):
    """The settings of `Session.generate`."""

    ignore_eos: bool
    stop: str | Sequence[str]
    json_schema: Mapping[str, Any] | bool | str | None
    regex: str | None
    choices: Sequence[str] | None
    grammar: Grammar | str | None
    draft: LanguageModel | None
    prompt_lookup: int


class Session:
    """One stream of a model, from the beginning of a document.

        session = linnet.Session(linnet.load("runs/stories"))
        session.feed("Once upon a time")
        print(session.generate(50, seed=1), session.generate(50))

    Several calls generate the same text as one call: nothing is read twice, and the random numbers of a seed continue.
    A character is held back until all of its bytes have been generated.

    A session can also be continued on an engine that it shares with other streams: submit its `request`, give the
    events of the stream to `accept`, and the stream to `finish` when it has ended. Until then nothing else may be done
    with the session. It changes when the engine accepts the request; one that is refused leaves it as it was.
    """

    def __init__(
        self,
        model: LanguageModel,
        cache_policy: CachePolicies = FULL,
        input: str | None = None,
        *,
        prefixes: PrefixStore | None = None,
    ) -> None:
        """`cache_policy`: what the layers keep of the past (`layer_cache_policies`).

        `input`: the text that the stream continues, for a model of pairs (`LanguageModel.generate`). `prefixes`: a
        store that the session shares with others; None: a session whose state cannot be cropped has one for its
        snapshots. `seed` is the seed whose random numbers were used last; None before the first. `finish_reason` is why
        the last continuation ended: "stop" at an end token, a stop text or the end of a grammar, "length" after
        `max_tokens` tokens, "cancelled" where its iterator was closed, "error" where it failed or Ctrl-C ended a step;
        None before the first, and while one goes on. `is_stored`: whether an engine may add its states to a prefix
        store that it shares with others; set it to False for a state of unknown origin.
        """
        check_kind("model", model, LanguageModel, "a model, as linnet.load reads it")
        if prefixes is not None:
            check_kind("prefixes", prefixes, PrefixStore, "a PrefixStore")
        self.model = model
        self.prefixes = prefixes
        self._cache_policy: CachePolicies = layer_cache_policies(model.decoder, cache_policy)
        self._state: DecoderState | None = None
        self._prefill = model.prefill_inputs([""], None if input is None else [input])
        self._context: PrefillContext | None = None
        self._tokens = list(self._prefill.prompts[0])
        self._beginning = len(self._tokens)
        self._runs: list[GeneratedRun] = []
        self._first_chunk: int | None = None
        self._is_dropped = False  # the state that had read the tokens, by `rewind`
        self._text = model.tokenizer.stream()
        self._texts = self._stop_texts = TextEvents(model.tokenizer, stream=self._text, ends=False)
        self.seed: int | None = None
        self.finish_reason: FinishReason | None = None
        self._drawn = 0
        self._counts = TokenCounts(set(self._tokens))
        self._draft: KeptDraft | None = None
        self.is_stored = True
        self._engine: Engine | None = None
        self._stream: Stream | None = None  # that of `events` or `stream`, while it goes on
        probe = cache_policy_state(model.decoder, 1, 2, cache_policy, device=torch.device("meta"))
        if prefixes is None and not probe.is_croppable:
            self.prefixes = PrefixStore(SNAPSHOT_BYTES)

    def __repr__(self) -> str:
        return f"Session({self.model.spec.name}, {self.tokens} tokens)"

    @property
    def tokens(self) -> int:
        """Tokens of the stream so far, including the end token that begins it and tokens that are not read yet."""
        return len(self._tokens)

    @property
    def token_ids(self) -> list[int]:
        """These tokens."""
        return list(self._tokens)

    @property
    def beginning(self) -> int:
        """Tokens of it that stand before the text: the end token, or the input of a model of pairs."""
        return self._beginning

    @property
    def nbytes(self) -> int:
        """Bytes of the decode state, as allocated."""
        return 0 if self._state is None else self._state.nbytes

    @property
    def needed_nbytes(self) -> int:
        """Bytes of a decode state with room for all tokens and one more."""
        tokens, state = len(self._tokens) + 1, self._state
        if state is not None and state.capacity >= tokens:
            return state.nbytes
        device = torch.device("meta")
        return cache_policy_state(self.model.decoder, 1, tokens, self._policies(1), device=device).nbytes

    @property
    def has_stopped(self) -> bool:
        """True if a stop text ended the last continuation."""
        return self._stop_texts.has_stopped

    @property
    def _read(self) -> int:
        """The number of tokens that the state has read."""
        return 0 if self._state is None else self._state.position

    @property
    def _pending(self) -> list[int]:
        """The tokens that it has not read."""
        return self._tokens[self._read :]

    def observe(self) -> list[SublayerContents]:
        """What each sublayer holds of the stream; empty before anything was read."""
        state = self._state_now()
        return [] if state is None else observe(state)

    def feed(self, text: str) -> None:
        """Continue the stream with `text`, which is read when something is generated.

        `UserError` for a text behind which learned positions leave no room for another token.
        """
        check_text("text", text)
        self._end()
        tokens = self.model.tokenizer.encode(text)
        if not tokens:
            return
        if self._read == 0 and self._prefill.inputs is None and self._tokens == [self.model.tokenizer.end_id]:
            whole = self.model.prompt_tokens(text)
            self._check_length(tokens, whole)
            self._tokens, self._counts = whole, TokenCounts(set(whole))
        else:
            self._check_length(tokens, whole := self._tokens + tokens)
            self._tokens = whole
            self._counts.read_prompt(tokens)
        self._text = self.model.tokenizer.stream(tokens)

    def _check_length(self, tokens: Sequence[int], whole: Sequence[int]) -> None:
        """`UserError` if the model could not read the whole stream, which ends with new tokens, and one token more."""
        decoder, before = self.model.decoder, len(whole) - len(tokens)
        length = decoder.spec.context_length
        if decoder.embedding.positions is not None and len(whole) >= length:
            problem = f"{len(tokens)} tokens of text behind {before}: the model's learned positions end at {length}"
            raise UserError(problem, accepted=f"at most {max(length - 1 - before, 0)}, so that another one can follow")

    def read(self) -> None:
        """Read what was fed now, but for the last token, so that a fork or a saved stream need not read it.

        What the prefix store has of a first text is not read, and snapshots are stored there. The first text is left
        unread if the model reads an input before it, or calibrates on all of it.
        """
        self._end()
        tokens, mixers = self._pending[:-1], self.model.decoder.mixers
        whole = self._prefill.inputs is not None or self._prefill.prefixes is not None
        is_left = self._read == 0 and (whole or any(mixer.traits.calibrates for mixer in mixers))
        if tokens and not is_left:
            self._read_tokens(tokens)

    @overload
    def generate(self, max_tokens: int = ..., *, logprobs: int, **settings: Unpack[SessionSettings]) -> Completion: ...

    @overload
    def generate(self, max_tokens: int = ..., *, logprobs: None = ..., **settings: Unpack[SessionSettings]) -> str: ...

    def generate(
        self, max_tokens: int = 200, *, logprobs: int | None = None, **settings: Unpack[SessionSettings]
    ) -> str | Completion:
        """The text that follows, up to `max_tokens` tokens or the end of the document; it becomes part of the stream.

        Settings as of `LanguageModel.generate`. `seed` None: continue with the random numbers of the previous seed.
        Frequency and presence penalties count the tokens that were generated since the last `feed`. A text of `stop`
        ends the continuation and is not part of the result, but the tokens that completed it are part of the stream, as
        an end token is. A constraint (`json_schema`, `regex`, `choices`, `grammar`) is of what this call generates.
        `draft`, `prompt_lookup`: guess tokens; those of the stream stay the same (`inference.speculative`). The state
        of the draft is kept for the next call with it. `logprobs`: return a `Completion`, as `LanguageModel.generate`.
        Raises `UserError` for invalid values, and for more tokens than learned positions; the stream is then as before.
        """
        events = list(self.events(max_tokens, logprobs=logprobs, **settings))
        text = "".join(event.text for event in events)
        return text if logprobs is None else Completion(text, events, self.finish_reason or "length")

    def events(
        self, max_tokens: int = 200, *, logprobs: int | None = None, **settings: Unpack[SessionSettings]
    ) -> Iterator[TextEvent]:
        """`generate` token by token, with the text of each; the session advances with the events.

        logprobs: also report the log-probability of each token, and this many of the likeliest tokens. Raises
        `UserError` at once, as `generate`.
        """
        stream = self._submit(self.request(max_tokens, logprobs=logprobs, **settings))

        def events() -> Iterator[TextEvent]:
            rest: list[TextEvent] = []
            try:
                for event in stream:
                    yield from self.accept(event)
                    if self.has_stopped:
                        break
            finally:
                rest = self._end(stream)
            yield from rest

        return events()

    def stream(
        self,
        max_tokens: int,
        sampling: Sampling,
        ignore_eos: bool = False,
        stop: Sequence[str] = (),
        *,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        draft: LanguageModel | None = None,
        prompt_lookup: int = 0,
    ) -> Continuation:
        """`generate` piece by piece, with figures and state."""
        self._end()
        before, prompt_tokens, stops = self._read, len(self._pending), stop_texts(stop)
        grammar = None if constraint is None else Grammar(self.model.tokenizer, constraint, self._tokens)
        request = self._request(max_tokens, sampling, ignore_eos, draft, prompt_lookup, grammar, logprobs)
        state = request.state or new_state(self.model.decoder, [self._tokens], max_tokens, request.cache_policy)
        stream = self._submit(replace(request, state=state))
        self._stop_texts = TextEvents(self.model.tokenizer, stop=stops, stream=self._text, ends=False)

        def held_nbytes(tokens: int) -> int:
            return state.held_nbytes(before + tokens)

        return Continuation(
            stream,
            self._stop_texts,
            prompt_tokens,
            held_nbytes,
            state,
            accept=lambda event: self._append(event.token),
            finish=self._end,
        )

    def request(
        self, max_tokens: int = 200, *, logprobs: int | None = None, **settings: Unpack[SessionSettings]
    ) -> Request:
        """What the next continuation asks of an engine, for `accept` and `finish`; the arguments are those of `events`.

        The engine may advance the state of the session itself, so that nothing is copied. The session does not change
        before an engine accepts the request, which is for the tokens that there are now.
        """
        self._end()
        ignore_eos, stop = settings.pop("ignore_eos", False), stop_texts(settings.pop("stop", ()))
        given = settings.pop("grammar", None)
        grammar, lark = (given, None) if isinstance(given, Grammar) else (None, given)
        json_schema, regex = settings.pop("json_schema", None), settings.pop("regex", None)
        choices = settings.pop("choices", None)
        draft, prompt_lookup = settings.pop("draft", None), settings.pop("prompt_lookup", 0)
        constraint = constraint_of(json_schema, regex, choices, lark)
        if constraint is not None:
            if grammar is not None:
                raise UserError(f"{constraint.kind} and grammar: expected one constraint")
            grammar = Grammar(self.model.tokenizer, constraint, self._tokens)
        sampling = sampling_of(settings, ("max_tokens", "logprobs", *SessionSettings.__annotations__))
        return self._request(max_tokens, sampling, ignore_eos, draft, prompt_lookup, grammar, logprobs, stop)

    def accept(self, event: Event) -> list[TextEvent]:
        """Take a generated token; returns the events whose text is certain. Behind a stop text there are none."""
        self._append(event.token)
        if self._texts.has_stopped:
            self._text.push(event.token)
        return self._texts.push(event)

    def finish(self, stream: Stream) -> list[TextEvent]:
        """Take back the state of a stream of `request`, which is cancelled if it goes on, and its last tokens.

        Returns the events that had been held back. After an error in the model the text stays, and is read again.
        """
        stream.cancel()
        events = []
        while stream.events:
            events += self.accept(stream.events.popleft())
        if stream.rows is None and stream.error is None:  # it was cancelled before anything was read
            self._state = self._state if self._read else None
        else:
            self._state = stream.state if stream.error is None else None
        is_first = not stream.request.read_tokens and stream.request.first_chunk is None
        if is_first and self._state is None and len(self._tokens) == len(stream.request.prompt):
            self._first_chunk = None  # nothing was read, or it will be read again
        if self._state is not None and self._state.position:
            if stream.met_stop_id:  # which is no event
                self._append(stream.pending[-1])
            self._return_state()  # a stream that was cancelled within a step has read its last token
        if stream.error is None:
            self._draft = KeptDraft.of(stream.request.speculation, self._tokens) or self._draft
        events += self._texts.finish()
        self.finish_reason = "stop" if self.has_stopped else stream.finish_reason
        return events

    def rewind(self, tokens: int) -> None:
        """Take back the last `tokens` tokens; the session is as if it had never read or generated them.

        Random numbers and counts go back too, so that the same settings generate the same text. A state that can be
        cropped is; any other one is made again from the last snapshot before, with at most `snapshot_tokens` tokens
        that are read anew. Where there is none (it was dropped, or not saved), a note says how many are. Layers that
        calibrate on their prompt do so again if a part of it is taken back.

        `UserError` for more tokens than are behind the beginning of the stream or its input.
        """
        self._end()
        most = len(self._tokens) - self._beginning
        accepted = f"0 to {most}, the tokens behind the beginning of the stream or its input"
        check_whole("rewind", tokens, 0, most, accepted)
        if tokens == 0:
            return
        length = len(self._tokens) - tokens
        del self._tokens[length:]
        self._return_state()
        begun = [run for run in self._runs if run.start <= length]
        self.seed, self._drawn = (begun[-1].seed, begun[-1].drawn_at(length)) if begun else (None, 0)
        self._runs = [replace(run, end=min(run.end, length)) for run in begun if run.start < length]
        generated, fed = self._last_border()
        self._counts = TokenCounts(self._tokens, Counter(self._tokens[generated:]))
        self._text = self.model.tokenizer.stream(self._tokens[fed:generated])
        for token in self._tokens[generated:]:
            self._text.push(token)

    def fork(self) -> Self:
        """An independent copy of the session; both share one store of snapshots."""
        self._restore_state()
        twin = copy.copy(self)
        state = self._state_now()
        twin._state = None if state is None else state.fork()
        twin._tokens = list(self._tokens)
        twin._runs = [replace(run) for run in self._runs]
        twin._counts = copy.deepcopy(self._counts)
        twin._text = self.model.tokenizer.stream()
        twin._text.load_state_dict(self._text.state_dict())
        twin._texts = twin._stop_texts = TextEvents(self.model.tokenizer, stream=twin._text, ends=False)
        twin._draft = None if self._draft is None else self._draft.fork()
        twin._engine = twin._stream = None
        return twin

    def with_cache_policy(self, cache_policy: CachePolicies) -> "Session":
        """The stream under another cache policy, as if it had always had it: its tokens are read anew when it goes on.

        `UserError` for a model that calibrates on its first text, or reads an input before it.
        """
        if self._prefill.inputs is not None or any(mixer.traits.calibrates for mixer in self.model.decoder.mixers):
            problem = "the model reads its first text as a whole, so that the stream must begin anew"
            raise UserError(problem, field="cache_policy")
        twin = Session(self.model, cache_policy, prefixes=self.prefixes)
        twin._tokens, twin._beginning, twin._prefill = list(self._tokens), self._beginning, self._prefill
        twin._runs = [replace(run) for run in self._runs]
        twin._counts, twin.seed, twin._drawn = copy.deepcopy(self._counts), self.seed, self._drawn
        twin._text.load_state_dict(self._text.state_dict())
        return twin

    def save(self, target: str | Path | BinaryIO) -> None:
        """Write the stream as safetensors, with everything needed to continue it, and its snapshots.

        A file is written atomically. target: a path, or a binary file that is open for writing. What a rewind has taken
        from the state is read before, so that who loads the file need not.
        """
        self._restore_state()
        state = self._state_now()
        if state is None:
            state = new_state(self.model.decoder, [self._tokens], 1, self._policies(1))
        record = {
            "model": fingerprint(self.model.decoder),
            "tokenizer": self.model.tokenizer.hash,
            "precision": precision_of(self.model.decoder),
            "pending": self._tokens[state.position :],
            "inputs": self._prefill.inputs,
            "prefixes": self._prefill.prefixes,
            "beginning": self._beginning,
            "first_chunk": self._first_chunk,
            "text": self._text.state_dict(),
            "seed": self.seed,
            "drawn": self._drawn,
            "seen": sorted(self._counts.seen),
            "generated": self._counts.generated,
            "runs": [astuple(run) for run in self._runs],
        }
        notes = {STREAM: json.dumps(record), TOKENS: json.dumps(self._tokens)}
        snapshots = []
        if self.prefixes is not None and not state.is_croppable:
            snapshots = self.prefixes.snapshots(self._tokens[: max(state.position - 1, 0)], self._key(state))
        save_state(state, target, notes, snapshot_tensors(state, snapshots))

    @classmethod
    def load(cls, model: LanguageModel, source: str | Path | BinaryIO, *, prefixes: PrefixStore | None = None) -> Self:
        """Continue a saved stream of this model; nothing is read again. `UserError` with the reason for any other file.

        source: a path, or a binary file that is open for reading. prefixes: see `Session`.
        """
        check_kind("model", model, LanguageModel, "a model, as linnet.load reads it")
        tensors, notes, origin = read_state(source, model.decoder.device)
        if STREAM not in notes:
            restored_state(model.decoder, tensors, notes, origin)  # reports a file that is no state
            raise UserError(f"{origin}: a decode state alone, without its stream; expected what a session has saved")
        record, tokens = read_record(model, notes, origin)
        snapshots = {name: tensors.pop(name) for name in list(tensors) if name.startswith(SNAPSHOT)}
        state = restored_state(model.decoder, tensors, notes, origin)
        if state.positions != (len(tokens) - len(record.pending),):
            problem = f"{len(tokens)} tokens, of which {len(record.pending)} are pending"
            raise UserError(f"{origin}: metadata {TOKENS}: {problem}: the state has read {state.positions}")
        session = cls(model, [layer.cache_policy for layer in state.layers], prefixes=prefixes)
        session._state, session._tokens, session._beginning = state, tokens, record.beginning
        session._prefill = PrefillInputs([tokens[: record.beginning]], record.inputs, record.prefixes)
        session._first_chunk = record.first_chunk
        session._text.load_state_dict(record.text.model_dump())
        session.seed, session._drawn = record.seed, record.drawn
        session._counts = TokenCounts({*record.seen, *record.pending}, record.generated)
        session._runs = record.generated_runs(len(tokens))
        if session.prefixes is not None and not state.is_croppable:
            for length, snapshot in restored_snapshots(model.decoder, state, snapshots, notes, origin):
                session.prefixes.insert(tokens[:length], snapshot, session._key(state))
        return session

    def _request(
        self,
        max_tokens: int,
        sampling: Sampling,
        ignore_eos: bool,
        draft: LanguageModel | None,
        prompt_lookup: int,
        grammar: Grammar | None,
        logprobs: int | None,
        stop: Sequence[str] = (),
    ) -> Request:
        """The next continuation as an engine takes it; its random numbers follow the last ones of their seed.

        The session is not changed before `_begin`, with which the engine accepts the request.
        """
        check_whole("max_tokens", max_tokens, 1)
        check_sampling(sampling)
        guesses, tokenizer = self.model.check_guesses(draft, prompt_lookup), self.model.tokenizer
        seed, drawn = sampling.seed, 0
        if seed is None:
            seed, drawn = fresh_seed() if self.seed is None else self.seed, self._drawn
        sampling = replace(sampling, seed=seed, drawn=drawn)
        request = Request(
            self._pending,
            max_tokens,
            sampling,
            () if ignore_eos else tokenizer.end_ids,
            state=self._state,
            cache_policy=self._policies(max_tokens),
            context=self._prefill_context(),
            counts=self._counts,
            hands_over_state=True,
            read_tokens=self._tokens[: self._read],
            first_chunk=self._first_chunk,
            grammar=grammar,
            logprobs=logprobs,
            is_stored=self.is_stored,
            on_accepted=partial(self._begin, stop=stop, has_draft=draft is not None),
        )
        check_request(self.model.decoder, request, tokenizer.vocab_size)
        state = None if self._state is None else with_room(self._state, len(self._tokens) + max_tokens)
        proposer = None if draft is None else self._proposer(draft, max_tokens, sampling)
        return replace(request, state=state, speculation=speculation_of(prompt_lookup, proposer) if guesses else None)

    def _begin(self, request: Request, stop: Sequence[str], has_draft: bool) -> None:
        """Begin a continuation that an engine accepts; `UserError` for one of other tokens than there are now."""
        if [*request.read_tokens, *request.prompt] != self._tokens or self._read != len(request.read_tokens):
            raise UserError("the session has changed since this request was made; make another one", field="request")
        length, sampling = len(self._tokens), request.sampling
        self._state, self.seed, self._drawn = request.state, sampling.seed, sampling.drawn
        self._cache_policy = request.cache_policy
        if self._first_chunk is None and not request.read_tokens:
            self._first_chunk = len(request.prompt)
        self._texts = self._stop_texts = TextEvents(self.model.tokenizer, stop=stop, stream=self._text, ends=False)
        self._runs.append(GeneratedRun(length, length, sampling.seed, sampling.drawn, sampling.greedy))
        self._draft = None if has_draft else self._draft  # its state goes with the request
        self.finish_reason = None

    def _proposer(self, draft: LanguageModel, max_tokens: int, sampling: Sampling) -> DraftModel:
        """A draft of the next continuation; it goes on with the state that it had at the end of an earlier one."""
        row, own, kept = self._tokens, None, self._draft
        if self._prefill.inputs is not None:
            own = self._prefill.inputs
        elif self._beginning > 1:  # the input stands before the text
            own, row = [row[: self._beginning]], row[self._beginning - 1 :]
        state = None
        if kept is not None and kept.decoder is draft.decoder:
            state = kept.state_before(self._tokens)
        inputs = prefill_inputs(draft.decoder, [row], own)
        return draft.proposer(inputs, max_tokens, sampling, self._counts, len(self._tokens), state)

    def _submit(self, request: Request) -> Stream:
        """Continue the stream on an engine of the session's own."""
        if self._engine is None:
            decoder, vocab_size = self.model.decoder, self.model.tokenizer.vocab_size
            self._engine = Engine(decoder, vocab_size=vocab_size, chunk_tokens=None, prefixes=self.prefixes)
        self._stream = self._engine.submit(request)
        return self._stream

    def _end(self, stream: Stream | None = None) -> list[TextEvent]:
        """`finish` the continuation that goes on, if it is `stream` (None: whichever)."""
        running = self._stream
        if running is None or (stream is not None and stream is not running):
            return []
        self._stream = None
        return self.finish(running)

    def _append(self, token: int) -> None:
        """Add a generated token."""
        self._tokens.append(token)
        run = self._runs[-1]
        run.end += 1
        self._drawn += not run.greedy

    def _state_now(self) -> DecoderState | None:
        """The state at the last token; None if it has read tokens that were not accepted."""
        state = self._state if self._stream is None else self._stream.state
        return state if state is None or state.position < len(self._tokens) else None

    def _policies(self, max_tokens: int) -> list[CachePolicy]:
        """The policies of a state for the text and `max_tokens` more; a session keeps those of its first state."""
        return open_ended_policies(self.model.decoder, self._cache_policy, len(self._tokens) + max_tokens)

    def _prefill_context(self) -> PrefillContext:
        """The context of the first chunk, which an encoder reads once."""
        if self._context is None:
            self._context = self._prefill.context(self.model.decoder)
        return self._context

    def _restore_state(self) -> None:
        """Read what the state had read before a rewind dropped it, from the last snapshot on.

        The last token stays unread. Nothing is read where that would be a part of what layers read as a whole.
        """
        if self._state is not None or not self._is_dropped or self._stream is not None:
            return
        tokens, prefix = self._tokens[:-1], sum(self._prefill.prefixes or ())
        if len(tokens) < max(self._calibrated_tokens(), prefix, 1):
            return
        self._read_tokens(tokens)

    def _read_tokens(self, tokens: list[int]) -> None:
        """Read the next tokens in pieces, with what the prefix store has of a beginning, and store their states there.

        After an error there is no state, and all is read again.
        """
        state, policies = self._state, self._policies(1)
        request = Request(
            tokens,
            1,
            Sampling(temperature=0.0),
            state=None if state is None else with_room(state, len(self._tokens) + 1),
            cache_policy=policies,
            context=self._prefill_context(),
            hands_over_state=True,
            read_tokens=self._tokens[: self._read],
            first_chunk=self._first_chunk,
        )
        stream = Engine(self.model.decoder, prefixes=self.prefixes).submit(request)
        self._state, self._cache_policy = None, policies
        list(stream)  # the token that follows is not part of the stream
        self._state = stream.state

    def _return_state(self) -> None:
        """Make the state that of the tokens there are now, without the last, or drop it so that they are read again."""
        length, state = len(self._tokens), self._state
        if self._first_chunk is not None and length < self._calibrated_tokens():
            self._state = self._first_chunk = None
            self._is_dropped = False  # the layers calibrate anew on what the stream will have
        elif state is not None and state.position >= length:
            if length > 1 and state.can_crop(length - 1):
                state.crop(length - 1)
                return
            found = 0
            if self.prefixes is not None:
                found = self.prefixes.longest(self._tokens[:-1], self._key(state))
            if self.prefixes is None or length - found > self.prefixes.snapshot_tokens + 1:
                note(f"{length - found} tokens of a session are read again, as there is no later snapshot")
            self._state, self._is_dropped = None, True

    def _calibrated_tokens(self) -> int:
        """The number of first tokens on which layers have calibrated; 0 for a model without such layers."""
        first = self._first_chunk or 0
        traits = [mixer.traits for mixer in self.model.decoder.mixers if mixer.traits.calibrates]
        return max((min(first, one.calibrated_after or first) for one in traits), default=0)

    def _last_border(self) -> tuple[int, int]:
        """Where the tokens begin that were generated since the last text was fed, and where that text begins."""
        generated, runs = len(self._tokens), list(self._runs)
        while runs and runs[-1].end == generated:
            generated = runs.pop().start
        return generated, runs[-1].end if runs else 0

    def _key(self, state: DecoderState) -> Hashable:
        """That of the stream's states in a prefix store."""
        first_chunk = self._tokens[: self._first_chunk]
        return prefix_key(self.model.decoder, state, first_chunk, **vars(self._prefill_context()))
