"""Linear maps for inference alone: their weights are no parameters, but lie as the product reads them fastest.

Legend: `I` inputs, `O` outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from linnet.ops import bfloat16_linear, int4_linear, int8_linear
from linnet.ops.int4_linear import Int4Weight, PackedInt4Weight
from linnet.ops.int8_linear import Int8Weight, PackedInt8Weight
from linnet.ops.linear import linear


class PackedLinear(nn.Module, ABC):
    """Takes the place of a `Linear` or a `FusedLinear` (then `parts` are its parts).

    It follows `to(device)`, laid out as is best there; it keeps its precision, and `to(dtype)` is a `ValueError`.
    """

    dtype: ClassVar[torch.dtype]
    """Of input, output and bias."""

    bias: Tensor | None

    def __init__(self, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.register_buffer("bias", None if bias_O is None else bias_O.detach())

    @property
    def out_features(self) -> int:
        """As of the map in whose place it stands."""
        return sum(self.parts)

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The matrix `[O, I]` that the products are with, made anew at each call."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of weights that a product reads."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the weights are."""

    @abstractmethod
    def _move(self, device: torch.device) -> None:
        """Bring the weights to another device."""

    def split(self, joint: Tensor) -> tuple[Tensor, ...]:
        """`[..., sum(parts)]` -> one view `[..., part]` for each part."""
        return torch.split(joint, list(self.parts), dim=-1)

    def target(self, fn: Callable[[Tensor], Tensor]) -> torch.device:
        """The device to which `fn` brings a tensor of these weights; `ValueError` where it changes their precision."""
        moved = fn(torch.empty(0, dtype=self.dtype, device=self.device))
        if moved.dtype != self.dtype:
            found, kept = (str(dtype).removeprefix("torch.") for dtype in (moved.dtype, self.dtype))
            raise ValueError(f"{found}: converted weights compute in {kept} and stay so; load the model anew instead")
        return moved.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `cuda` and `float` come down to: parameters and buffers follow, and so do these weights."""
        device = self.target(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if device != self.device:
            self._move(device)
        return self

    def get_extra_state(self) -> Any:
        """Part of `state_dict`, which there is none of: a `ValueError` instead of a file without weights."""
        raise ValueError("converted weights are for inference alone: save, or change, the decoder as it was before")


class RoundedLinear(PackedLinear):
    """Weights of a few bits, of which a row can be looked up; input and output are float32."""

    dtype = torch.float32

    @abstractmethod
    def rows(self, places: Tensor) -> Tensor:
        """Rows of the matrix, int64 `[...]` -> `[..., I]`."""

    @abstractmethod
    def row(self, x_1I: Tensor) -> Tensor:
        """`[1, I] -> [1, O]` without the bias, in the precision that its product is in."""


class Int8Linear(RoundedLinear):
    """Weights of 8 bits (`ops.int8_linear`); a large matrix is packed unless rows are looked up in it (`is_table`).

    Where there is no fast form each product makes a float32 matrix first: right, and slower than float32.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int], is_table: bool = False) -> None:
        super().__init__(bias_O, parts)
        self._is_table = is_table
        self._keep(int8_linear.quantise(weight_OI.detach()))

    @property
    def weight(self) -> Tensor:
        """See `PackedLinear`."""
        return int8_linear.dequantise(self._plain())

    @property
    def device(self) -> torch.device:
        """See `PackedLinear`."""
        return self._weight.scale_O.device

    @property
    def nbytes(self) -> int:
        """See `PackedLinear`."""
        return int8_linear.int8_nbytes(self.out_features, self._weight.inputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I] -> [..., O]`."""
        if self._fast:
            return int8_linear.int8_linear(x, self._weight, self.bias)
        return int8_linear.int8_linear_reference(x, self._plain(), self.bias)

    def rows(self, places: Tensor) -> Tensor:
        """See `RoundedLinear`."""
        return int8_linear.rows_of(self._plain(), places)

    def row(self, x_1I: Tensor) -> Tensor:
        """See `RoundedLinear`."""
        if self._fast:
            return int8_linear.int8_row(x_1I, self._weight)
        return int8_linear.int8_linear_reference(x_1I, self._plain())

    def _plain(self) -> Int8Weight:
        return self._weight if isinstance(self._weight, Int8Weight) else int8_linear.unpack(self._weight)

    def _keep(self, plain: Int8Weight) -> None:
        self._fast = int8_linear.has_fast_form(plain.scale_O.device)
        packs = self._fast and not self._is_table and plain.numbers_OJ.numel() >= int8_linear.LARGE
        self._weight: Int8Weight | PackedInt8Weight = int8_linear.pack(plain) if packs else plain

    def _move(self, device: torch.device) -> None:
        numbers_OJ, scale_O, inputs = self._plain()
        self._keep(Int8Weight(numbers_OJ.to(device), scale_O.to(device), inputs))


class Int4Linear(RoundedLinear):
    """Weights of 4 bits in groups of `group` inputs (`ops.int4_linear`).

    Where there is no fast form, and for fewer outputs than it takes, each product makes a float32 matrix first.
    """

    def __init__(
        self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int], group: int = int4_linear.GROUP
    ) -> None:
        super().__init__(bias_O, parts)
        self._group = group
        self._keep(int4_linear.quantise(weight_OI.detach(), group))

    @property
    def weight(self) -> Tensor:
        """See `PackedLinear`."""
        return int4_linear.dequantise(self._plain())

    @property
    def device(self) -> torch.device:
        """See `PackedLinear`."""
        return self._weight.steps_GO2.device

    @property
    def nbytes(self) -> int:
        """See `PackedLinear`."""
        return int4_linear.int4_nbytes(self.out_features, self._weight.inputs, self._group)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I] -> [..., O]`."""
        if isinstance(self._weight, PackedInt4Weight):
            return int4_linear.int4_linear(x, self._weight, self.bias)
        return int4_linear.int4_linear_reference(x, self._weight, self.bias)

    def rows(self, places: Tensor) -> Tensor:
        """See `RoundedLinear`."""
        return int4_linear.rows_of(self._weight, places)

    def row(self, x_1I: Tensor) -> Tensor:
        """See `RoundedLinear`."""
        if isinstance(self._weight, PackedInt4Weight):
            return int4_linear.int4_rows(x_1I, self._weight)
        return int4_linear.int4_linear_reference(x_1I, self._weight)

    def _plain(self) -> Int4Weight:
        return self._weight if isinstance(self._weight, Int4Weight) else int4_linear.unpack(self._weight)

    def _keep(self, plain: Int4Weight) -> None:
        packs = int4_linear.can_pack(plain.pairs_OH.device) and len(plain.pairs_OH) >= int4_linear.LEAST_PACKED
        self._weight: Int4Weight | PackedInt4Weight = int4_linear.pack(plain) if packs else plain

    def _move(self, device: torch.device) -> None:
        pairs_OH, steps_GO2, inputs = self._plain()
        self._keep(Int4Weight(pairs_OH.to(device), steps_GO2.to(device), inputs))


class RoundedEmbedding(nn.Module):
    """Takes the place of an `Embedding`; the table may be the head's matrix too, and then is held once."""

    def __init__(self, table: RoundedLinear) -> None:
        super().__init__()
        self.table = table

    @property
    def weight(self) -> Tensor:
        """The table `[V, E]`, made anew at each call."""
        return self.table.weight

    def forward(self, places: Tensor) -> Tensor:
        """`[...] -> [..., E]`."""
        return self.table.rows(places)


class Bfloat16Linear(PackedLinear):
    """Weights of bfloat16, as input and output are: packed (`ops.bfloat16_linear`) where that can be, else a matrix."""

    dtype = torch.bfloat16

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__(None if bias_O is None else bias_O.to(torch.bfloat16), parts)
        self._keep(weight_OI.detach().to(torch.bfloat16))

    @property
    def weight(self) -> Tensor:
        """See `PackedLinear`."""
        return self._weight.to_dense()

    @property
    def device(self) -> torch.device:
        """See `PackedLinear`."""
        return self._weight.device

    @property
    def nbytes(self) -> int:
        """See `PackedLinear`."""
        return self._weight.numel() * self._weight.element_size()

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I] -> [..., O]`."""
        if self._weight.is_mkldnn:
            return bfloat16_linear.packed_linear(x, self._weight, self.bias)
        return linear(x, self._weight, self.bias)

    def _keep(self, weight_OI: Tensor) -> None:
        packs = bfloat16_linear.can_pack(weight_OI.device)
        self._weight = bfloat16_linear.pack(weight_OI) if packs else weight_OI

    def _move(self, device: torch.device) -> None:
        self._keep(self.weight.to(device))
