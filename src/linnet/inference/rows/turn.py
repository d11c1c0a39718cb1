"""Rotary positions of a row of heads: as few operations as the pairing allows.

Legend: `J` heads, `K` head width, `C` capacity.
"""

from abc import ABC, abstractmethod
from functools import lru_cache

import torch
from torch import Tensor

from linnet.layers.mixers.attention import RotarySpec
from linnet.ops.rotary import Pairing, rotary_range


class Turn(ABC):
    """Turns heads by the angles of a position."""

    @abstractmethod
    def __call__(self, x_JK: Tensor, position: int) -> Tensor:
        """`[J, K] -> [J, K]`; may be done in place."""

    @staticmethod
    def of(rotary: RotarySpec, head_dim: int, capacity: int) -> "Turn":
        """Tables for `capacity` positions, made once for all layers alike."""
        width = rotary.width(head_dim)
        turn = _whole(rotary.pairing, width, rotary.base, capacity)
        return turn if width == head_dim else Partial(turn, width)


class Adjacent(Turn):
    """Pairs as complex numbers, one multiplication, in place."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self._table = torch.complex(cos, sin)

    def __call__(self, x_JK: Tensor, position: int) -> Tensor:
        """See `Turn`."""
        torch.view_as_complex(x_JK.view(len(x_JK), -1, 2)).mul_(self._table[position])
        return x_JK


class Halves(Turn):
    """The second half turned against the first, and the first against the second."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self._cos_CK, self._sin_CK = torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)

    def __call__(self, x_JK: Tensor, position: int) -> Tensor:
        """See `Turn`."""
        swapped_JK = x_JK.view(len(x_JK), 2, -1).flip(1).flatten(1)
        return torch.addcmul(x_JK * self._cos_CK[position], swapped_JK, self._sin_CK[position])


class Partial(Turn):
    """Turns the first `width` elements of each head."""

    def __init__(self, turn: Turn, width: int) -> None:
        self._turn, self._width = turn, width

    def __call__(self, x_JK: Tensor, position: int) -> Tensor:
        """See `Turn`."""
        return torch.cat([self._turn(x_JK[:, : self._width].contiguous(), position), x_JK[:, self._width :]], dim=1)


@lru_cache(maxsize=8)
def _whole(pairing: Pairing, width: int, base: float, capacity: int) -> Turn:
    """Of all elements."""
    with torch.inference_mode(False):
        cos, sin = rotary_range(0, capacity, width, base, torch.device("cpu"))
        kind = Adjacent if pairing == "adjacent" else Halves
        return kind(cos[:, 0], sin[:, 0])
