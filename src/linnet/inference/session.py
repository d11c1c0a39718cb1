"""A stream of text that can be fed, continued, forked, saved and loaded."""

import copy
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
from pydantic import Field, NonNegativeInt

from linnet.core.errors import UserError
from linnet.core.files import parse_json
from linnet.core.spec import Spec
from linnet.inference.cache_policy import CachePolicies, cache_policies_of
from linnet.inference.engine import EMPTY, PrefillInputs, Step, decode, new_state
from linnet.inference.language_model import Continuation, LanguageModel
from linnet.inference.sampling import Sampling, fresh_seed
from linnet.inference.state import grow_state, load_state, read_metadata, save_state
from linnet.layers.cache_policy import FULL
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

STREAM = "stream"
"""Key of a state file's metadata: the data of a stream beside its decode state, as JSON."""

ROOM_FACTOR = 1.5
"""A state that has to grow is enlarged at least by this factor, so that it seldom has to."""


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

        `input`: what the text follows from (`LanguageModel.generate`).
        """
        self.model = model
        self._cache_policy = cache_policy
        self._state: DecoderState | None = None
        self._first = model.begun([""], None if input is None else [input])
        (self._pending,) = self._first.prompts
        self._text = model.tokenizer.stream()
        self._seed: int | None = None
        self._drawn = 0

    @property
    def tokens(self) -> int:
        """Tokens of the stream so far, including the end token that begins it and tokens that are not yet read."""
        return len(self._pending) + (0 if self._state is None else self._state.position)

    @property
    def seed(self) -> int | None:
        """The seed whose random numbers were used last; None before the first."""
        return self._seed

    @property
    def nbytes(self) -> int:
        """Bytes of the decode state, as allocated."""
        return 0 if self._state is None else self._state.nbytes

    def feed(self, text: str) -> None:
        """Continue the stream with `text`, which is read in one pass when something is generated."""
        tokens = self.model.tokenizer.encode(text)
        if tokens:
            self._pending += tokens
            self._text = self.model.tokenizer.stream(tokens)

    def generate(
        self,
        max_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        ignore_eos: bool = False,
    ) -> str:
        """The text that follows, up to `max_tokens` tokens or the end of the document; it becomes part of the stream.

        Settings as of `LanguageModel.generate`. `seed` None: continue with the random numbers of the previous seed.
        Raises `UserError` for invalid values, and for more tokens than learned positions.
        """
        return "".join(self.stream(max_tokens, Sampling(temperature, top_k, top_p, seed), ignore_eos))

    def stream(self, max_tokens: int, sampling: Sampling, ignore_eos: bool = False) -> Continuation:
        """`generate` piece by piece, with figures and state; the session advances with the pieces."""
        state, sampling, before = self._room_for(max_tokens), self._drawing(sampling), self.tokens - len(self._pending)
        tokenizer, prompt_tokens = self.model.tokenizer, len(self._pending)
        steps = decode(
            self.model.decoder,
            [self._pending],
            max_tokens,
            sampling,
            set() if ignore_eos else {tokenizer.end_id},
            state=state,
            vocab_size=tokenizer.vocab_size,
            given=EMPTY if state.position else self._first.given(self.model.decoder),
        )
        followed = self._follow(steps, draws=not sampling.greedy)
        return Continuation(
            followed, self._text, prompt_tokens, lambda n: state.held_nbytes(before + n), state, ends=False
        )

    def fork(self) -> Self:
        """An independent copy of the session."""
        twin = copy.copy(self)
        twin._state = None if self._state is None else self._state.fork()
        twin._pending = list(self._pending)
        twin._text = self.model.tokenizer.stream()
        twin._text.load_state_dict(self._text.state_dict())
        return twin

    def save(self, path: str | Path) -> None:
        """Write the stream as safetensors, with everything needed to continue it; the file is written atomically."""
        standing = {
            "model": fingerprint(self.model.decoder),
            "tokenizer": self.model.tokenizer.hash,
            "pending": self._pending,
            "inputs": self._first.inputs,
            "prefixes": self._first.prefixes,
            "text": self._text.state_dict(),
            "seed": self._seed,
            "drawn": self._drawn,
        }
        state = self._room_for(1) if self._state is None else self._state
        save_state(state, path, {STREAM: json.dumps(standing)})

    @classmethod
    def load(cls, model: LanguageModel, path: str | Path) -> Self:
        """Continue a saved stream of this model; `UserError` with the reason for any other file."""
        standing = _standing(path)
        for field, own in (("model", fingerprint(model.decoder)), ("tokenizer", model.tokenizer.hash)):
            if standing is not None and getattr(standing, field) != own:
                expected = "expected one that this model has written, with weights of this precision"
                raise UserError(f"{path}: a stream of another {field}; {expected}")
        for field in ("pending", "inputs") if standing is not None else ():
            if any(token >= model.spec.vocab_size for token in _tokens(getattr(standing, field))):
                raise UserError(f"{path}: metadata {STREAM}: {field}: expected tokens below {model.spec.vocab_size}")
        state = load_state(model.decoder, path)
        if standing is None:
            raise UserError(f"{path}: a decode state alone, without its stream; expected what a session has saved")
        session = cls(model)
        session._state, session._pending = state, list(standing.pending)
        session._first = PrefillInputs([session._pending], standing.inputs, standing.prefixes)
        session._text.load_state_dict(standing.text.model_dump())
        session._seed, session._drawn = standing.seed, standing.drawn
        return session

    def _room_for(self, max_tokens: int) -> DecoderState:
        """The state, with room for the pending tokens and `max_tokens` more."""
        decoder = self.model.decoder
        if self._state is None:
            self._state = new_state(decoder, [self._pending], max_tokens, self._cache_policy)
        needed, room = self.tokens + max_tokens, self._state.capacity
        if needed > room:
            limits = [policy.max_length for policy in cache_policies_of(self._state)]
            spare = min([round(ROOM_FACTOR * room), *(limit for limit in limits if limit is not None)])
            self._state = grow_state(self._state, max(needed, spare))
        return self._state

    def _drawing(self, sampling: Sampling) -> Sampling:
        """The sampling, behind the random numbers that were used."""
        if sampling.seed is not None:
            self._seed, self._drawn = sampling.seed, 0
        elif self._seed is None:
            self._seed = fresh_seed()
        return replace(sampling, seed=self._seed, drawn=self._drawn)

    def _follow(self, steps: Iterator[Step], draws: bool) -> Iterator[Step]:
        """The steps; after each of them its token is pending."""
        for step in steps:
            (token,) = step
            self._pending = [self.model.tokenizer.end_id if token is None else token]
            self._drawn += draws
            yield step


class HeldText(Spec):
    """Where a stream's decoder of text stands: bytes of an unfinished character, and whether anything was said."""

    held: str = Field(pattern="^([0-9a-f]{2}){0,4}$")
    opening: bool


class StreamStanding(Spec):
    """What is kept of a stream beside its decode state."""

    model: str
    tokenizer: str
    pending: list[NonNegativeInt]
    inputs: list[list[NonNegativeInt]] | None = None
    prefixes: tuple[NonNegativeInt, ...] | None = None
    text: HeldText
    seed: int | None
    drawn: NonNegativeInt


def _tokens(kept: list[int] | list[list[int]] | None) -> Iterator[int]:
    for part in kept or ():
        yield from (part,) if isinstance(part, int) else part


def _standing(path: str | Path) -> StreamStanding | None:
    """The data of a stream in a file; None if the file has no stream, `UserError` if it cannot be read."""
    text = read_metadata(path).get(STREAM)
    if text is None:
        return None
    origin = f"{path}: metadata {STREAM}"
    return StreamStanding.parse(parse_json(text, origin), origin)


def fingerprint(decoder: Decoder) -> str:
    """A hash of parameters of the first layer and the embedding, which distinguishes models of one shape."""
    digest = hashlib.sha256()
    for parameter in (decoder.embedding.tokens.weight, *decoder.layers[0].mixer.parameters()):
        digest.update(parameter.detach().flatten()[:1024].to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()
