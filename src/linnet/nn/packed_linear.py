"""Linear maps for inference alone: their weights are no parameters, but lie as the product reads them fastest.

Legend: `I` inputs, `O` outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from linnet.ops import bfloat16_linear
from linnet.ops.int8_linear import (
    Int8Weight,
    PackedInt8Weight,
    can_pack,
    dequantise,
    int8_linear,
    int8_linear_reference,
    pack,
    quantise,
    unpack,
)
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


class Int8Linear(PackedLinear):
    """Weights of 8 bits (`ops.int8_linear`); input and output are float32.

    Where there is no fast form each product makes a float32 matrix first: right, and slower than float32.
    """

    dtype = torch.float32

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__(bias_O, parts)
        self._weight = _laid_out(quantise(weight_OI.detach()))

    @property
    def weight(self) -> Tensor:
        """See `PackedLinear`."""
        return dequantise(self._plain())

    @property
    def device(self) -> torch.device:
        """See `PackedLinear`."""
        return self._weight.scale_O.device

    @property
    def nbytes(self) -> int:
        """See `PackedLinear`."""
        if isinstance(self._weight, PackedInt8Weight):
            return self._weight.nbytes
        return sum(tensor.nbytes for tensor in self._weight)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I] -> [..., O]`."""
        if isinstance(self._weight, PackedInt8Weight):
            return int8_linear(x, self._weight, self.bias)
        return int8_linear_reference(x, self._weight, self.bias)

    def _plain(self) -> Int8Weight:
        return self._weight if isinstance(self._weight, Int8Weight) else unpack(self._weight)

    def _move(self, device: torch.device) -> None:
        self._weight = _laid_out(Int8Weight(*(tensor.to(device) for tensor in self._plain())))


def _laid_out(plain: Int8Weight) -> Int8Weight | PackedInt8Weight:
    return pack(plain) if can_pack(plain.scale_O.device) else plain


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
