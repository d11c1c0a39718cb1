"""Random schedules of one engine: streams join, leave, are cancelled, forked and rewound, and each equals itself alone.

The reference is a loop over the decoder: the first prompt in one pass, the rest of the text in another, then token by
token.
"""

from dataclasses import dataclass, replace

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
    rule,
    run_state_machine_as_test,
)
from small_models import EXAMPLES, VOCABULARY, small_decoder
from torch import nn

from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.engine import Engine, Request, Stream
from linnet.inference.prefill import PrefillContext
from linnet.inference.prefix_store import PrefixStore
from linnet.inference.sampling import Sampling, adjust, choose, counts_of, row_uniforms
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from recorded_steps import record_from_the_first_token

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

PROMPTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)
SAMPLINGS = st.sampled_from(
    [
        Sampling(0.0),
        Sampling(0.0, repetition_penalty=1.5, frequency_penalty=0.3),
        Sampling(1.0, seed=3),
        Sampling(1.0, seed=4, drawn=2),
        Sampling(0.7, top_k=5, top_p=0.9, seed=11),
    ]
)


@dataclass
class Case:
    """A stream, and what its request was, to compute it again. before: the tokens that its first state had read."""

    stream: Stream
    before: list[int]
    first: int
    tokens: list[int]


@torch.no_grad()
def alone(decoder: Decoder, case: Case) -> list[int]:
    """The tokens of a stream; `first` of its text are read in the first pass."""
    request = case.stream.request
    text = [*case.before, *request.prompt]
    if request.state is None:
        state = cache_policy_state(decoder, 1, len(text) + request.max_tokens, request.cache_policy)
    else:
        policies = [part.cache_policy for part in request.state.layers]
        state = decoder.initial_state(1, len(text) + request.max_tokens, policies)
    parts = [text[: case.first], text[case.first :]]
    memory = request.context.memory
    for part in filter(None, parts):
        hidden = decoder.hidden(torch.tensor([part]), state, memory=memory)
        memory = None
    (counts,), found = counts_of([request.prompt]), []
    uniforms = row_uniforms(request.sampling.seed or 0, 1, request.sampling.drawn)
    while len(found) < request.max_tokens:
        logits_1V = adjust(decoder.logits(hidden[:, -1:])[:, 0], request.sampling, [counts])
        token = int(choose(logits_1V, request.sampling, None if request.sampling.greedy else next(uniforms)))
        if token in request.stop_ids:
            break
        counts.add(token)
        found.append(token)
        hidden = decoder.hidden(torch.tensor([[token]]), state)
    return found


class Schedules(RuleBasedStateMachine):
    """One engine over one decoder."""

    running = Bundle("running")

    @initialize(
        kind=st.sampled_from(sorted(DECODERS)),
        max_batch=st.integers(1, 4),
        chunk_tokens=st.sampled_from([1, 3, 8, 256, None]),
        snapshot_tokens=st.sampled_from([0, 0, 3]),
    )
    def begin(self, kind: str, max_batch: int, chunk_tokens: int | None, snapshot_tokens: int) -> None:
        self.decoder = DECODERS[kind]
        store = PrefixStore(10**7, snapshot_tokens) if snapshot_tokens else None
        self.engine = Engine(self.decoder, max_batch=max_batch, chunk_tokens=chunk_tokens, prefixes=store)
        self.cases: list[Case] = []

    def submit(self, request: Request, before: list[int], first: int) -> Case:
        case = Case(self.engine.submit(request), before, first, [])
        self.cases.append(case)
        return case

    @rule(
        target=running,
        prompt=PROMPTS,
        max_tokens=st.integers(1, 9),
        sampling=SAMPLINGS,
        stop_ids=st.sampled_from([(), (3, 7, 9, 12, 20)]),
        policy=st.sampled_from(["full", "bank:length=64", "top_k=4"]),
    )
    def join(self, prompt: list[int], max_tokens: int, sampling: Sampling, stop_ids: tuple[int, ...], policy: str):
        context = PrefillContext()
        if self.decoder.encoder is not None:
            context = PrefillContext(self.decoder.encode(torch.tensor([prompt[::-1]])))
        request = Request(prompt, max_tokens, sampling, stop_ids, context=context)
        if self.decoder is DECODERS["ted"]:
            request = replace(request, cache_policy=policy)
        return self.submit(request, [], len(prompt))

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @rule(case=running)
    def pull(self, case: Case) -> None:
        case.tokens += [event.token for event in [next(case.stream, None)] if event is not None]

    @rule(case=consumes(running))
    def cancel(self, case: Case) -> None:
        before = self.engine.running + self.engine.waiting
        went_on = case.stream.finish_reason is None
        case.stream.cancel()
        assert self.engine.running + self.engine.waiting == before - went_on

    def continued(self, case: Case, state: DecoderState, pending: list[int], sampling: Sampling) -> Case:
        """A stream from the state of another one."""
        text = [*case.before, *case.stream.request.prompt, *case.stream.tokens[len(case.stream.request.prompt) :]]
        request = Request(pending, 4, sampling, state=state, context=case.stream.request.context)
        return self.submit(request, text[: state.position], case.first)

    @rule(target=running, case=running, sampling=SAMPLINGS)
    def fork(self, case: Case, sampling: Sampling) -> Case:
        stream = case.stream
        if stream.state is None or stream.state.position < case.first or len(case.before) > 30:
            return case
        return self.continued(case, stream.state, list(stream.pending), sampling)

    @rule(target=running, case=running, sampling=SAMPLINGS, back=st.integers(1, 5))
    def rewind(self, case: Case, sampling: Sampling, back: int) -> Case:
        state = case.stream.state
        if state is None or state.position - back < case.first or not state.can_crop(state.position - back):
            return case
        state = state.fork()  # that of a stream that has ended may be the state of a fork that waits
        state.crop(state.position - back)
        return self.continued(case, state, [5, 6], sampling)

    @invariant()
    def rows_are_within_the_limit(self) -> None:
        if hasattr(self, "engine"):
            assert self.engine.running <= self.engine.max_batch

    def teardown(self) -> None:
        while hasattr(self, "engine") and self.engine.step():
            pass
        for case in getattr(self, "cases", ()):
            found = case.tokens + [event.token for event in case.stream]
            expected = alone(self.decoder, case)
            if case.stream.finish_reason == "cancelled":
                expected = expected[: len(found)]
            assert found == expected
            assert case.stream.finish_reason is not None
        if hasattr(self, "engine"):
            assert (self.engine.running, self.engine.waiting) == (0, 0)


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


@pytest.mark.slow
def test_schedules_of_recorded_steps(monkeypatch: pytest.MonkeyPatch):
    record_from_the_first_token(monkeypatch)
    few = settings(max_examples=10, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(Schedules, settings=few)
