"""Passes over a captured step that let Inductor make few, large kernels of it on a GPU.

The step of one stream reads each weight once and computes little, so its time is that of reading and of starting
kernels, 1 to 2 us each. A product of a matrix and a row is therefore written as a sum of products: Inductor joins it
with what follows, and with the sums that normalize the row before it. (It leaves a matrix product to a library.)

Legend: `D` inputs of a linear map, `N` outputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph

from linnet.inference.captured_step import insert
from linnet.inference.step_values import base_of, realize, written_bases

aten = torch.ops.aten

VIEWS = (aten.view.default, aten.reshape.default, aten.unflatten.int)
SPLITS = (aten.split_with_sizes.default, aten.split.Tensor, aten.chunk.default)

Node = Any
"""A `torch.fx.Node`, whose arguments may be anything."""


def use_sums_for_one_row(program: ExportedProgram) -> None:
    """Replace linear maps of one row by sums of products, and RMS norms before them by factors behind the sums.

    `W (g x / r(x))` is `(W (g x)) / r(x)`: both sums go over the same inputs, so one kernel has them. Both are
    in float32 at least.
    """
    graph = program.graph_module.graph
    written = written_bases(graph)
    for linear in graph.find_nodes(op="call_function", target=aten.linear.default):
        out = linear.meta["val"]
        if any(size != 1 for size in out.shape[:-1]):
            continue
        row = InputRow.of(graph, linear, written)
        bias = linear.args[2] if len(linear.args) > 2 else None
        for part in _parts(linear):
            with graph.inserting_before(linear):
                weight_ND = linear.args[1]
                if (part.start, part.stop) != (0, out.shape[-1]):
                    weight_ND = insert(graph, aten.slice.Tensor, weight_ND, 0, part.start, part.stop)
                sums_N = row.sums(graph, weight_ND)
                if bias is not None:
                    of_part = insert(graph, aten.slice.Tensor, bias, 0, part.start, part.stop)
                    sums_N = insert(graph, aten.add.Tensor, sums_N, of_part)
                # Stored, or each reader of a part would apply the factor of the norm again.
                sums_N = insert(graph, realize, insert(graph, aten.to.dtype, sums_N, out.dtype))
                result = insert(graph, aten.reshape.default, sums_N, list(part.node.meta["val"].shape))
            part.node.replace_all_uses_with(result)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


@dataclass(frozen=True)
class InputRow:
    """The input of a linear map `[1, D]`, in float32 at least.

    normalized_1D, eps: what its RMS norm divides by the root of the mean square of; None if there is no norm.
    """

    x_1D: Node
    normalized_1D: Node | None = None
    eps: float = 0.0

    @classmethod
    def of(cls, graph: Graph, linear: Node, written: set[Node]) -> "InputRow":
        """Take the input of a linear map apart; written: nodes whose tensors may change between a norm and the map."""
        x = linear.args[0]
        width = x.meta["val"].shape[-1]
        norm = _rms_norm_of(x, width)
        if norm is not None and base_of(norm.args[0]) in written:
            norm = None
        with graph.inserting_before(linear):
            if norm is None:
                if x.op == "call_function":
                    x = insert(graph, realize, x)
                return cls(_float_row(graph, x, width))
            source_1D = _float_row(graph, norm.args[0], width)
            gain = norm.args[2] if len(norm.args) > 2 else None
            scaled_1D = source_1D if gain is None else insert(graph, aten.mul.Tensor, source_1D, _float(graph, gain))
            return cls(scaled_1D, source_1D, norm.args[3])

    def sums(self, graph: Graph, weight_ND: Node) -> Node:
        """The products with the rows of a weight, `[N]`."""
        products_ND = insert(graph, aten.mul.Tensor, _float(graph, weight_ND), self.x_1D)
        sums_N = insert(graph, aten.sum.dim_IntList, products_ND, [1])
        if self.normalized_1D is None:
            return sums_N
        squares_1D = insert(graph, aten.mul.Tensor, self.normalized_1D, self.normalized_1D)
        squares_ND = insert(graph, aten.expand.default, squares_1D, list(products_ND.meta["val"].shape))
        mean_N = insert(graph, aten.mean.dim, squares_ND, [1])
        root_N = insert(graph, aten.rsqrt.default, insert(graph, aten.add.Tensor, mean_N, self.eps))
        return insert(graph, aten.mul.Tensor, sums_N, root_N)


def _rms_norm_of(x: Node, width: int) -> Node | None:
    """The RMS norm over all inputs whose result, or a conversion of it, a linear map reads."""
    while x.target is aten.to.dtype:
        x = x.args[0]
    is_norm = x.target is aten.rms_norm.default and list(x.args[1]) == [width] and len(x.args) > 3
    return x if is_norm and x.args[3] is not None else None


def _float(graph: Graph, node: Node) -> Node:
    """The tensor in float32, or in what it is in, if that is wider."""
    is_wide = node.meta["val"].dtype in (torch.float32, torch.float64)
    return node if is_wide else insert(graph, aten.to.dtype, node, torch.float32)


def _float_row(graph: Graph, x: Node, width: int) -> Node:
    return _float(graph, insert(graph, aten.reshape.default, x, [1, width]))


@dataclass(frozen=True)
class OutputPart:
    """Outputs `start` to `stop` of a linear map, and the node that holds them."""

    node: Node
    start: int
    stop: int


def _parts(linear: Node) -> Iterator[OutputPart]:
    """The equal parts that the outputs of a linear map are split into, or all outputs.

    Sums of equal parts are computed by one kernel, which also does what joins the parts again, such as a gate.
    """
    outputs, split = linear.meta["val"].shape[-1], _split_of(linear)
    if split is None:
        yield OutputPart(linear, 0, outputs)
        return
    size = outputs // len(split.meta["val"])
    for item in split.users:
        yield OutputPart(item, item.args[1] * size, (item.args[1] + 1) * size)


def _split_of(linear: Node) -> Node | None:
    """The only reader of a linear map, if it splits the outputs into equal parts that lie one after another.

    Outputs are split as they are, or as a matrix with a part in each row.
    """
    user, dim = _only_user(linear), -1
    if user is not None and user.target in VIEWS:
        user, dim = _only_user(user), -2
    if user is None or user.target not in SPLITS:
        return None
    parts, split_dim = user.meta["val"], user.args[2] if len(user.args) > 2 else 0
    first = parts[0]
    is_equal = len({part.shape for part in parts}) == 1 and first.numel() == first.shape[-1]
    return user if is_equal and split_dim in (dim, first.dim() + dim) else None


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
