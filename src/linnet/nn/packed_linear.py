"""Linear maps for inference alone: their weights are no parameters, but lie as the product reads them fastest.

Legend: `I` inputs, `O` outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

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


class PackedLinear(nn.Module, ABC):
    """Takes the place of a `Linear` or a `FusedLinear` (then `parts` are its parts). It stays on its device."""

    bias: Tensor | None

    def __init__(self, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.register_buffer("bias", None if bias_O is None else bias_O.detach())

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The matrix `[O, I]` that the products are with, made anew at each call."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of weights that a product reads."""

    def split(self, joint: Tensor) -> tuple[Tensor, ...]:
        """`[..., sum(parts)]` -> one view `[..., part]` for each part."""
        return torch.split(joint, list(self.parts), dim=-1)

    def get_extra_state(self) -> Any:
        """Part of `state_dict`, which there is none of: a `ValueError` instead of a file without weights."""
        raise ValueError("converted weights are for inference alone: save, or change, the decoder as it was before")


class Int8Linear(PackedLinear):
    """Weights of 8 bits (`ops.int8_linear`); input and output are float32.

    Where there is no fast form each product makes a float32 matrix first: right, and slower than float32.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__(bias_O, parts)
        plain = quantise(weight_OI.detach())
        self._weight: Int8Weight | PackedInt8Weight = pack(plain) if can_pack(weight_OI.device) else plain

    @property
    def weight(self) -> Tensor:
        """See `PackedLinear`."""
        weight = self._weight
        return dequantise(weight if isinstance(weight, Int8Weight) else unpack(weight))

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


class Bfloat16Linear(PackedLinear):
    """Weights of bfloat16 (`ops.bfloat16_linear`), as input and output are; where that can pack."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, parts: Sequence[int]) -> None:
        super().__init__(None if bias_O is None else bias_O.to(torch.bfloat16), parts)
        self._packed = bfloat16_linear.pack(weight_OI)

    @property
    def weight(self) -> Tensor:
        """See `PackedLinear`."""
        return self._packed.to_dense()

    @property
    def nbytes(self) -> int:
        """See `PackedLinear`."""
        return self._packed.numel() * self._packed.element_size()

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I] -> [..., O]`."""
        return bfloat16_linear.packed_linear(x, self._packed, self.bias)
