"""Streams of one engine: each gets the tokens that it gets alone, whatever joins, leaves or is read between."""

import pytest
import torch
from small_models import EXAMPLES, small_decoder

from linnet.core.errors import UserError
from linnet.inference.engine import Engine, Request, Stream, decode
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder

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


def tokens(stream: Stream) -> list[int]:
    return [event.token for event in stream]


@pytest.mark.parametrize("kind", ["attention", "ted", "mamba2", "plga", "mlstm"])
def test_streams_that_join_one_after_another_get_the_tokens_that_they_get_alone(kind: str):
    decoder = small_decoder(next(spec for spec in EXAMPLES if spec.kind == kind))
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
    state = first.state
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
        (Request([1], 10**15, GREEDY), "no memory for the state"),
        (Request([1], 1, Sampling(0.0, logit_bias={99: 1.0})), "logit_bias: token id 99"),
    ):
        with pytest.raises(UserError, match=message):
            engine.submit(request)
    assert engine.waiting == 0
