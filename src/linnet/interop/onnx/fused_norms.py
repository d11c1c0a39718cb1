"""A residual sum and the root mean square norm behind it as one operation of onnxruntime.

Legend: `D` width.
"""

from typing import TYPE_CHECKING

from linnet.interop.onnx.edges import DOMAIN, Edges, remake

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

OPERATION = "SkipSimplifiedLayerNormalization"
NORM = ("ReduceMean", "Add", "Sqrt", "Div", "Mul")
"""Behind the square: each reads the one before it."""


def fuse_residual_norms(graph: "GraphProto") -> int:
    """Wherever both parts of a sum have one shape, and the gain is a constant `[D]`; how many there were."""
    reader = _Norms(graph)
    norms = {nodes[-2].input[0]: nodes for nodes in map(reader.norm, graph.node) if nodes is not None}
    sums = {node.output[0]: node for node in graph.node if node.op_type == "Add" and reader.alike(node)}
    found = {x: _fused(sums[x], nodes, reader) for x, nodes in norms.items() if x in sums}
    recompute = {norms[x][-1].output[0] for x in found}
    remake(graph, (found.get(node.output[0], node) for node in graph.node if node.output[0] not in recompute))
    return len(found)


class _Norms(Edges):
    """Sums and norms of a graph."""

    def __init__(self, graph: "GraphProto") -> None:
        super().__init__(graph)
        self._shapes = {
            value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in graph.value_info
        }

    def alike(self, node: "NodeProto") -> bool:
        """Whether its inputs have one known shape."""
        first, second = (self._shapes.get(name) for name in node.input)
        return first is not None and first == second and 0 not in first

    def norm(self, square: "NodeProto") -> "list[NodeProto] | None":
        """The nodes behind a square, as `NORM`, of a norm over the last dimension; None where they are others."""
        if square.op_type != "Pow" or self.number(square.input[1]) != 2.0:
            return None
        behind = self.along(square.output[0], NORM)
        if behind is None:
            return None
        mean, added, _, quotient, product = behind
        rank = len(self._shapes.get(square.input[0], []))
        gain = self.constants.get(product.input[1])
        last = self.number(mean.input[1]) in (rank - 1, -1) and self.number(added.input[1]) is not None
        fits = last and quotient.input[0] == square.input[0] and gain is not None and len(gain.dims) == 1
        return [square, *behind] if fits else None


def _fused(added: "NodeProto", norm: "list[NodeProto]", reader: _Norms) -> "NodeProto":
    from onnx import helper

    gain, epsilon = norm[-1].input[1], reader.number(norm[2].input[1])
    outputs = [norm[-1].output[0], "", "", added.output[0]]
    return helper.make_node(OPERATION, [*added.input, gain], outputs, domain=DOMAIN, epsilon=epsilon)
