"""Paths along a graph's edges, and nodes that take the place of others."""

from typing import Any

import numpy as np
import pytest

from linnet.interop.onnx.fusion import Edges, replace_nodes

onnx = pytest.importorskip("onnx")


@pytest.fixture
def graph() -> Any:
    """`x -> Neg -> Abs -> out`, beside it `x -> Exp`, which nobody reads; two constants, of one number and of two."""
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Neg", ["x"], ["less"]), node("Exp", ["x"], ["more"]), node("Abs", ["less"], ["out"])]
    ends = [[value(name, onnx.TensorProto.FLOAT, [1])] for name in ("x", "out")]
    constants = {"one": np.array([2.5], np.float32), "two": np.zeros(2, np.float32)}
    tensors = [onnx.numpy_helper.from_array(content, name) for name, content in constants.items()]
    return onnx.helper.make_graph(nodes, "small", *ends, tensors)


def test_a_path_is_one_that_nobody_else_reads(graph):
    edges = Edges(graph)
    found = edges.along("less", ("Abs",))
    assert found is not None and [one.op_type for one in found] == ["Abs"]
    assert edges.along("less", ("Exp",)) is None and edges.along("out", ("Abs",)) is None
    assert edges.along("x", ("Neg",)) is None  # two read it
    assert edges.makers["out"].op_type == "Abs" and len(edges.readers["x"]) == 2


def test_a_number_is_a_constant_of_one(graph):
    assert [Edges(graph).number(name) for name in ("one", "two", "x")] == [2.5, None, None]


def test_nodes_without_readers_are_removed(graph):
    replace_nodes(graph, [onnx.helper.make_node("Mul", ["x", "one"], ["out"]), *graph.node[:2]])
    assert [one.op_type for one in graph.node] == ["Mul"]
    assert [tensor.name for tensor in graph.initializer] == ["one"]
