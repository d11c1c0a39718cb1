"""Replacement of subgraphs by onnxruntime's own operators: attention, rotary positions, residual norms.

Attention of one token becomes `GroupQueryAttention`, which reads only the existing past; the dozen operations that the
exporter writes read all places and mask. It writes the new keys and values in place if input and output share a buffer.
Attention with sinks or a window stays as it is. Rotary positions become `RotaryEmbedding` for queries and keys
together; its tables have one row, which the graph computes for the current position, once for all layers, so no table
has an end. A residual sum with the RMS norm after it becomes `SkipSimplifiedLayerNormalization`.

Legend: `N` query heads, `M` key-value heads, `K` head width, `D` width.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

DOMAIN = "com.microsoft"
"""Domain of onnxruntime's own operators."""

ATTENTION, ROTARY = "GroupQueryAttention", "RotaryEmbedding"
RESIDUAL_NORM = "SkipSimplifiedLayerNormalization"
HEADS_LAST = [0, 2, 1, 3]
HEAD_WIDTH_MULTIPLE = 8
"""Attention supports head widths that are a multiple of it; others fail when a graph runs."""

NORM = ("ReduceMean", "Add", "Sqrt", "Div", "Mul")
"""Operations of a norm after the square; each reads the one before it."""

POSITION, AFTER = "position", "after."
BEHIND, TOTAL = "position.behind", "position.total"
FIRST, TABLE = f"{ROTARY}.first", f"{ROTARY}.table"
"""Constants: the row index in a table, and the shape of a table."""


class MismatchError(Exception):
    """The nodes are not those of the operation that is looked for."""


def _same(actual: object, expected: object) -> None:
    if actual != expected:
        raise MismatchError


class Edges:
    """Producer and readers of each tensor, and the constants of a graph, by name."""

    def __init__(self, graph: "GraphProto") -> None:
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        values = [*graph.input, *graph.value_info]
        self.shapes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in values}

    def along(self, name: str, kinds: Sequence[str]) -> "list[NodeProto] | None":
        """Return the nodes of a path of these kinds after a tensor, each the only reader; None if there is none."""
        nodes: list[NodeProto] = []
        for kind in kinds:
            readers = self.readers.get(name, [])
            if len(readers) != 1 or readers[0].op_type != kind:
                return None
            nodes += readers
            name = nodes[-1].output[0]
        return nodes

    def end(self, name: str, *paths: Sequence[str]) -> "NodeProto":
        """Return the last node of the first of these paths after a tensor; `MismatchError` if there is none."""
        for kinds in paths:
            nodes = self.along(name, kinds)
            if nodes is not None:
                return nodes[-1]
        raise MismatchError

    def made(self, name: str, kind: str) -> "NodeProto":
        """Return the producer of a tensor; `MismatchError` if it is of another kind."""
        node: NodeProto | None = self.makers.get(name)
        if node is None or node.op_type != kind:
            raise MismatchError
        return node

    def split(self, name: str, into: list[str] | None) -> "NodeProto":
        """Return the node that makes two parts, with these names if given; `MismatchError` for anything else."""
        node = self.made(name, "Split")
        if len(node.output) != 2 or (into is not None and list(node.output) != into):
            raise MismatchError
        return node

    def every_other(self, name: str) -> tuple[str, float | None]:
        """Return the source of a slice of every other number of the last dimension, and its first index."""
        x, first, _, dimension, step = self.made(name, "Slice").input
        _same((self.number(dimension), self.number(step)), (3, 2))
        return x, self.number(first)

    def number(self, name: str) -> float | None:
        """Return a constant of one number; None for anything else."""
        from onnx import numpy_helper

        tensor = self.constants.get(name)
        if tensor is None or max(tensor.dims, default=1) != 1:
            return None
        return float(numpy_helper.to_array(tensor).item())


def replace_nodes(graph: "GraphProto", nodes: "Iterable[NodeProto]") -> None:
    """Give a graph these nodes, in execution order, without those that lead to no output."""
    made = list(nodes)
    del graph.node[:]
    graph.node.extend(made)
    drop_unread(graph)


def drop_unread(graph: "GraphProto") -> None:
    """Remove nodes and constants that lead to no output; nodes are in execution order."""
    used, nodes = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if used & set(node.output):
            used.update(node.input)
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(reversed(nodes))
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)


def divide_by_roots(graph: "GraphProto") -> None:
    """Replace `x * (1 / r)` by `x / r` wherever nothing else reads the reciprocal.

    onnxruntime fuses the six operations of an RMS norm only with a `Div`. The numbers are as exact.
    """
    roots = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Reciprocal"}
    readers = Edges(graph).readers
    for name, root in roots.items():
        nodes = readers.get(name, [])
        if all(node.op_type == "Mul" and list(node.input).count(name) == 1 for node in nodes):
            for node in nodes:
                (x,) = [other for other in node.input if other != name]
                node.op_type, node.input[:] = "Div", [x, root]
    drop_unread(graph)


def fuse_step(model: "ModelProto") -> None:
    """Replace attention and residual norms in the graph for one token, in place."""
    from onnx import helper

    fused = fuse_attention(model.graph) + fuse_residual_norms(model.graph)
    if fused and all(known.domain != DOMAIN for known in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def fuse_residual_norms(graph: "GraphProto") -> int:
    """Fuse sums of equal shapes with the norms after them if the gain is a constant `[D]`; return their number."""
    from onnx import helper

    edges = Edges(graph)
    norms = {nodes[-2].input[0]: nodes for nodes in (_norm(edges, node) for node in graph.node) if nodes is not None}
    fused: dict[str, NodeProto] = {}
    for node in graph.node:
        x = node.output[0]
        if node.op_type != "Add" or x not in norms:
            continue
        first, second = (edges.shapes.get(name) for name in node.input)
        if first is None or first != second or 0 in first:
            continue
        gain, epsilon = norms[x][-1].input[1], edges.number(norms[x][2].input[1])
        outputs = [norms[x][-1].output[0], "", "", x]
        inputs = [*node.input, gain]
        fused[x] = helper.make_node(RESIDUAL_NORM, inputs, outputs, domain=DOMAIN, epsilon=epsilon)
    replaced = {norms[x][-1].output[0] for x in fused}
    replace_nodes(graph, (fused.get(node.output[0], node) for node in graph.node if node.output[0] not in replaced))
    return len(fused)


def _norm(edges: Edges, square: "NodeProto") -> "list[NodeProto] | None":
    """Return a square and the nodes after it if they form an RMS norm over the last dimension; else None."""
    if square.op_type != "Pow" or edges.number(square.input[1]) != 2.0:
        return None
    behind = edges.along(square.output[0], NORM)
    if behind is None:
        return None
    mean, added, _, quotient, product = behind
    rank = len(edges.shapes.get(square.input[0], []))
    gain = edges.constants.get(product.input[1])
    last = edges.number(mean.input[1]) in (rank - 1, -1) and edges.number(added.input[1]) is not None
    fits = last and quotient.input[0] == square.input[0] and gain is not None and len(gain.dims) == 1
    return [square, *behind] if fits else None


@dataclass(frozen=True)
class Rotation:
    """Rotary positions by tensor names. joint: output of the product, `[1, 1, (N + 2 M) K]`. cos, sin: `[1, 1, 1,
    K/2]`.

    adjacent: pairs are neighbors, not the halves of a head.
    """

    joint: str
    cos: str
    sin: str
    adjacent: bool

    @classmethod
    def of(cls, edges: Edges, q: str, k: str, v: str) -> "Rotation | None":
        """Match queries and keys that are rotated together in their whole width; None for anything else."""
        for match in (cls._halves, cls._neighbors):
            try:
                rotated, parts = edges.split(q, [q, k]), edges.split(v, None)
                _same(parts.output[1], v)
                cos, sin = match(edges, rotated, parts.output[0])
                return cls(edges.made(parts.input[0], "Reshape").input[0], cos, sin, match == cls._neighbors)
            except MismatchError:
                continue
        return None

    @staticmethod
    def _halves(by: Edges, rotated: "NodeProto", x: str) -> tuple[str, str]:
        """Match that `rotated` splits `x`, rotated by halves; return cos and sin."""
        straight, crossed = (by.made(name, "Mul").input for name in by.made(rotated.input[0], "Add").input)
        low, high = by.split(by.made(crossed[0], "Concat").input[1], None).output
        cos, sin = by.made(straight[1], "Concat").input, by.made(crossed[1], "Concat").input
        _same([straight[0], by.made(low, "Split").input[0]], [x, x])
        _same(list(by.made(crossed[0], "Concat").input), [high, low])
        _same([cos[0], by.made(sin[0], "Neg").input[0]], [cos[1], sin[1]])
        return cos[0], sin[1]

    @staticmethod
    def _neighbors(by: Edges, rotated: "NodeProto", x: str) -> tuple[str, str]:
        """Match that `rotated` splits `x`, rotated by pairs of neighbors; return cos and sin."""
        pairs = by.made(by.made(rotated.input[0], "Reshape").input[0], "Concat").input
        first, second = (by.made(name, "Unsqueeze").input[0] for name in pairs)
        difference = [by.made(name, "Mul").input for name in by.made(first, "Sub").input]
        total = [by.made(name, "Mul").input for name in by.made(second, "Add").input]
        (even, cos), (odd, sin) = difference
        _same([list(factors) for factors in total], [[odd, cos], [even, sin]])
        _same([by.every_other(even), by.every_other(odd)], [(x, 0), (x, 1)])
        return cos, sin

    def nodes(self, parts: list[str], widths: list[int]) -> list["NodeProto"]:
        """Return nodes that make `parts`: queries, keys and values, each `[1, 1, heads K]`, of these widths."""
        from onnx import helper

        q, k, v = parts
        both, rotated, tables = f"{q}.both", f"{q}.rotated", [f"{q}.cos", f"{q}.sin"]
        sizes = {f"{both}.sizes": [widths[0] + widths[1], widths[2]], f"{rotated}.sizes": widths[:2]}
        reshapes = zip((self.cos, self.sin), tables, strict=True)
        inputs, interleaved = [both, FIRST, *tables], int(self.adjacent)
        return [
            *(helper.make_node("Constant", [], [name], value_ints=size) for name, size in sizes.items()),
            helper.make_node("Split", [self.joint, f"{both}.sizes"], [both, v], axis=-1),
            *(helper.make_node("Reshape", [name, TABLE], [table]) for name, table in reshapes),
            helper.make_node(ROTARY, inputs, [rotated], domain=DOMAIN, interleaved=interleaved),
            helper.make_node("Split", [rotated, f"{rotated}.sizes"], [q, k], axis=-1),
        ]


@dataclass(frozen=True)
class _Attention:
    """Tensors of one layer. q, k, v: `[1, 1, heads, K]`; out: `[1, 1, N K]`.

    operator: the matrices `[N, K, K]` that multiply queries, in power-law graph attention.
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
        """The output, and the states after the token."""
        return [self.out, *(AFTER + state for state in self.states)]

    def nodes(self) -> list["NodeProto"]:
        from onnx import helper

        parts = [f"{self.prefix}.{part}.joined" for part in "qkv"]
        q = parts[0]
        product: list[NodeProto] = []
        if self.operator is not None:
            # `q G` of each head; with one token, heads first and heads last have the same memory layout.
            shape, heads, multiplied = f"{q}.heads.shape", f"{q}.heads", f"{q}.product"
            product = [
                helper.make_node("Constant", [], [shape], value_ints=[1, self.heads, 1, self.head]),
                helper.make_node("Reshape", [f"{q}.plain", shape], [heads]),
                helper.make_node("MatMul", [heads, self.operator], [multiplied]),
                helper.make_node("Reshape", [multiplied, f"{ATTENTION}.shape"], [q]),
            ]
        made = [f"{q}.plain", *parts[1:]] if product else parts
        if self.rotation is not None:
            widths = [self.head * heads for heads in (self.heads, self.kv_heads, self.kv_heads)]
            inputs = self.rotation.nodes(made, widths)
        else:
            shapes = zip((self.q, self.k, self.v), made, strict=True)
            inputs = [helper.make_node("Reshape", [name, f"{ATTENTION}.shape"], [part]) for name, part in shapes]
        fused = helper.make_node(
            ATTENTION,
            [*parts, *self.states, BEHIND, TOTAL],
            self.makes,
            name=f"{self.prefix}.attention",
            domain=DOMAIN,
            num_heads=self.heads,
            kv_num_heads=self.kv_heads,
            scale=self.scale,
        )
        return [*inputs, *product, fused]


def fuse_attention(graph: "GraphProto") -> int:
    """Fuse attention in the graph for one token; return the number of layers."""
    edges, layers = Edges(graph), list[_Attention]()
    for value in graph.input:
        if value.name.endswith(".keys"):
            with suppress(MismatchError):
                layers.append(_match_attention(edges, value.name.removesuffix(".keys")))
    if not layers:
        return 0
    by_product = {layer.product: layer for layer in layers}
    replaced = {name for layer in layers for name in layer.makes}
    nodes = _lengths(graph)
    for node in graph.node:
        if node.output[0] in by_product:
            nodes.extend(by_product[node.output[0]].nodes())
        elif node.output[0] not in replaced:
            nodes.append(node)
    replace_nodes(graph, nodes)
    return len(layers)


def _lengths(graph: "GraphProto") -> list["NodeProto"]:
    """Add constants, and return nodes for the number of tokens before the new one, int32 `[1]`, and with it, `[]`."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int32), f"{TOTAL}.one"))
    graph.initializer.append(numpy_helper.from_array(np.array([], np.int64), f"{TOTAL}.shape"))
    sizes = {f"{ATTENTION}.shape": [1, 1, -1], FIRST: [0], TABLE: [1, -1]}
    graph.initializer.extend(numpy_helper.from_array(np.array(size), name) for name, size in sizes.items())
    return [
        helper.make_node("Cast", [POSITION], [BEHIND], to=TensorProto.INT32),
        helper.make_node("Reshape", [BEHIND, f"{TOTAL}.shape"], [f"{TOTAL}.behind"]),
        helper.make_node("Add", [f"{TOTAL}.behind", f"{TOTAL}.one"], [TOTAL]),
    ]


def _match_attention(edges: Edges, prefix: str) -> _Attention:
    """Return the layer with these states; `MismatchError` if it is not plain attention."""
    from onnx import numpy_helper

    def heads_last(name: str) -> str:
        """Return a tensor before its heads came first."""
        node = edges.made(name, "Transpose")
        _same(list(node.attribute[0].ints), HEADS_LAST)
        return str(node.input[0])

    keys, values = f"{AFTER}{prefix}.keys", f"{AFTER}{prefix}.values"
    k, v = (heads_last(edges.made(state, "ScatterElements").input[2]) for state in (keys, values))
    scores = edges.end(keys, ("Transpose", "MatMul"))
    weights = edges.end(scores.output[0], ("Reshape", "Where", "Softmax", "Reshape"))
    product = edges.end(weights.output[0], ("MatMul",))
    _same([product.input[1], edges.readers[values]], [values, [product]])
    # Queries are multiplied by a number, and before by an operator if there is one.
    scaled = edges.made(edges.made(scores.input[0], "Reshape").input[0], "Mul")
    factor, multiplied = edges.number(scaled.input[1]), edges.makers.get(scaled.input[0])
    by_operator = multiplied if multiplied is not None and multiplied.op_type == "MatMul" else None
    q = heads_last(scaled.input[0] if by_operator is None else by_operator.input[0])
    operator = None if by_operator is None else str(by_operator.input[1])
    out = edges.end(product.output[0], ("Transpose", "Reshape"), ("Reshape", "Transpose", "Reshape"))
    shape = edges.constants.get(out.input[1])
    width = [] if shape is None else numpy_helper.to_array(shape).tolist()
    if factor is None or not width:
        raise MismatchError
    _, kv_heads, places, head = edges.shapes[f"{prefix}.keys"]
    # A fixed number of places is that of a window, whose places are used again.
    _same([places, head % HEAD_WIDTH_MULTIPLE], [0, 0])
    rotation, ends = Rotation.of(edges, q, k, v), (product.output[0], out.output[0])
    return _Attention(prefix, q, k, v, factor, width[-1] // head, kv_heads, head, *ends, rotation, operator)
