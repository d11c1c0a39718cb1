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
