"""Rotary positions of one token as one operation of onnxruntime, `RotaryEmbedding`, for queries and keys together.

Its tables have one row, which the graph makes for the position at hand, once for all layers: no table has an end.

Legend: `N` query heads, `M` key-value heads, `K` head width.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnet.interop.onnx.edges import DOMAIN, Edges

if TYPE_CHECKING:
    from onnx import NodeProto

OPERATION = "RotaryEmbedding"


@dataclass(frozen=True)
class Rotation:
    """Names of tensors. joint: what a product gave, `[1, 1, (N + 2 M) K]`. cos, sin: `[1, 1, 1, K / 2]`.

    adjacent: pairs are neighbors, not the halves of a head.
    """

    joint: str
    cos: str
    sin: str
    adjacent: bool

    @classmethod
    def of(cls, edges: Edges, q: str, k: str, v: str) -> "Rotation | None":
        """Where queries and keys were turned together, in all of their width; None for anything else."""
        by = _Makers(edges)
        for made in (cls._by_halves, cls._of_neighbors):
            try:
                turned, parts = by.split(q, [q, k]), by.split(v, None)
                _same(parts.output[1], v)
                cos, sin = made(by, turned, parts.output[0])
                return cls(by.made(parts.input[0], "Reshape").input[0], cos, sin, made == cls._of_neighbors)
            except _OtherError:
                continue
        return None

    @staticmethod
    def _by_halves(by: "_Makers", turned: "NodeProto", x: str) -> tuple[str, str]:
        """What `turned` splits is `x` turned by halves: cos and sin."""
        straight, crossed = (by.made(name, "Mul").input for name in by.made(turned.input[0], "Add").input)
        low, high = by.split(by.made(crossed[0], "Concat").input[1], None).output
        cos, sin = by.made(straight[1], "Concat").input, by.made(crossed[1], "Concat").input
        _same([straight[0], by.made(low, "Split").input[0]], [x, x])
        _same(list(by.made(crossed[0], "Concat").input), [high, low])
        _same([cos[0], by.made(sin[0], "Neg").input[0]], [cos[1], sin[1]])
        return cos[0], sin[1]

    @staticmethod
    def _of_neighbors(by: "_Makers", turned: "NodeProto", x: str) -> tuple[str, str]:
        """What `turned` splits is `x` turned by pairs of neighbors: cos and sin."""
        pairs = by.made(by.made(turned.input[0], "Reshape").input[0], "Concat").input
        first, second = (by.made(name, "Unsqueeze").input[0] for name in pairs)
        difference = [by.made(name, "Mul").input for name in by.made(first, "Sub").input]
        total = [by.made(name, "Mul").input for name in by.made(second, "Add").input]
        (even, cos), (odd, sin) = difference
        _same([list(factors) for factors in total], [[odd, cos], [even, sin]])
        _same([by.every_other(even), by.every_other(odd)], [(x, 0), (x, 1)])
        return cos, sin

    def nodes(self, parts: list[str], widths: list[int]) -> list["NodeProto"]:
        """They make `parts`: queries, keys and values, each `[1, 1, heads K]`, of these widths."""
        from onnx import helper

        q, k, v = parts
        both, turned, tables = f"{q}.both", f"{q}.turned", [f"{q}.cos", f"{q}.sin"]
        sizes = {f"{both}.sizes": [widths[0] + widths[1], widths[2]], f"{turned}.sizes": widths[:2]}
        reshapes = zip((self.cos, self.sin), tables, strict=True)
        return [
            *(helper.make_node("Constant", [], [name], value_ints=size) for name, size in sizes.items()),
            helper.make_node("Split", [self.joint, f"{both}.sizes"], [both, v], axis=-1),
            *(helper.make_node("Reshape", [name, TABLE], [table]) for name, table in reshapes),
            helper.make_node(
                OPERATION, [both, FIRST, *tables], [turned], domain=DOMAIN, interleaved=int(self.adjacent)
            ),
            helper.make_node("Split", [turned, f"{turned}.sizes"], [q, k], axis=-1),
        ]


FIRST, TABLE = f"{OPERATION}.first", f"{OPERATION}.table"
"""Constants: the row of a table, and a table's shape."""


class _OtherError(Exception):
    """The nodes are of another kind."""


def _same(found: object, expected: object) -> None:
    if found != expected:
        raise _OtherError


class _Makers:
    """Which node makes a tensor."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges

    def made(self, name: str, kind: str) -> "NodeProto":
        node: NodeProto | None = self._edges.makers.get(name)
        if node is None or node.op_type != kind:
            raise _OtherError
        return node

    def split(self, name: str, into: list[str] | None) -> "NodeProto":
        """The node that makes two parts, these if they are given."""
        node = self.made(name, "Split")
        if len(node.output) != 2 or (into is not None and list(node.output) != into):
            raise _OtherError
        return node

    def every_other(self, name: str) -> tuple[str, float | None]:
        """Of what every other number of the last dimension was taken, and from which on."""
        x, first, _, dimension, step = self.made(name, "Slice").input
        if (self._edges.number(dimension), self._edges.number(step)) != (3, 2):
            raise _OtherError
        return x, self._edges.number(first)
