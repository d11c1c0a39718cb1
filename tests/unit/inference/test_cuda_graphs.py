"""Recorded decoding steps; what a graph does is done here by running the function again (`recorded_steps`)."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import EXAMPLES, small_decoder
from torch import Tensor

from linnet.inference import cuda_graphs, fused_step, step_packages
from linnet.inference.cuda_graphs import _POOLS, RecordedGraph, StepBuffers, room_for
from linnet.inference.engine import Engine, Request
from linnet.inference.readers import CachedReader, finish_captured_steps
from linnet.inference.sampling import Sampling
from linnet.inference.step_packages import BUILDS
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
@pytest.mark.parametrize("reason", ["a step is being loaded", "no memory"])
def test_no_buffers_are_kept_where_a_step_cannot_be_recorded_now(
    reason: str, recordings: list[int], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
):
    """Which is tried again after some tokens."""

    def refuse(function: Callable[[], Tensor], beside: RecordedGraph | None) -> RecordedGraph:
        raise torch.OutOfMemoryError("CUDA out of memory")

    decoder, token, records = small_decoder(HYBRID[0]), torch.tensor([[5]]), cuda_graphs.RECORDERS["cpu"]
    reader = read(decoder, [1, 2])
    alone = reader.state.fork()

    def check_steps(count: int) -> None:
        for _ in range(count):
            torch.testing.assert_close(reader.logits(token), decoder.logits(decoder.hidden(token, alone))[:, 0])

    for name in ("BUSY_TOKENS", "RESERVED_TOKENS"):
        monkeypatch.setattr(cuda_graphs, name, 3)
    if reason == "no memory":
        monkeypatch.setitem(cuda_graphs.RECORDERS, "cpu", refuse)
        check_steps(6)
        monkeypatch.setitem(cuda_graphs.RECORDERS, "cpu", records)
    else:
        with cuda_graphs.LOADING:
            check_steps(6)
    assert _POOLS[decoder].buffers == [] and recordings == []
    check_steps(6)
    assert recordings == [1] and len(_POOLS[decoder].buffers) == 1 and told() == []


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


KINDS = {spec.kind: spec for spec in reversed(EXAMPLES)}


@pytest.fixture
def fusing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Steps are compiled in an empty cache after two recorded tokens, and graphs of compiled ones are the fastest."""
    record_from_the_first_token(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(BUILDS, "processes", {})
    monkeypatch.setattr(cuda_graphs, "LOAD_AFTER_TOKENS", 2)
    monkeypatch.setattr(cuda_graphs, "FUSE_AFTER_TOKENS", 2)
    monkeypatch.setattr(cuda_graphs, "FUSING_DEVICES", {"cpu"})
    monkeypatch.setattr(cuda_graphs, "RESERVED_TOKENS", 1)  # compiled steps are looked for at every token
    monkeypatch.setattr(cuda_graphs, "BUSY_TOKENS", 1)
    monkeypatch.setattr(StepBuffers, "_replay_s", lambda self, graph: float(graph is not self.fused))


def build_without_inductor(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[Tensor], Tensor] = lambda logits_BV: logits_BV
) -> None:
    """Let this process build packages, and PyTorch run their graphs; fault: of the step."""

    def start(request: dict[str, Any], package: Path, _: int) -> bool:
        package.parent.mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(step_packages, "_save_kernels", lambda program, folder, _: graphs.update({folder: program}))
        with torch.inference_mode(False), torch.no_grad():
            step_packages.build(request, package)
        return True

    def open_graph(folder: Path) -> Callable[[list[Tensor]], list[Tensor]]:
        module = step_packages.flat_module(graphs[folder])

        def run(inputs: list[Tensor]) -> list[Tensor]:
            first, *rest = module(*inputs)
            return [fault(first) if folder.name == "step" else first, *rest]

        return run

    graphs = dict[Path, torch.export.ExportedProgram]()
    monkeypatch.setattr(fused_step, "start_build", start)
    monkeypatch.setattr(step_packages, "open_kernels", open_graph)


def check_fused_steps(decoder: Decoder, prompts: list[list[int]], tokens: int = 6) -> StepBuffers:
    """Read tokens before and after the step is compiled; returns the buffers."""
    states = [decoder.initial_state(1, 24) for _ in prompts]
    for state, prompt in zip(states, prompts, strict=True):
        decoder.hidden(torch.tensor([prompt]), state)
    reader = CachedReader(decoder, states[0].join(*states[1:]) if len(states) > 1 else states[0])
    alone = reader.state.fork()
    for step in range(tokens):
        tokens_B1 = torch.tensor([[3 + step + row] for row in range(len(prompts))])
        expected_BV = decoder.logits(decoder.hidden(tokens_B1, alone))[:, 0]
        torch.testing.assert_close(reader.logits(tokens_B1), expected_BV, rtol=1e-4, atol=1e-4)
        if step == 2:
            finish_captured_steps(decoder)
    (buffers,) = _POOLS[decoder].buffers
    assert buffers.fused is not None and list(buffers.fastest.values()) == [buffers.fused]
    for name, tensor in alone.tensors().items():
        torch.testing.assert_close(reader.state.tensors()[name], tensor, rtol=1e-4, atol=1e-4, equal_nan=True)
    return buffers


PROMPTS = {"one row": [[1, 2, 3]], "three rows": [[1, 2, 3], [4, 5], [6]]}


@torch.inference_mode()
@pytest.mark.usefixtures("fusing")
@pytest.mark.slow
@pytest.mark.parametrize("rows", PROMPTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_makes_kernels_for_the_step_of_buffers(kind: str, rows: str, told: Callable[[], list[str]]):
    decoder = small_decoder(KINDS[kind]).float()
    check_fused_steps(decoder, PROMPTS[rows])
    assert [text.split(",")[0] for text in told()] == ["compiling this model's decoding step in the background"]
    fused_step._FUSIONS.clear()  # as another process would find the package
    other = small_decoder(KINDS[kind], seed=1).float()
    check_fused_steps(other, PROMPTS[rows])
    assert told()[1:] == []


@torch.inference_mode()
@pytest.mark.usefixtures("fusing")
@pytest.mark.parametrize("rows", PROMPTS)
@pytest.mark.parametrize("kind", ["s4d", "attention"])
def test_values_of_weights_follow_the_weights(kind: str, rows: str, monkeypatch: pytest.MonkeyPatch):
    """The next stream in the buffers has those of its own weights, which were changed in their places."""
    build_without_inductor(monkeypatch)
    decoder = small_decoder(KINDS[kind]).float()
    buffers = check_fused_steps(decoder, PROMPTS[rows])
    assert buffers.values
    gc.collect()
    for _ in range(2):
        for parameter in decoder.parameters():
            parameter.mul_(0.9)
        assert check_fused_steps(decoder, PROMPTS[rows]) is buffers
        assert buffers.fusion is not None
        buffers.fusion.give_up("it is wrong in other buffers", for_all=False)  # here it goes on


def test_values_never_share_the_memory_of_weights():
    """They are written again when weights have changed, and a weight that was replaced may be somebody's."""

    def make_values(weights: list[Tensor]) -> list[Tensor]:
        return [weights[0].t(), weights[0].exp()]

    weight = torch.randn(2, 3)
    step = fused_step.FusedStep(lambda inputs: inputs, make_values)
    kept, places = weight.clone(), step.values_of([weight])
    assert [place.stride() for place in places] == [(1, 3), (3, 1)]
    step.update(places, [weight * 2])
    assert torch.equal(weight, kept)
    for place, expected in zip(places, make_values([kept * 2]), strict=True):
        torch.testing.assert_close(place, expected)


@torch.inference_mode()
@pytest.mark.usefixtures("fusing")
def test_a_comparison_without_memory_leaves_the_streams_where_they_were(monkeypatch: pytest.MonkeyPatch):
    """Recurrent states, which the replayed step has advanced, go back before anything else reads them."""
    replays = list[int]()

    def record(function: Callable[[], Tensor], beside: RecordedGraph | None) -> RecordedGraph:
        made = rerun(function, beside)

        def replay() -> None:
            made.replay()
            replays.append(len(made.out))
            if len(replays) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")

        return made if beside is None else RecordedGraph(replay, made.out)

    build_without_inductor(monkeypatch)
    monkeypatch.setitem(cuda_graphs.RECORDERS, "cpu", record)
    check_fused_steps(small_decoder(HYBRID[1]).float(), [[1, 2, 3]], 12)
    assert len(replays) > 2


@torch.inference_mode()
@pytest.mark.usefixtures("fusing")
@pytest.mark.parametrize("fault", ["wrong", "refused", "not readable", "not recorded", "no memory"])
def test_without_a_compiled_step_the_recorded_one_goes_on(
    fault: str, told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
):
    def record(function: Callable[[], Tensor], beside: RecordedGraph | None) -> RecordedGraph:
        if beside is not None and fault == "not recorded":
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        return rerun(function, beside)

    def refuse(*_: object) -> bool:
        raise OSError("no such disk")

    def open_wrongly(*_: object) -> None:
        raise ValueError("of another version")

    build_without_inductor(monkeypatch, lambda logits_BV: logits_BV * (1.5 if fault == "wrong" else 1.0))
    if fault == "refused":
        monkeypatch.setattr(fused_step, "start_build", refuse)
    if fault == "not readable":
        monkeypatch.setattr(fused_step, "first_run", open_wrongly)
    monkeypatch.setitem(cuda_graphs.RECORDERS, "cpu", record)
    decoder, token = small_decoder(HYBRID[0]).float(), torch.tensor([[5]])
    reader = read(decoder, [1, 2])
    alone = reader.state.fork()
    if fault == "no memory":
        monkeypatch.setattr(cuda_graphs, "available_bytes", lambda device: cuda_graphs.CONTEXT_BYTES)
    for step in range(6):
        torch.testing.assert_close(reader.logits(token), decoder.logits(decoder.hidden(token, alone))[:, 0])
        if step == 2:
            finish_captured_steps(decoder)
    (buffers,) = _POOLS[decoder].buffers
    assert buffers.fused is None and list(buffers.fastest.values()) == list(buffers.graphs.values())
    reasons = {
        "wrong": "the compiled step is not used: logits differ by",
        "refused": "the compiled step is not used: OSError: no such disk",
        "not readable": "the compiled step is not used: ValueError: of another version",
        "not recorded": "the step compiled for the GPU is not recorded: operation not permitted",
    }
    notes = told()
    assert len(notes) == (fault in reasons) and all(reasons[fault] in text for text in notes)
    if fault in ("wrong", "not readable"):  # no process tries again today
        assert buffers.fusion is not None and buffers.fusion.package.with_suffix(".failed").is_file()


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@torch.inference_mode()
def test_a_cuda_graph_is_replayed() -> None:
    x = torch.zeros(3, device=DEVICE)
    made = cuda_graphs.record_cuda_graph(lambda: x.add_(1) * 2, None)
    x.zero_()
    made.replay()
    made.replay()
    assert made.out.tolist() == [4.0] * 3
