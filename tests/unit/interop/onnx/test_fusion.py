"""A step with onnxruntime's own operators says what the step says that was written, wherever its weights stand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")


def test_a_folder_in_both_forms(exported: tuple[Path, Any]):
    from linnet.interop.onnx.engine import GraphReader, Graphs

    readers = [GraphReader(Graphs(exported[0], as_written=as_written)) for as_written in (False, True)]
    for token in range(40, 50):
        fused, written = (reader.read([token]) for reader in readers)
        np.testing.assert_allclose(fused, written, atol=1e-5)


def test_each_part_once(exported: tuple[Path, Any]):
    from linnet.interop.onnx.fusion import fuse_step

    model = onnx.load(exported[0] / "model.onnx", load_external_data=False)
    fuse_step(model)
    found = [node.op_type for node in model.graph.node]
    counts = {kind: found.count(kind) for kind in ("GroupQueryAttention", "RotaryEmbedding", "ReduceMean")}
    assert counts == {"GroupQueryAttention": 1, "RotaryEmbedding": 1, "ReduceMean": 1}
    assert found.count("SkipSimplifiedLayerNormalization") == 4, "two layers: all sums but none before the first"
    once = model.SerializeToString()
    fuse_step(model)
    assert model.SerializeToString() == once
