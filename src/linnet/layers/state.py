"""What a sublayer keeps of a stream: a value that belongs to the caller.

Shapes: `B` batch, `T` tokens of the chunk, `C` capacity.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.ops.support import is_exporting


@dataclass
class State:
    """A dataclass of tensors, batch first. It is advanced in place, so gradients flow within one chunk alone.

    Each row has a position of its own, which the caller knows (`model.state`). A field may be None until the first
    chunk fills it.
    """

    any_length: ClassVar[frozenset[str]] = frozenset()
    """Fields whose second dimension is the number of tokens that happen to be held; none of them is ever None."""

    room: ClassVar[Mapping[str, int]] = MappingProxyType({})
    """Fields with a place for each token there is room for, and which dimension has the places."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field name; fields that are None are left out."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def cache_policy(self) -> CachePolicy:
        """What it keeps of the past."""
        return FULL

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, as allocated."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def held_nbytes(self, tokens: int) -> int:
        """Bytes that `tokens` tokens of one row take: no room that is yet to be filled."""
        return sum(_row_bytes(tensor, self.room.get(name), tokens) for name, tensor in self.tensors().items())

    def fork(self) -> Self:
        """An independent copy: advancing one does not touch the other."""
        return replace(self, **{name: tensor.clone() for name, tensor in self.tensors().items()})

    def select(self, rows: Tensor) -> Self:
        """A copy with the given rows of the batch (int64 `[B']`; a row may repeat)."""
        return replace(self, **{name: tensor[rows] for name, tensor in self.tensors().items()})

    def join(self, others: Sequence[Self]) -> Self:
        """A copy with the rows of the others behind its own, with room for what any of them has room for.

        `ValueError` if they have different cache policies, or one was calibrated on its prompt and another was not.
        """
        together = [self, *others]
        if len({frozenset(state.tensors()) for state in together}) > 1:
            raise ValueError("a state that was calibrated on its prompt and one that was not cannot join")
        if any(state._settings() != self._settings() for state in others):
            raise ValueError("states that keep the past in different ways cannot join")
        joined = {
            name: torch.cat(_with_room([state.tensors()[name] for state in together], self.room.get(name)))
            for name in self.tensors()
        }
        return replace(self, **joined)

    def _settings(self) -> dict[str, Any]:
        """The fields that are no tensors, nor places for one."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, Tensor | None)}

    def grown(self, capacity: int) -> Self:
        """A copy with room for `capacity` tokens, at least as many as there was room for."""
        tensors = self.tensors().items()
        return replace(self, **{name: _padded(tensor, self.room.get(name), capacity) for name, tensor in tensors})

    def take(self, other: Self) -> None:
        """Become what `other` is; its tensors are not copied."""
        vars(self).update(vars(other))

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """A copy that holds `tensors` (by field name); tensors not named there become None."""
        empty: dict[str, Any] = dict.fromkeys(self.tensors())
        return replace(self, **{**empty, **tensors})

    def forget(self) -> Self:
        """A copy that has seen no token, but keeps what was calibrated on its first chunk.

        By default all zeros, as which most states begin.
        """
        return self.with_tensors({name: torch.zeros_like(tensor) for name, tensor in self.tensors().items()})

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens; 0, which always can be, forgets the calibration too.

        `NotImplementedError` where the architecture does not allow it: by default for all but 0.
        """
        if length:
            raise NotImplementedError("the past is in sums, which cannot go back to an earlier token")
        self.take(self.forget())


@dataclass
class NoState(State):
    """Of a sublayer that keeps nothing."""

    def crop(self, length: int) -> None:
        """Nothing to do."""


@dataclass
class CachePolicyState(State, ABC):
    """A state that keeps the past as a `CachePolicy` says, and tells how much of it it holds."""

    @property
    @abstractmethod
    def cache_policy(self) -> CachePolicy:
        """What it was made with."""

    @abstractmethod
    def sizes(self, position: int | Tensor) -> Tensor:
        """How many vectors of the layer's width each row holds, int64 `[B]`.

        position: tokens of each row so far; int64 `[B]` where rows differ.
        """

    @abstractmethod
    def mean_sizes(self, position: int | Tensor) -> Tensor:
        """The sizes after each token so far, averaged, float64 `[B]`; 0 before the first."""

    def largest_sizes(self, position: int | Tensor) -> Tensor:
        """The largest of these sizes, int64 `[B]`; by default the last."""
        return self.sizes(position)

    @abstractmethod
    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        """Bytes of what each row holds, averaged in the same way, float64 `[B]`: no room that is yet to be filled."""


def _row_bytes(tensor: Tensor, room: int | None, tokens: int) -> int:
    of_row = tensor.nbytes // len(tensor)
    return of_row if room is None else of_row // tensor.shape[room] * tokens


def _with_room(tensors: Sequence[Tensor], room: int | None) -> list[Tensor]:
    """The tensors with the room of the roomiest."""
    most = 0 if room is None else max(tensor.shape[room] for tensor in tensors)
    return [_padded(tensor, room, most) for tensor in tensors]


def _padded(tensor: Tensor, room: int | None, places: int) -> Tensor:
    """A copy with so many places, zeros in those that are new."""
    if room is None:
        return tensor.clone()
    behind = tensor.dim() - 1 - room
    return F.pad(tensor, (0, 0) * behind + (0, places - tensor.shape[room]))


def write_chunk(kept: Tensor, new: Tensor, layout: BatchLayout, places: int = 1) -> Tensor:
    """Write a chunk's real tokens at their positions along the dimension `places`; gives `kept`, or in a graph another.

    A graph's runtime does it in place where input and output share a buffer.
    """
    if is_exporting():
        return _scattered(kept, new, layout, places)
    kept_BC, new_BT = kept.transpose(1, places), new.transpose(1, places)
    if layout.uniform:
        kept_BC[:, layout.start : layout.start + new_BT.shape[1]] = new_BT
    else:
        write_rows(kept_BC, new_BT, layout)
    return kept


def _scattered(kept: Tensor, new: Tensor, layout: BatchLayout, places: int) -> Tensor:
    """The same as one operation."""
    positions_BT = layout.positions(new.shape[places], kept.device)
    behind = new.dim() - places - 1
    index = positions_BT.view(len(new), *(1,) * (places - 1), -1, *(1,) * behind).expand_as(new)
    return kept.scatter(places, index, new.to(kept.dtype))


def write_rows(kept_BC: Tensor, new_BT: Tensor, layout: BatchLayout) -> None:
    """Write each row's real tokens at its own position, `[B, C, ...]` from `[B, T, ...]`."""
    batch, length = new_BT.shape[:2]
    if layout.padding is None:
        rows_B1 = torch.arange(batch, device=kept_BC.device)[:, None]
        kept_BC[rows_B1, layout.positions(length, kept_BC.device)] = new_BT.to(kept_BC.dtype)
        return
    starts, paddings = layout.starts_of(batch), layout.padding_of(batch)
    for row, (start, padding) in enumerate(zip(starts, paddings, strict=True)):
        kept_BC[row, start : start + length - padding] = new_BT[row, padding:]
