"""One pass of a decoder as a function of tensors: what `torch.export` captures for every backend.

The function is made from the ordinary `forward` of the layers: token ids, positions and the tensors of the states to
logits and the tensors after the pass. ONNX graphs (`interop.onnx`) are made from it as it is; compiled steps
(`inference.compiled_step`) from `InPlaceStep`, which writes the states. Rows may have read different numbers of tokens.

Legend: `B` batch (rows), `T` tokens of the chunk, `V` vocabulary.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout, Counts, Value
from linnet.layers.cache_policy import FULL
from linnet.layers.key_value import WindowState
from linnet.layers.state import CachePolicyState, State
from linnet.model.decoder import Decoder
from linnet.model.stack import run_blocks
from linnet.model.state import DecoderState, LayerStates
from linnet.nn.packed_linear import PackedLinear
from linnet.ops.native import custom_ops_in_graphs, library
from linnet.ops.support import graph_forms


@dataclass(frozen=True)
class GraphBatchLayout(BatchLayout):
    """Layout of rows in a graph, where the positions are a tensor `[B]` and `places` a size of the graph.

    Layers treat it as rows at different positions, for which they use tensors only. in_place: whether layers write
    their states, which then keep their shapes.
    """

    position_B: Tensor | None = None
    places: int = 0
    in_place: bool = False

    @cached_property
    def uniform(self) -> bool:
        """False: no layer may read a position as a number."""
        return False

    @property
    def in_graph(self) -> bool:
        return True

    @property
    def functional(self) -> bool:
        return not self.in_place

    @property
    def start(self) -> int:
        """The position, which is not known as a number."""
        raise NotImplementedError("the position is a tensor in a graph")

    def starts_of(self, batch: int) -> Counts:
        """The same."""
        return (self.start,) * batch

    def end(self, length: int) -> int:
        """Return all places, so that layers mask those after the position."""
        return self.places

    def remember(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Compute again: a length may be a symbol, which is no key; runtimes eliminate common subexpressions."""
        return make()

    def offsets_B(self, device: torch.device) -> Tensor:
        assert self.position_B is not None
        return self.position_B

    def positions(self, length: int, device: torch.device) -> Tensor:
        start_B1 = self.offsets_B(device)[:, None]
        return start_B1 if length == 1 else start_B1 + torch.arange(length, device=device)


class StateTensors:
    """Names and places of the tensors in the state of a batch of streams.

    growing: the dimension of tensors whose length is not fixed. has_room: those with a place for each token.
    """

    def __init__(self, state: DecoderState) -> None:
        """`state`: a state of the same kind; fields without a tensor stay without one."""
        self.initial = state
        self.tensors = {
            prefix + field: tensor for prefix, part in state.named() for field, tensor in part.tensors().items()
        }
        self.growing = {
            prefix + field: part.room.get(field, 1)
            for prefix, part in state.named()
            for field in part.tensors()
            if field in part.room or field in part.any_length
        }
        self.has_room = {prefix + field for prefix, part in state.named() for field in part.room} & set(self.tensors)
        self.lengths = {
            prefix + field: "places" if field in part.room else prefix.replace(".", "_") + "length"
            for prefix, part in state.named()
            for field in part.tensors()
            if prefix + field in self.growing
        }

    @property
    def needs_whole_pieces(self) -> bool:
        """True if the cache policy of some layer only takes pieces of one length."""
        policies = (part.cache_policy for _, part in self.initial.named() if isinstance(part, CachePolicyState))
        return any(policy != FULL for policy in policies)

    @classmethod
    def of(cls, decoder: Decoder, capacity: int, cache_policy: CachePolicies) -> "StateTensors":
        """Describe an empty state of one stream."""
        return cls(cache_policy_state(decoder, 1, capacity, cache_policy))

    def filled(self, tensors: Sequence[Tensor]) -> list[LayerStates]:
        """Return the states of each layer with these tensors, in the order of the names."""
        by_name = dict(zip(self.tensors, tensors, strict=True))
        each = [
            part.with_tensors({field: by_name[prefix + field] for field in part.tensors()})
            for prefix, part in self.initial.named()
        ]
        layers = len(self.initial.layers)
        return [LayerStates(*each[index::layers]) for index in range(layers)]

    def taken(self, layers: Sequence[LayerStates]) -> list[Tensor]:
        """Return the tensors of these states, in the order of the names."""
        parts = [part for column in zip(*layers, strict=True) for part in column]
        by_name = {
            prefix + field: tensor
            for (prefix, _), part in zip(self.initial.named(), parts, strict=True)
            if isinstance(part, State)
            for field, tensor in part.tensors().items()
        }
        if by_name.keys() != self.tensors.keys():
            changed = sorted(by_name.keys() ^ self.tensors.keys())
            raise ValueError(f"a step changes which tensors a state has: {changed}")
        return [by_name[name] for name in self.tensors]


class PassFunction(nn.Module):
    """A decoder as a function: tokens `[B, T]`, positions `[B]` and states to logits `[B, T, V]` and states.

    in_place: layers write large states in place; their tensors are among those that are returned.
    """

    def __init__(self, decoder: Decoder, flat: StateTensors, in_place: bool = False) -> None:
        super().__init__()
        self.decoder, self.flat, self.in_place = decoder, flat, in_place

    @property
    def takes_any_number(self) -> bool:
        """True if one graph can read any number of tokens; a recurrence is unrolled over the traced number."""
        states = zip(self.decoder.mixers, self.flat.initial.layers, strict=True)
        recurs = any(mixer.traits.constant_state and not isinstance(state, WindowState) for mixer, state in states)
        return not recurs and not self.flat.needs_whole_pieces

    def forward(self, tokens_BT: Tensor, position_B: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the logits and the states after the tokens."""
        logits_BTV, after = self.uncapped(tokens_BT, position_B, states)
        return self.decoder.capped(logits_BTV), after

    def uncapped(self, tokens_BT: Tensor, position_B: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """`forward` without the soft cap of the logits."""
        layers = self.flat.filled(states)
        named = zip(self.flat.tensors, states, strict=True)
        rooms = (x.shape[self.flat.growing[name]] for name, x in named if name in self.flat.has_room)
        places = next(rooms, tokens_BT.shape[1])
        layout = GraphBatchLayout(
            record=AuxiliaryOutputs(), tokens_BT=tokens_BT, position_B=position_B, places=places, in_place=self.in_place
        )
        with graph_forms():
            x_BTD = run_blocks(self.decoder.blocks, self.decoder.embedding(tokens_BT, layout), layers, layout)
            return self.decoder.uncapped_logits(self.decoder.after_blocks(x_BTD)), self.flat.taken(layers)


class InPlaceStep(nn.Module):
    """A pass of one token of each row that writes the tensors after the pass into those of the states."""

    def __init__(self, decoder: Decoder, states: StateTensors) -> None:
        super().__init__()
        self.function = PassFunction(decoder, states, in_place=True)
        self.weight_names = tuple(weights_of(self.function))
        self.packed_names = defaultdict[int, list[str]](list)
        """The names of each map with packed weights: a tied table has two, and is two modules while it is exported."""
        for name, module in self.function.named_modules(remove_duplicate=False):
            if isinstance(module, PackedLinear):
                self.packed_names[id(module)].append(name)
        maps = packed_maps(self.function).items()
        self.packed_weights = {f"{name}.{index}" for name, part in maps for index in range(len(part.tensors))}

    def forward(self, token_B1: Tensor, position_B: Tensor, states: list[Tensor], weights: list[Tensor]) -> Tensor:
        """Return the logits `[B, V]`; weights: those of `weights_of`, in this order."""
        named = dict(zip(self.weight_names, weights, strict=True))
        logits_B1V: Tensor
        with ExitStack() as stack:
            for names in self.packed_names.values():
                modules = {id(part): part for part in map(self.function.get_submodule, names)}.values()
                for module in modules:
                    assert isinstance(module, PackedLinear)
                    parts = [named[f"{names[0]}.{index}"] for index in range(len(module.tensors))]
                    stack.enter_context(module.replaced(parts))
            named = {name: weight for name, weight in named.items() if name not in self.packed_weights}
            logits_B1V, after = torch.func.functional_call(self.function, named, (token_B1, position_B, states))
        for state, new in zip(states, after, strict=True):
            if new is not state:
                state.copy_(new)
        return logits_B1V[:, 0]


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers and packed weights by name; a tensor with two names is there once."""
    packed = {
        f"{name}.{index}": tensor
        for name, part in packed_maps(module).items()
        for index, tensor in enumerate(part.tensors)
    }
    return dict(module.named_parameters()) | dict(module.named_buffers()) | packed


def packed_maps(module: nn.Module) -> dict[str, PackedLinear]:
    """The maps with packed weights, which are no parameters, by name; a table with two names is there once."""
    return {name: part for name, part in module.named_modules() if isinstance(part, PackedLinear)}


def can_capture(decoder: Decoder, state: DecoderState) -> bool:
    """True if the next step of a state is a function of tensors alone: prompts and inputs have been read.

    Layers that compute their calibration again at every step are not captured.
    """
    layers = zip(decoder.mixers, state.layers, strict=True)
    has_calibration = all(not mixer.traits.calibrates or mixer.calibration(part) for mixer, part in layers)
    return has_calibration and (decoder.encoder is None or state.has_memory)


def can_capture_on_cpu(decoder: Decoder, state: DecoderState) -> bool:
    """`can_capture` for a decoder on a CPU, in float32 or bfloat16, whose packed weights all have native products."""
    if decoder.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    return (
        can_capture(decoder, state)
        and {parameter.dtype for parameter in decoder.parameters()} in ({torch.float32}, {torch.bfloat16})
        and all(module.gemv is not None for module in decoder.modules() if isinstance(module, PackedLinear))
    )


def reserve(state: DecoderState, tokens: int) -> None:
    """Prepare all layers for this many steps that do not change shapes (`State.reserve`)."""
    for part in state.sublayers:
        part.reserve(tokens)


@dataclass
class Maintenance:
    """What layers leave to be done between captured steps of a batch (`State.maintain`).

    due: steps until it is; None: never.
    """

    state: DecoderState
    due: int | None = None

    def plan(self) -> None:
        """Ask the layers, as the rows or their positions have changed."""
        each = [part.maintenance_due(self.state.positions) for part in self.state.sublayers]
        self.due = min((steps for steps in each if steps is not None), default=None)

    def after_step(self) -> None:
        """Do what is due after a step, whose rows have moved on by a token."""
        if self.due is None:
            return
        self.due -= 1
        if self.due > 0:
            return
        with torch.inference_mode():  # tensors made in inference mode are changed in no other
            for part in self.state.sublayers:
                if part.maintenance_due(self.state.positions) is not None:
                    part.maintain(self.state.positions)
        self.plan()


def export_step(
    decoder: Decoder, state: DecoderState, native: bool = True
) -> tuple["torch.export.ExportedProgram", tuple[Any, ...]]:
    """The captured `InPlaceStep` for one stream, or for any number if the state has several, and its free sizes.

    state: of streams that have begun, with lengths unlike any other size of the model. The lengths of states are free.
    native: with native functions. The sizes are in the form that `torch.export` takes.
    """
    states, several = StateTensors(state), len(state.positions) > 1
    step, batch = InPlaceStep(decoder, states), torch.export.Dim("batch", min=2)
    rows = {0: batch} if several else {}
    lengths = {name: torch.export.Dim(name, min=2) for name in sorted(states.lengths.values())}
    of_states = [
        rows | {states.growing[n]: lengths[states.lengths[n]]} if n in states.growing else rows for n in states.tensors
    ]
    tokens_B1 = torch.ones(len(state.positions), 1, dtype=torch.int64, device=decoder.device)
    weights = list(weights_of(step.function).values())
    tensors = [tensor.clone(memory_format=torch.contiguous_format) for tensor in states.tensors.values()]
    example = (tokens_B1, tokens_B1[:, 0].clone(), tensors, weights)
    shapes = (rows, rows, of_states, [None] * len(weights))
    uses_library = native and library(decoder.device) is not None
    with custom_ops_in_graphs() if uses_library else nullcontext():
        program = torch.export.export(step, example, dynamic_shapes=shapes, strict=False)
    inline_regions_without_autocast(program.graph_module)
    if uses_library:
        use_native_products(program)
    if decoder.device.type == "cpu":
        use_float32_batched_products(program)
    use_sums_of_products(program)
    return program, shapes


def insert(graph: torch.fx.Graph, function: Any, *arguments: Any) -> torch.fx.Node:
    """A call of a function at the place where `graph` inserts, with the value that the exporter would note."""
    node = graph.call_function(function, arguments)
    values = [part.meta["val"] if isinstance(part, torch.fx.Node) else part for part in arguments]
    with values[0].fake_mode:
        node.meta["val"] = function(*values)
    return node


def inline_regions_without_autocast(module: torch.fx.GraphModule) -> None:
    """Put the operations of a `with torch.autocast(..., enabled=False)` block in the place of its call.

    No autocast surrounds a captured step, so the block changes nothing; as a graph of its own it would hide its
    operations from the passes over the step's.
    """
    graph = module.graph
    while regions := graph.find_nodes(op="call_function", target=torch.ops.higher_order.wrap_with_autocast):
        for call in regions:
            _, _, is_enabled, _, region, *operands = call.args
            assert not is_enabled, "a layer enables autocast"
            body = getattr(module, region.target).graph
            copies = dict(zip(body.find_nodes(op="placeholder"), operands, strict=True))
            with graph.inserting_before(call):
                for node in body.nodes:
                    if node.op not in ("placeholder", "output"):
                        copies[node] = graph.node_copy(node, copies.__getitem__)
            results = body.output_node().args[0]
            for item in list(call.users):  # each takes one of the results
                item.replace_all_uses_with(copies[results[item.args[1]]])
                graph.erase_node(item)
            graph.erase_node(call)
    module.recompile()


def use_sums_of_products(program: "torch.export.ExportedProgram") -> None:
    """Replace convolutions of each channel with as many inputs as weights by sums of products.

    A compiler fuses the sums with what is around them; a convolution is a call of a library, which takes longer than so
    few products.
    """
    aten, graph = torch.ops.aten, program.graph_module.graph
    for convolution in graph.find_nodes(op="call_function", target=aten.conv1d.default):
        x, weight, bias, _, padding, _, groups = (*convolution.args, None, [1], [0], [1], 1)[:7]
        channels, one, taps = weight.meta["val"].shape
        if list(padding) != [0] or groups != channels or one != 1 or x.meta["val"].shape[2] != taps:
            continue
        with graph.inserting_before(convolution):
            products = insert(graph, aten.mul.Tensor, x, insert(graph, aten.reshape.default, weight, [channels, taps]))
            result = insert(graph, aten.sum.dim_IntList, products, [2], True)
            if bias is not None:
                result = insert(
                    graph, aten.add.Tensor, result, insert(graph, aten.reshape.default, bias, [channels, 1])
                )
        convolution.replace_all_uses_with(result)
        graph.erase_node(convolution)
    program.graph_module.recompile()


def use_float32_batched_products(program: "torch.export.ExportedProgram") -> None:
    """Compute batched products of matrices in bfloat16, as those of block-diagonal gates, in float32.

    On processors without AMX, PyTorch's product of a few rows in bfloat16 takes 15 us whatever its size, and the same
    in float32 2 us.
    """
    aten, graph = torch.ops.aten, program.graph_module.graph
    for product in graph.find_nodes(op="call_function", target=aten.baddbmm.default):
        if product.meta["val"].dtype != torch.bfloat16:
            continue
        with graph.inserting_before(product):
            wide = [insert(graph, aten.to.dtype, each, torch.float32) for each in product.args]
            sums = graph.call_function(aten.baddbmm.default, tuple(wide))
            with product.meta["val"].fake_mode:  # the product itself refuses a number of rows that is a symbol here
                sums.meta["val"] = product.meta["val"].float()
            result = insert(graph, aten.to.dtype, sums, torch.bfloat16)
        product.replace_all_uses_with(result)
        graph.erase_node(product)
    program.graph_module.recompile()


def use_native_products(program: "torch.export.ExportedProgram") -> None:
    """Replace the linear maps of a captured graph, in float32 and bfloat16, by native custom ops (`ops.native`).

    The weights are inputs of the graph. Maps with packed weights are custom ops already.
    """
    from linnet.ops.native import custom_ops

    graph = program.graph_module.graph
    products = {torch.float32: custom_ops.float32_linear, torch.bfloat16: custom_ops.bfloat16_linear}

    aten = torch.ops.aten
    for linear in graph.find_nodes(op="call_function", target=aten.linear.default):
        x, weight, bias = (*linear.args, None)[:3]
        out = linear.meta["val"]
        is_input = weight.op == "placeholder" and weight.meta["val"].is_contiguous()
        if not is_input or weight.meta["val"].dtype not in products or out.dtype not in products:
            continue
        sizes = [size if isinstance(size, int) else -1 for size in out.shape]  # the number of rows is a symbol
        with graph.inserting_before(linear):
            rows = insert(graph, aten.reshape.default, x, [-1, weight.meta["val"].shape[1]])
            if out.dtype != torch.float32:
                rows = insert(graph, aten.to.dtype, rows, torch.float32)
                bias = bias and insert(graph, aten.to.dtype, bias, torch.float32)
            rows, product_of = insert(graph, aten.contiguous.default, rows), products[weight.meta["val"].dtype]
            product = insert(graph, product_of, rows, weight, bias)
            result = insert(graph, aten.reshape.default, insert(graph, aten.to.dtype, product, out.dtype), sizes)
        linear.replace_all_uses_with(result)
        graph.erase_node(linear)
    program.graph_module.recompile()
