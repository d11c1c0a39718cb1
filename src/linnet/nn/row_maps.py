"""Linear maps of a row, as products straight with the weights.

Legend: `I` inputs, `O` outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from linnet.nn.linear import Linear
from linnet.nn.packed_linear import Int8Linear
from linnet.ops.linear import SLICED, linear


class RowMap(ABC):
    """`x W^T + b` of a row."""

    @abstractmethod
    def __call__(self, x_1I: Tensor) -> Tensor:
        """`[1, I] -> [1, O]`."""

    @abstractmethod
    def added(self, x_1O: Tensor, x_1I: Tensor) -> Tensor:
        """`x_1O` plus what it makes of `x_1I`."""


class Product(RowMap):
    """One product of the library; the transposed view is made once."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self._weight_IO, self._bias_O = weight_OI.t(), bias_O

    def __call__(self, x_1I: Tensor) -> Tensor:
        """See `RowMap`."""
        if self._bias_O is None:
            return torch.mm(x_1I, self._weight_IO)
        return torch.addmm(self._bias_O, x_1I, self._weight_IO)

    def added(self, x_1O: Tensor, x_1I: Tensor) -> Tensor:
        """See `RowMap`."""
        if self._bias_O is not None:
            x_1O = x_1O + self._bias_O
        return torch.addmm(x_1O, x_1I, self._weight_IO)


class Called(RowMap):
    """Whatever maps a row as fast: slices of the product (`ops.linear`), weights of 8 bits."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        self._call = call

    def __call__(self, x_1I: Tensor) -> Tensor:
        """See `RowMap`."""
        return self._call(x_1I)

    def added(self, x_1O: Tensor, x_1I: Tensor) -> Tensor:
        """See `RowMap`."""
        return self._call(x_1I).add_(x_1O)


def row_map(weight_OI: Tensor, bias_O: Tensor | None) -> RowMap:
    """The map with these weights."""
    if SLICED:
        return Called(lambda x_1I: linear(x_1I, weight_OI, bias_O))
    return Product(weight_OI, bias_O)


def row_map_of(module: nn.Module) -> RowMap | None:
    """The map of a linear layer; None where its weights are packed in another way than 8 bits."""
    if isinstance(module, Linear):
        return row_map(module.weight, module.bias)
    return Called(module) if isinstance(module, Int8Linear) else None
