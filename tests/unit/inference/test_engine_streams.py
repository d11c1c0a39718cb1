"""Streams of one engine: each gets the tokens that it gets alone, whatever joins, leaves or is read between."""

import gc
import weakref
from collections import deque
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from small_models import EXAMPLES, small_decoder

from linnet.core.errors import UserError
from linnet.inference.decode import decode
from linnet.inference.engine import Engine, Request, Stream
from linnet.inference.native_step import NativeStep
from linnet.inference.prefix_store import PrefixStore
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling
from linnet.inference.speculative import speculation_of
from linnet.inference.streams import Event
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.ted.policies import BankCache
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState
from linnet.ops.native import library

GREEDY = Sampling(temperature=0)
REQUESTS = [
    Request([3, 1, 4], 9, GREEDY),
    Request([1, 5, 9, 2, 6, 5] * 3, 5, Sampling(1.0, seed=3)),
    Request([8], 7, Sampling(0.7, top_k=5, seed=9)),
    Request([2] * 7, 9, Sampling(0.0, repetition_penalty=1.4)),
]


def alone(decoder: Decoder, request: Request) -> list[int]:
    steps = decode(decoder, [request.prompt], request.max_tokens, request.sampling, request.stop_ids)
    return [token for (token,) in steps if token is not None]


def first_of(kind: str) -> Decoder:
    return small_decoder(next(spec for spec in EXAMPLES if spec.kind == kind))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the tokens of all passes so far."""
    shapes, hidden = [], Decoder.hidden
    monkeypatch.setattr(
        Decoder,
        "hidden",
        lambda self, tokens_BT, *given, **named: (
            shapes.append(tuple(tokens_BT.shape)) or hidden(self, tokens_BT, *given, **named)
        ),
    )
    return shapes


def tokens(stream: Stream) -> list[int]:
    return [event.token for event in stream]


@pytest.mark.skipif(library(torch.device("cpu")) is None, reason="no compiler, or another processor")
@pytest.mark.parametrize("request_", REQUESTS, ids=["greedy", "drawn", "top_k", "penalty"])
def test_the_only_stream_has_its_native_steps_and_the_state_and_tokens_of_others(
    request_: Request, monkeypatch: pytest.MonkeyPatch
):
    """Before, with and after a companion; without one, tokens are given to the step as numbers."""
    decoder, tensors = small_decoder(AttentionSpec(heads=2)).float(), []
    by_tensor = NativeStep.logits
    monkeypatch.setattr(NativeStep, "logits", lambda step, token: tensors.append(1) or by_tensor(step, token))
    only = Engine(decoder).submit(replace(request_, logprobs=2))
    events = list(only)
    assert len(tensors) <= 1  # the token with which the native step begins
    with monkeypatch.context() as patched:
        patched.setattr(CachedReader, "logits_behind", lambda reader, tokens: reader.logits(torch.tensor([tokens])))
        expected = Engine(decoder).submit(replace(request_, logprobs=2))
        assert list(expected) == events and len(tensors) >= len(events) - 1
    assert only.finish_reason == expected.finish_reason == "length"
    both = zip(only.state.tensors().values(), expected.state.tensors().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in both) and only.state.positions == expected.state.positions

    engine = Engine(decoder)
    joined = engine.submit(replace(request_, max_tokens=request_.max_tokens + 6))
    first = [next(joined).token for _ in range(4)]
    other = engine.submit(REQUESTS[0])
    first.append(next(joined).token)
    assert engine.running == 2
    other.cancel()
    assert [*first, *tokens(joined)] == alone(decoder, replace(request_, max_tokens=request_.max_tokens + 6))
    assert engine.running == 0 and not engine.step()


@pytest.mark.parametrize("kind", ["attention", "ted", "mamba2", "plga", "mlstm"])
def test_streams_that_join_one_after_another_get_the_tokens_that_they_get_alone(kind: str):
    decoder = first_of(kind)
    engine, streams = Engine(decoder, chunk_tokens=5, max_batch=3), []
    for request in REQUESTS:
        streams.append(engine.submit(request))
        engine.step()
    assert engine.running + engine.waiting == 4
    for request, stream in zip(REQUESTS, streams, strict=True):
        assert tokens(stream) == alone(decoder, request)
        assert stream.finish_reason == "length"
        assert stream.state.positions == (len(request.prompt) + request.max_tokens - 1,)
    assert (engine.running, engine.waiting) == (0, 0)
    assert not engine.step()


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of states of each join so far, of which none is left when it has been made."""
    counts, absorb = list[int](), DecoderState.absorb

    def counted(self: DecoderState, *others: DecoderState) -> DecoderState:
        tensors = [weakref.ref(tensor) for state in (self, *others) for tensor in state.tensors().values()]
        joined = absorb(self, *others)
        assert tensors and not any(tensor() is not None for tensor in tensors)
        counts.append(1 + len(others))
        return joined

    monkeypatch.setattr(DecoderState, "absorb", counted)
    return counts


@pytest.mark.parametrize("kind", ["attention", "ted"])
def test_prompts_that_are_read_in_one_step_join_at_once_and_their_states_are_freed(kind: str, joins: list[int]):
    decoder = first_of(kind)
    engine = Engine(decoder, prefixes=PrefixStore(1 << 20, snapshot_tokens=4))
    request = Request([3, 1, 4, 1, 5, 9, 2, 6, 5], 6, GREEDY)
    first = engine.submit(request)
    engine.step()
    streams = [first, *(engine.submit(request) for _ in range(4))]
    while engine.step():
        pass
    assert joins == [5]
    assert {tuple(tokens(stream)) for stream in streams} == {tuple(alone(decoder, request))}


@pytest.mark.parametrize("kind", ["attention", "ted", "mamba2"])
def test_states_are_freed_when_their_streams_end_and_not_at_the_next_garbage_collection(kind: str):
    engine = Engine(first_of(kind))
    streams = [engine.submit(replace(request, keep_state=False)) for request in REQUESTS[:3]]
    tensors = list[weakref.ref[torch.Tensor]]()
    gc.disable()
    try:
        while engine.step():
            states = {id(stream.rows): stream.rows for stream in streams if stream.rows is not None}
            tensors += [weakref.ref(tensor) for state in states.values() for tensor in state.tensors().values()]
        states = {}
        assert len(tensors) > 3 and not any(tensor() is not None for tensor in tensors)
    finally:
        gc.enable()


def test_streams_whose_join_fails_end_with_its_error_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch):
    decoder = small_decoder()
    engine = Engine(decoder)
    running = [engine.submit(REQUESTS[0])]
    engine.step()
    running.append(engine.submit(REQUESTS[2]))

    def fails(self: DecoderState, *others: DecoderState) -> DecoderState:
        raise MemoryError("no memory for the larger batch")

    with monkeypatch.context() as patch:
        patch.setattr(DecoderState, "absorb", fails)
        engine.step()
    for stream in running:
        with pytest.raises(MemoryError, match="larger batch"):
            tokens(stream)
    assert engine.running == 0
    assert tokens(engine.submit(REQUESTS[0])) == alone(decoder, REQUESTS[0])


@pytest.mark.parametrize("kind", ["attention", "mamba2"])
def test_streams_whose_states_do_not_fit_together_run_in_batches_of_their_own(
    kind: str, passes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    decoder = first_of(kind)
    expected = [alone(decoder, request) for request in REQUESTS]
    engine, available = Engine(decoder), [2**40]
    monkeypatch.setattr("linnet.inference.engine.available_bytes", lambda device: available[0])
    streams = [engine.submit(REQUESTS[0])]
    engine.step()
    streams += [engine.submit(request) for request in REQUESTS[1:3]]
    needed = [decoder.initial_state(1, len(one.prompt) + one.max_tokens).nbytes for one in REQUESTS[:3]]
    available[0] = max(needed)  # of any prompt, but not of two rows
    engine.step(), engine.step()
    passes.clear()
    engine.step()
    assert engine.running == 3 and passes == [(1, 1)] * 3
    available[0] = 2**40
    streams.append(engine.submit(REQUESTS[3]))
    engine.step()
    passes.clear()
    engine.step()
    assert passes == [(4, 1)]
    assert [tokens(stream) for stream in streams] == expected


@pytest.mark.parametrize("kept", ["one", "none"])
def test_without_memory_for_the_state_of_a_stream_that_ends(kept: str, monkeypatch: pytest.MonkeyPatch):
    """It ends with the error alone; where that of the others cannot be copied, all of the batch do."""
    decoder = small_decoder()
    engine, select, calls = Engine(decoder), DecoderState.select, list[int]()
    short = replace(REQUESTS[0], max_tokens=3)
    streams = [engine.submit(short)] + [engine.submit(request) for request in REQUESTS[:3]]
    engine.step(), engine.step()

    def fails(self: DecoderState, rows: torch.Tensor) -> DecoderState:
        calls.append(len(rows))
        if len(calls) == 1 or kept == "none":
            raise MemoryError
        return select(self, rows)

    monkeypatch.setattr(DecoderState, "select", fails)
    if kept == "none":
        (batch,) = engine._batches
        vars(batch.reader)["on_cpu"] = False  # rows that stay are copied
    engine.step()
    monkeypatch.setattr(DecoderState, "select", select)
    with pytest.raises(MemoryError):
        tokens(streams[0])
    for stream, request in zip(streams[1:], REQUESTS, strict=False):
        if kept == "one":
            assert tokens(stream) == alone(decoder, request)
        else:
            with pytest.raises(MemoryError):
                tokens(stream)
    assert engine.running == 0 and not engine.step()


def test_a_fault_behind_a_step_ends_the_streams_and_is_raised(monkeypatch: pytest.MonkeyPatch):
    decoder = small_decoder()
    engine = Engine(decoder)
    streams = [engine.submit(request) for request in (replace(REQUESTS[0], max_tokens=2), REQUESTS[1])]
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(DecoderState, "select", Mock(side_effect=AssertionError("a fault")))
        with pytest.raises(AssertionError, match="a fault"):
            engine.step()
    assert engine.running == 0 and not engine.step()
    assert [stream.finish_reason for stream in streams] == ["length", "error"]
    assert tokens(engine.submit(REQUESTS[0])) == alone(decoder, REQUESTS[0])


def test_a_stream_with_guesses_leaves_its_state_when_it_joins_a_batch():
    decoder = small_decoder()
    engine, speculation = Engine(decoder), speculation_of(3, None)
    stream = engine.submit(Request([1, 2, 1, 2, 1], 9, GREEDY, speculation=speculation))
    engine.step(), engine.step()
    tensors = [weakref.ref(tensor) for tensor in stream.rows.tensors().values()]
    engine.submit(REQUESTS[1])
    engine.step()
    gc.collect()
    assert tensors and not any(tensor() is not None for tensor in tensors)
    assert tokens(stream) == alone(decoder, Request([1, 2, 1, 2, 1], 9, GREEDY))


def test_the_last_event_is_not_lost_when_another_thread_takes_the_last_step():
    class LateEvents(deque):
        """Empty when it is looked at for the first time, just before another thread adds the last event."""

        def __bool__(self) -> bool:
            if stream.finish_reason is None:
                self.append(Event(7))
                stream.finish_reason = "length"
                return False
            return len(self) > 0

    stream = Engine(small_decoder()).submit(REQUESTS[0])
    stream.step = lambda: False
    stream.events = LateEvents()
    assert [event.token for event in stream] == [7]


def test_nothing_is_stored_of_a_pass_that_failed(monkeypatch: pytest.MonkeyPatch):
    """Not even of a stream that was cancelled meanwhile, which has no error."""
    store = PrefixStore(2**40, snapshot_tokens=2)
    engine = Engine(first_of("rglru"), prefixes=store)
    stream = engine.submit(REQUESTS[0])
    engine.step()
    stored = store.counters.inserted

    def fails(*given: object, **named: object) -> torch.Tensor:
        stream.cancel()
        raise RuntimeError("broken")

    monkeypatch.setattr(CachedReader, "logits_behind", fails)
    engine.step()
    assert stream.finish_reason == "cancelled" and store.counters.inserted == stored


def test_a_stream_ends_before_a_stop_id_and_its_state_has_read_all_before_it():
    decoder = small_decoder()
    free = alone(decoder, REQUESTS[0])
    stream = Engine(decoder).submit(Request([3, 1, 4], 9, GREEDY, {free[4]}))
    end = free.index(free[4])
    assert tokens(stream) == free[:end]
    assert (stream.finish_reason, stream.pending) == ("stop", [free[4]])
    assert stream.state.position == 3 + end


def test_a_cancelled_stream_frees_its_row_at_once_and_the_others_go_on():
    decoder = small_decoder()
    engine = Engine(decoder)
    first, second = (engine.submit(request) for request in REQUESTS[:2])
    begun = [next(first).token, next(first).token]
    first.cancel()
    assert (first.finish_reason, engine.running) == ("cancelled", 1)
    assert tokens(first) == []
    assert begun == alone(decoder, REQUESTS[0])[:2]
    assert tokens(second) == alone(decoder, REQUESTS[1])
    assert first.state.position == 4


def test_a_cancelled_stream_does_not_wait_where_its_prompt_is_read_with_others():
    decoder, prompts = small_decoder(), [[1, 2], [3, 4]]
    engine, state = Engine(decoder), decoder.initial_state(2, 6)
    first, second = engine.submit_together([Request(prompt, 4, Sampling(0.0)) for prompt in prompts], state)
    first.cancel()
    assert (engine.waiting, engine.running) == (1, 0)
    assert len(list(second)) == 4 and not list(first)


def test_a_stream_that_is_cancelled_before_its_turn_never_runs():
    engine = Engine(small_decoder(), max_batch=1)
    first, second = (engine.submit(REQUESTS[0]) for _ in range(2))
    next(first)
    second.cancel()
    assert (engine.running, engine.waiting) == (1, 0)
    assert tokens(second) == []
    assert second.state is None


def test_the_state_of_a_request_does_not_change_and_the_stream_has_its_own():
    decoder = small_decoder()
    engine = Engine(decoder)
    first = engine.submit(Request([3, 1, 4], 4, GREEDY))
    begun = tokens(first)
    state = first.state.grown(40)  # with room, so that the engine need not copy it to make some
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    for _ in range(2):
        second = engine.submit(Request(first.pending, 5, GREEDY, state=state))
        assert begun + tokens(second) == alone(decoder, REQUESTS[0])
        assert second.state.position == 11
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())


def test_log_probabilities_are_those_of_the_model():
    decoder = small_decoder()
    bias = Sampling(0.0, logit_bias={7: 100.0})
    (event,) = Engine(decoder).submit(Request([3, 1, 4], 1, bias, logprobs=2))
    with torch.no_grad():
        expected = decoder(torch.tensor([[3, 1, 4]]))[0, -1].log_softmax(0)
    assert event.token == 7
    assert event.logprob == pytest.approx(float(expected[7]), abs=1e-5)
    top = expected.topk(2)
    assert [token for token, _ in event.top] == top.indices.tolist()
    assert [logprob for _, logprob in event.top] == pytest.approx(top.values.tolist(), abs=1e-5)


def test_a_request_that_cannot_be_served_is_refused_at_once():
    engine = Engine(small_decoder())
    for request, message in (
        (Request([], 1, GREEDY), "prompt: empty"),
        (Request([99], 1, GREEDY), "token id 99"),
        (Request([1], 0, GREEDY), "max_tokens: 0"),
        (Request([1], True, GREEDY), "max_tokens: True: expected a whole number, at least 1"),
        (Request([1, -1], 1, GREEDY), "prompt: token id -1: expected 0 to 22, the model's vocabulary"),
        (Request([1, 1.5], 1, GREEDY), "prompt: token id 1.5"),
        (Request([1, True], 1, GREEDY), "prompt: token id True"),
        (Request([[1]], 1, GREEDY), r"prompt: token id \[1\]"),
        (Request("ab", 1, GREEDY), "prompt: 'ab': expected a list of token ids"),
        (Request(5, 1, GREEDY), "prompt: 5: expected a list of token ids"),
        (Request(None, 1, GREEDY), "prompt: None: expected a list of token ids"),
        (Request({1, 2}, 1, GREEDY), "prompt: .*: expected a list of token ids"),
        (Request(iter([1, 2]), 1, GREEDY), "prompt: .*: expected a list of token ids"),
        (Request(torch.tensor([1, 2]), 1, GREEDY), r"prompt: tensor\(\[1, 2\]\): expected a list of token ids"),
        (5, "request: 5: expected a Request"),
        (Request([1], 1, 0.8), "sampling: 0.8: expected a Sampling"),
        (Request([1], 1, GREEDY, 5), "stop_ids: 5: expected token ids"),
        (Request([1], 1, GREEDY, "ab"), "stop_ids: 'ab': expected token ids"),
        (Request([1], 1, GREEDY, state=5), "state: 5: expected a decode state"),
        (Request([1], 1, GREEDY, state=small_decoder().initial_state(2, 9)), "state: of 2 streams: expected that of"),
        (Request([1], 1, GREEDY, cache_policy=5), "cache_policy: 5: expected a CachePolicy"),
        (Request([1], 1, GREEDY, context=5), "context: 5: expected a PrefillContext"),
        (Request([1], 1, GREEDY, counts=5), "counts: 5: expected"),
        (Request([1], 1, GREEDY, grammar=5), "grammar: 5: expected"),
        (Request([1], 1, GREEDY, speculation=5), "speculation: 5: expected"),
        (Request([1], 1, GREEDY, read_tokens=5), "read_tokens: 5: expected a list of token ids"),
        (Request([1], 1, GREEDY, read_tokens=["a"]), "read_tokens: token id 'a': expected 0 to 22"),
        (Request([1], 1, GREEDY, first_chunk=0), "first_chunk: 0: expected at least 1"),
        (Request([1], 1, GREEDY, first_chunk="x"), "first_chunk: 'x': expected a whole number, at least 1"),
        (Request([1], 1, GREEDY, logprobs=-1), "logprobs: -1: expected a number of tokens, from 0 on"),
        (Request([1], 1, GREEDY, logprobs=True), "logprobs: True: expected a number of tokens"),
        (Request([1], 10**15, GREEDY), "no memory for the state"),
        (Request([1], 10**30, GREEDY), "no memory for the state"),
        (Request([1], 1, Sampling(0.0, logit_bias={99: 1.0})), "logit_bias: token id 99"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            engine.submit(request)
        assert "\n" not in str(refused.value)
    assert engine.waiting == 0
    for settings in ({"max_batch": 1.5}, {"max_batch": 0}, {"chunk_tokens": "8"}):
        ((name, value),) = settings.items()
        with pytest.raises(UserError, match=f"^{name}: {value!r}: expected .*at least 1$"):
            Engine(small_decoder(), **settings)
    for size in (-1, 24):
        with pytest.raises(UserError, match=f"^vocab_size: {size}: expected 1 to 23$"):
            Engine(small_decoder(), vocab_size=size)
    with pytest.raises(UserError, match=r"^prefixes: 5: expected a PrefixStore$"):
        Engine(small_decoder(), prefixes=5)
    with pytest.raises(UserError, match=r"^decoder: 'x': expected a decoder"):
        Engine("x")


@pytest.mark.parametrize("wrong", [{"first_chunk": "x"}, {"counts": 5}, {"grammar": 5}, {"read_tokens": ["a"]}])
def test_a_request_with_a_wrong_field_reaches_no_other_stream(wrong: dict[str, object]):
    engine = Engine(small_decoder(), prefixes=PrefixStore(10**7, snapshot_tokens=4))
    others = [engine.submit(REQUESTS[0])]
    with pytest.raises(UserError):
        engine.submit(Request([8, 2], 6, GREEDY, **wrong))
    others.append(engine.submit(REQUESTS[1]))  # its prompt and the first one are read together
    for stream, request in zip(others, REQUESTS, strict=False):
        assert tokens(stream) == alone(engine.decoder, request)


def test_an_engine_tells_of_a_request_that_it_accepts_alone():
    engine, told = Engine(small_decoder()), []
    request = replace(REQUESTS[0], on_accepted=told.append)
    for refused in (replace(request, max_tokens=10**15), replace(request, prompt=[99])):
        with pytest.raises(UserError):
            engine.submit(refused)
    assert not told
    assert tokens(engine.submit(request)) == alone(engine.decoder, request) and told == [request]
    with pytest.raises(ZeroDivisionError):
        engine.submit(replace(request, on_accepted=lambda _: 1 / 0))
    assert engine.waiting == engine.running == 0


@pytest.mark.parametrize("error", [RuntimeError("the device is lost"), TypeError("a wrong argument")], ids=repr)
def test_an_error_that_is_no_lack_of_memory_is_not_called_one(error: Exception, monkeypatch: pytest.MonkeyPatch):
    decoder = small_decoder()

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Decoder, "initial_state", fails)
    with pytest.raises(type(error), match=str(error)):
        Engine(decoder).submit(REQUESTS[0])
    with pytest.raises(type(error), match=str(error)):
        decode(decoder, [[1]], 3, GREEDY)


def test_a_long_prompt_is_read_in_pieces_between_the_tokens_of_the_others(passes: list[tuple[int, ...]]):
    engine = Engine(small_decoder(), chunk_tokens=4)
    first = engine.submit(Request([1, 2, 3], 20, GREEDY))
    next(first)
    second = engine.submit(Request([5] * 10, 3, GREEDY))
    next(second)
    assert passes == [(1, 3), (1, 1), (1, 4), (1, 1), (1, 4), (1, 1), (1, 2)]
    assert len(first.take()) == 3


def test_long_prompts_take_turns_and_a_short_one_does_not_wait_for_their_ends():
    engine = Engine(small_decoder(), chunk_tokens=4)
    long, other, short = (engine.submit(Request([5] * length, 2, GREEDY)) for length in (40, 40, 3))
    next(short)
    assert engine.running == 3
    assert [len(stream.pending) for stream in (long, other)] == [36, 36]


def test_layers_that_calibrate_read_their_prompt_as_one_piece(passes: list[tuple[int, ...]]):
    engine = Engine(first_of("plga"), chunk_tokens=4)
    streams = [engine.submit(Request([5] * 10, 1, GREEDY)), engine.submit(Request([7] * 9, 1, GREEDY))]
    assert [len(tokens(stream)) for stream in streams] == [1, 1]
    assert passes == [(1, 10), (1, 9)]


def test_short_prompts_that_wait_are_read_together(passes: list[tuple[int, ...]]):
    decoder = small_decoder()
    engine = Engine(decoder, chunk_tokens=16)
    requests = [Request(prompt, 3, GREEDY) for prompt in ([1, 2, 3], [4, 5], [6, 7, 8, 9], [10] * 9)]
    streams = [engine.submit(request) for request in requests]
    engine.step()
    assert passes == [(3, 4)], "a fourth row would be more than 16 tokens"
    found = [tokens(stream) for stream in streams]
    assert found == [alone(decoder, request) for request in requests]


def test_streams_with_other_cache_policies_run_in_batches_of_their_own(passes: list[tuple[int, ...]]):
    decoder = first_of("ted")
    engine = Engine(decoder)
    banks = [Request(prompt, 6, GREEDY, cache_policy=BankCache(40)) for prompt in ([1, 2], [3, 4, 5])]
    whole = Request([1, 2], 6, GREEDY)
    streams = [engine.submit(request) for request in (banks[0], whole, banks[1])]
    engine.step()
    passes.clear()
    engine.step()
    assert sorted(passes) == [(1, 1), (2, 1)]
    found = [tokens(stream) for stream in streams]
    assert found == [tokens(Engine(decoder).submit(request)) for request in (banks[0], whole, banks[1])]
    assert {type(part) for part in streams[0].state.layers} != {type(part) for part in streams[1].state.layers}


@pytest.mark.parametrize("other", REQUESTS[:2], ids=["greedy", "drawn"])
def test_a_stream_with_damaged_logits_ends_with_the_error_and_the_others_go_on(
    other: Request, monkeypatch: pytest.MonkeyPatch
):
    decoder = small_decoder()
    engine = Engine(decoder)
    good, bad = (engine.submit(request) for request in (REQUESTS[0], other))
    begun = [next(good).token, next(bad).token]
    logits = Decoder.logits

    def damaged(self: Decoder, x_B1D: torch.Tensor) -> torch.Tensor:
        logits_B1V = logits(self, x_B1D).clone()
        if len(logits_B1V) > 1:
            logits_B1V[1] = torch.nan
        return logits_B1V

    monkeypatch.setattr(Decoder, "logits", damaged)
    assert [begun[0], *tokens(good)] == alone(decoder, REQUESTS[0])
    assert (bad.finish_reason, bad.take()) == ("error", [])
    with pytest.raises(UserError, match="logits are not finite"):
        next(bad)
    assert engine.running == 0


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, seed=3)], ids=["greedy", "drawn"])
def test_a_stream_whose_log_probabilities_fail_ends_alone(sampling: Sampling):
    decoder = small_decoder()
    requests = [Request([3, 1, 4], 6, sampling, logprobs=logprobs) for logprobs in (None, -1, 2)]  # -1: not checked
    engine = Engine(decoder)
    streams = engine.submit_together(requests, decoder.initial_state(3, 9))
    while engine.step():
        pass
    first, bad, last = streams
    assert (bad.finish_reason, bad.take()) == ("error", []) and isinstance(bad.error, RuntimeError)
    for stream in (first, last):
        assert tokens(stream) == alone(decoder, requests[0]) and stream.finish_reason == "length"


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, seed=3)], ids=["greedy", "drawn"])
def test_a_choice_that_fails_ends_its_streams_and_not_the_engine(
    begun: bool, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
):
    request = Request([3, 1, 4], 9, sampling)
    engine = Engine(small_decoder())
    stream = engine.submit(request)
    if begun:
        next(stream)
    for failing in ("choose_tokens", "adjust"):
        with monkeypatch.context() as patched:
            patched.setattr(f"linnet.inference.streams.{failing}", lambda *_: 1 / 0)
            patched.setattr("linnet.inference.streams._uniform_B", lambda *_: 1 / 0)
            engine.step()
    assert isinstance(stream.error, ZeroDivisionError) and engine.running == engine.waiting == 0
    assert tokens(engine.submit(request)) == alone(engine.decoder, request)


def test_a_pass_that_fails_ends_its_streams_and_not_the_engine(monkeypatch: pytest.MonkeyPatch):
    engine = Engine(small_decoder())
    stream = engine.submit(REQUESTS[0])
    next(stream)
    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "hidden", lambda *_, **__: 1 / 0)
        assert engine.step()
    assert isinstance(stream.error, ZeroDivisionError)
    assert len(tokens(engine.submit(REQUESTS[0]))) == 9


@pytest.mark.parametrize("begun", [0, 1, 2])
@pytest.mark.parametrize("stored", [False, True])
def test_ctrl_c_in_a_pass_ends_its_streams_and_not_the_engine(begun: int, stored: bool):
    """Some layers have read a token then, and others have not: nothing may go on with such a state."""
    decoder, passes = first_of("mamba2"), []

    def interrupt(*_: object) -> None:
        passes.append(1)
        if len(passes) == begun + 1:
            raise KeyboardInterrupt

    engine = Engine(decoder, prefixes=PrefixStore(10**7, snapshot_tokens=2) if stored else None)
    stream = engine.submit(REQUESTS[0])
    hook = decoder.mixers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    hook.remove()
    stream.cancel()
    assert stream.finish_reason == "error" and engine.running == engine.waiting == 0
    with pytest.raises(RuntimeError, match="interrupted in the middle of a step"):
        list(stream)
    expected = alone(decoder, REQUESTS[0])
    assert tokens(engine.submit(REQUESTS[0])) == tokens(engine.submit(REQUESTS[0])) == expected


@pytest.mark.parametrize("failing", ["insert", "find"])
def test_without_memory_for_stored_states_streams_go_on(failing: str, monkeypatch: pytest.MonkeyPatch):
    decoder = first_of("mamba2")
    engine = Engine(decoder, prefixes=PrefixStore(10**7, snapshot_tokens=4))
    tokens(engine.submit(REQUESTS[1]))

    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PrefixStore, failing, fails)
    streams = [engine.submit(request) for request in REQUESTS]
    assert [tokens(stream) for stream in streams] == [alone(decoder, request) for request in REQUESTS]


def test_without_memory_for_prompts_together_each_is_read_alone(passes: list[tuple[int, ...]]):
    decoder, requests = small_decoder(), REQUESTS[:1] + REQUESTS[2:]
    expected = [alone(decoder, request) for request in requests]
    engine, initial_state = Engine(decoder), decoder.initial_state

    def scarce(batch: int, *given: object, **named: object) -> DecoderState:
        if batch > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return initial_state(batch, *given, **named)

    decoder.initial_state = scarce
    streams = [engine.submit(request) for request in requests]
    passes.clear()
    engine.step()
    assert sorted(passes) == [(1, 1), (1, 3), (1, 7)]
    assert [tokens(stream) for stream in streams] == expected


@pytest.mark.parametrize("kind", ["attention", "mamba2", "plga"])
def test_a_prompt_begins_with_what_the_prefix_store_has(kind: str):
    decoder, store = first_of(kind), PrefixStore(10**7, snapshot_tokens=4)
    engine = Engine(decoder, chunk_tokens=5, prefixes=store)
    first = Request([3, 1, 4, 1, 5, 9, 2, 6, 5, 3], 6, GREEDY)
    stream = engine.submit(first)
    assert (tokens(stream), stream.cached_tokens) == (alone(decoder, first), 0)
    again = engine.submit(first)
    assert (tokens(again), again.cached_tokens) == (alone(decoder, first), 9)
    other = Request([3, 1, 4, 1, 5, 9, 7, 7], 6, GREEDY)
    edited = engine.submit(other)
    assert (tokens(edited), edited.cached_tokens) == (
        alone(decoder, other),
        {"attention": 6, "mamba2": 4, "plga": 0}[kind],
    )
    longer = Request([*stream.tokens, 8], 6, GREEDY)
    turn = engine.submit(longer)
    assert (tokens(turn), turn.cached_tokens) == (alone(decoder, longer), 0 if kind == "plga" else 15)


def test_a_stream_waits_until_its_state_fits(monkeypatch: pytest.MonkeyPatch):
    decoder = small_decoder()
    room = decoder.initial_state(1, 12).nbytes
    engine = Engine(decoder)
    free = lambda _: 1.5 * room - sum(batch.state.nbytes for batch in engine._batches)  # noqa: E731
    monkeypatch.setattr("linnet.inference.engine.available_bytes", free)
    first, second = (engine.submit(REQUESTS[0]) for _ in range(2))
    next(first)
    next(first)
    assert (engine.running, engine.waiting) == (1, 1)
    assert tokens(second) == alone(decoder, REQUESTS[0])
    with pytest.raises(UserError, match="max_tokens: 1000: no memory for the state of 1003 tokens"):
        engine.submit(Request([3, 1, 4], 1000, GREEDY))
