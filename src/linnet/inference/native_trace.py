"""What PyTorch computes in one pass of one token of one stream, noted operation by operation.

Views need no mapping by those who read a trace: tensors are recognized by the memory that they show.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READS_NUMBERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
"""Operations that give Python a number."""


class UnmappedError(Exception):
    """An operation of the pass has no native form."""


@dataclass(eq=False)
class Node:
    """An operation of PyTorch with its arguments and results; sources: what they depend on (`Trace`)."""

    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    results: list[Tensor]
    sources: frozenset[str]


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations of a pass while it is entered, with their tensors.

    inputs: the tensors by what they are: `token`, `position`, `row` or `state`. All others are weights.
    """

    def __init__(self, inputs: Mapping[str, Sequence[Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = inputs
        self.reads_numbers = False
        """Whether Python has read a number that depends on an input: other operations might follow for another one."""
        self.made: dict[int, Node] = {}
        """The operation that returned a tensor, views included, by the tensor's id."""
        self.writers, self.readers = defaultdict[int, list[Node]](list), defaultdict[int, list[Node]](list)
        """The operations that wrote or read a memory, without views, by `memory`."""
        self.keys: dict[int, str] = {}
        """How values by position are computed (`Binding.table`), by the id of a tensor."""
        self._sources = {memory(x): frozenset({name}) for name, tensors in inputs.items() for x in tensors}
        self._alive: list[Any] = []  # ids and addresses are those of living tensors

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in `ops.native.program.Recording`."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation and note it."""
        result = func(*args, **(kwargs or {}))
        read = list(tensors_of((args, kwargs or {})))
        results = list(tensors_of(result))
        sources = frozenset[str]().union(*map(self.sources, read))
        if func in READS_NUMBERS and sources:
            self.reads_numbers = True
        node = Node(func, args, kwargs or {}, results, sources)
        self._alive.append(node)
        known, own = {id(x) for x in read}, {memory(x) for x in read}
        for x in results:
            if id(x) not in known:
                self.made[id(x)] = node
            if memory(x) not in own or func._schema.is_mutable:
                self.writers[memory(x)].append(node)
                self._sources[memory(x)] = self.sources(x) | sources
        if func._schema.is_mutable or any(memory(x) not in own for x in results):
            for place in own:
                self.readers[place].append(node)
        return result

    def sources(self, x: Tensor) -> frozenset[str]:
        """The names of the inputs that a tensor depends on; empty for weights and what is computed from them."""
        return self._sources.get(memory(x), frozenset())


def memory(x: Tensor) -> int:
    """A number for the memory that a living tensor shows."""
    return int(x.untyped_storage()._cdata)


def tensors_of(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from tensors_of(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_of(value)


def is_written(trace: Trace, x: Tensor) -> bool:
    """True if an operation of the pass changes the memory of a tensor after it was made."""
    return any(node.function._schema.is_mutable for node in trace.writers[memory(x)])
