"""Speculative decoding: one pass of the model reads the next token and guesses of the tokens after it.

A proposer guesses the tokens that follow: from an earlier place of the text (`PromptLookup`), or with a smaller model
(`DraftModel`). The pass gives the logits behind each guess. The next token is then chosen as without speculation, by
the same chain of processors and with the same random number of its seed; if it equals the guess, the logits behind it
are known already, else the model goes back to the last token that was right and the rest of the pass is lost.

So a guess is accepted exactly if it is the token that would be chosen without it, and a stream has the same tokens with
and without speculation, greedy or drawn from a seed. That is stronger than the same distribution, which follows from
it. A guess that does not depend on the random number is accepted with its probability under the model, as by the rule
of Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318). Their rule accepts guesses drawn from a
distribution q with the probability `sum(min(p, q))`, the most that is possible, but changes the tokens of a seed. Here
a draft model draws its guess with the random number of the token, from its own cumulative distribution: both models
choose the same token where its intervals in both distributions overlap, which is a little less often. (Two forms of the
same pass differ by rounding; the tokens differ only where a choice is that close.)

Legend: `T` tokens of a pass, `V` vocabulary.
"""

import copy
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from linnet.core.system import synchronize
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling, TokenCounts, adjust, choose, uniform_numbers
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

LookupKey = tuple[int, int]
"""The two tokens by which `PromptLookup` finds earlier places of a text."""

COMPARED_PLACES = 32
"""Number of latest places of `PromptLookup` whose matches are compared."""

DRAFT_TOKENS = 8
"""Most tokens that a draft model guesses at once."""

MAX_STEPS = 4
"""Tokens that a draft model reads in steps of one token, which are faster than a pass; more are read in one pass."""

MIN_CONFIDENCE = 0.4
"""A draft model stops behind a token of lower probability (as `assistant_confidence_threshold` of Transformers)."""

TIMED_TOKENS = 4
"""Ordinary steps before the first guess; the median of the last `2 * TIMED_TOKENS` is the time of a token."""

MAX_REREAD = 16
"""Tokens that are read again together with the next guesses; more are read in a pass of their own."""

PROBED_PASSES = 16
"""Passes after which one ordinary step is taken, which keeps its time true and lets it be compiled."""

FASTER_FORM = 0.5
"""A step that takes less than this share of the earlier time is of another form, as after it was compiled."""

ALLOWED_LOSS = 4
"""Loss, in ordinary tokens, at which guesses pause."""

PAUSE_FACTOR = 20
"""Times the lost time that ordinary steps take before guesses are tried again: they cost at most a twentieth."""


class Proposer(Protocol):
    """Guesses how a text continues."""

    def propose(self, text: Sequence[int], most: int) -> list[int]:
        """At most `most` tokens that may follow `text`, which continues the text of the last call; none if unsure."""


@dataclass
class PromptLookup:
    """Guesses that the text continues as behind the longest of its endings that occurred before.

    An ending has at least two tokens; of equally long ones the latest place counts. Where the guess reaches the end of
    the text, it goes on with itself, so that a repetition is continued. most: the most tokens of a guess (Transformers'
    `prompt_lookup_num_tokens`).
    """

    most: int
    _places: dict[LookupKey, list[int]] = field(default_factory=lambda: defaultdict(list), init=False)
    _indexed: int = field(default=2, init=False)

    def propose(self, text: Sequence[int], most: int) -> list[int]:
        for end in range(self._indexed, len(text)):  # the last two tokens are no earlier place of themselves
            self._places[text[end - 2], text[end - 1]].append(end)
        self._indexed = max(self._indexed, len(text))
        places = self._places.get((text[-2], text[-1]), []) if len(text) > 1 else []
        if not places:
            return []
        place = max(reversed(places[-COMPARED_PLACES:]), key=lambda end: _match_length(text, end))
        found = list(text[place : place + min(most, self.most)])
        period = len(text) - place
        while len(found) < min(most, self.most):
            found.append(found[len(found) - period])
        return found


def _match_length(text: Sequence[int], end: int) -> int:
    """The number of tokens before `end` that equal those at the end of the text."""
    length = 0
    while length < end and text[end - 1 - length] == text[-1 - length]:
        length += 1
    return length


class Rewindable:
    """One stream of a decoder that can return to any of the tokens that it has read since a mark.

    States that can be cropped are cropped; of all others the mark has a copy of what does not have a place for each
    token. Tensors that steps of one token hold stay the same objects: what a pass puts in their places is copied into
    them.
    """

    def __init__(self, decoder: Decoder, state: DecoderState, read: Callable[[Tensor], Tensor]) -> None:
        """state: has read a prompt. read: from tokens `[1, T]` to logits; it advances the state."""
        self._decoder, self.state, self._read = decoder, state, read
        self._held = [(part, part.tensors()) for part in state.sublayers]
        self.mark()

    def mark(self) -> None:
        """Count the tokens that are read from now on."""
        self.tokens: list[int] = []
        self._position = self.state.position
        self._copies = [
            (part, {name: tensor.clone() for name, tensor in part.tensors().items() if name not in part.room})
            for part in self.state.sublayers
            if not part.can_crop(self._position)
        ]

    def read(self, tokens: Sequence[int]) -> Tensor:
        """The logits of a pass over tokens."""
        logits = self._read(torch.tensor([tokens], device=self._decoder.device))
        self._keep_tensors()
        self.tokens += tokens
        return logits

    def rewind(self, keep: int) -> list[int]:
        """Return to the first `keep` tokens since the mark, or to the mark; the tokens between, to be read again."""
        if keep == len(self.tokens):
            return []
        kept, self.tokens = self.tokens[:keep], []
        if not self._copies:
            self.state.crop(self._position + keep)
            self.tokens = kept
            return []
        for part, tensors in self._copies:
            for name, tensor in tensors.items():
                setattr(part, name, tensor.clone())
        self.state.positions = (self._position,)  # of states that can be cropped, later tokens are overwritten
        self._keep_tensors()
        return kept

    def _keep_tensors(self) -> None:
        for part, tensors in self._held:
            for name, held in tensors.items():
                tensor = getattr(part, name)
                if tensor is not held and tensor is not None and tensor.shape == held.shape:
                    held.copy_(tensor)
                    setattr(part, name, held)


@dataclass
class DraftModel:
    """Guesses tokens with another model, which draws them with the random numbers that will choose them.

    `reader` reads the stream token by token, first `prompt`, which is what the model reads for the first
    `prompt_tokens` tokens of the text, without those that its state has read. sampling: of the stream, with its seed.
    counts: of the stream, which its owner advances.
    """

    decoder: Decoder
    reader: CachedReader
    prompt: list[int]
    prompt_tokens: int
    sampling: Sampling
    counts: TokenCounts
    vocab_size: int | None = None
    min_confidence: float = MIN_CONFIDENCE
    _uniforms: list[float] = field(default_factory=list, init=False)
    _stream: Rewindable | None = field(default=None, init=False)
    _known: int = field(default=0, init=False)
    _more: Iterator[float] = field(init=False)

    def __post_init__(self) -> None:
        assert self.sampling.greedy or self.sampling.seed is not None
        self._more = uniform_numbers(self.sampling.seed or 0, self.sampling.drawn)

    def propose(self, text: Sequence[int], most: int) -> list[int]:
        logits_1V, room = self._catch_up(text), self._room
        if logits_1V is None or self._stream is None:
            return []
        self._stream.mark()
        self._known = len(text)
        found: list[int] = []
        counts = copy.deepcopy(self.counts) if self.sampling.penalizes else self.counts
        while len(found) < min(most, DRAFT_TOKENS, room + 1):
            if found:
                logits_1V = self._stream.read(found[-1:])
            token, confidence = self.guess(logits_1V, counts, len(text) - self.prompt_tokens + len(found))
            found.append(token)
            if self.sampling.penalizes:
                counts.add(token)
            if confidence < self.min_confidence:
                break
        return found

    @torch.inference_mode()
    def settle(self, text: Sequence[int]) -> int | None:
        """Forget the guesses that are not in `text`; how many of its first tokens the state has read then.

        None if the state has read others, to which it cannot return.
        """
        if self._stream is None:
            return self.prompt_tokens - len(self.prompt)
        if self._known > len(text):
            return None
        right = [own == theirs for own, theirs in zip(self._stream.tokens, text[self._known :], strict=False)]
        keep = [*right, False].index(False)
        return self._known + keep - len(self._stream.rewind(keep))

    def guess(self, logits_1V: Tensor, counts: TokenCounts, index: int) -> tuple[int, float]:
        """The generated token number `index` as this model chooses it, and its probability before the warping."""
        adjusted_1V = adjust(logits_1V[:, : self.vocab_size], self.sampling, [counts])
        token = int(choose(adjusted_1V, self.sampling, None if self.sampling.greedy else self._uniform_1(index)))
        return token, float(adjusted_1V.float().softmax(dim=-1)[0, token])

    def _catch_up(self, text: Sequence[int]) -> Tensor | None:
        """Read the text up to its end, from the last token that was guessed right; None if there is no room."""
        if self._stream is None:
            new = [*self.prompt, *text[self.prompt_tokens :]]
        else:
            after = text[self._known : -1]  # the last token is always read: its logits are needed
            right = [own == theirs for own, theirs in zip(self._stream.tokens, after, strict=False)]
            keep = [*right, False].index(False)
            new = [*self._stream.rewind(keep), *text[self._known + keep :]]
        if len(new) > self._room:
            return None
        if self._stream is not None:
            if len(new) > MAX_STEPS:
                return self._stream.read(new)
            for token in new:
                logits_1V = self._stream.read([token])
            return logits_1V
        logits_1V = self.reader.logits(torch.tensor([new], device=self.decoder.device))
        self._stream = Rewindable(self.decoder, self.reader.state, self.reader.logits)
        return logits_1V

    @property
    def _room(self) -> int:
        """How many more tokens can be read: by the capacity of the state, and by learned positions."""
        state, last = self.reader.state, self.reader.state.capacity
        if self.decoder.embedding.positions is not None:
            last = min(last, self.decoder.spec.context_length)
        return last - state.position

    def _uniform_1(self, index: int) -> Tensor:
        """The random number of a token, float64 `[1]`."""
        while len(self._uniforms) <= index:
            self._uniforms.append(next(self._more))
        return torch.tensor([self._uniforms[index]], dtype=torch.float64)


@dataclass
class SpeculationFigures:
    """What speculation did in a stream.

    proposed, accepted: guesses that a pass read, and those that were right. passes: over guesses. tokens: whose logits
    these passes gave. seconds: of these passes, with the time of the proposers and of going back. ordinary_s: the time
    of an ordinary step; None before it is known. pauses: how often guesses were found to lose time.
    """

    proposed: int = 0
    accepted: int = 0
    passes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    ordinary_s: float | None = None
    pauses: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """The share of guesses that were right; None without any."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def gain(self) -> float | None:
        """The time of ordinary steps over that of the passes with guesses, for the same tokens; None if not known."""
        if self.ordinary_s is None or not self.seconds or not self.passes:
            return None
        return self.tokens * self.ordinary_s / self.seconds

    @property
    def label(self) -> str:
        """One line of figures."""
        gain = "" if self.gain is None else f", {self.gain:.2f} times as fast as steps without them"
        pauses = f", {self.pauses} pauses" if self.pauses else ""
        return f"guesses: {self.accepted} of {self.proposed} right in {self.passes} passes{gain}{pauses}"

    def to_dict(self) -> dict[str, float | None]:
        """All figures by name."""
        return {**asdict(self), "acceptance_rate": self.acceptance_rate, "gain": self.gain}


@dataclass
class SpeculativeReader:
    """Gives the logits of one stream token by token, with guesses where they gain time.

    state: has read the text but for its last token. Between two calls its position is true, but its tensors may be
    those behind later guesses (`settle`). ordinary: the step without guesses, from the token as a list to logits
    `[1, V]`, which the next one may overwrite; it advances the state. text: the tokens so far, without the one that is
    read next; it is extended. end: number of tokens of the whole text. proposers: the first with a guess is taken.
    most: the most guesses of a pass. adapts: pause where guesses lose time, and choose their number. reader: whose
    steps `ordinary` takes, if there is one.
    """

    decoder: Decoder
    state: DecoderState
    ordinary: Callable[[Sequence[int]], Tensor]
    proposers: Sequence[Proposer]
    text: list[int]
    end: int
    most: int
    adapts: bool = True
    figures: SpeculationFigures = field(default_factory=SpeculationFigures)
    reader: CachedReader | None = None
    _guesses: list[int] = field(default_factory=list, init=False)
    _logits_TV: Tensor = field(default_factory=lambda: torch.empty(0), init=False)
    _right: int = field(default=0, init=False)
    _begin: int = field(default=0, init=False)
    _pace: "_Pace" = field(init=False)

    def __post_init__(self) -> None:
        self._device = self.decoder.device
        self._stream = Rewindable(self.decoder, self.state, self._pass)
        self._pace = _Pace(self.figures, self.most, _PASSES.setdefault(self.decoder, PassTimes()))

    def logits(self, token: int) -> Tensor:
        """Logits `[1, V]` of one token."""
        self.text.append(token)
        if self._right < len(self._guesses) and self._guesses[self._right] == token:
            self._right += 1
            self.figures.accepted += 1
            self.figures.tokens += 1
            self.state.positions = (self._begin + self._right,)
            return self._logits_TV[[self._right]]
        start_s, again = time.perf_counter(), self._go_back() if self._guesses else []
        guesses = self._propose(len(again)) if self._guesses_now else []
        if guesses or again:
            return self._logits_by_a_pass(token, guesses, again, start_s)
        ordinary_s = time.perf_counter()
        logits_1V = self.ordinary([token])
        self._pace.took(self._now() - ordinary_s, ordinary_s - start_s)
        return logits_1V

    @torch.inference_mode()
    def _logits_by_a_pass(self, token: int, guesses: list[int], again: list[int], start_s: float) -> Tensor:
        """The same, by a pass over tokens that are read again, this token, and guesses; it began at `start_s`."""
        if len(again) > MAX_REREAD:
            self._stream.read(again)
            again = []
        if not again:
            self._stream.mark()
        read_s = time.perf_counter()
        self._logits_TV = self._stream.read([*again, token, *guesses])[len(again) :]
        self._guesses, self._right = guesses, 0
        self.figures.passes += 1
        self.figures.tokens += 1
        self.figures.proposed += len(guesses)
        end_s = self._now()
        self._pace.read(len(guesses), end_s - start_s, end_s - read_s)
        if self.reader is not None:
            self.reader.count_pass(1 + len(guesses), end_s - read_s)
        self._begin = self.state.position - len(guesses)
        self.state.positions = (self._begin,)
        return self._logits_TV[:1]

    @torch.inference_mode()
    def settle(self) -> None:
        """Bring the state to the end of the text: what it has read beyond is forgotten."""
        if self._guesses and (again := self._go_back()):
            self._stream.read(again)

    @property
    def _guesses_now(self) -> bool:
        """True if the next token is to be read with guesses."""
        if not self.adapts:
            return True
        return self._pace.tries and not (self.reader is not None and self.reader.is_comparing)

    @torch.inference_mode()
    def _go_back(self) -> list[int]:
        """Forget the guesses that were not right; the tokens that the state has lost with them."""
        self._pace.ended(self._right)
        self.state.positions = (self._begin + len(self._guesses),)
        ahead, self._guesses = len(self._guesses) - self._right, []
        return self._stream.rewind(len(self._stream.tokens) - ahead)

    @torch.inference_mode()
    def _propose(self, again: int) -> list[int]:
        """Guesses for which there is room behind `again` tokens and the last one, and which the text may still have."""
        room = self.state.capacity - self.state.position - again - 1
        most = min(self._pace.number if self.adapts else self.most, room, self.end - len(self.text) - 1)
        found = (proposer.propose(self.text, most) for proposer in self.proposers)
        return next(filter(None, found), []) if most > 0 else []

    def _pass(self, tokens_1T: Tensor) -> Tensor:
        """The logits `[T, V]` of one pass."""
        return self.decoder.logits(self.decoder.hidden(tokens_1T, self.state))[0]

    def _now(self) -> float:
        """The time after everything that the device has been given."""
        synchronize(self._device)
        return time.perf_counter()


@dataclass
class PassTimes:
    """What streams of a decoder have learned of its passes over guesses.

    seconds: of the last ones, without the first. retry_s: seconds of ordinary steps after which another one may be
    timed although it cannot gain by these times, which may have changed.
    """

    seconds: "deque[float]" = field(default_factory=lambda: deque(maxlen=TIMED_TOKENS))
    retry_s: float = 0.0
    _has_begun: bool = field(default=False, init=False)

    def add(self, seconds: float, spent_s: float) -> None:
        """Add a pass, which took `spent_s` with its guesses; the first one also makes what later ones use."""
        if self._has_begun:
            self.seconds.append(seconds)
            self.retry_s = PAUSE_FACTOR * spent_s
        self._has_begun = True

    def can_gain(self, tokens: int, step_s: float) -> bool:
        """False if a pass that gives so many tokens is slower than their steps, unless it is to be timed again."""
        return not self.seconds or tokens * step_s > min(self.seconds) or self.retry_s <= 0


_PASSES = WeakKeyDictionary[Decoder, PassTimes]()


@dataclass
class _Pace:
    """Decides from times when to guess, and how many tokens.

    A pass gains what ordinary steps would have taken for its tokens, less its own time. Where recent passes lost more
    than `ALLOWED_LOSS` tokens, ordinary steps go on until the loss is a small share of their time. Where the step is so
    fast, as a compiled one, that a pass would lose with all guesses right, other streams do not try again.
    """

    figures: SpeculationFigures
    most: int
    times: PassTimes
    number: int = 4
    _steps_s: "deque[float]" = field(default_factory=lambda: deque(maxlen=2 * TIMED_TOKENS), init=False)
    _balance_s: float = field(default=0.0, init=False)
    _pause_s: float = field(default=0.0, init=False)
    _pass: tuple[int, float] = field(default=(0, 0.0), init=False)
    _passes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.number = min(self.number, self.most)

    @property
    def tries(self) -> bool:
        """True if the next token is to be read with guesses."""
        probes = self._passes % PROBED_PASSES == PROBED_PASSES - 1
        if len(self._steps_s) < TIMED_TOKENS or self._pause_s > 0 or probes or self.figures.ordinary_s is None:
            return False
        return self.times.can_gain(self.most + 1, self.figures.ordinary_s)

    def took(self, step_s: float, lost_s: float) -> None:
        """An ordinary step took `step_s` seconds, behind `lost_s` seconds without a token."""
        if self.figures.ordinary_s is not None and step_s < FASTER_FORM * self.figures.ordinary_s:
            self._steps_s.clear()
            self._balance_s = 0.0
        self._steps_s.append(step_s)
        self._pause_s -= step_s
        self.times.retry_s -= step_s
        self._balance_s -= lost_s
        self._passes += self._passes % PROBED_PASSES == PROBED_PASSES - 1
        self.figures.seconds += lost_s
        self.figures.ordinary_s = sorted(self._steps_s)[(len(self._steps_s) - 1) // 2]

    def read(self, guesses: int, seconds: float, pass_s: float) -> None:
        """A pass over so many guesses took `pass_s`, with all that belongs to it `seconds`."""
        self._pass = guesses, seconds
        self.times.add(pass_s, seconds)
        self._passes += 1
        self.figures.seconds += seconds

    def ended(self, right: int) -> None:
        """So many guesses of the last pass were right."""
        guesses, seconds = self._pass
        self.number = min(2 * guesses, self.most) if right == guesses else max((guesses + right + 1) // 2, 1)
        step_s = self.figures.ordinary_s
        if step_s is None or self._passes == 1:
            return  # the first pass also makes what later ones use
        self._balance_s = 0.9 * self._balance_s + (right + 1) * step_s - seconds
        if self._balance_s < -ALLOWED_LOSS * step_s:
            self._pause_s, self._balance_s = -PAUSE_FACTOR * self._balance_s, 0.0
            self.figures.pauses += 1


@dataclass
class Speculation:
    """Guesses for one stream: what is asked of an engine, and how it went. The fields are those of `SpeculativeReader`.

    Tokens are guessed only while no other stream is in the batch.
    """

    proposers: Sequence[Proposer]
    most: int
    adapts: bool = True
    figures: SpeculationFigures = field(default_factory=SpeculationFigures)
    _reader: SpeculativeReader | None = field(default=None, init=False)

    def logits(self, reader: CachedReader, tokens: Sequence[int], end: int) -> Tensor:
        """Logits `[1, V]` behind the last of `tokens`, which are all of the stream; it ends after `end` tokens."""
        own = self._reader
        if own is None or own.state is not reader.state:
            own = self._reader = SpeculativeReader(
                reader.decoder,
                reader.state,
                reader.logits_behind,
                self.proposers,
                list(tokens[:-1]),
                end,
                self.most,
                self.adapts,
                self.figures,
                reader,
            )
        return own.logits(tokens[-1])

    def settle(self) -> None:
        """Bring the state to the end of the text, before anything but `logits` reads or advances it."""
        if self._reader is not None:
            self._reader.settle()

    def release(self) -> None:
        """`settle`, and forget the state, which the stream is about to leave."""
        self.settle()
        self._reader = None


def speculation_of(prompt_lookup: int, draft: DraftModel | None) -> Speculation:
    """Guesses of up to `prompt_lookup` tokens from the text (0: none), and of a draft model where there are none."""
    proposers: list[Proposer] = [PromptLookup(prompt_lookup)] if prompt_lookup else []
    proposers += [] if draft is None else [draft]
    return Speculation(proposers, max(prompt_lookup, 0 if draft is None else DRAFT_TOKENS))


@dataclass
class KeptDraft:
    """A draft model between two continuations of a session: the tokens that it has read, and its state behind them."""

    decoder: Decoder
    tokens: list[int]
    state: DecoderState

    @classmethod
    def of(cls, speculation: Speculation | None, tokens: Sequence[int]) -> Self | None:
        """What the draft of a continuation that has ended has read of `tokens`; None without a draft or a state."""
        drafts = (one for one in (speculation.proposers if speculation else ()) if isinstance(one, DraftModel))
        draft = next(drafts, None)
        if draft is None or not (read := draft.settle(tokens)) or draft.reader.state.position == 0:
            return None
        return cls(draft.decoder, list(tokens[:read]), draft.reader.state)

    def fork(self) -> Self:
        """An independent copy."""
        return type(self)(self.decoder, list(self.tokens), self.state.fork())

    def state_before(self, tokens: Sequence[int]) -> DecoderState | None:
        """The state, which has read a beginning of `tokens` without the last; None if it cannot go back there.

        Other tokens than those are forgotten.
        """
        most = min(len(self.tokens), len(tokens) - 1)
        same = (index for index in range(most) if self.tokens[index] != tokens[index])
        common = next(same, most)
        length = self.state.position - (len(self.tokens) - common)
        if common == len(self.tokens):
            return self.state
        if common == 0 or not self.state.can_crop(length):
            return None
        self.state.crop(length)
        del self.tokens[common:]
        return self.state
