"""Attention of one token as one operation of onnxruntime, `GroupQueryAttention`, which reads what there is of the past.

It stands for the dozen that the exporter writes, which read all places, and mask. It writes the new keys and values in
place where input and output share a buffer. Attention with anything else in it (sinks, a window) stays as it is.

Legend: `N` query heads, `M` key-value heads, `K` head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnet.interop.onnx.edges import DOMAIN, Edges, remake
from linnet.interop.onnx.fused_rotary import FIRST, TABLE, Rotation
from linnet.interop.onnx.metadata import AFTER, POSITION

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

OPERATION = "GroupQueryAttention"
HEADS_LAST = [0, 2, 1, 3]
HEAD_WIDTHS_OF = 8
"""Multiples of it are the head widths that the operation takes; others fail when a graph runs."""

BEHIND, TOTAL = "position.behind", "position.total"


@dataclass(frozen=True)
class _Attention:
    """What the nodes of one layer read and write. q, k, v: `[1, 1, heads, K]`; out: `[1, 1, N K]`.

    operator: the matrices `[N, K, K]` by which queries are multiplied, of power-law graph attention.
    """

    prefix: str
    q: str
    k: str
    v: str
    scale: float
    heads: int
    kv_heads: int
    head: int
    product: str
    out: str
    rotation: Rotation | None
    operator: str | None

    @property
    def states(self) -> list[str]:
        """Keys and values before the token."""
        return [f"{self.prefix}.keys", f"{self.prefix}.values"]

    @property
    def makes(self) -> list[str]:
        """What is read, and the states behind the token."""
        return [self.out, *(AFTER + state for state in self.states)]


def fuse_attention(graph: "GraphProto") -> int:
    """In the graph for one token; how many layers it found."""
    reader = _Layers(graph)
    names = [value.name for value in graph.input]
    prefixes = [name.removesuffix(".keys") for name in names if name.endswith(".keys")]
    found = [layer for layer in map(reader.attention, prefixes) if layer is not None]
    if not found:
        return 0
    by_product = {layer.product: layer for layer in found}
    recompute = {name for layer in found for name in layer.makes}
    nodes = _lengths(graph)
    for node in graph.node:
        if node.output[0] in by_product:
            nodes.extend(_fused(by_product[node.output[0]]))
        elif node.output[0] not in recompute:
            nodes.append(node)
    remake(graph, nodes)
    return len(found)


class _Layers(Edges):
    """The layers of a graph."""

    def __init__(self, graph: "GraphProto") -> None:
        super().__init__(graph)
        self.shapes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in graph.input}

    def attention(self, prefix: str) -> _Attention | None:
        """The layer with these states; None where it is not plain attention."""
        keys, values = f"{AFTER}{prefix}.keys", f"{AFTER}{prefix}.values"
        k, v = self._written(keys), self._written(values)
        scores = self._end(keys, ("Transpose", "MatMul"))
        weighed = None if scores is None else self._end(scores.output[0], ("Reshape", "Where", "Softmax", "Reshape"))
        product = None if weighed is None else self._end(weighed.output[0], ("MatMul",))
        if k is None or v is None or scores is None or product is None or product.input[1] != values:
            return None
        query = self._query(scores.input[0])
        out = self._end(product.output[0], ("Transpose", "Reshape"))
        out = out or self._end(product.output[0], ("Reshape", "Transpose", "Reshape"))
        width = None if out is None else self._ints(out.input[1])
        if query is None or out is None or not width or self.readers[values] != [product]:
            return None
        _, kv_heads, _, head = self.shapes[f"{prefix}.keys"]
        if head % HEAD_WIDTHS_OF:
            return None
        (q, factor, operator), heads = query, width[-1] // head
        read = product.output[0], out.output[0]
        rotation = Rotation.of(self, q, k, v)
        return _Attention(prefix, q, k, v, factor, heads, kv_heads, head, *read, rotation, operator)

    def _end(self, name: str, kinds: Sequence[str]) -> "NodeProto | None":
        """The node at the end of a path of these, on which nobody else reads."""
        nodes = self.along(name, kinds)
        return None if nodes is None else nodes[-1]

    def _written(self, after: str) -> str | None:
        """What a step writes into a state, before its heads came first."""
        node = self.makers.get(after)
        return None if node is None or node.op_type != "ScatterElements" else self._turned(node.input[2])

    def _turned(self, name: str) -> str | None:
        node = self.makers.get(name)
        if node is None or node.op_type != "Transpose" or list(node.attribute[0].ints) != HEADS_LAST:
            return None
        return str(node.input[0])

    def _query(self, name: str) -> tuple[str, float, str | None] | None:
        """The queries before their heads came first, and by what they were multiplied: a number, and an operator."""
        reshape = self.makers.get(name)
        scaled = self.makers.get(reshape.input[0]) if reshape is not None and reshape.op_type == "Reshape" else None
        if scaled is None or scaled.op_type != "Mul":
            return None
        factor, made = self.number(scaled.input[1]), self.makers.get(scaled.input[0])
        product = made if made is not None and made.op_type == "MatMul" else None
        q = self._turned(scaled.input[0] if product is None else product.input[0])
        operator = None if product is None else str(product.input[1])
        return None if q is None or factor is None else (q, factor, operator)

    def _ints(self, name: str) -> list[int] | None:
        from onnx import numpy_helper

        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor).tolist()


def _lengths(graph: "GraphProto") -> list["NodeProto"]:
    """How many tokens are behind the new one, int32 `[1]`, and how many there are with it, int32 `[]`."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int32), f"{TOTAL}.one"))
    graph.initializer.append(numpy_helper.from_array(np.array([], np.int64), f"{TOTAL}.shape"))
    sizes = {f"{OPERATION}.shape": [1, 1, -1], FIRST: [0], TABLE: [1, -1]}
    graph.initializer.extend(numpy_helper.from_array(np.array(size), name) for name, size in sizes.items())
    return [
        helper.make_node("Cast", [POSITION], [BEHIND], to=TensorProto.INT32),
        helper.make_node("Reshape", [BEHIND, f"{TOTAL}.shape"], [f"{TOTAL}.behind"]),
        helper.make_node("Add", [f"{TOTAL}.behind", f"{TOTAL}.one"], [TOTAL]),
    ]


def _fused(layer: _Attention) -> list["NodeProto"]:
    from onnx import helper

    parts = [f"{layer.prefix}.{part}.joined" for part in "qkv"]
    fused = helper.make_node(
        OPERATION,
        [*parts, *layer.states, BEHIND, TOTAL],
        layer.makes,
        name=f"{layer.prefix}.attention",
        domain=DOMAIN,
        num_heads=layer.heads,
        kv_num_heads=layer.kv_heads,
        scale=layer.scale,
    )
    through = [] if layer.operator is None else _through(layer, layer.operator, parts[0])
    made = [f"{parts[0]}.plain", *parts[1:]] if through else parts
    if layer.rotation is not None:
        widths = [layer.head * heads for heads in (layer.heads, layer.kv_heads, layer.kv_heads)]
        return [*layer.rotation.nodes(made, widths), *through, fused]
    shapes = zip((layer.q, layer.k, layer.v), made, strict=True)
    reshaped = [helper.make_node("Reshape", [name, f"{OPERATION}.shape"], [part]) for name, part in shapes]
    return [*reshaped, *through, fused]


def _through(layer: _Attention, operator: str, q: str) -> list["NodeProto"]:
    """`q G` of each head; of one token, so that heads first and heads last lie alike."""
    from onnx import helper

    shape, heads, product = f"{q}.heads.shape", f"{q}.heads", f"{q}.product"
    return [
        helper.make_node("Constant", [], [shape], value_ints=[1, layer.heads, 1, layer.head]),
        helper.make_node("Reshape", [f"{q}.plain", shape], [heads]),
        helper.make_node("MatMul", [heads, operator], [product]),
        helper.make_node("Reshape", [product, f"{OPERATION}.shape"], [q]),
    ]
