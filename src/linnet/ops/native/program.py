"""Many operations in one call: they are written down while a step is done once, and run for every step behind it.

Whoever names operations of `ops.native` needs to know nothing of it: what a step does is found by doing it
(`Recording`), addresses and all. What moves from step to step are the token and its position, and operations say what
of theirs moves along (`Along`).
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

MOST_ARGUMENTS = 14
"""Of an operation, as in `program.cpp`."""
BYTES_OF_A_THREAD = 1 << 16
"""Weights and state of a whole step that one thread reads before another is woken."""

_FLOAT = struct.Struct("<f4x")
_WHOLE = struct.Struct("<q")


class Along(NamedTuple):
    """What of an operation moves with the token, or with its position.

    steps: by the place of an argument, how far it moves from one to the next. below: how many of them there are.
    """

    by: Literal["token", "position"]
    steps: Mapping[int, int]
    below: int


Argument = Tensor | int | float | None
"""Of a function; a tensor stands for its address."""


class Operation(NamedTuple):
    """A call of a function that was done."""

    place: int
    tensors: Sequence[Tensor]
    arguments: Sequence[int | float | None]
    along: Along | None


class Function:
    """A function of the library; its calls are written down while a `Recording` of the same thread is entered."""

    __slots__ = ("_call", "_place")

    def __init__(self, call: Callable[..., None], place: int) -> None:
        self._call, self._place = call, place

    def __call__(self, *arguments: Argument, along: Along | None = None) -> None:
        """With the addresses of tensors."""
        told = [part.data_ptr() if isinstance(part, Tensor) else part for part in arguments]
        self._call(*told)
        if (recording := _here.recording) is not None:
            tensors = [part for part in arguments if isinstance(part, Tensor)]
            recording.operations.append(Operation(self._place, tensors, told, along))


class UnrecordableError(Exception):
    """A step that is more than operations of the library; what it had done can be done again."""


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what a step does while it is entered; `token` and `position` are those of the step.

    Doing the same again has to be that step for other tokens, so nothing but functions of the library may compute:
    views of tensors and room for new ones are all that PyTorch may add. Anything else is an `UnrecordableError`, before
    it has changed what was there.
    """

    def __init__(self, token: int, position: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._token, self._position = token, position
        self._made: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's word: no wrapper around the dispatch, whose first call imports the compiler, a second of it."""
        return False

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        _here.recording = self  # last: whoever is interrupted before has nothing written down
        return self

    def __exit__(self, *problem: Any) -> None:
        _here.recording = None
        super().__exit__(*problem)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What PyTorch does beside the operations."""
        if _here.recording is not self:  # it was interrupted while it was entered or left
            return func(*args, **(kwargs or {}))
        is_room = func is torch.ops.aten.empty.memory_format
        if not is_room and not _may_be_a_view(func):
            raise UnrecordableError(str(func))
        found = func(*args, **(kwargs or {}))
        if is_room:
            self._made.append(found)
        elif not _shares(found, args[0]):
            raise UnrecordableError(f"{func}: a copy")
        return found

    def program(self, library: ctypes.CDLL) -> "Program":
        """The step for other tokens and positions, which writes where the step wrote."""
        moving = [operation.along for operation in self.operations if operation.along is not None]
        below: dict[str, int | None] = {
            by: min((along.below for along in moving if along.by == by), default=None) for by in _STARTS
        }
        flat = b"".join(map(self._packed, self.operations))
        made = {tensor.data_ptr() for tensor in self._made}
        tensors = (tensor for operation in self.operations for tensor in operation.tensors)
        given = [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() not in made]
        return Program(library, flat, len(self.operations), below, given, self._made)

    def _packed(self, operation: Operation) -> bytes:
        """As `program.cpp` reads it."""
        missing = MOST_ARGUMENTS - len(operation.arguments)
        assert missing >= 0
        return _WHOLE.pack(operation.place) + b"".join(
            self._argument(value, place, operation.along)
            for place, value in enumerate([*operation.arguments, *repeat(0, missing)])
        )

    def _argument(self, value: int | float | None, place: int, along: Along | None) -> bytes:
        """A number, and what each token and each position add to it."""
        if isinstance(value, float):
            return _FLOAT.pack(value) + bytes(2 * _WHOLE.size)
        step = 0 if along is None else along.steps.get(place, 0)
        by_token, by_position = (step if along is not None and along.by == by else 0 for by in _STARTS)
        start = (value or 0) - by_token * self._token - by_position * self._position
        return b"".join(map(_WHOLE.pack, (start, by_token, by_position)))


_STARTS: tuple[Literal["token", "position"], ...] = ("token", "position")


class Program:
    """The operations of a step, in one call. It holds the tensors that they read and write."""

    def __init__(
        self,
        library: ctypes.CDLL,
        operations: bytes,
        count: int,
        below: Mapping[str, int | None],
        given: Sequence[Tensor],
        made: Sequence[Tensor],
    ) -> None:
        self._function, self._count = library.linnet_run, count
        self._most_threads = 1 + sum(tensor.nbytes for tensor in given) // BYTES_OF_A_THREAD
        self._operations = ctypes.create_string_buffer(operations, len(operations))
        self._address = ctypes.addressof(self._operations)
        self._tokens, self._positions = below["token"], below["position"]
        self._given, self._made = given, made
        self._places = [tensor.data_ptr() for tensor in given]

    def stands(self) -> bool:
        """Whether weights and states lie where they lay: `share_memory_`, for one, moves them."""
        return [tensor.data_ptr() for tensor in self._given] == self._places

    def run(self, token: int, position: int) -> None:
        """`IndexError` for a token or a position that there is none of."""
        for name, found, below in (("token", token, self._tokens), ("position", position, self._positions)):
            if below is not None and not 0 <= found < below:
                raise IndexError(f"{name} {found} of {below}")
        threads = min(torch.get_num_threads(), self._most_threads)
        self._function(self._address, self._count, token, position, threads)


class _Here(threading.local):
    recording: Recording | None = None


_here = _Here()


def _may_be_a_view(func: Any) -> bool:
    """Whether what it gives may be its input, seen otherwise, and nothing is written.

    `lift_fresh` gives its input too, which was made of Python's numbers: those of this token and position alone.
    """
    if func is torch.ops.aten.lift_fresh.default:
        return False
    returned = func._schema.returns
    return bool(returned) and all(one.alias_info is not None and not one.alias_info.is_write for one in returned)


def _shares(found: Tensor | Sequence[Tensor], source: Tensor) -> bool:
    """Whether all that was found lies where the source lies."""
    each = [found] if isinstance(found, Tensor) else found
    place = source.untyped_storage().data_ptr()
    return all(one.untyped_storage().data_ptr() == place for one in each)
