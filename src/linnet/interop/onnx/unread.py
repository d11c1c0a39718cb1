"""What nothing reads any more goes out of a graph."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto


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
