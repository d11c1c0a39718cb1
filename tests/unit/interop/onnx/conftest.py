"""A small model of attention and TED, and its graphs, made once: the exporter takes seconds."""

from pathlib import Path
from typing import Any

import pytest
from small_decoders import block, decoder_with_weights, written


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    blocks = [block({"kind": "attention", "heads": 2}), block({"kind": "ted"})]
    return written(tmp_path_factory.mktemp("onnx") / "model", decoder_with_weights(blocks))


@pytest.fixture(scope="session")
def exported(model: Path) -> tuple[Path, Any]:
    """The folder of graphs, float32, with weights in a file of their own, and what the gate measured."""
    pytest.importorskip("onnxruntime")
    from linnet.interop.onnx.export import export_onnx

    out = model.parent / "graphs"
    return out, export_onnx(model, out, external_above_bytes=1000)


@pytest.fixture
def made(exported: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter's graphs are those that it made before, and the gate reads fewer tokens."""
    import onnx

    from linnet.interop.onnx import export

    for name in ("STEPS", "PROMPT_TOKENS"):
        monkeypatch.setattr(f"linnet.interop.onnx.export.{name}", 10)
    monkeypatch.setattr(export, "graph_of", lambda step, tokens: onnx.load(exported[0] / "model.onnx"))
    monkeypatch.setattr(export, "prompt_graph", lambda *_: (onnx.load(exported[0] / "prompt.onnx"), None))
