"""Values that a captured step need not compute where it uses them: those of weights alone, and of positions alone.

Discretized coefficients, decays and frequencies depend on weights or on nothing. A compiler cannot know that the
weights of a package, which are inputs, stay as they are: it would compute these values for every token, and where it
fuses them with larger loops, for every element of a state. So the graph is divided: one that goes from the weights to
the values, and the step, which has them as further inputs. What depends on the positions, such as sines and cosines, is
the same for all layers, and is stored as a tensor instead of being computed within their loops.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen

aten = torch.ops.aten

REARRANGING = {
    aten.view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.unflatten.int,
    aten.squeeze.dim,
    aten.permute.default,
    aten.transpose.int,
    aten.movedim.int,
    aten.t.default,
    aten.expand.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.narrow.default,
    aten.chunk.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.contiguous.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    operator.getitem,
}
"""Operations that compute nothing: of weights alone, they cost less in the step than another input would."""

MAX_GROWTH = 4
"""Elements of a value for each of those that it is computed from: more would have to be read instead of computed."""

FEW_ELEMENTS = 4096
"""Elements of a value that are few, whatever it is computed from."""


class StepOfValues(nn.Module):
    """The step with values of weights, if there are any, as inputs."""

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__()
        self.graph_module = graph_module

    def forward(
        self,
        token_B1: Tensor,
        position_B: Tensor,
        states: list[Tensor],
        weights: list[Tensor],
        values: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return the logits `[B, V]`; states are written."""
        logits_BV: Tensor
        (logits_BV,) = self.graph_module(token_B1, position_B, *states, *weights, *values)
        return logits_BV


class WeightValues(nn.Module):
    """The values, from the weights."""

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__()
        self.graph_module = graph_module

    def forward(self, weights: list[Tensor]) -> list[Tensor]:
        """Return the values, in the order in which the step takes them."""
        return list(self.graph_module(*weights))


@dataclass(frozen=True)
class DeterminedPart:
    """The part of a graph that some of its inputs determine.

    sources: for each node of the part, the inputs that it depends on. computed: the nodes whose value is more than a
    rearrangement of inputs.
    """

    sources: Mapping[Node, frozenset[Node]]
    computed: frozenset[Node]

    @classmethod
    def of(cls, graph: Graph, inputs: Iterable[Node]) -> "DeterminedPart":
        """The part that depends on no other input than these; what depends on nothing belongs to it.

        Tensors that the graph writes, and views of them, do not: their values depend on when they are read.
        """
        written = written_bases(graph)
        sources, computed = {node: frozenset([node]) for node in inputs}, set[Node]()
        for node in graph.nodes:
            if node.op != "call_function" or base_of(node) in written:
                continue
            if _written(node) or any(x not in sources for x in node.all_input_nodes):
                continue
            sources[node] = frozenset[Node]().union(*(sources[x] for x in node.all_input_nodes))
            if node.target not in REARRANGING or any(x in computed for x in node.all_input_nodes):
                computed.add(node)
        return cls(sources, frozenset(computed))

    def results(self) -> list[Node]:
        """The computed tensors that other parts of the graph use, in the order of the graph."""
        return [
            node
            for node in self.sources
            if node in self.computed
            and isinstance(node.meta.get("val"), Tensor)
            and any(user not in self.sources for user in node.users)
        ]


def written_bases(graph: Graph) -> set[Node]:
    """The nodes whose tensors a graph writes, also by views of them."""
    return {base_of(x) for node in graph.nodes for x in _written(node)}


def base_of(node: Node) -> Node:
    """The node whose tensor this one is, or may be, a view of; itself if it has a tensor of its own."""
    while node.target in REARRANGING or node.target is aten.flatten.using_ints:
        node = node.all_input_nodes[0]
    return node


def _written(node: Node) -> list[Node]:
    """The inputs that a function writes; all of them where that is not known."""
    if node.op != "call_function" or node.target is operator.getitem:
        return []
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return node.all_input_nodes
    values = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)} | node.kwargs
    written = {argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write}
    return [value for name, value in values.items() if name in written and isinstance(value, Node)]


def hoist_weight_values(
    program: ExportedProgram, shapes: Sequence[Any]
) -> tuple[ExportedProgram, ExportedProgram | None]:
    """Divide a captured `InPlaceStep` into a `StepOfValues` and the `WeightValues` that it needs.

    shapes: the dynamic shapes with which the program was exported. The second is None if nothing is computed from
    weights alone, and the first the program as it is if layers do not compute the same, either.
    """
    module, inputs = program.module(check_guards=False), program.example_inputs[0]
    placeholders, weights = module.graph.find_nodes(op="placeholder"), inputs[-1]
    of_weights = placeholders[len(placeholders) - len(weights) :]
    merged = merge_equal_nodes(module.graph, DeterminedPart.of(module.graph, [placeholders[1], *of_weights]))
    part = DeterminedPart.of(module.graph, of_weights)
    found = [node for node in part.results() if _is_small(node, part.sources[node])]
    if not found and not merged:
        return program, None
    if not found:
        step = StepOfValues(_flat(module))
        return torch.export.export(step, inputs, dynamic_shapes=tuple(shapes), strict=False), None
    making = WeightValues(_graph_of(module, of_weights, found))
    values = making(weights)
    for number, node in enumerate(found):
        with module.graph.inserting_after(placeholders[-1]):
            placeholders.append(module.graph.placeholder(f"value_{number}"))
        placeholders[-1].meta = dict(node.meta)
        node.replace_all_uses_with(placeholders[-1])
    shapes = (*shapes, [None] * len(values))
    divided = torch.export.export(StepOfValues(_flat(module)), (*inputs, values), dynamic_shapes=shapes, strict=False)
    return divided, torch.export.export(making, (weights,), strict=False)


def divided_step(program: ExportedProgram, shapes: Sequence[Any]) -> tuple[ExportedProgram, ExportedProgram | None]:
    """The results of `hoist_weight_values`, whose step Inductor compiles with values of positions as tensors."""
    step, values = hoist_weight_values(program, shapes)
    realize_position_values(step)
    register_realize()
    return step, values


def merge_equal_nodes(graph: Graph, part: DeterminedPart) -> int:
    """Compute once what several layers compute of the same inputs, such as sines of positions; returns how often."""
    first, merged = dict[str, Node](), 0
    for node in [node for node in graph.nodes if node in part.sources and node.op == "call_function"]:
        same = first.setdefault(str((node.target, node.args, node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
            merged += 1
    return merged


def _is_small(node: Node, sources: frozenset[Node]) -> bool:
    """False for a value much larger than the weights that it is made from, and for one of a size that is not known."""
    value, read = node.meta["val"], sum(source.meta["val"].numel() for source in sources)
    if any(not isinstance(size, int) for size in value.shape):
        return False
    return bool(value.numel() <= max(FEW_ELEMENTS, MAX_GROWTH * read))


def _graph_of(module: GraphModule, inputs: Sequence[Node], results: Sequence[Node]) -> GraphModule:
    """The part of a graph that computes results from inputs."""
    needed, waiting = set[Node](), list(results)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in module.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    return GraphModule(module, graph)


def flat_module(program: ExportedProgram) -> GraphModule:
    """The graph of a program as a function that takes its inputs one by one, and returns a tuple."""
    return _flat(program.module(check_guards=False))


def _flat(module: GraphModule) -> GraphModule:
    """The same graph as a function that takes its inputs one by one, and returns a tuple."""
    graph = module.graph
    for check in graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
        graph.erase_node(check)  # of a dtype that the trace has seen; it would keep what was taken out
    graph.set_codegen(CodeGen())
    output = graph.output_node()
    if isinstance(output.args[0], Node):
        output.args = ((output.args[0],),)
    graph.eliminate_dead_code()
    return GraphModule(module, graph)  # without unread parameters, and the hook that checks the structure of the inputs


_definitions: Any = torch.library.Library("linnet", "FRAGMENT")  # type: ignore[no-untyped-call]
_definitions.define("realize(Tensor x) -> Tensor")
_definitions.impl("realize", torch.clone, "CompositeExplicitAutograd")
torch.library.register_fake("linnet::realize", torch.empty_like, lib=_definitions)
realize = torch.ops.linnet.realize.default
"""The same tensor, which Inductor stores as a buffer instead of computing its elements where they are used."""


def register_realize() -> None:
    """Tell Inductor what `realize` means."""
    from torch._inductor.lowering import lowerings, register_lowering

    def realized(x: Any) -> Any:
        x.realize()
        return x

    if realize not in lowerings:
        register_lowering(realize, type_promotion_kind=None)(realized)


def realize_position_values(program: ExportedProgram) -> None:
    """Let Inductor store as tensors what a step computes from positions alone, and from values of weights."""
    graph, inputs = program.graph_module.graph, program.example_inputs[0]
    placeholders = graph.find_nodes(op="placeholder")
    free = [node for node in placeholders if node.name in program.graph_signature.user_inputs]
    values = free[len(free) - len(inputs[4]) :] if len(inputs) > 4 else []
    position = free[1]
    part = DeterminedPart.of(graph, [position, *values])
    for node in part.results():
        if position not in part.sources[node]:
            continue
        users = [user for user in node.users if user not in part.sources]
        with graph.inserting_after(node):
            copy = graph.call_function(realize, (node,))
        copy.meta = dict(node.meta)
        for user in users:
            user.replace_input_with(node, copy)
    program.graph_module.recompile()
