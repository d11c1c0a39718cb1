"""`linnet generate --engine onnx` as a user meets it."""

import json
from pathlib import Path

import pytest
from small_decoders import block, decoder_with_weights, written

from linnet.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["generate", *arguments])
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(
        tmp_path_factory.mktemp("models") / "small", decoder_with_weights([block({"kind": "attention", "heads": 2})])
    )


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--precision", "int8"], "--precision: --engine onnx runs graphs as they were exported; leave it out"),
        (
            ["--cache-policy", "bank"],
            "--cache-policy bank: --engine onnx runs graphs as they were exported; leave it out",
        ),
        ([], "no folder of ONNX graphs (no linnet.json)"),
    ],
)
def test_what_graphs_cannot_do_is_one_line(model: Path, capsys, typed: list[str], message: str):
    code, out, err = run(capsys, str(model), "--engine", "onnx", *typed)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.slow
def test_the_same_text_as_pytorch_in_text_and_in_json(model: Path, tmp_path: Path, capsys):
    pytest.importorskip("onnxruntime")
    from linnet.interop.onnx.export import export_onnx

    graphs = tmp_path / "graphs"
    export_onnx(model, graphs)
    settings = ["--prompt", "Once", "--max-tokens", "40", "--temperature", "0", "--ignore-eos"]
    _, ours, _ = run(capsys, str(model), *settings)
    code, theirs, _ = run(capsys, str(graphs), "--engine", "onnx", *settings)
    assert (code, theirs) == (0, ours)
    _, out, _ = run(capsys, str(graphs), "--engine", "onnx", "--json", *settings)
    assert "Once" + json.loads(out)["text"] == ours.removesuffix("\n")
