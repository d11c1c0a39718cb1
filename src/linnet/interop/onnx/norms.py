"""Norms as runtimes know them: a quotient, where the exporter has a product with a reciprocal.

onnxruntime makes one operation of the six of a root mean square norm, but of a `Div` alone. The numbers are as exact.
"""

from typing import TYPE_CHECKING

from linnet.interop.onnx.edges import drop_unread

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


def divide_by_roots(graph: "GraphProto") -> None:
    """`x * (1 / r)` becomes `x / r`, wherever nothing else reads the reciprocal."""
    roots = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Reciprocal"}
    readers: dict[str, list[NodeProto]] = {name: [] for name in roots}
    for node in graph.node:
        for name in readers.keys() & set(node.input):
            readers[name].append(node)
    for name, nodes in readers.items():
        if all(node.op_type == "Mul" and list(node.input).count(name) == 1 for node in nodes):
            for node in nodes:
                (x,) = [other for other in node.input if other != name]
                node.op_type, node.input[:] = "Div", [x, roots[name]]
    drop_unread(graph)
