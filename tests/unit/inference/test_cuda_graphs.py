"""Recorded decoding steps; what a graph does is done here by running the function again (`recorded_steps`)."""

import gc
from collections.abc import Callable

import pytest
import torch
from small_models import EXAMPLES, small_decoder
from torch import Tensor

from linnet.inference import cuda_graphs
from linnet.inference.cuda_graphs import _POOLS, RecordedGraph, room_for
from linnet.inference.engine import Engine, Request
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder
from on_device import DEVICE
from recorded_steps import record_from_the_first_token, rerun

HYBRID = [next(spec for spec in EXAMPLES if spec.kind == kind) for kind in ("attention", "gated_delta")]


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each recording."""

    def record(function: Callable[[], Tensor], beside: RecordedGraph | None) -> RecordedGraph:
        made = rerun(function, beside)
        rows.append(len(made.out))
        return made

    rows = list[int]()
    record_from_the_first_token(monkeypatch)
    monkeypatch.setitem(cuda_graphs.RECORDERS, "cpu", record)
    return rows


def read(decoder: Decoder, prompt: list[int], capacity: int = 24) -> CachedReader:
    reader = CachedReader(decoder, decoder.initial_state(1, capacity))
    reader.logits(torch.tensor([prompt]))
    return reader


@torch.inference_mode()
@pytest.mark.parametrize("spec", HYBRID, ids=lambda spec: spec.kind)
def test_steps_are_recorded_once_for_all_streams_of_a_shape(spec: object, recordings: list[int]):
    """Streams have buffers to themselves; those of a stream that has ended serve the next one."""
    decoder = small_decoder(spec)
    token = torch.tensor([[5]])
    one, two = read(decoder, [1, 2, 3]), read(decoder, [4, 5])
    for reader in (one, two, one, two):
        expected = decoder.logits(decoder.hidden(token, reader.state.fork()))[:, 0]
        torch.testing.assert_close(reader.logits(token), expected)
    assert recordings == [1, 1]  # at the same time
    two.release()
    kept = two.state.fork().tensors()
    three = read(decoder, [6, 7, 8, 9])
    three.logits(token)
    one.logits(torch.tensor([[1, 2, 3]]))  # an ordinary pass, then recorded steps again
    expected = decoder.logits(decoder.hidden(token, one.state.fork()))[:, 0]
    torch.testing.assert_close(one.logits(token), expected)
    assert recordings == [1, 1]
    for name, tensor in two.state.tensors().items():  # released, so no longer written
        assert torch.equal(tensor, kept[name]), name
    del one, two, three, reader
    gc.collect()
    assert all(buffers.is_free for buffers in _POOLS[decoder].buffers)


@torch.inference_mode()
def test_a_room_that_is_full_is_followed_by_one_of_twice_the_places(recordings: list[int]):
    decoder, token = small_decoder(HYBRID[0]), torch.tensor([[5]])
    reader, alone = read(decoder, [1] * 14, 40), read(decoder, [1] * 14, 40).state
    for _ in range(20):
        torch.testing.assert_close(reader.logits(token), decoder.logits(decoder.hidden(token, alone))[:, 0])
    (buffers,) = _POOLS[decoder].buffers
    assert list(buffers.graphs) == [16, 32, 64] and recordings == [1, 1, 1] and room_for(40) == 64
    for _ in range(6):
        reader.logits(token)
    with pytest.raises(ValueError, match="room for 0"):
        reader.logits(token)


def test_streams_that_join_and_leave_need_few_recordings(recordings: list[int]):
    """Batches of 1 to 5 rows have graphs of 1, 2, 4 and 8, and every stream the tokens that it has alone."""
    decoder = small_decoder(HYBRID[1])
    requests = [Request([1 + n, 2, 3][: 1 + n % 3], 4 + 3 * n, Sampling(0.0)) for n in range(5)]
    engine = Engine(decoder)
    streams = [engine.submit(request) for request in requests]
    found = [[event.token for event in stream] for stream in streams]
    assert sorted(set(recordings)) == sorted(recordings) and set(recordings) <= {1, 2, 4, 8}
    cuda_graphs.BUILDS.enabled = False
    for request, tokens in zip(requests, found, strict=True):
        assert [event.token for event in Engine(decoder).submit(request)] == tokens


@torch.inference_mode()
def test_what_cannot_be_recorded_goes_on_with_ordinary_steps(
    recordings: list[int], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
):
    """After one note; also where the memory is short, and where the weights have been replaced since."""

    def refuse(function: Callable[[], Tensor], beside: RecordedGraph | None) -> RecordedGraph:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    decoder, token = small_decoder(HYBRID[0]), torch.tensor([[5]])
    reader = read(decoder, [1, 2])
    reader.logits(token)
    reader.release()
    decoder.embedding.tokens.weight = torch.nn.Parameter(decoder.embedding.tokens.weight * 2)
    other = read(decoder, [3, 4])
    wanted = decoder.logits(decoder.hidden(token, other.state.fork()))[:, 0]
    torch.testing.assert_close(other.logits(token), wanted)
    assert len(recordings) == 2 and told() == []
    monkeypatch.setattr(cuda_graphs, "available_bytes", lambda device: 0)
    third = read(decoder, [3, 4, 6])
    wanted = decoder.logits(decoder.hidden(token, third.state.fork()))[:, 0]
    torch.testing.assert_close(third.logits(token), wanted)
    assert len(recordings) == 2
    monkeypatch.undo()
    record_from_the_first_token(monkeypatch)
    monkeypatch.setitem(cuda_graphs.RECORDERS, "cpu", refuse)
    fresh = small_decoder(HYBRID[0])
    for _ in range(2):
        reader = read(fresh, [1, 2])
        wanted = fresh.logits(fresh.hidden(token, reader.state.fork()))[:, 0]
        torch.testing.assert_close(reader.logits(token), wanted)
    assert told() == ["decoding steps are not recorded as graphs: operation not permitted"]


@torch.inference_mode()
@pytest.mark.usefixtures("recordings")
def test_nothing_of_an_earlier_stream_is_read():
    """Not even an infinity in a place that is masked."""
    decoder, token = small_decoder(HYBRID[0]), torch.tensor([[5]])
    first = read(decoder, [1, 2, 3])
    first.logits(token)
    for part in first.state.layers:
        for tensor in part.tensors().values():
            tensor.fill_(float("nan"))
    del first, part, tensor
    gc.collect()
    second = read(decoder, [4] * 16, 18)
    wanted = decoder.logits(decoder.hidden(token, second.state.fork()))[:, 0]
    torch.testing.assert_close(second.logits(token), wanted)
    assert len(_POOLS[decoder].buffers) == 1


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@torch.inference_mode()
def test_a_cuda_graph_is_replayed() -> None:
    x = torch.zeros(3, device=DEVICE)
    made = cuda_graphs.record_cuda_graph(lambda: x.add_(1) * 2, None)
    x.zero_()
    made.replay()
    made.replay()
    assert made.out.tolist() == [4.0] * 3
