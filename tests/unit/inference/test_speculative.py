"""Speculative decoding: the tokens are those without it, whatever is guessed; states are as if nothing had been."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_models import EXAMPLES, VOCABULARY, in_turn, small_decoder

from linnet.inference import compiled_step, cuda_graphs
from linnet.inference.compiled_step import Candidate
from linnet.inference.decode import decode
from linnet.inference.engine import Engine, Request, Stream
from linnet.inference.prefill import new_state
from linnet.inference.prefix_store import PrefixStore
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling, TokenCounts, choose, uniform_numbers
from linnet.inference.speculative import (
    PROBED_PASSES,
    DraftModel,
    PromptLookup,
    Proposer,
    Speculation,
    SpeculationFigures,
    SpeculativeReader,
)
from linnet.inference.step_packages import BUILDS
from linnet.inference.streams import streams_of
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec
from linnet.model.decoder import Decoder
from recorded_steps import record_from_the_first_token

GREEDY, DRAWN = Sampling(temperature=0), Sampling(1.0, top_p=0.9, repetition_penalty=1.2, seed=5)
PROMPT, COUNT = [3, 1, 4, 1, 5, 9, 2, 3, 1, 4], 20


@dataclass
class Oracle:
    """Guesses from a text that is known, of which every n-th token is wrong."""

    tokens: list[int]
    wrong_every: int
    start: int = len(PROMPT)

    def propose(self, text: Sequence[int], most: int) -> list[int]:
        begin = len(text) - self.start
        found = self.tokens[begin : begin + most]
        return [(token + (index % self.wrong_every == 0)) % VOCABULARY for index, token in enumerate(found, begin + 1)]


@dataclass
class Run:
    """A stream with guesses, and what it was made of."""

    reader: SpeculativeReader
    tokens: list[int]


def stream(
    decoder: Decoder,
    proposers: Callable[[TokenCounts], list[Proposer]],
    sampling: Sampling,
    count: int = COUNT,
    most: int = 5,
    stop_ids: tuple[int, ...] = (),
    policy: CachePolicy = FULL,
    taken: int | None = None,
) -> Run:
    """Continue the prompt with guesses; `taken`: how many tokens are taken before it is left."""
    state, counts = new_state(decoder, [PROMPT], count, policy), TokenCounts(set(PROMPT))
    first = CachedReader(decoder, state)
    runs: list[SpeculativeReader] = []

    def logits(tokens_BT: torch.Tensor) -> torch.Tensor:
        if runs:
            return runs[0].logits(int(tokens_BT))
        logits_BV, text = first.logits(tokens_BT), list(PROMPT)
        end = len(PROMPT) + count
        step = first.logits_behind
        runs.append(SpeculativeReader(decoder, state, step, proposers(counts), text, end, most, adapts=False))
        return logits_BV

    tokens = []
    request = Request(PROMPT, count, sampling, stop_ids, counts=counts)
    (continued,) = streams_of([request], logits, decoder.spec.vocab_size, torch.tensor([PROMPT]))
    for event in continued:
        tokens.append(event.token)
        if len(tokens) == taken:
            break
    runs[0].settle()
    return Run(runs[0], tokens)


def alone(decoder: Decoder, sampling: Sampling, count: int = COUNT, **options: object) -> list[int]:
    policy = options.pop("policy", FULL)
    state = new_state(decoder, [PROMPT], count, policy)
    return [t for (t,) in decode(decoder, [PROMPT], count, sampling, state=state, **options) if t is not None]


def draft(decoder: Decoder, sampling: Sampling, room: int = COUNT) -> Callable[[TokenCounts], list[Proposer]]:
    def make(counts: TokenCounts) -> list[Proposer]:
        reader = CachedReader(decoder, decoder.initial_state(1, len(PROMPT) + room))
        prompt = list(PROMPT)
        return [DraftModel(decoder, reader, prompt, len(PROMPT), sampling, counts, min_confidence=0)]

    return make


def assert_settled(run: Run, decoder: Decoder, policy: CachePolicy = FULL) -> None:
    """The state is that of the tokens of the text, whatever the stream has read beside them."""
    text = [*PROMPT, *run.tokens[:-1]]
    assert run.reader.state.position == len(text)
    ours, theirs = run.reader.state.fork(), new_state(decoder, [PROMPT], COUNT, policy)
    more = torch.tensor([[7, 2, 7]])[:, : ours.capacity - ours.position]
    if more.numel():
        with torch.no_grad():
            decoder(torch.tensor([PROMPT]), theirs)
            for token in text[len(PROMPT) :]:
                decoder(torch.tensor([[token]]), theirs)
            torch.testing.assert_close(decoder(more, ours), decoder(more, theirs))


@pytest.mark.parametrize(("mixer", "sampling"), in_turn(greedy=GREEDY, drawn=DRAWN))
def test_every_mixer_gives_the_tokens_without_guesses(mixer: MixerSpec, sampling: Sampling):
    decoder = small_decoder(mixer)
    for kind in decoder.mixers[0].cache_policies:
        for policy in kind.examples() if kind.name != "full" else [FULL]:
            expected = alone(decoder, sampling, policy=policy)
            guesses = Oracle(expected, 4)
            run = stream(decoder, lambda _: [guesses], sampling, policy=policy, taken=COUNT - 4)  # noqa: B023
            assert run.tokens == expected[: COUNT - 4]
            assert run.reader.figures.accepted > COUNT // 2
            assert_settled(run, decoder, policy)


@dataclass
class Sometimes:
    """Every third time no guess, so that ordinary steps and passes take turns."""

    oracle: Oracle
    calls: int = 0

    def propose(self, text: Sequence[int], most: int) -> list[int]:
        self.calls += 1
        return self.oracle.propose(text, most) if self.calls % 3 else []


@pytest.mark.parametrize("mixer", [spec for spec in EXAMPLES if spec == type(spec).examples()[0]], ids=lambda m: m.kind)
def test_steps_of_one_token_and_passes_over_guesses_take_turns_in_float32(mixer: MixerSpec):
    """Steps hold the tensors of the state, which passes and returns to earlier tokens must not replace."""
    decoder, text = small_decoder(mixer).float(), torch.randint(VOCABULARY, (30,)).tolist()
    state = decoder.initial_state(1, len(PROMPT) + 30)
    first = CachedReader(decoder, state)
    with torch.inference_mode():
        expected = decoder.initial_state(1, len(PROMPT) + 30)
        first.logits(torch.tensor([PROMPT]))
        decoder(torch.tensor([PROMPT]), expected)
        expected_TV = decoder(torch.tensor([text]), expected)[0]
    proposers = [Sometimes(Oracle([*text, 0, 0, 0], 4))]  # there is no room for the last ones
    reader = SpeculativeReader(decoder, state, first.logits_behind, proposers, list(PROMPT), 99, 3, adapts=False)
    for index, token in enumerate(text):
        found_1V = reader.logits(token)
        assert state.position == len(PROMPT) + index + 1
        torch.testing.assert_close(found_1V[0], expected_TV[index], rtol=1e-3, atol=1e-3)
    assert 5 < reader.figures.accepted < reader.figures.proposed


@pytest.mark.parametrize(
    ("index", "sampling"),
    [(index, (GREEDY, DRAWN)[number % 2]) for number, index in enumerate(range(0, len(EXAMPLES), 5))],
    ids=lambda value: EXAMPLES[value].kind if isinstance(value, int) else ("drawn" if value is DRAWN else "greedy"),
)
def test_a_draft_of_any_mixer_guesses_without_changing_the_tokens(index: int, sampling: Sampling):
    decoder, other = small_decoder(EXAMPLES[index - 7]), small_decoder(EXAMPLES[index], seed=1)
    expected = alone(decoder, sampling)
    run = stream(decoder, draft(other, sampling), sampling, taken=COUNT - 3)
    assert run.tokens == expected[: COUNT - 3]
    assert run.reader.figures.proposed > 0
    assert_settled(run, decoder)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", ["attention", "mamba2", "rwkv7"])
def test_the_model_itself_as_a_draft_is_always_right(kind: str, sampling: Sampling):
    """It draws with the random numbers and the counts of the stream."""
    mixer = next(spec for spec in EXAMPLES if spec.kind == kind)
    decoder = small_decoder(mixer)
    run = stream(decoder, draft(decoder, sampling), sampling)
    assert run.tokens == alone(decoder, sampling)
    assert run.reader.figures.acceptance_rate == 1
    assert run.reader.figures.passes == 3  # each gives one token more than its five guesses


def test_a_draft_that_was_wrong_goes_back_and_is_right_again():
    """Guesses of the model itself, the second of which is changed: each later one shows what the draft has read."""
    for kind in ("attention", "mamba2"):
        decoder = small_decoder(next(spec for spec in EXAMPLES if spec.kind == kind))
        proposed: list[tuple[int, list[int]]] = []

        class Liar(DraftModel):
            def propose(self, text: Sequence[int], most: int) -> list[int]:
                found = super().propose(text, most)
                proposed.append((len(text) - len(PROMPT), list(found)))  # noqa: B023
                return [*found[:1], (found[1] + 1) % VOCABULARY, *found[2:]] if len(found) > 1 else found

        def make(counts: TokenCounts) -> list[Proposer]:
            reader = CachedReader(decoder, decoder.initial_state(1, len(PROMPT) + COUNT))  # noqa: B023
            return [Liar(decoder, reader, list(PROMPT), len(PROMPT), GREEDY, counts, min_confidence=0)]  # noqa: B023

        expected = alone(decoder, GREEDY)
        run = stream(decoder, make, GREEDY)
        assert run.tokens == expected
        assert 0 < run.reader.figures.accepted < run.reader.figures.proposed
        assert all(found == expected[start : start + len(found)] for start, found in proposed)


def test_a_draft_stops_guessing_where_its_room_ends():
    decoder, expected = small_decoder(), alone(small_decoder(), GREEDY)
    run = stream(decoder, draft(decoder, GREEDY, room=COUNT // 2), GREEDY)
    assert run.tokens == expected
    assert 0 < run.reader.figures.proposed <= COUNT // 2 + 1
    run = stream(decoder, draft(decoder, GREEDY, room=-1), GREEDY)
    assert run.tokens == expected
    assert run.reader.figures.proposed == 0


@pytest.mark.parametrize("kind", ["attention", "mamba2"])
@pytest.mark.parametrize("taken", range(1, 9))
def test_a_stream_may_be_left_at_any_token(kind: str, taken: int):
    decoder = small_decoder(next(spec for spec in EXAMPLES if spec.kind == kind))
    expected = alone(decoder, GREEDY)
    for wrong_every in (3, 100):
        guesses = Oracle(expected, wrong_every)
        run = stream(decoder, lambda _: [guesses], GREEDY, taken=taken)  # noqa: B023
        assert run.tokens == expected[:taken]
        assert_settled(run, decoder)


@pytest.mark.parametrize("place", [1, 3, 4, 5, 9])
def test_a_stop_token_within_the_guesses_ends_the_stream(place: int):
    decoder = small_decoder()
    expected = alone(decoder, GREEDY)
    place = expected.index(expected[place])
    run = stream(decoder, lambda _: [Oracle(expected, 100)], GREEDY, stop_ids=(expected[place],))
    assert run.tokens == expected[:place]


@pytest.mark.parametrize("count", range(1, 12))
def test_max_tokens_within_the_guesses_ends_the_stream_and_no_pass_reads_beyond(count: int):
    """The learned positions of the model, and the room of its state, end with the last token."""
    decoder = small_decoder(EXAMPLES[0], positions="learned")
    decoder.embedding.positions = torch.nn.Embedding.from_pretrained(
        decoder.embedding.positions.weight[: len(PROMPT) + count - 1]
    )
    expected = alone(small_decoder(EXAMPLES[0], positions="learned"), GREEDY)
    run = stream(decoder, lambda _: [Oracle(expected, 100)], GREEDY, count)
    assert run.tokens == expected[:count]


def test_tokens_are_drawn_from_the_distribution_of_the_model():
    """A chi-square test of the two tokens behind a text, of 300 seeds and a vocabulary of 3, guesses right or not."""
    size, seeds, text = 3, 300, [0, 2, 1]
    decoder = small_decoder(vocab_size=size)
    with torch.no_grad():
        logits_BTV = decoder(torch.tensor([[*text, token] for token in range(size)]))
    expected_VV = seeds * logits_BTV[0, -2].softmax(-1)[:, None] * logits_BTV[:, -1].softmax(-1)
    state, found_VV, accepted = decoder.initial_state(1, 9), torch.zeros(size, size), 0
    with torch.inference_mode():
        decoder(torch.tensor([text[:-1]]), state)
    for seed in range(seeds):
        sampling, fork = Sampling(1.0, seed=seed), state.fork()
        uniforms = (torch.tensor([number], dtype=torch.float64) for number in uniform_numbers(seed))
        guess = Oracle([seed % size], 100, start=len(text))
        ordinary = CachedReader(decoder, fork).logits_behind
        reader = SpeculativeReader(decoder, fork, ordinary, [guess], text[:-1], 9, 1, adapts=False)
        first_1 = choose(reader.logits(text[-1]), sampling, next(uniforms))
        second_1 = choose(reader.logits(int(first_1)), sampling, next(uniforms))
        found_VV[int(first_1), int(second_1)] += 1
        accepted += reader.figures.accepted
    assert 0 < accepted < seeds
    assert float(((found_VV - expected_VV) ** 2 / expected_VV).sum()) < 26.1  # the 0.999 quantile, 8 degrees of freedom


def test_lookup_finds_the_longest_earlier_ending_and_of_equal_ones_the_latest():
    lookup = PromptLookup(3)
    assert lookup.propose([1], 3) == []
    assert lookup.propose([1, 2], 3) == []
    assert lookup.propose([1, 2, 3, 1, 2], 3) == [3, 1, 2]
    assert lookup.propose([1, 2, 3, 1, 2, 4, 1, 2], 3) == [4, 1, 2]  # the latest
    assert lookup.propose([1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2], 2) == [4, 1]  # 3 1 2 is longer than 1 2
    assert PromptLookup(9).propose([5, 6, 7, 5, 6], 4) == [7, 5, 6, 7]  # it goes on with itself
    assert PromptLookup(9).propose([8, 4, 4, 4], 3) == [4, 4, 4]
    assert PromptLookup(9).propose([1, 2, 3, 4], 3) == []


class SlowModel:
    """Steps and passes that take a known time on a clock of their own; all logits are of one decoder."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, step_s: float, pass_s: float, decoder: Decoder | None = None
    ) -> None:
        self.now = 0.0
        decoder = decoder or small_decoder()
        self.state = decoder.initial_state(1, 1600)
        monkeypatch.setattr("linnet.inference.speculative.time.perf_counter", lambda: self.now)
        self.reader = SpeculativeReader(decoder, self.state, self.step, [Oracle([1] * 1600, 6, 2)], [1], 1600, 8)
        self.reader._stream._read = self.read
        self.step_s, self.pass_s = step_s, pass_s

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        self.now += self.step_s
        self.state.positions = (self.state.position + 1,)
        return torch.zeros(1, VOCABULARY)

    def read(self, tokens_1T: torch.Tensor) -> torch.Tensor:
        self.now += self.pass_s
        self.state.positions = (self.state.position + tokens_1T.shape[1],)
        return torch.zeros(tokens_1T.shape[1], VOCABULARY)

    def run(self, tokens: int) -> None:
        for _ in range(tokens):
            self.reader.logits(1)


def test_guesses_go_on_where_they_gain_and_the_gain_is_that_of_the_times(monkeypatch: pytest.MonkeyPatch):
    model = SlowModel(monkeypatch, step_s=1.0, pass_s=1.5)
    model.run(500)
    figures = model.reader.figures
    assert figures.pauses == 0
    assert figures.passes > 80
    assert figures.ordinary_s == 1
    assert figures.gain == figures.tokens / (1.5 * figures.passes) > 2.5
    assert model.now < 500 / 2


def test_guesses_that_lose_time_pause_and_are_tried_again_at_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch):
    model = SlowModel(monkeypatch, step_s=1.0, pass_s=30.0)
    model.run(100)
    assert model.reader.figures.passes == 2  # the first one, which also prepares what later ones use, decides nothing
    assert model.reader.figures.pauses == 1
    model.run(1400)
    assert model.reader.figures.pauses > 2
    assert model.now < 1.05 * 1500 + 2 * 30
    assert model.reader.figures.gain < 0.25


@pytest.mark.parametrize("faster_s", [0.05, 0.2], ids=["than all guesses", "than guesses of which some are wrong"])
def test_guesses_end_soon_when_the_step_becomes_faster(faster_s: float, monkeypatch: pytest.MonkeyPatch):
    """It was compiled, say, which the passes are not: they are compared with the step that there is now."""
    model = SlowModel(monkeypatch, step_s=1.0, pass_s=1.1)
    model.run(100)
    figures, model.step_s = model.reader.figures, faster_s
    assert figures.pauses == 0 and figures.gain > 2
    before = figures.passes
    model.run(200)
    assert figures.passes <= before + PROBED_PASSES + 4
    assert figures.ordinary_s == pytest.approx(faster_s)


def test_streams_know_from_earlier_ones_that_a_pass_can_not_gain_until_they_time_it_again(
    monkeypatch: pytest.MonkeyPatch,
):
    decoder = small_decoder()
    SlowModel(monkeypatch, 0.05, 1.0, decoder).run(20)
    for _ in range(3):
        model = SlowModel(monkeypatch, 0.05, 1.0, decoder)
        model.run(100)
        assert model.reader.figures.passes == 0
        assert model.reader.figures.gain is None
    model = SlowModel(monkeypatch, 0.05, 0.1, decoder)  # passes have become faster
    model.run(1500)
    assert model.now > 0.05 * (20 * 1.0 / 0.05 - 400)  # a twentieth of the time
    assert model.reader.figures.passes > 100
    wrong = SlowModel(monkeypatch, 1.0, 1.5, decoder)  # another stream may have better guesses
    wrong.run(100)
    assert wrong.reader.figures.gain > 2


def test_streams_that_try_again_lose_at_most_a_twentieth_with_what_a_draft_takes(monkeypatch: pytest.MonkeyPatch):
    """Such as the reading of the prompt, ten times as long as the pass."""
    decoder, total_s = small_decoder(), 0.0

    class Slow(Oracle):
        def propose(self, text: Sequence[int], most: int) -> list[int]:
            model.now += 10.0
            return super().propose(text, most)

    for stream in range(60):
        model = SlowModel(monkeypatch, 0.05, 1.0, decoder)
        model.reader.proposers = [Slow([1] * 1600, 2)]
        model.run(100)
        total_s += model.now if stream > 1 else 0.0
    assert total_s < 1.1 * 58 * 100 * 0.05


def test_the_gain_of_no_pass_is_not_known():
    assert SpeculationFigures(seconds=0.1, ordinary_s=1.0).gain is None


def test_no_guess_is_made_while_the_next_steps_decide_which_form_goes_on(monkeypatch: pytest.MonkeyPatch):
    model, passes = SlowModel(monkeypatch, step_s=1.0, pass_s=1.5), list[tuple[int, float]]()
    reader = SimpleNamespace(is_comparing=True, count_pass=lambda tokens, spent_s: passes.append((tokens, spent_s)))
    model.reader.reader = reader
    model.run(30)
    assert model.reader.figures.passes == 0
    reader.is_comparing = False
    model.run(1)
    assert passes == [(5, 1.5)] and model.reader.figures.passes == 1


@pytest.mark.parametrize("form", ["compiled", "recorded"])
def test_passes_over_guesses_count_as_decoding_after_which_steps_are_captured(
    form: str, monkeypatch: pytest.MonkeyPatch
):
    decoder = small_decoder(next(spec for spec in EXAMPLES if spec.kind == "mamba2")).float()
    monkeypatch.setattr(BUILDS, "enabled", True)
    candidate = Candidate({}, Path("none"))
    monkeypatch.setattr(compiled_step, "candidate_of", lambda *_: candidate)
    monkeypatch.setattr(Candidate, "look", lambda *_: None)
    if form == "recorded":
        record_from_the_first_token(monkeypatch)
        monkeypatch.setattr(cuda_graphs, "RECORD_AFTER_TOKENS", 10**6)
    expected, reader = alone(decoder, GREEDY), CachedReader(decoder, new_state(decoder, [PROMPT], COUNT))
    with torch.inference_mode():
        reader.logits(torch.tensor([PROMPT]))
        reader.logits(torch.tensor([expected[:1]]))
    pool = cuda_graphs._POOLS.get(decoder)
    before, spent_s = (candidate.tokens, candidate.spent_s) if pool is None else (pool.tokens, 0.0)
    speculation = Speculation([Oracle(expected, 100)], 5, adapts=False)
    speculation.logits(reader, [*PROMPT, *expected[:2]], len(PROMPT) + COUNT)
    assert speculation.figures.passes == 1
    assert (candidate.tokens if pool is None else pool.tokens) == before + 1 + speculation.figures.proposed
    assert pool is not None or candidate.spent_s > spent_s


def test_the_number_of_guesses_follows_how_many_were_right(monkeypatch: pytest.MonkeyPatch):
    model = SlowModel(monkeypatch, step_s=1.0, pass_s=1.0)
    sizes, propose = [], model.reader._propose

    def counted(again: int) -> list[int]:
        sizes.append(len(found := propose(again)))
        return found

    monkeypatch.setattr(model.reader, "_propose", counted)
    model.run(60)
    assert sizes[0] == 4
    assert set(sizes) <= set(range(1, 9))
    assert max(sizes) > 4 > min(sizes)


def engine_stream(
    engine: Engine, proposers: Callable[[TokenCounts], list[Proposer]], sampling: Sampling, **request: object
) -> Stream:
    counts = TokenCounts(PROMPT)
    speculation = Speculation(proposers(counts), 5, adapts=False)
    return engine.submit(Request(PROMPT, COUNT, sampling, counts=counts, speculation=speculation, **request))


@pytest.mark.parametrize("kind", ["attention", "mamba2"])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_an_engine_guesses_for_a_stream_while_it_is_alone(kind: str, sampling: Sampling):
    """Another stream joins in the middle of guesses and leaves; both have the tokens that they have alone."""
    decoder = small_decoder(next(spec for spec in EXAMPLES if spec.kind == kind))
    expected, other = alone(decoder, sampling), [8, 8, 2]
    theirs = [token for (token,) in decode(decoder, [other], 6, GREEDY)]
    for begin in range(1, 7):
        engine, guesses = Engine(decoder), Oracle(expected, 4)
        stream = engine_stream(engine, lambda _: [guesses], sampling)  # noqa: B023
        found = [next(stream).token for _ in range(begin)]
        before = stream.request.speculation.figures.passes
        joined = engine.submit(Request(other, 6, GREEDY))
        assert [event.token for event in joined] == theirs
        assert stream.request.speculation.figures.passes <= before + 1  # the pass in which the other prompt was read
        found += [event.token for event in stream]
        assert found == expected
        assert stream.request.speculation.figures.accepted > 0
        state, text = stream.state, torch.tensor([[*PROMPT, *expected[:-1], 5]])
        alone_state = decoder.initial_state(1, COUNT + len(PROMPT))
        with torch.no_grad():
            decoder(text[:, :-1], alone_state)
            torch.testing.assert_close(decoder(text[:, -1:], state.grown(99)), decoder(text[:, -1:], alone_state))


@pytest.mark.parametrize("kind", ["attention", "mamba2"])
def test_a_prefix_store_gets_states_without_guesses(kind: str):
    decoder = small_decoder(next(spec for spec in EXAMPLES if spec.kind == kind))
    expected, store = alone(decoder, GREEDY), PrefixStore(10**6, 3)
    engine = Engine(decoder, prefixes=store)
    first = engine_stream(engine, lambda _: [Oracle(expected, 4)], GREEDY)
    assert [event.token for event in first] == expected
    for length in range(4, 12):
        longer = [*PROMPT, *expected[:length], 5]
        again = engine.submit(Request(longer, 6, GREEDY))
        assert [event.token for event in again] == [token for (token,) in decode(decoder, [longer], 6, GREEDY)]
        assert again.cached_tokens >= len(longer) - 4


@torch.no_grad()
@pytest.mark.parametrize("kind", ["attention", "mamba2"])
def test_the_state_of_a_running_stream_has_no_guesses(kind: str):
    decoder = small_decoder(next(spec for spec in EXAMPLES if spec.kind == kind))
    expected = alone(decoder, GREEDY)
    stream = engine_stream(Engine(decoder), lambda _: [Oracle(expected, 100)], GREEDY)
    for count in range(1, COUNT):
        next(stream)
        if count % 3 == 0:
            ours, theirs = stream.state, decoder.initial_state(1, 99)
            decoder(torch.tensor([[*PROMPT, *expected[: count - 1]]]), theirs)
            assert ours.positions == theirs.positions
            torch.testing.assert_close(decoder(torch.tensor([[7]]), ours), decoder(torch.tensor([[7]]), theirs))
    assert stream.request.speculation.figures.accepted > 0
