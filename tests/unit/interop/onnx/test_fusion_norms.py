"""Products with a reciprocal become quotients, of which onnxruntime makes one operation for a norm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet.interop.onnx.fusion import divide_by_roots

onnx = pytest.importorskip("onnx")


def graph_of(*nodes: tuple[str, list[str], str], outputs: list[str]) -> Any:
    made = [onnx.helper.make_node(kind, inputs, [output], name=output) for kind, inputs, output in nodes]
    values = {name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in ("x", *outputs)}
    return onnx.helper.make_graph(made, "small", [values["x"]], [values[name] for name in outputs])


def run(graph: Any) -> list[Any]:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": np.array([2, 3, 5], np.float32)})


def test_either_side_of_a_product_is_divided():
    nodes = [("Exp", ["x"], "r"), ("Reciprocal", ["r"], "i"), ("Mul", ["x", "i"], "left"), ("Mul", ["i", "x"], "right")]
    graph = graph_of(*nodes, outputs=["left", "right"])
    before = run(graph)
    divide_by_roots(graph)
    assert [(node.op_type, *node.input) for node in graph.node] == [("Exp", "x"), ("Div", "x", "r"), ("Div", "x", "r")]
    np.testing.assert_allclose(run(graph), before, rtol=1e-6)


@pytest.mark.parametrize(
    ("last", "outputs"),
    [(("Add", ["x", "i"], "y"), ["y"]), (("Mul", ["i", "i"], "y"), ["y"]), (("Mul", ["x", "i"], "y"), ["y", "i"])],
)
def test_what_is_read_in_another_way_stays(last: tuple[str, list[str], str], outputs: list[str]):
    graph = graph_of(("Reciprocal", ["x"], "i"), last, outputs=outputs)
    before = run(graph)
    divide_by_roots(graph)
    assert "Reciprocal" in [node.op_type for node in graph.node]
    np.testing.assert_allclose(run(graph), before, rtol=1e-6)


def test_onnxruntime_knows_all_norms_of_an_export(exported: tuple[Path, Any], tmp_path: Path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(exported[0] / "model.onnx", options, providers=["CPUExecutionProvider"])
    nodes = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph.node]
    assert nodes.count("SimplifiedLayerNormalization") == 5, "two of each layer, and the head's"
