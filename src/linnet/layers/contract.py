"""The contract of a token mixer: its description, its module, its state, its cost.

Legend: `B` batch, `T` tokens of the chunk, `S` tokens of the stream so far, `D` model width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from linnet.core.spec import Spec
from linnet.nn.cost import Cost


@dataclass(frozen=True)
class Traits:
    """What holds for a mixer, and is tested for it.

    causal: without a state, no output depends on a later token.
    exact_when_split: a stream fed in chunks gives what one pass gives, however it is cut. A mixer without this trait
        fixes something at its first chunk (the prompt); after that every cut gives the same.
    settled_after: for a mixer without these two: so many tokens decide what it fixes. Both traits hold for all outputs
        from the last of them on, if the first chunk has as many; None where the whole first chunk decides.
    constant_state: the bytes of its state do not grow with the number of tokens.
    window: an output depends on so many tokens, its own included; None: on every token before it.
    """

    causal: bool = True
    exact_when_split: bool = True
    settled_after: int | None = None
    constant_state: bool = False
    window: int | None = None


@dataclass(frozen=True)
class Span:
    """Where a chunk lies in its stream; made by the decoder, which alone advances the position.

    start: index of the chunk's first token in the stream.
    padding_B: how many tokens at the start of each row of the stream are padding, int64 `[B]`, or None for none.
    """

    start: int = 0
    padding_B: Tensor | None = None

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Positions of a chunk's tokens: `[T]`, or `[B, T]` counted from each row's first real token."""
        index_T = torch.arange(self.start, self.start + length, device=device)
        if self.padding_B is None:
            return index_T
        return (index_T - self.padding_B[:, None]).clamp(min=0)

    def real(self, length: int, device: torch.device) -> Tensor | None:
        """`[B, T]` bool, False where a token of the chunk is padding; None where nothing is."""
        if self.padding_B is None:
            return None
        return torch.arange(self.start, self.start + length, device=device) >= self.padding_B[:, None]


@dataclass
class State(ABC):
    """What one layer keeps of a stream: a dataclass of tensors that belongs to the caller, never to the module.

    It is advanced in place, so gradients flow within one chunk, not from one chunk to the next.
    Every tensor's first dimension is the batch. A field may be None until the first chunk fills it.
    """

    any_length: ClassVar[frozenset[str]] = frozenset()
    """Fields whose second dimension is the number of tokens that happen to be held; none of them is ever None."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field name; fields that are None are left out."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, as allocated."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def fork(self) -> Self:
        """An independent copy: advancing one does not touch the other."""
        return replace(self, **{name: tensor.clone() for name, tensor in self.tensors().items()})

    def select(self, rows: Tensor) -> Self:
        """A copy with the given rows of the batch (int64 `[B']`; a row may repeat)."""
        return replace(self, **{name: tensor[rows] for name, tensor in self.tensors().items()})

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """A copy that holds `tensors` (by field name); tensors not named there become None."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        empty: dict[str, Any] = {name: None for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **{**empty, **tensors})

    @abstractmethod
    def forget(self) -> Self:
        """A copy that has seen no token, but keeps what was frozen at the prompt (PLGA's operator)."""

    @abstractmethod
    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens; `NotImplementedError` where the architecture does not allow it."""


class Mixer(nn.Module, ABC):
    """A layer that moves information between tokens."""

    traits: Traits
    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {}
    """The slow, obvious form of each fast operation, by the attribute that holds the fast one (tests compare)."""

    @abstractmethod
    def initial_state(self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype) -> State:
        """An empty state with room for `capacity` tokens."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, state: State | None = None, span: Span = Span()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`. With a state: reads it and advances it in place."""


class MixerSpec(Spec, ABC):
    """The description of a mixer, chosen by `kind`."""

    kind: str

    @abstractmethod
    def build(self, d_model: int, context_length: int) -> Mixer:
        """The module for width `d_model`."""

    @abstractmethod
    def cost(self, d_model: int, context_length: int) -> Cost:
        """Exact parameters, forward FLOPs, decode state and training memory, from the description alone."""

    @classmethod
    @abstractmethod
    def examples(cls) -> list[Self]:
        """Small variants that together show what the mixer can be, at width 16; the contract tests build them all."""

    def check(self, d_model: int) -> None:
        """Raise `ValueError("field: value: what would be accepted")` where the mixer does not fit the width."""
