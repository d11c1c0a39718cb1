"""Rotary positions of one token as one operation of onnxruntime, `RotaryEmbedding`, for queries and keys together.

Its tables have one row, which the graph makes for the position at hand, once for all layers: no table has an end.

Legend: `N` query heads, `M` key-value heads, `K` head width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnet.interop.onnx.edges import DOMAIN

if TYPE_CHECKING:
    from onnx import NodeProto

OPERATION = "RotaryEmbedding"


@dataclass(frozen=True)
class Rotation:
    """Names of tensors. joint: what a product gave, `[1, 1, (N + 2 M) K]`. cos, sin: `[1, 1, 1, K / 2]`."""

    joint: str
    cos: str
    sin: str

    @classmethod
    def of(cls, makers: Mapping[str, "NodeProto"], q: str, k: str, v: str) -> "Rotation | None":
        """Where queries and keys were turned together, in all of their width and by halves; None for anything else."""
        try:
            return cls._of(_Makers(makers), q, k, v)
        except _OtherError:
            return None

    @classmethod
    def _of(cls, by: "_Makers", q: str, k: str, v: str) -> "Rotation":
        turned, parts = by.split(q, [q, k]), by.split(v, None)
        x = parts.output[0]
        straight, crossed = (by.made(name, "Mul").input for name in by.made(turned.input[0], "Add").input)
        low, high = by.split(by.made(crossed[0], "Concat").input[1], None).output
        cos, sin = by.made(straight[1], "Concat").input, by.made(crossed[1], "Concat").input
        _same(list(parts.output), [x, v])
        _same([straight[0], by.made(low, "Split").input[0]], [x, x])
        _same(list(by.made(crossed[0], "Concat").input), [high, low])
        _same([cos[0], by.made(sin[0], "Neg").input[0]], [cos[1], sin[1]])
        return cls(by.made(parts.input[0], "Reshape").input[0], cos[0], sin[1])

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
            helper.make_node(OPERATION, [both, FIRST, *tables], [turned], domain=DOMAIN),
            helper.make_node("Split", [turned, f"{turned}.sizes"], [q, k], axis=-1),
        ]


FIRST, TABLE = f"{OPERATION}.first", f"{OPERATION}.table"
"""Constants: the row of a table, and a table's shape."""


class _OtherError(Exception):
    """The nodes are of another kind."""


def _same(found: list[str], expected: list[str]) -> None:
    if found != expected:
        raise _OtherError


class _Makers:
    """Which node makes a tensor."""

    def __init__(self, makers: Mapping[str, "NodeProto"]) -> None:
        self._makers = makers

    def made(self, name: str, kind: str) -> "NodeProto":
        node = self._makers.get(name)
        if node is None or node.op_type != kind:
            raise _OtherError
        return node

    def split(self, name: str, into: list[str] | None) -> "NodeProto":
        """The node that makes two parts, these if they are given."""
        node = self.made(name, "Split")
        if len(node.output) != 2 or (into is not None and list(node.output) != into):
            raise _OtherError
        return node
