"""Along the edges of a graph, and what is put in the place of its nodes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

DOMAIN = "com.microsoft"
"""Of onnxruntime's own operators."""


class Edges:
    """Which node makes a tensor, which nodes read it, and which tensors are constants, by name."""

    def __init__(self, graph: "GraphProto") -> None:
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}

    def along(self, name: str, kinds: Sequence[str]) -> "list[NodeProto] | None":
        """The nodes of a path of these kinds behind a tensor, on which nobody else reads; None: there is none."""
        nodes: list[NodeProto] = []
        for kind in kinds:
            readers = self.readers.get(name, [])
            if len(readers) != 1 or readers[0].op_type != kind:
                return None
            nodes += readers
            name = nodes[-1].output[0]
        return nodes

    def number(self, name: str) -> float | None:
        """A constant of one number; None for anything else."""
        from onnx import numpy_helper

        tensor = self.constants.get(name)
        if tensor is None or max(tensor.dims, default=1) != 1:
            return None
        return float(numpy_helper.to_array(tensor).item())


def remake(graph: "GraphProto", nodes: "Iterable[NodeProto]") -> None:
    """Give a graph these nodes, in the order in which they run, but for those that lead to no output."""
    made = list(nodes)
    del graph.node[:]
    graph.node.extend(made)
    drop_unread(graph)


def drop_unread(graph: "GraphProto") -> None:
    """Nodes and constants that lead to no output; nodes stand in the order in which they run."""
    wanted, kept = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            wanted.update(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in wanted]:
        graph.initializer.remove(tensor)
