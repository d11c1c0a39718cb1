"""A model becomes two graphs that say what it says; what fails the gate leaves nothing."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_decoders import block, decoder_with_weights

from linnet.core.errors import UserError
from linnet.inference.captured_step import PassFunction, StateTensors
from linnet.inference.language_model import load
from linnet.interop.onnx import export, trace
from linnet.interop.onnx.engine import Graphs
from linnet.interop.onnx.export import STEPS, Allowed, export_onnx
from linnet.layers.cache_policy import FULL
from linnet.layers.mixers.ted import BankCache

onnx = pytest.importorskip("onnx")


def test_the_graphs_compute_what_the_model_computes(exported: tuple[Path, Any]):
    parity = exported[1].parity
    assert parity.error < 1e-5 and parity.tokens > STEPS
    assert parity.greedy == 1
    assert parity.graph_bits_per_byte == pytest.approx(parity.bits_per_byte, rel=1e-5)


def test_a_prompt_of_attention_and_ted_may_have_any_length(exported: tuple[Path, Any]):
    assert exported[1].prompt is not None and exported[1].prompt.length is None


def test_both_graphs_share_one_file_of_weights(exported: tuple[Path, Any]):
    folder, report = exported
    both = [onnx.load(folder / name, load_external_data=False) for name in ("model.onnx", "prompt.onnx")]
    places = [
        {(t.dims[0], *(e.value for e in t.external_data)) for t in graph.graph.initializer if t.external_data}
        for graph in both
    ]
    assert places[0] and places[0] == places[1]
    assert all(graph.opset_import[0].version == report.opset["ai.onnx"] for graph in both)


def test_each_graph_contains_its_description(exported: tuple[Path, Any]):
    folder, _ = exported
    graph = onnx.load(folder / "model.onnx", load_external_data=False)
    (entry,) = [prop.value for prop in graph.metadata_props if prop.key == "linnet"]
    said = json.loads(entry)
    assert said == json.loads((folder / "linnet.json").read_text())
    assert [value.name for value in graph.graph.input] == ["tokens", "position", *(s["input"] for s in said["states"])]
    assert [value.name for value in graph.graph.output] == ["logits", *(s["output"] for s in said["states"])]


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("weights", "most"), [("int8", 0.6), ("int4", 0.4)])
def test_few_bits_pass_the_gate_in_less_room(
    model: Path, exported: tuple[Path, Any], tmp_path: Path, weights: str, most: float
):
    report = export_onnx(model, tmp_path / "out", precision=weights, external_above_bytes=1000)
    assert exported[1].parity.error < 1e-5 < report.parity.error
    assert report.parity.bits_per_byte != report.parity.graph_bits_per_byte
    assert report.files["model.onnx.data"] < most * exported[1].files["model.onnx.data"]
    assert report.nodes["MatMulNBits"] > 1 and report.nodes["GroupQueryAttention"] == 1 and "Gemm" not in report.nodes


@pytest.mark.usefixtures("made")
def test_a_graph_that_does_not_run_leaves_nothing(
    model: Path, exported: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(export, "prompt_graph", lambda *_: (onnx.load(exported[0] / "model.onnx"), None))
    with pytest.raises(UserError, match=r"export: float32: onnxruntime cannot run the graphs \(.*tokens"):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("made")
def test_the_model_of_the_caller_stays_as_it_is(model: Path, tmp_path: Path):
    source = load(model, device="cpu")
    source.decoder.double().train()
    before = {name: tensor.clone() for name, tensor in source.decoder.state_dict().items()}
    export_onnx(source, tmp_path / "graphs")
    after = source.decoder.state_dict()
    assert source.decoder.training and all(parameter.requires_grad for parameter in source.decoder.parameters())
    assert all(after[name].dtype == tensor.dtype and after[name].equal(tensor) for name, tensor in before.items())


@pytest.mark.usefixtures("made")
def test_what_fails_the_gate_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(export.ALLOWED, "float32", Allowed(1e-12, 1e-12))
    with pytest.raises(UserError, match=r"logits differ by .* of their spread: expected at most 1e-12"):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("found", "passes"), [(0.2774, True), (0.2784, False), (0.2730, False)])
def test_rounding_may_cost_as_much_where_a_text_is_easy(
    found: float, passes: bool, exported: tuple[Path, Any], model: Path, monkeypatch: pytest.MonkeyPatch
):
    """A share of half a bit per byte, and not of the 0.2757 with which this model predicts its own text."""
    bits = iter([0.2757, found])
    monkeypatch.setattr(export, "bits_per_byte", lambda *_: next(bits))
    source, graphs = load(model, device="cpu"), Graphs(exported[0])
    policies = [FULL] * source.spec.layers
    if passes:
        assert export.check_graphs(source, graphs, policies, "int8").graph_bits_per_byte == found
    else:
        with pytest.raises(UserError, match=r"the model has 0\.2757: expected the same within 0\.0025"):
            export.check_graphs(source, graphs, policies, "int8")


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_graphs_that_are_wrong_do_not_pass_as_rounding(
    model: Path, exported: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
):
    graph = onnx.load(exported[0] / "model.onnx")
    gain = next(tensor for tensor in graph.graph.initializer if tensor.name.endswith("norm.weight"))
    off = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(gain) * 1.01, gain.name)
    gain.CopyFrom(off)
    monkeypatch.setattr(export, "graph_of", lambda step, tokens: graph)
    with pytest.raises(UserError, match=r"export: float32: logits differ by"):
        export_onnx(model, tmp_path / "out", precision=weights)
    assert not list(tmp_path.iterdir())


def test_pieces_are_as_short_as_a_recurrence_wants_them(monkeypatch: pytest.MonkeyPatch):
    def of(each: int) -> Any:
        def made(step: Any, tokens: int) -> Any:
            return SimpleNamespace(graph=SimpleNamespace(node=range(100 + each * (tokens - 1))))

        return made

    found = []
    for each in (0, 10, 20, 40, 160, 1000):
        monkeypatch.setattr(trace, "graph_of", of(each))
        found.append(trace._piece(None, 100))
    assert found == [64, 64, 64, 32, 8, 4]


def test_pieces_are_of_full_length_where_so_few_tokens_are_none(monkeypatch: pytest.MonkeyPatch):
    """No chunk of a bank."""

    def refuses(step: Any, tokens: int) -> Any:
        raise ValueError("chunks of the bank are read as a whole")

    monkeypatch.setattr(trace, "graph_of", refuses)
    assert trace._piece(None, 100) == trace.PIECE


@pytest.mark.usefixtures("made")
def test_a_missing_prompt_graph_is_noted(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told):
    def refuses(step: Any, tokens: int | None) -> Any:
        raise RuntimeError("Error in translating") from NotImplementedError(f"nothing for {tokens} tokens\nat line 3")

    monkeypatch.setattr(export, "prompt_graph", trace.prompt_graph)
    monkeypatch.setattr(trace, "graph_of", refuses)
    report = export_onnx(model, tmp_path / "out")
    why = "PyTorch's exporter cannot follow several tokens (nothing for 64 tokens)"
    assert (report.prompt, report.token_by_token) == (None, why)
    assert told() == [f"{model}: prompt: token by token, because {why}"]
    assert not (tmp_path / "out" / "prompt.onnx").exists()


@pytest.mark.parametrize("weights", ["int2", "bfloat16"])
def test_weights_that_cannot_be_are_refused(model: Path, tmp_path: Path, weights: str):
    with pytest.raises(UserError, match=rf"precision: {weights}: expected one of float32, int8, int4"):
        export_onnx(model, tmp_path / "out", precision=weights)


def test_the_step_of_a_bank_is_followed():
    """Which reads several tokens as whole chunks only, so that the example of its graph is read one by one."""
    decoder = decoder_with_weights([block({"kind": "ted"})])
    graph = trace.graph_of(PassFunction(decoder, StateTensors.of(decoder, 64, BankCache(64))), 1)
    assert {value.name for value in graph.graph.output} > {trace.LOGITS}
