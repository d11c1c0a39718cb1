"""Recorded programs: the native calls of one decoding step, recorded once and then run in one call per token.

`Recording` observes a step while it runs and records each native call with its arguments, addresses included; callers
need not know about it. Between steps only the token and its position change. A call declares which of its arguments
move with them (`Stride`). This module also checks the tensors of native calls: C++ would read past the end of a wrong
tensor without an error.
"""

import ctypes
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

MAX_ARGUMENTS = 14
"""Arguments of an operation, as in `program.cpp`."""
BYTES_PER_THREAD = 1 << 16
"""Weights and state of a whole step for which one thread is used; more bytes use more threads."""

_FLOAT = struct.Struct("<f4x")
_INTEGER = struct.Struct("<q")
_INDICES: tuple[Literal["token", "position"], ...] = ("token", "position")

Argument = Tensor | int | float | None
"""An argument of a native function; a tensor is passed by its address."""


def expect(fits: bool, expected: str, *found: Tensor) -> None:
    """`ValueError` with the expectation and the tensors found, unless `fits`."""
    if not fits:
        tensors = ", ".join(f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} on {x.device}" for x in found)
        raise ValueError(f"expected {expected}, found {tensors}")


def contiguous_float32(x: Tensor) -> Tensor:
    """The same numbers in float32, contiguous; `ValueError` for a tensor that is not on the CPU."""
    if not x.is_cpu:
        expect(False, "a tensor on the CPU", x)
    return x if x.dtype == torch.float32 and x.is_contiguous() else x.float().contiguous()


def empty(*shape: int) -> Tensor:
    """Uninitialized float32 on the CPU, regardless of PyTorch's defaults."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


class Stride(NamedTuple):
    """Arguments of an operation that move with the token or with its position.

    steps: by the index of an argument, how far it moves from one token or position to the next. below: how many tokens
        or positions there are.
    """

    by: Literal["token", "position"]
    steps: Mapping[int, int]
    below: int


class Operation(NamedTuple):
    """A recorded call: number of the function, tensors, arguments with addresses in place of tensors, stride."""

    function: int
    tensors: Sequence[Tensor]
    arguments: Sequence[int | float | None]
    stride: Stride | None


class Function:
    """A function of the library. Its calls are recorded while a `Recording` of the same thread is entered."""

    __slots__ = ("_call", "_index")

    def __init__(self, call: Callable[..., None], index: int) -> None:
        self._call, self._index = call, index

    def __call__(self, *arguments: Argument, stride: Stride | None = None) -> None:
        """Call with the addresses of tensors."""
        values = [part.data_ptr() if isinstance(part, Tensor) else part for part in arguments]
        self._call(*values)
        if (recording := _thread.recording) is not None:
            tensors = [part for part in arguments if isinstance(part, Tensor)]
            recording.operations.append(Operation(self._index, tensors, values, stride))


class UnrecordableError(Exception):
    """The step does more than call functions of the library. Everything it has done so far can be repeated."""


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the native calls of a step while it is entered; `token` and `position` are those of the step.

    Repeating the calls must be the step for other tokens, so only functions of the library may compute. PyTorch may
    add views and allocate tensors; any other operation raises `UnrecordableError` before it changes anything.
    """

    def __init__(self, token: int, position: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._token, self._position = token, position
        self._allocated: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """A hook of PyTorch. False avoids a wrapper around the dispatch whose first call imports the compiler (1 s)."""
        return False

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        _thread.recording = self  # last: after an interruption before this line nothing is recorded
        return self

    def __exit__(self, *problem: Any) -> None:
        _thread.recording = None
        super().__exit__(*problem)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Check an operation of PyTorch."""
        if _thread.recording is not self:  # entering or leaving was interrupted
            return func(*args, **(kwargs or {}))
        allocates = func is torch.ops.aten.empty.memory_format
        # An operation that writes nothing and whose results may be views of its first input. `lift_fresh` returns its
        # input too, but that was made from Python numbers of this token and position.
        results = func._schema.returns
        views = bool(results) and all(each.alias_info is not None and not each.alias_info.is_write for each in results)
        if not allocates and (not views or func is torch.ops.aten.lift_fresh.default):
            raise UnrecordableError(str(func))
        result = func(*args, **(kwargs or {}))
        if allocates:
            self._allocated.append(result)
            return result
        parts = [result] if isinstance(result, Tensor) else result
        storage = args[0].untyped_storage().data_ptr()
        if any(part.untyped_storage().data_ptr() != storage for part in parts):
            raise UnrecordableError(f"{func}: a copy")
        return result

    def program(self, library: ctypes.CDLL) -> "Program":
        """The step for other tokens and positions; it writes to the tensors to which the step wrote."""
        strides = [operation.stride for operation in self.operations if operation.stride is not None]
        below: dict[str, int | None] = {
            by: min((stride.below for stride in strides if stride.by == by), default=None) for by in _INDICES
        }
        packed = b"".join(map(self._pack, self.operations))
        allocated = {tensor.data_ptr() for tensor in self._allocated}
        tensors = (tensor for operation in self.operations for tensor in operation.tensors)
        inputs = [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() not in allocated]
        return Program(library, packed, len(self.operations), below, inputs, self._allocated)

    def _pack(self, operation: Operation) -> bytes:
        """The operation as `program.cpp` reads it: of each argument its value, its step by token and by position."""
        missing = MAX_ARGUMENTS - len(operation.arguments)
        assert missing >= 0
        packed, stride = [_INTEGER.pack(operation.function)], operation.stride
        for place, value in enumerate([*operation.arguments, *repeat(0, missing)]):
            if isinstance(value, float):
                packed.append(_FLOAT.pack(value) + bytes(2 * _INTEGER.size))
                continue
            step = 0 if stride is None else stride.steps.get(place, 0)
            by_token, by_position = (step if stride is not None and stride.by == by else 0 for by in _INDICES)
            start = (value or 0) - by_token * self._token - by_position * self._position
            packed += map(_INTEGER.pack, (start, by_token, by_position))
        return b"".join(packed)


class Program:
    """The operations of a step, run in one call. It keeps the tensors alive that they read and write."""

    def __init__(
        self,
        library: ctypes.CDLL,
        operations: bytes,
        count: int,
        below: Mapping[str, int | None],
        inputs: Sequence[Tensor],
        allocated: Sequence[Tensor],
    ) -> None:
        self._function, self._count = library.linnet_run, count
        self._max_threads = 1 + sum(tensor.nbytes for tensor in inputs) // BYTES_PER_THREAD
        self._operations = ctypes.create_string_buffer(operations, len(operations))
        self._address = ctypes.addressof(self._operations)
        self._tokens, self._positions = below["token"], below["position"]
        self._inputs, self._allocated = inputs, allocated
        self._addresses = [tensor.data_ptr() for tensor in inputs]

    def is_valid(self) -> bool:
        """True if weights and states are still at their addresses; `share_memory_`, for example, moves them."""
        return [tensor.data_ptr() for tensor in self._inputs] == self._addresses

    def run(self, token: int, position: int) -> None:
        """Run the step; `IndexError` for a token or a position out of range."""
        for name, found, below in (("token", token, self._tokens), ("position", position, self._positions)):
            if below is not None and not 0 <= found < below:
                raise IndexError(f"{name} {found} of {below}")
        threads = min(torch.get_num_threads(), self._max_threads)
        self._function(self._address, self._count, token, position, threads)


class _ThreadState(threading.local):
    recording: Recording | None = None


_thread = _ThreadState()
