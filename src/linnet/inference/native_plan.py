"""Calls of native functions that make up a step of one stream, and what they are bound to.

A `NativePlan` serves all streams of a decoder; `NativePlan.bind` makes its calls for the states of one of them. Values
that depend on the position alone (rotary tables, positions that are added) become tables over all positions.

Legend: `C` capacity.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from linnet.inference.native_trace import Trace, UnmappedError, is_written, memory

aten = torch.ops.aten


class Operand(NamedTuple):
    """Consecutive elements of a register, in a shape. after: the number of calls after which they are there."""

    register: int
    offset: int
    shape: torch.Size
    after: int = 0

    def of(self, registers: Sequence[Tensor]) -> Tensor:
        """The operand as a view."""
        flat = registers[self.register].view(-1)
        return flat[self.offset : self.offset + self.shape.numel()].view(self.shape)


Run = Callable[..., Tensor]
"""A native function of token, position and operands."""


@dataclass
class NativeCall:
    """A call whose result is a register. make: binds it to a stream (`Binding`)."""

    make: Callable[["Binding"], Run]
    operands: list[Operand]
    register: int
    adds: bool = False  # whether it has a summand as its last operand


@dataclass
class Binding:
    """What calls are bound to: the library, and the states of a stream with their capacity in tokens."""

    library: ctypes.CDLL
    trace: Trace
    states: Sequence[Tensor]
    capacity: int
    tables: dict[str, Tensor]
    """Tables by how they are computed, shared by layers and streams."""
    _weights: dict[int, Tensor] = field(default_factory=dict)

    def state(self, x: Tensor) -> Tensor:
        """The stream's tensor in place of a traced one, which is the whole of its memory."""
        places = [memory(own) for own in self.trace.inputs["state"]]
        return self.states[places.index(memory(x))]

    def weight(self, x: Tensor) -> Tensor:
        """A weight, or what the pass computes from weights, computed again from their present values."""
        return repeated(self.trace, x, self._weights)

    def table(self, x: Tensor) -> Tensor:
        """What depends on the position alone, for all positions, `[C, ...]`, and maybe for some more."""
        key = self._key(x)
        if key not in self.tables or len(self.tables[key]) < self.capacity:
            places = 1 << (self.capacity - 1).bit_length()  # streams have many capacities
            self.tables[key] = table_of(self.trace, x, places)
        return self.tables[key]

    def _key(self, x: Tensor) -> str:
        """How a tensor is computed; the same for layers with the same settings."""
        if id(x) not in self.trace.keys:
            node = self.trace.made.get(id(x))
            if node is None:
                return str(id(x))
            parts = tree_map_only(Tensor, self._key, (tuple(node.args), dict(node.kwargs)))
            self.trace.keys[id(x)] = str((str(node.function), parts))
        return self.trace.keys[id(x)]


def table_of(trace: Trace, x: Tensor, places: int) -> Tensor:
    """What depends on the position alone, for so many positions, `[places, ...]`, without rounding to bfloat16."""
    (position_1,) = trace.inputs["position"]
    found = repeated(trace, x, {id(position_1): torch.arange(places)}, as_float32=True)
    if len(found) != places or found.numel() != places * x.numel():
        raise UnmappedError("a value by position that is no table")
    return found


def repeated(trace: Trace, x: Tensor, known: dict[int, Tensor], as_float32: bool = False) -> Tensor:
    """A tensor computed again by the operations that led to it, and by those to others from `known`.

    as_float32: without rounding to bfloat16.
    """
    if id(x) not in known:
        node = trace.made.get(id(x))
        if is_written(trace, x):
            raise UnmappedError("a value that is changed in place")
        if node is None:
            return x
        if len(node.results) > 1 or (as_float32 and node.function is aten.embedding.default):
            raise UnmappedError(str(node.function))
        args, kwargs = tree_map_only(
            Tensor, lambda part: repeated(trace, part, known, as_float32), (tuple(node.args), dict(node.kwargs))
        )
        rounds = as_float32 and node.function is aten.to.dtype and args[1] == torch.bfloat16
        known[id(x)] = args[0].float() if rounds else node.function(*args, **kwargs)
    return known[id(x)]


@dataclass(frozen=True)
class NativePlan:
    """The calls of a step, in order, and the operand that is its result."""

    trace: Trace
    calls: list[NativeCall]
    result: Operand
    registers: int
    tables: dict[str, Tensor] = field(default_factory=dict)

    def bind(
        self, library: ctypes.CDLL, states: Sequence[Tensor], capacity: int, row: Tensor | None = None
    ) -> Callable[[int, int], Tensor]:
        """The step of a stream as a function of token and position, whose every call is one of the library."""
        binding = Binding(library, self.trace, states, capacity, self.tables)
        calls = [(call.make(binding), call.operands, call.register) for call in self.calls]
        registers = [torch.empty(0)] * self.registers
        if row is not None:
            registers[0] = row

        def step(token: int, position: int) -> Tensor:
            for run, operands, register in calls:
                registers[register] = run(token, position, *(operand.of(registers) for operand in operands))
            return self.result.of(registers)

        return step
