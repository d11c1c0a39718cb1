"""The state of a sublayer: what it keeps of a stream of tokens. It belongs to the caller.

Shapes: `B` batch, `T` tokens of the chunk, `C` capacity.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy


@dataclass(frozen=True)
class Contents:
    """What a state holds of one stream.

    entries: the number of vectors that stand for a single token each, and of running sums over tokens. ages: the age of
    each single token in tokens, 0 for the last one read; sums, and tokens of an encoder's input, have none. relevance:
    how much of each single token is left, in the order of `ages`; None where that depends on the query. nbytes: as
    allocated. held_nbytes: without unused capacity.
    """

    entries: int
    ages: tuple[int, ...]
    nbytes: int
    held_nbytes: int
    relevance: tuple[float, ...] | None = None


@dataclass
class State:
    """A dataclass of tensors whose first dimension is the batch.

    It is advanced in place. Gradients flow within one chunk only: `layers.passes.run` leaves no graph in it, and keeps
    the tensors that the graph of an earlier chunk needs. Each row has its own position, which the caller holds
    (`model.state`). A field may be None until the first chunk fills it.
    """

    any_length: ClassVar[frozenset[str]] = frozenset()
    """Fields whose second dimension is the number of tokens that are held now; they are never None."""

    room: ClassVar[Mapping[str, int]] = MappingProxyType({})
    """Fields with one place per token up to the capacity, and the dimension of the places.

    A place does not change after it was written, and `crop` reads none, so that states of one text share them.
    """

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field name; fields that are None are left out."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def cache_policy(self) -> CachePolicy:
        """The policy that decides what it keeps of the past."""
        return FULL

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, as allocated."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def held_nbytes(self, tokens: int) -> int:
        """Bytes that `tokens` tokens of one row take, without unused capacity."""
        total = 0
        for name, tensor in self.tensors().items():
            row_nbytes = tensor.nbytes // len(tensor)
            total += row_nbytes // tensor.shape[self.room[name]] * tokens if name in self.room else row_nbytes
        return total

    def observe(self, position: int, row: int = 0) -> Contents:
        """What a row that has read `position` tokens holds: by default every token if there is room, else one sum."""
        if self.room:
            return self.contents(position, 0, range(position)[::-1])
        return self.contents(position, int(position > 0 and bool(self.tensors())), ())

    def contents(
        self, position: int, sums: int, ages: Iterable[int], relevance: Iterable[float] | None = None
    ) -> Contents:
        """`Contents` with the bytes of one row of the state; `sums`: the entries that are no single tokens."""
        ages, tensors = tuple(ages), self.tensors().values()
        nbytes = sum(tensor.nbytes // len(tensor) for tensor in tensors)
        left = None if relevance is None else tuple(relevance)
        return Contents(sums + len(ages), ages, nbytes, self.held_nbytes(position), left)

    def fork(self) -> Self:
        """An independent copy: advancing one does not touch the other."""
        return replace(self, **{name: tensor.clone() for name, tensor in self.tensors().items()})

    def select(self, rows: Tensor) -> Self:
        """A copy with the given rows of the batch (int64 `[B']`; a row may repeat)."""
        return replace(self, **{name: tensor[rows] for name, tensor in self.tensors().items()})

    def join(self, others: Sequence[Self]) -> Self:
        """A copy with the rows of the others after its own, with the largest capacity.

        `ValueError` if they have different cache policies, or one was calibrated on its prompt and another was not.
        """
        together = [self, *others]
        if len({frozenset(state.tensors()) for state in together}) > 1:
            raise ValueError("a state that was calibrated on its prompt and one that was not cannot join")
        settings = [
            {name: value for name, value in vars(state).items() if not isinstance(value, Tensor | None)}
            for state in together
        ]
        if any(other != settings[0] for other in settings):
            raise ValueError("states with different cache policies cannot join")
        fields = {name: [state.tensors()[name] for state in together] for name in self.tensors()}
        return replace(self, **{name: joined_rows(tensors, self.room.get(name)) for name, tensors in fields.items()})

    def join_nbytes(self, others: Sequence[Self]) -> int:
        """Bytes of the result of `join`."""
        total = 0
        for name, own in self.tensors().items():
            sizes = [own.shape, *(state.tensors()[name].shape for state in others)]
            row = [max(places) for places in zip(*sizes, strict=True)][1:]
            total += own.itemsize * sum(size[0] for size in sizes) * math.prod(row)
        return total

    def grown(self, capacity: int) -> Self:
        """A copy with a capacity of `capacity` tokens; with a smaller one it holds the first of them only."""
        tensors = self.tensors().items()
        return replace(self, **{name: _padded(tensor, self.room.get(name), capacity) for name, tensor in tensors})

    def reserve(self, tokens: int) -> None:
        """Prepare the tensors for steps that do not change their shapes, for this many more tokens: by default nothing.

        A field of `any_length` that grows with the tokens gets empty places for them.
        """

    def maintenance_due(self, positions: Sequence[int]) -> int | None:
        """After how many captured steps of rows at these positions `maintain` is due; None: never."""
        return None

    def maintain(self, positions: Sequence[int]) -> None:
        """Do in place what is due in some steps only, and which a graph would have to compute in every step.

        Captured steps that write states leave it out; it follows the step, whose rows are now at these positions.
        """

    def take(self, other: Self) -> None:
        """Take over all fields of `other`, without copies."""
        vars(self).update(vars(other))

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """A copy with these tensors, by field name; other tensor fields become None."""
        empty: dict[str, Any] = dict.fromkeys(self.tensors())
        return replace(self, **{**empty, **tensors})

    def forget(self) -> Self:
        """A copy that has seen no token, but keeps what was calibrated on its first chunk.

        By default all tensors are zeros, the initial value of most states.
        """
        return self.with_tensors({name: torch.zeros_like(tensor) for name, tensor in self.tensors().items()})

    def can_crop(self, length: int) -> bool:
        """True if `crop` can return to the first `length` tokens: by default to none only."""
        return length == 0

    def crop(self, length: int) -> None:
        """Keep only the first `length` tokens. A length of 0 is always supported, and removes the calibration too.

        `NotImplementedError` if the architecture cannot do it (`can_crop`).
        """
        if not self.can_crop(length):
            raise NotImplementedError("the state sums over all tokens, so it cannot return to an earlier one")
        self.take(self.forget())


@dataclass
class NoState(State):
    """The state of a sublayer that keeps nothing."""

    def can_crop(self, length: int) -> bool:
        return True

    def crop(self, length: int) -> None:
        """Nothing to do."""


@dataclass
class CachePolicyState(State, ABC):
    """A state whose size depends on its cache policy.

    Sizes are numbers of vectors of the layer's width. `position` is the number of tokens of each row so far, or int64
    `[B]` if rows differ.
    """

    @property
    @abstractmethod
    def cache_policy(self) -> CachePolicy:
        """The policy that it was created with."""

    @abstractmethod
    def sizes(self, position: int | Tensor) -> Tensor:
        """The number of vectors that each row holds, int64 `[B]`."""

    @abstractmethod
    def mean_sizes(self, position: int | Tensor) -> Tensor:
        """The mean of the sizes after each token so far, float64 `[B]`; 0 before the first token."""

    def largest_sizes(self, position: int | Tensor) -> Tensor:
        """The largest of these sizes, int64 `[B]`; by default the last."""
        return self.sizes(position)

    @abstractmethod
    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        """Bytes that each row holds, without unused capacity, averaged in the same way, float64 `[B]`."""


def joined_rows(tensors: Sequence[Tensor], dim: int | None) -> Tensor:
    """The rows of all tensors in a new one, with the largest number of places in dimension `dim`; new places are zero.

    dim None: they have the same shape but for the number of rows.
    """
    if dim is None or len({tensor.shape[dim] for tensor in tensors}) == 1:
        return torch.cat(list(tensors))
    shape = list(tensors[0].shape)
    shape[0], shape[dim] = sum(map(len, tensors)), max(tensor.shape[dim] for tensor in tensors)
    joined, begin = tensors[0].new_zeros(shape), 0
    for tensor in tensors:
        joined[begin : begin + len(tensor)].narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
        begin += len(tensor)
    return joined


def _padded(tensor: Tensor, dim: int | None, places: int) -> Tensor:
    """A copy with this number of places in dimension `dim`, new ones zero, later ones left out; a mere copy if `dim` is
    None.
    """
    if dim is None:
        return tensor.clone()
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1 - dim) + (0, places - tensor.shape[dim]))


def write_chunk(cache: Tensor, new: Tensor, layout: BatchLayout, dim: int = 1) -> Tensor:
    """Write a chunk's tokens at their positions in dimension `dim` of a cache, in place, and return the cache.

    In a functional graph it returns another tensor; the runtime writes in place if input and output share a buffer.
    """
    if not layout.uniform and layout.padding is None:
        return write_places(cache, new, layout.positions(new.shape[dim], cache.device), layout, dim)
    cache_BC, new_BT = cache.transpose(1, dim), new.transpose(1, dim)
    length = new_BT.shape[1]
    if layout.padding is None:
        cache_BC[:, layout.start : layout.start + length] = new_BT
    else:
        batch = len(new)
        starts = layout.starts_of(batch)
        for row, (start, padding) in enumerate(zip(starts, layout.padding, strict=True)):
            cache_BC[row, start : start + length - padding] = new_BT[row, padding:]
    return cache


def write_places(cache: Tensor, new: Tensor, places_BT: Tensor, layout: BatchLayout, dim: int = 1) -> Tensor:
    """Write tokens at these places of dimension `dim` of a cache, in place unless the graph is functional (see above).

    places_BT: `[B, T]`, or `[1, T]` if they are the same in all rows.
    """
    if layout.functional:
        index = places_BT.view(len(places_BT), *(1,) * (dim - 1), -1, *(1,) * (new.dim() - dim - 1)).expand_as(new)
        return cache.scatter(dim, index, new.to(cache.dtype))
    rows_B1 = torch.arange(new.shape[0], device=cache.device)[:, None]
    of_rows: tuple[Any, ...] = (rows_B1, *(slice(None),) * (dim - 1), places_BT)
    cache[of_rows] = new.movedim(dim, 1).to(cache.dtype)
    return cache
