"""The products of linear maps become products in few bits: the head's, and the embedding's look-up, too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_decoders import decoder_with_weights

from linnet.inference.language_model import load
from linnet.interop.onnx.quantize import LOOK_UP, PRODUCT, TABLE, block_of, quantized

onnx = pytest.importorskip("onnx")
LINEAR_MAPS = 2 + 2 + 2 * 2 + 1
"""Attention's two; TED's two; two of each feed-forward, gate and value joined; the head."""


def products_in_floats(graph: Any) -> list[str]:
    """Return the weights of products and embedding lookups that are not quantized."""
    matrices = {tensor.name for tensor in graph.graph.initializer if len(tensor.dims) == 2}
    products = (node for node in graph.graph.node if node.op_type in ("MatMul", "Gemm"))
    left = [name for node in products for name in node.input[1:2] if name in matrices]
    return left + [node.input[0] for node in graph.graph.node if node.op_type == "Gather" and node.input[0] == TABLE]


@pytest.mark.parametrize(("weights", "bits"), [("int4", 4), ("int8", 8)])
def test_no_linear_map_is_left_in_floats(exported: tuple[Path, Any], model: Path, weights: str, bits: int):
    graph = onnx.load(exported[0] / "model.onnx")
    assert len(products_in_floats(graph)) > 1
    small = quantized(graph, weights, load(model, device="cpu").decoder)
    (left,) = products_in_floats(small)
    assert [list(t.dims) for t in small.graph.initializer if t.name == left] == [[32, 1]], "the rates of TED, no map"
    counts = {kind: [n for n in small.graph.node if n.op_type == kind] for kind in (PRODUCT, LOOK_UP)}
    assert (len(counts[PRODUCT]), len(counts[LOOK_UP])) == (LINEAR_MAPS, 1)
    attributes = {a.name: a.i for a in counts[PRODUCT][0].attribute}
    assert (attributes["bits"], attributes["block_size"], attributes["accuracy_level"]) == (bits, 32, 4)


@pytest.mark.parametrize(
    ("weights", "width", "hidden", "block"),
    [("int8", 128, 352, 128), ("int8", 128, 96, 32), ("int8", 96, 352, 32), ("int4", 128, 352, 32)],
)
def test_blocks_are_wide_in_8_bits_where_every_matrix_fills_one(weights: str, width: int, hidden: int, block: int):
    layer = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": hidden}}
    assert block_of(decoder_with_weights([{**layer, "norm": {"kind": "rms"}}], d_model=width), weights) == block


def test_a_tied_head_and_the_look_up_have_the_same_bytes(exported: tuple[Path, Any], model: Path):
    small = quantized(onnx.load(exported[0] / "model.onnx"), "int4", load(model, device="cpu").decoder)
    weights = {tensor.name: tensor.raw_data for tensor in small.graph.initializer}
    (look_up,) = [node for node in small.graph.node if node.op_type == LOOK_UP]
    (head,) = [n for n in small.graph.node if n.op_type == PRODUCT and weights[n.input[1]] == weights[look_up.input[0]]]
    assert weights[head.input[2]] == weights[look_up.input[2]]


def test_the_look_up_gives_the_rows_within_a_step(exported: tuple[Path, Any], model: Path):
    import onnxruntime

    decoder = load(model, device="cpu").decoder
    small = quantized(onnx.load(exported[0] / "model.onnx"), "int4", decoder)
    (look_up,) = [node for node in small.graph.node if node.op_type == LOOK_UP]
    one = onnx.helper.make_graph(
        [look_up],
        "look-up",
        [onnx.helper.make_tensor_value_info(look_up.input[1], onnx.TensorProto.INT64, [1, 3])],
        [onnx.helper.make_tensor_value_info(look_up.output[0], onnx.TensorProto.FLOAT, None)],
        [tensor for tensor in small.graph.initializer if tensor.name in look_up.input],
    )
    proto = onnx.helper.make_model(one, opset_imports=small.opset_import, ir_version=small.ir_version)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    tokens = np.array([[3, 250, 7]])
    (rows,) = session.run(None, {look_up.input[1]: tokens})
    table = decoder.embedding.tokens.weight.detach().numpy()[tokens]
    assert np.abs(rows - table).max() <= np.abs(table).max() / 8
    assert np.abs(rows - table).mean() > 0
