"""Random schedules of one engine: streams join, leave, are cancelled, forked and rewound, and each equals itself alone.

Among them are copies of one prompt, sessions whose text goes on, is taken back and forks, streams with guesses, with
grammars and with log-probabilities. The reference is a loop over the decoder (`stream_reference`). In float64 two ways
of computing the same never choose different tokens; in float32, where native and captured steps run, a token that is
at the border of the choice is right, too.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from small_models import EXAMPLES, VOCABULARY, small_decoder
from stream_reference import Case, alone, assert_alike, counts_behind, letters
from torch import nn

from linnet.inference.constrained import Grammar, constraint_of
from linnet.inference.engine import Engine, Request
from linnet.inference.language_model import LanguageModel
from linnet.inference.prefill import PrefillContext, new_state
from linnet.inference.prefix_store import PrefixStore
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling, TokenCounts
from linnet.inference.session import Session
from linnet.inference.speculative import DraftModel, PromptLookup, Proposer, Speculation
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from recorded_steps import compile_from_the_first_token, record_from_the_first_token

LONGEST = 64
ROTARY = next(spec for spec in EXAMPLES if spec.kind == "attention" and spec.rotary is not None)
GLU = {"kind": "glu", "hidden": 24}


def decoder_of(blocks: list[dict[str, object]], **fields: object) -> Decoder:
    """A decoder of width 16 in float64 with weights that make texts differ."""
    description = {"vocab_size": VOCABULARY, "d_model": 16, "context_length": LONGEST, "blocks": blocks, **fields}
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse(description, "test")).double()
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.4)
    nn.init.normal_(decoder.embedding.tokens.weight)
    return decoder


def first_of(kind: str) -> dict[str, object]:
    return next(spec for spec in EXAMPLES if spec.kind == kind).model_dump()


DECODERS = {
    "rotary": small_decoder(ROTARY),
    "learned": small_decoder(EXAMPLES[0], positions="learned"),
    **{kind: small_decoder(next(spec for spec in EXAMPLES if spec.kind == kind)) for kind in ("ted", "mamba2", "plga")},
    "hybrid": decoder_of(
        [{"mixer": ROTARY.model_dump(), "feed_forward": GLU}, {"mixer": first_of("gated_delta"), "feed_forward": GLU}]
    ),
    "pairs": decoder_of(
        [{"mixer": ROTARY.model_dump(), "cross_attention": {"heads": 2}, "feed_forward": GLU, "repeat": 2}],
        encoder={"blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": GLU}], "norm": {}},
    ),
}

TOKENIZER = letters("abcdefghijklmnopqr")
"""Its vocabulary is smaller than that of the models, whose other tokens may stand in prompts and are never chosen."""

PROMPTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)
TEXTS = st.text("abcd", max_size=4)
PLAIN = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.5, "frequency_penalty": 0.3, "logit_bias": {2: 2.0, 9: -3.0}},
    {"temperature": 1.0, "seed": 3, "presence_penalty": 0.5},
    {"temperature": 1.0, "seed": 4},
]
WARPED = [
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 11},
    {"temperature": 1.3, "min_p": 0.1, "seed": 5, "logit_bias": {4: 1.5}},
    {"temperature": 1.1, "typical_p": 0.8, "repetition_penalty": 1.2, "seed": 6},
]
POLICIES = st.sampled_from(["full", "bank:length=64", "top_k=4"])
GUESSES = st.sampled_from(["none", "none", "text", "right", "wrong"])
REGEXES = st.sampled_from([None, None, "[a-d]{2,5}", "(ab|ba|e+)*"] if find_spec("llguidance") else [None])
LOGPROBS = st.sampled_from([None, None, 0, 2])


@dataclass
class Liar(DraftModel):
    """The model itself, whose every second guess is changed."""

    def propose(self, text: Sequence[int], most: int) -> list[int]:
        found = super().propose(text, most)
        return [(token + place % 2) % VOCABULARY for place, token in enumerate(found)]


@dataclass
class Text:
    """A session on the engine, which of its tokens were generated, and its stream, while there is one."""

    session: Session
    is_generated: list[bool] = field(default_factory=list)
    case: Case | None = None

    def count(self, as_generated: bool) -> None:
        """Note what the new tokens are, and forget those that were taken back."""
        del self.is_generated[self.session.tokens :]
        self.is_generated += [as_generated] * (self.session.tokens - len(self.is_generated))


class Schedules(RuleBasedStateMachine):
    """One engine over one decoder."""

    running, texts = Bundle("running"), Bundle("texts")
    decoders, border, tolerance = DECODERS, 0.0, 1e-5
    samplings = PLAIN + WARPED

    @initialize(
        kind=st.sampled_from(sorted(DECODERS)),
        max_batch=st.integers(1, 4),
        chunk_tokens=st.sampled_from([1, 3, 8, 256, None]),
        snapshot_tokens=st.sampled_from([0, 3, 3]),
    )
    def begin(self, kind: str, max_batch: int, chunk_tokens: int | None, snapshot_tokens: int) -> None:
        self.kind, self.decoder = kind, self.decoders[kind]
        self.model = LanguageModel(self.decoder, TOKENIZER)
        store, size = PrefixStore(10**7, snapshot_tokens) if snapshot_tokens else None, TOKENIZER.vocab_size
        self.engine = Engine(
            self.decoder, vocab_size=size, max_batch=max_batch, chunk_tokens=chunk_tokens, prefixes=store
        )
        self.cases: list[Case] = []

    def sampling(self, data: st.DataObject) -> dict[str, Any]:
        return data.draw(st.sampled_from(self.samplings))

    def submit(self, request: Request, before: list[int], first: int, counts: TokenCounts | None = None) -> Case:
        counts = counts or TokenCounts(request.prompt)
        grammar = None if request.grammar is None else request.grammar.fork()
        policies = request.cache_policy
        if request.state is not None:  # which is not its own any more when it has joined others
            policies = [part.cache_policy for part in request.state.layers]
        case = Case(self.engine.submit(request), before, first, policies, counts, grammar)
        self.cases.append(case)
        return case

    def grammar(self, regex: str | None) -> Grammar | None:
        return None if regex is None else Grammar(TOKENIZER, constraint_of(regex=regex))

    def context(self, prompt: list[int]) -> PrefillContext:
        if self.decoder.encoder is None:
            return PrefillContext()
        return PrefillContext(self.decoder.encode(torch.tensor([prompt[::-1]])))

    def guesses(self, kind: str, request: Request) -> Request:
        """A request with guesses of the text, or of the model itself, which then are right or every second wrong."""
        if kind == "none":
            return request
        counts, proposer = TokenCounts(request.prompt), PromptLookup(4)
        if kind != "text":
            state = self.decoder.initial_state(1, len(request.prompt) + request.max_tokens)
            reader = CachedReader(self.decoder, state, context=request.context)
            draft = {"right": DraftModel, "wrong": Liar}[kind]
            fields = list(request.prompt), len(request.prompt), request.sampling, counts, TOKENIZER.vocab_size
            proposer: Proposer = draft(self.decoder, reader, *fields, min_confidence=0)
        return replace(request, counts=counts, speculation=Speculation([proposer], 4, adapts=False))

    @rule(
        target=running,
        prompt=PROMPTS,
        max_tokens=st.integers(1, 9),
        data=st.data(),
        stop_ids=st.sampled_from([(), (3, 7, 9, 12)]),
        policy=POLICIES,
        guesses=GUESSES,
        regex=REGEXES,
        logprobs=LOGPROBS,
    )
    def join(self, prompt, max_tokens, data, stop_ids, policy, guesses, regex, logprobs):
        fields = {"grammar": self.grammar(regex), "logprobs": logprobs, "context": self.context(prompt)}
        request = Request(prompt, max_tokens, Sampling(**self.sampling(data)), stop_ids, **fields)
        if self.kind == "ted":
            request = replace(request, cache_policy=policy)
        return self.submit(self.guesses(guesses, request), [], len(prompt))

    @rule(
        target=running,
        prompts=st.lists(PROMPTS, min_size=1, max_size=2),
        copies=st.integers(1, 3),
        max_tokens=st.integers(1, 9),
        data=st.data(),
        policy=POLICIES,
    )
    def join_together(self, prompts, copies, max_tokens, data, policy):
        """Prompts that are read as one, each of which several streams continue with seeds of their own."""
        prompts = prompts[:1] if self.decoder.encoder is not None else prompts[: self.engine.max_batch]
        copies = min(copies, self.engine.max_batch // len(prompts))
        policy, sampling = policy if self.kind == "ted" else "full", Sampling(**self.sampling(data))
        rows = [prompt for prompt in prompts for _ in range(copies)]
        requests = [
            Request(prompt, max_tokens - row % 2, replace(sampling, seed=row), cache_policy=policy)
            for row, prompt in enumerate(rows)
            if max_tokens > row % 2
        ]
        if len(requests) < len(rows):
            return multiple()
        context, state = self.context(prompts[0]), new_state(self.decoder, prompts, max_tokens, policy)
        requests = [replace(request, context=context) for request in requests]
        streams = self.engine.submit_together(requests, state, context, copies=copies)
        cases = [
            Case(one, [], len(row), policy, TokenCounts(row), None) for one, row in zip(streams, rows, strict=True)
        ]
        self.cases += cases
        return multiple(*cases)

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @rule(case=running)
    def pull(self, case: Case) -> None:
        case.events += [event for event in [next(case.stream, None)] if event is not None]

    @rule(case=consumes(running))
    def cancel(self, case: Case) -> None:
        before = self.engine.running + self.engine.waiting
        went_on = case.stream.finish_reason is None
        case.stream.cancel()
        assert self.engine.running + self.engine.waiting == before - went_on

    def continued(self, case: Case, state: DecoderState, pending: list[int], data: st.DataObject) -> Case:
        """A stream from the state of another one."""
        text = [*case.before, *case.request.prompt, *case.stream.tokens[len(case.request.prompt) :]]
        sampling = Sampling(**self.sampling(data))
        request = Request(pending, 4, sampling, state=state, context=case.request.context)
        return self.submit(request, text[: state.position], case.first)

    @rule(target=running, case=running, data=st.data())
    def fork(self, case: Case, data: st.DataObject) -> Case:
        stream = case.stream
        if stream.state is None or stream.state.position < case.first or len(case.before) > 30:
            return case
        return self.continued(case, stream.state, list(stream.pending), data)

    @rule(target=running, case=running, data=st.data(), back=st.integers(1, 5))
    def crop(self, case: Case, data: st.DataObject, back: int) -> Case:
        state = case.stream.state
        if state is None or state.position - back < case.first or not state.can_crop(state.position - back):
            return case
        state = state.fork()  # that of a stream that has ended may be the state of a fork that waits
        state.crop(state.position - back)
        return self.continued(case, state, [5, 6], data)

    def new_text(self, policy: str) -> Text:
        own = "abc" if self.decoder.encoder is not None else None
        text = Text(Session(self.model, policy, own, prefixes=self.engine.prefixes))
        text.count(as_generated=False)
        return text

    @rule(target=texts, fed=TEXTS, policy=POLICIES, data=st.data())
    def open(self, fed: str, policy: str, data: st.DataObject) -> Text:
        """A session, whose first text is read and continued."""
        text = self.new_text(policy if self.kind == "ted" else "full")
        self.go_on(text, fed, data)
        return text

    @rule(text=texts, fed=TEXTS, data=st.data())
    def go_on(self, text: Text, fed: str, data: st.DataObject) -> None:
        """Feed a session, and continue it; a continuation that goes on is left."""
        self.leave(text)
        given = {"none": {}, "text": {"prompt_lookup": 4}}.get(data.draw(GUESSES), {"draft": self.model})
        given |= {"regex": data.draw(REGEXES), "logprobs": data.draw(LOGPROBS), "ignore_eos": data.draw(st.booleans())}
        self.generate(text, fed, data.draw(st.integers(1, 9)), **given, **self.sampling(data))

    def generate(self, text: Text, fed: str, max_tokens: int, **given: Any) -> None:
        """Feed a session without a stream, and submit the stream of what follows."""
        text.session.feed(fed)
        text.count(as_generated=False)
        tokens = text.session.token_ids
        if len(tokens) + max_tokens > LONGEST - 14:
            return
        request = text.session.request(max_tokens, **given)
        if (guesses := request.speculation) is not None:
            request = replace(request, speculation=Speculation(guesses.proposers, 4, adapts=False))
        before = tokens[: len(tokens) - len(request.prompt)]
        counts = counts_behind(tokens, text.is_generated)
        text.case = self.submit(request, before, request.first_chunk or len(tokens), counts)

    def leave(self, text: Text) -> None:
        """Let the session take back its state and its last tokens."""
        if text.case is None:
            return
        case, text.case, tokens = text.case, None, text.session.token_ids
        case.stream.cancel()
        case.events += case.stream.events
        text.session.finish(case.stream)
        assert text.session.token_ids == tokens + case.tokens
        text.count(as_generated=True)

    @rule(text=texts, steps=st.integers(0, 6), back=st.integers(1, 7), fed=TEXTS, data=st.data())
    def rewind(self, text: Text, steps: int, back: int, fed: str, data: st.DataObject) -> None:
        """Take back the last tokens of a session, by cropping its state or from a snapshot, and continue it."""
        self.step(steps)
        self.take_back(text, back)
        self.go_on(text, fed, data)

    def take_back(self, text: Text, back: int) -> None:
        self.leave(text)
        text.session.rewind(min(back, text.session.tokens - text.session.beginning))
        text.count(as_generated=False)

    @rule(target=texts, text=texts, fed=TEXTS, data=st.data())
    def fork_text(self, text: Text, fed: str, data: st.DataObject) -> Text:
        self.leave(text)
        twin = Text(text.session.fork(), list(text.is_generated))
        self.go_on(twin, fed, data)
        return twin

    @invariant()
    def rows_are_within_the_limit(self) -> None:
        if hasattr(self, "engine"):
            assert self.engine.running <= self.engine.max_batch

    def teardown(self) -> None:
        while hasattr(self, "engine") and self.engine.step():
            pass
        for case in getattr(self, "cases", ()):
            case.events += case.stream
            expected = alone(self.decoder, case, TOKENIZER.vocab_size, self.border)
            if case.stream.finish_reason == "cancelled":
                expected = expected[: len(case.events)]
            assert_alike(case.events, expected, self.tolerance)
            assert case.stream.finish_reason is not None
        if hasattr(self, "engine"):
            assert (self.engine.running, self.engine.waiting) == (0, 0)


class SchedulesInFloat32(Schedules):
    """The same in float32, where a stream alone may have native steps and a batch compiled ones.

    Sampling drops no tokens, so that what rounding changes is at the border between two tokens.
    """

    decoders, border, tolerance = {kind: copy.deepcopy(one).float() for kind, one in DECODERS.items()}, 1e-4, 1e-3
    samplings = PLAIN


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=10, stateful_step_count=25, deadline=None)


def test_schedules_of_captured_steps_in_float32(monkeypatch: pytest.MonkeyPatch):
    batches = compile_from_the_first_token(monkeypatch)
    few = settings(max_examples=4, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(SchedulesInFloat32, settings=few)
    assert len(batches) > 0


@pytest.mark.parametrize("kind", ["mamba2", "hybrid", "ted"])
def test_sessions_whose_states_cannot_be_cropped_are_rewound_among_each_other(kind: str):
    """They join one batch, leave it, take tokens back to between two snapshots, and join again."""
    schedule = Schedules()
    schedule.begin(kind, max_batch=3, chunk_tokens=3, snapshot_tokens=3)
    texts = [schedule.new_text("bank:length=64" if kind == "ted" else "full") for _ in range(4)]
    for turn, steps in enumerate((6, 9, 7, 8)):
        for text in texts:
            schedule.generate(text, "abcd"[:turn], 9, temperature=1.0, seed=turn)
        schedule.step(steps)
        for index, text in enumerate(texts):
            schedule.take_back(text, 1 + index + turn % 2)
    assert any(text.session._is_dropped for text in texts)
    schedule.teardown()


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Schedules, SchedulesInFloat32])
def test_many_schedules(machine: type[Schedules], monkeypatch: pytest.MonkeyPatch):
    if machine is SchedulesInFloat32:
        compile_from_the_first_token(monkeypatch)
    many = settings(max_examples=150, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(machine, settings=many)


@pytest.mark.slow
def test_schedules_of_recorded_steps(monkeypatch: pytest.MonkeyPatch):
    record_from_the_first_token(monkeypatch)
    few = settings(max_examples=10, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(Schedules, settings=few)
