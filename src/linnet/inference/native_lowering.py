"""A captured step of one token of one stream as calls of `ops.native`: its operations are mapped one by one.

`lowered` maps the operations between the token and the result of a traced pass (`native_trace`) to native functions,
which compute in float32 whatever the precision of the weights, so that conversions between float32 and bfloat16 vanish.
A pass with any other operation has no such form (`UnmappedError`).

Legend: `D` width, `J` heads, `M` key-value heads, `P` query heads of each, `C` capacity, `K` head width.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linnet.inference.native_plan import Binding, NativeCall, NativePlan, Operand, Run, table_of
from linnet.inference.native_trace import Node, Trace, UnmappedError, memory
from linnet.ops.native import custom_ops
from linnet.ops.native.attention import attention_row, head_matrices_row
from linnet.ops.native.elementwise import Kind, activation_row, norm_row, rotate_row, scale_add_row
from linnet.ops.native.gemv import (
    bfloat16_gemv,
    float32_gemv,
    float_lookup,
    int4_gemv,
    int4_lookup,
    int8_gemv,
    int8_lookup,
)

aten = torch.ops.aten

FLOATS = (torch.float32, torch.bfloat16)


def lowered(trace: Trace, result: Tensor, states_after: Sequence[Tensor]) -> NativePlan:
    """The calls that lead to a result of a traced pass; `UnmappedError` if an operation has no native form.

    states_after: the tensors of the states after the pass, which must be those of its inputs.
    """
    if trace.reads_numbers:
        raise UnmappedError("a number that Python has read")
    if [memory(x) for x in states_after] != [memory(x) for x in trace.inputs["state"]]:
        raise UnmappedError("a state that is another tensor after the step")
    lowering = _Lowering(trace)
    operand = lowering.operand(result)
    lowering.check_unchanged(operand)
    written = {id(node) for x in states_after for node in trace.writers[memory(x)]}
    if written != lowering.stored:
        raise UnmappedError("a state that something else than attention writes")
    row = operand._replace(shape=torch.Size((1, result.numel())))
    return NativePlan(trace, lowering.calls, row, lowering.registers)


class _Overwritten(NamedTuple):
    """Elements of a register that a call changes in place."""

    register: int
    start: int
    end: int
    call: int


class _Lowering:
    """Maps operations from the last to the first; calls are in the order in which they run.

    stored: the writes of keys and values that attention does.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.calls, self.stored = trace, list[NativeCall](), set[int]()
        inputs = trace.inputs.get("row", ())
        self.registers = len(inputs)
        self._memories = {memory(x): Operand(0, 0, x.shape) for x in inputs}
        self._overwritten = list[_Overwritten]()

    def operand(self, x: Tensor) -> Operand:
        """Where the elements of a tensor are, after the call that computes them."""
        if not (x.is_contiguous() and x.dtype in FLOATS):
            raise UnmappedError(f"{x.dtype} with the strides {x.stride()}")
        if memory(x) not in self._memories:
            writers = self.trace.writers[memory(x)]
            if len(writers) != 1 or not writers[0].results[0].is_contiguous():
                raise UnmappedError("no single operation")
            self._memories[memory(x)] = self._mapped(writers[0])
        whole = self._memories[memory(x)]
        return Operand(whole.register, whole.offset + int(x.storage_offset()), x.shape, whole.after)

    def check_unchanged(self, operand: Operand) -> None:
        """`UnmappedError` if a call changes the elements in place after they are there."""
        start, end = operand.offset, operand.offset + operand.shape.numel()
        for other in self._overwritten:
            overlaps = other.register == operand.register and start < other.end and other.start < end
            if overlaps and other.call >= operand.after:
                raise UnmappedError("elements that are read after they were changed in place")

    def _mapped(self, node: Node) -> Operand:
        """The result of an operation, which is mapped."""
        if node.function in COPIES:
            return self.operand(node.args[0])
        if node.function not in HANDLERS:
            raise UnmappedError(str(node.function))
        return HANDLERS[node.function](self, node)

    def call(
        self, make: Callable[[Binding], Run], *operands: Operand, shape: torch.Size, adds: bool = False
    ) -> Operand:
        """Append a call; its result."""
        for operand in operands:
            self.check_unchanged(operand)
        self.calls.append(NativeCall(make, list(operands), self.registers, adds))
        self.registers += 1
        return Operand(self.registers - 1, 0, shape, len(self.calls))

    def weight(self, x: Tensor | None) -> None:
        """`UnmappedError` for a tensor that is not computed from weights alone."""
        if x is not None and self.trace.sources(x):
            raise UnmappedError("a weight that depends on the text")

    def whole_state(self, x: Tensor) -> bool:
        """True for a tensor of the state, and for a view of all its elements in their order."""
        own = [part for part in self.trace.inputs["state"] if memory(part) == memory(x)]
        return bool(own) and x.is_contiguous() and own[0].is_contiguous() and x.numel() == own[0].numel()

    def only_reader(self, x: Tensor, node: Node) -> bool:
        """True if no other operation reads the memory of a tensor, conversions apart."""
        readers = self.trace.readers[memory(x)]
        return all(
            reader is node or (reader.function in COPIES and self.only_reader(reader.results[0], node))
            for reader in readers
        )

    # The operations. Each takes a node and returns its result.

    def look_up(self, node: Node) -> Operand:
        """The row of a token in a table of weights."""
        table, tokens, *_ = node.args
        self.weight(table)
        return self._row_of_token(node, tokens, lambda to: float_lookup(to.library, to.weight(table)))

    def int8_look_up(self, node: Node) -> Operand:
        """The same in a table of 8 bits."""
        numbers, scale, inputs, tokens = node.args
        return self._row_of_token(node, tokens, lambda to: int8_lookup(to.library, numbers, scale, inputs))

    def int4_look_up(self, node: Node) -> Operand:
        """The same in a table of 4 bits."""
        blocks, inputs, outputs, group, tokens = node.args
        return self._row_of_token(node, tokens, lambda to: int4_lookup(to.library, blocks, inputs, outputs, group))

    def _row_of_token(self, node: Node, tokens: Tensor, table: Callable[[Binding], Callable[[int], Tensor]]) -> Operand:
        self._is_input(tokens, "token")

        def make(to: Binding) -> Run:
            found = table(to)
            return lambda token, position: found(token)

        return self.call(make, shape=node.results[0].shape)

    def _is_input(self, x: Tensor, name: str) -> None:
        """`UnmappedError` unless a tensor is this input, the token or the position."""
        (own,) = self.trace.inputs[name]
        if memory(x) != memory(own):
            raise UnmappedError(f"not the {name} itself")

    def linear(self, node: Node) -> Operand:
        """Products with weights in float32 and bfloat16."""
        x, weight, bias = (*node.args, None)[:3]
        if weight.dtype not in FLOATS or weight.dim() != 2:
            raise UnmappedError(f"weights in {weight.dtype}")
        function = float32_gemv if weight.dtype == torch.float32 else bfloat16_gemv
        return self._product(
            node, x, bias, weight, make=lambda to, bias_O: function(to.library, to.weight(weight), bias_O)
        )

    def int8_product(self, node: Node) -> Operand:
        """Products with weights of 8 bits."""
        x, numbers, scale, bias = node.args
        inputs = x.shape[1]
        return self._product(
            node, x, bias, make=lambda to, bias_O: int8_gemv(to.library, numbers, scale, inputs, bias_O)
        )

    def int4_product(self, node: Node) -> Operand:
        """Products with weights of 4 bits."""
        x, blocks, group, outputs, bias = node.args
        inputs = x.shape[1]
        return self._product(
            node, x, bias, make=lambda to, bias_O: int4_gemv(to.library, blocks, inputs, outputs, group, bias_O)
        )

    def _product(
        self,
        node: Node,
        x: Tensor,
        bias: Tensor | None,
        *weights: Tensor,
        make: Callable[[Binding, Tensor | None], Callable[..., Tensor]],
    ) -> Operand:
        for part in (*weights, bias):
            self.weight(part)
        if x.numel() != x.shape[-1]:
            raise UnmappedError("a product of several rows")

        def bind(to: Binding) -> Run:
            gemv = make(to, None if bias is None else to.weight(bias))
            return lambda token, position, x_1I, added_1O=None: gemv(
                x_1I.view(1, -1), None if added_1O is None else added_1O.view(1, -1)
            )

        return self.call(bind, self.operand(x), shape=node.results[0].shape, adds=True)

    def norm(self, node: Node) -> Operand:
        """RMS norm and layer norm, the latter with a bias, of one or several rows with one gain."""
        is_rms = node.function is aten.rms_norm.default
        defaults = (None, None) if is_rms else (None, None, 1e-5)  # arguments that are those of the schema are left out
        args = (*node.args, *defaults[len(node.args) - 2 :])
        x, shape, gain, bias, eps = (*args[:3], None, args[3]) if is_rms else args[:5]
        for part in (gain, bias):
            self.weight(part)
        if node.kwargs or len(shape) != 1 or gain is None or (bias is None) != is_rms or eps is None:
            raise UnmappedError("a norm without a gain, or without a bias")
        rows = x.numel() // shape[0]

        def make(to: Binding) -> Run:
            gain_JD, bias_JD = (
                None if part is None else to.weight(part).float().expand(rows, -1) for part in (gain, bias)
            )
            assert gain_JD is not None
            function = norm_row(to.library, gain_JD, bias_JD, eps)
            return lambda token, position, x: function(x.view(rows, -1))

        return self.call(make, self.operand(x), shape=x.shape)

    def rotation(self, node: Node) -> Operand:
        """Rotary positions, in place."""
        x, cos, sin, adjacent = node.args
        if any(self.trace.sources(part) != {"position"} for part in (cos, sin)):
            raise UnmappedError("a rotation by something else than positions")
        for part in (cos, sin):
            table_of(self.trace, part, 2)

        def make(to: Binding) -> Run:
            cos_CE, sin_CE = (to.table(part).flatten(1) for part in (cos, sin))
            function = rotate_row(to.library, cos_CE, sin_CE, "adjacent" if adjacent else "halves")
            return lambda token, position, x: function(x.view(-1, x.shape[-1]), position)

        before = self.operand(x)
        after = self.call(make, before, shape=x.shape).after
        self._overwritten.append(_Overwritten(before.register, before.offset, before.offset + x.numel(), after - 1))
        return before._replace(after=after)

    def add(self, node: Node) -> Operand:
        """A sum of two rows, in one call with the product that one of them is, or of a row and a table by position."""
        x, y = node.args[:2]
        shape = node.results[0].shape
        if not isinstance(y, Tensor) or not x.numel() == y.numel() == shape.numel() or node.kwargs.get("alpha", 1) != 1:
            raise UnmappedError("a sum of different shapes")
        for row, other in ((x, y), (y, x)):
            if self.trace.sources(other) == {"position"}:
                return self.call(self._scale_add(1.0, other), self.operand(row), shape=shape)
        summands = self.operand(x), self.operand(y)
        for product, other, tensor in ((summands[1], summands[0], y), (summands[0], summands[1], x)):
            index = product.after - 1
            if index < 0 or other.after > index or not self.only_reader(tensor, node):
                continue
            call, whole = self.calls[index], self.trace.writers[memory(tensor)][0].results[0]
            if call.adds and len(call.operands) == 1 and whole.numel() == tensor.numel():
                self.check_unchanged(other)
                call.operands.append(other)
                return product._replace(shape=shape)
        return self.call(_sum, *summands, shape=shape)

    def _scale_add(self, factor: float, by_position: Tensor | None = None) -> Callable[[Binding], Run]:
        learned = None if by_position is None else self._learned(by_position)

        def make(to: Binding) -> Run:
            table_CD = None if learned is None else to.weight(learned)
            if by_position is not None and learned is None:
                table = to.table(by_position)
                table_CD = table.view(len(table), -1)
            function = scale_add_row(to.library, factor, table_CD)
            return lambda token, position, x: function(x.view(1, -1), position)

        return make

    def _learned(self, by_position: Tensor) -> Tensor | None:
        """The weights that are the rows of all positions, which may be fewer than a state has places; None if none."""
        node = self.trace.made.get(id(by_position))
        if node is None or node.function is not aten.embedding.default:
            table_of(self.trace, by_position, 2)
            return None
        self._is_input(node.args[1], "position")
        table: Tensor = node.args[0]
        self.weight(table)
        return table

    def multiply(self, node: Node) -> Operand:
        """A row times a number, or an activation of one half times the other half."""
        x, y = node.args
        if not isinstance(y, Tensor):  # a number
            return self.call(self._scale_add(float(y)), self.operand(x), shape=node.results[0].shape)
        for gate, value in ((x, y), (y, x)):
            writers = self.trace.writers[memory(gate)]
            kind = activation_of(self.trace, writers[0]) if len(writers) == 1 else None
            if kind is None or gate.shape != value.shape:
                continue
            half, other = self.operand(kind[1]), self.operand(value)
            end = half.register, half.offset + half.shape.numel()
            if end == (other.register, other.offset):
                size = torch.Size((1, 2 * half.shape.numel()))
                joint = half._replace(shape=size, after=max(half.after, other.after))
                name = kind[0]
                return self.call(_activation(name, gated=True), joint, shape=node.results[0].shape)
        raise UnmappedError("a product of two rows")

    def activation(self, node: Node) -> Operand:
        """An activation of a row."""
        kind = activation_of(self.trace, node)
        if kind is None:
            raise UnmappedError(str(node.function))
        return self.call(_activation(kind[0]), self.operand(kind[1]), shape=node.results[0].shape)

    def head_matrices(self, node: Node) -> Operand:
        """Queries of one token times a matrix for each head, from the state or from the weights."""
        q, matrices = node.args
        heads, width = matrices.shape[-3:-1] if matrices.dim() > 2 else (0, 0)
        is_state = bool(self.trace.sources(matrices))
        is_square = matrices.shape[-1] == width and matrices.numel() == heads * width * width
        if not is_square or q.shape[-3:] != (heads, 1, width) or q.numel() != heads * width:
            raise UnmappedError("a product of two tensors")
        if is_state and (not self.whole_state(matrices) or self.trace.writers[memory(matrices)]):
            raise UnmappedError("a product with matrices that change")

        def make(to: Binding) -> Run:
            found = to.state(matrices) if is_state else to.weight(matrices)
            function = head_matrices_row(to.library, found.reshape(heads, width, width))
            return lambda token, position, q: function(q.view(heads, 1, width))

        return self.call(make, self.operand(q), shape=node.results[0].shape)

    def attention(self, node: Node) -> Operand:
        """Attention over the past, with the writes of the token's key and value before it."""
        q, keys, values, last, scale = node.args
        self._is_input(last, "position")
        if len(q) != 1:
            raise UnmappedError("several streams")
        key, value = (self._stored(part) for part in (keys, values))
        heads = keys.shape[1]

        def make(to: Binding) -> Run:
            function = attention_row(to.library, to.state(keys)[0], to.state(values)[0], scale)
            return lambda token, position, q, k, v: function(q[0], k.view(heads, -1), v.view(heads, -1), position)

        return self.call(make, self.operand(q), self.operand(key), self.operand(value), shape=node.results[0].shape)

    def _stored(self, cache: Tensor) -> Tensor:
        """What the pass writes at the position of a cache `[1, M, C, K]`: `[M, K]`."""
        writers = self.trace.writers[memory(cache)]
        if not self.whole_state(cache) or len(writers) != 1:
            raise UnmappedError("keys that are no state")
        (node,) = writers
        if node.function is not aten.index_put_.default or len(node.args) > 3 or node.kwargs:
            raise UnmappedError(str(node.function))
        whole, places, new = node.args
        is_whole = whole.shape == cache.shape and new.numel() == cache.shape[1] * cache.shape[3]
        if len(places) != 3 or places[1] is not None or not is_whole:
            raise UnmappedError("keys at other places")
        self._is_input(places[2], "position")
        self.stored.add(id(node))
        stored: Tensor = new
        return stored


def _sum(to: Binding) -> Run:
    function = to.library.linnet_scale_add

    def add(token: int, position: int, x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty(x.shape, dtype=torch.float32, device="cpu")
        function(x, 1.0, y, x.numel(), out, 1)
        return out

    return add


def _activation(kind: Kind, gated: bool = False) -> Callable[[Binding], Run]:
    def make(to: Binding) -> Run:
        function = activation_row(to.library, kind, gated)
        return lambda token, position, x: function(x.view(1, -1))

    return make


def activation_of(trace: Trace, node: Node) -> tuple[Kind, Tensor] | None:
    """The activation that an operation is, and its input; None for any other operation."""
    if node.function is aten.gelu.default:
        kind: Kind = "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"
        return kind, node.args[0]
    if node.function is aten.square.default:
        writers = trace.writers[memory(node.args[0])]
        is_relu = len(writers) == 1 and writers[0].function is aten.relu.default
        return ("relu_squared", writers[0].args[0]) if is_relu else None
    plain: dict[Any, Kind] = {aten.silu.default: "silu", aten.relu.default: "relu"}
    return (plain[node.function], node.args[0]) if node.function in plain else None


COPIES = {
    aten.to.dtype,
    aten.contiguous.default,
    aten.clone.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten._to_copy.default,
}
"""Operations whose result has the elements of their input in the same order; `operand` refuses other inputs."""

HANDLERS: dict[Any, Callable[[_Lowering, Node], Operand]] = {
    aten.embedding.default: _Lowering.look_up,
    custom_ops.int8_look_up: _Lowering.int8_look_up,
    custom_ops.int4_look_up: _Lowering.int4_look_up,
    aten.linear.default: _Lowering.linear,
    custom_ops.float32_linear: _Lowering.linear,
    custom_ops.bfloat16_linear: _Lowering.linear,
    custom_ops.int8_linear: _Lowering.int8_product,
    custom_ops.int4_linear: _Lowering.int4_product,
    aten.rms_norm.default: _Lowering.norm,
    aten.layer_norm.default: _Lowering.norm,
    custom_ops.rotate: _Lowering.rotation,
    aten.add.Tensor: _Lowering.add,
    aten.mul.Tensor: _Lowering.multiply,
    aten.matmul.default: _Lowering.head_matrices,
    custom_ops.attention_past: _Lowering.attention,
    **dict.fromkeys(
        (aten.silu.default, aten.gelu.default, aten.relu.default, aten.square.default), _Lowering.activation
    ),
}
