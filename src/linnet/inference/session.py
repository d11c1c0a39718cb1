"""A stream of text that can be fed, continued, forked, saved and loaded."""

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

import torch
from pydantic import Field, NonNegativeInt

from linnet.core.errors import UserError
from linnet.core.files import parse_json
from linnet.core.spec import Spec
from linnet.inference.cache_policy import CachePolicies
from linnet.inference.engine import decode
from linnet.inference.language_model import Continuation, LanguageModel
from linnet.inference.prefill import EMPTY, PrefillInputs, new_state
from linnet.inference.readers import Step
from linnet.inference.sampling import Sampling, SamplingSettings, TokenCounts, fresh_seed, sampling_of
from linnet.inference.state import load_state, read_metadata, save_state, with_room
from linnet.layers.cache_policy import FULL
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

STREAM = "stream"
"""Key of a state file's metadata: what is saved of a stream in addition to its decode state, as JSON."""


class Session:
    """One stream of a model, from the beginning of a document.

        session = linnet.Session(linnet.load("runs/stories"))
        session.feed("Once upon a time")
        print(session.generate(50, seed=1), session.generate(50))

    Several calls generate the same text as one call: nothing is read twice, and the random numbers of a seed continue.
    A character is held back until all of its bytes have been generated.
    """

    def __init__(self, model: LanguageModel, cache_policy: CachePolicies = FULL, input: str | None = None) -> None:
        """`cache_policy`: what the layers keep of the past (`layer_cache_policies`).

        `input`: the text that the stream continues, for a model of pairs (`LanguageModel.generate`). `seed` is the seed
        whose random numbers were used last; None before the first.
        """
        self.model = model
        self._cache_policy = cache_policy
        self._state: DecoderState | None = None
        self._prefill = model.prefill_inputs([""], None if input is None else [input])
        (self._pending,) = self._prefill.prompts
        self._text = model.tokenizer.stream()
        self.seed: int | None = None
        self._drawn = 0
        self._counts = TokenCounts(set(self._pending))

    def __repr__(self) -> str:
        return f"Session({self.model.spec.name}, {self.tokens} tokens)"

    @property
    def tokens(self) -> int:
        """Tokens of the stream so far, including the end token that begins it and tokens that are not read yet."""
        return len(self._pending) + (0 if self._state is None else self._state.position)

    @property
    def nbytes(self) -> int:
        """Bytes of the decode state, as allocated."""
        return 0 if self._state is None else self._state.nbytes

    def feed(self, text: str) -> None:
        """Continue the stream with `text`, which is read in one pass when something is generated."""
        tokens = self.model.tokenizer.encode(text)
        if tokens:
            fresh = self._state is None and self._prefill.inputs is None
            if fresh and self._pending == [self.model.tokenizer.end_id]:
                self._pending = self.model.prompt_tokens(text)
                self._counts = TokenCounts(set(self._pending))
            else:
                self._pending = [*self._pending, *tokens]
                self._counts.read_prompt(tokens)
            self._text = self.model.tokenizer.stream(tokens)

    def generate(self, max_tokens: int = 200, *, ignore_eos: bool = False, **settings: Unpack[SamplingSettings]) -> str:
        """The text that follows, up to `max_tokens` tokens or the end of the document; it becomes part of the stream.

        Settings as of `LanguageModel.generate`. `seed` None: continue with the random numbers of the previous seed.
        Frequency and presence penalties count the tokens that were generated since the last `feed`.
        Raises `UserError` for invalid values, and for more tokens than learned positions.
        """
        sampling = sampling_of(settings, ("max_tokens", "ignore_eos", *SamplingSettings.__annotations__))
        return "".join(self.stream(max_tokens, sampling, ignore_eos))

    def stream(self, max_tokens: int, sampling: Sampling, ignore_eos: bool = False) -> Continuation:
        """`generate` piece by piece, with figures and state; the session advances with the pieces."""
        state, before = self._state_with_room(max_tokens), self.tokens - len(self._pending)
        if sampling.seed is not None:
            self.seed, self._drawn = sampling.seed, 0
        elif self.seed is None:
            self.seed = fresh_seed()
        tokenizer, prompt_tokens = self.model.tokenizer, len(self._pending)
        steps = decode(
            self.model.decoder,
            [self._pending],
            max_tokens,
            replace(sampling, seed=self.seed, drawn=self._drawn),
            () if ignore_eos else tokenizer.end_ids,
            state=state,
            vocab_size=tokenizer.vocab_size,
            context=EMPTY if state.position else self._prefill.context(self.model.decoder),
            counts=[self._counts],
        )

        def advance() -> Iterator[Step]:
            for step in steps:
                # The state has not read it yet. A model may have several end tokens; the counts know which one came.
                assert self._counts.last is not None
                self._pending = [self._counts.last]
                self._drawn += not sampling.greedy
                yield step

        return Continuation(
            advance(), self._text, prompt_tokens, lambda n: state.held_nbytes(before + n), state, ends=False
        )

    def fork(self) -> Self:
        """An independent copy of the session."""
        twin = copy.copy(self)
        twin._state = None if self._state is None else self._state.fork()
        twin._pending = list(self._pending)
        twin._counts = copy.deepcopy(self._counts)
        twin._text = self.model.tokenizer.stream()
        twin._text.load_state_dict(self._text.state_dict())
        return twin

    def save(self, path: str | Path) -> None:
        """Write the stream as safetensors, with everything needed to continue it; the file is written atomically."""
        record = {
            "model": fingerprint(self.model.decoder),
            "tokenizer": self.model.tokenizer.hash,
            "pending": self._pending,
            "inputs": self._prefill.inputs,
            "prefixes": self._prefill.prefixes,
            "text": self._text.state_dict(),
            "seed": self.seed,
            "drawn": self._drawn,
            "seen": sorted(self._counts.seen),
            "generated": self._counts.generated,
        }
        state = self._state_with_room(1) if self._state is None else self._state
        save_state(state, path, {STREAM: json.dumps(record)})

    @classmethod
    def load(cls, model: LanguageModel, path: str | Path) -> Self:
        """Continue a saved stream of this model; `UserError` with the reason for any other file."""
        text = read_metadata(path).get(STREAM)
        if text is None:
            load_state(model.decoder, path)  # reports a file that is no state
            raise UserError(f"{path}: a decode state alone, without its stream; expected what a session has saved")
        origin = f"{path}: metadata {STREAM}"
        record = StreamRecord.parse(parse_json(text, origin), origin)
        for field, own in (("model", fingerprint(model.decoder)), ("tokenizer", model.tokenizer.hash)):
            if getattr(record, field) != own:
                expected = "expected one that this model has written, with weights of this precision"
                raise UserError(f"{path}: a stream of another {field}; {expected}")
        rows_of = {"pending": [record.pending], "inputs": record.inputs or [], "generated": [list(record.generated)]}
        for field, rows in rows_of.items():
            if any(token >= model.spec.vocab_size for row in rows for token in row):
                raise UserError(f"{origin}: {field}: expected tokens below {model.spec.vocab_size}")
        session = cls(model)
        session._state, session._pending = load_state(model.decoder, path), list(record.pending)
        session._prefill = PrefillInputs([session._pending], record.inputs, record.prefixes)
        session._text.load_state_dict(record.text.model_dump())
        session.seed, session._drawn = record.seed, record.drawn
        session._counts = TokenCounts({*record.seen, *record.pending}, Counter(record.generated))
        return session

    def _state_with_room(self, max_tokens: int) -> DecoderState:
        """The state, with room for the pending tokens and `max_tokens` more."""
        if self._state is None:
            self._state = new_state(self.model.decoder, [self._pending], max_tokens, self._cache_policy)
        self._state = with_room(self._state, self.tokens + max_tokens)
        return self._state


class TextRecord(Spec):
    """The state of a stream's text decoder: the bytes of an incomplete character, and whether no text was output."""

    held: str = Field(pattern="^([0-9a-f]{2}){0,4}$")
    opening: bool


class StreamRecord(Spec):
    """What is saved of a stream in addition to its decode state."""

    model: str
    tokenizer: str
    pending: list[NonNegativeInt]
    inputs: list[list[NonNegativeInt]] | None = None
    prefixes: tuple[NonNegativeInt, ...] | None = None
    text: TextRecord
    seed: int | None
    drawn: NonNegativeInt
    seen: list[NonNegativeInt] = Field(default_factory=list)
    generated: dict[NonNegativeInt, NonNegativeInt] = Field(default_factory=dict)


def fingerprint(decoder: Decoder) -> str:
    """A hash of parameters of the embedding and the first layer, which distinguishes models of one shape."""
    digest = hashlib.sha256()
    for parameter in (decoder.embedding.tokens.weight, *decoder.layers[0].mixer.parameters()):
        digest.update(parameter.detach().flatten()[:1024].to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()
