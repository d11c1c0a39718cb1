"""The decode state of attention: the rotated keys and the values of every token so far.

Legend: `B` batch, `M` key-value heads, `S` tokens so far, `T` tokens of the chunk, `K` head width.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from linnet.mixers.base import State


@dataclass
class KeyValueState(State):
    """Keys and values, `[B, M, capacity, K]` each; how much of them is filled is the decoder's position."""

    keys: Tensor
    values: Tensor

    def append(self, k_BMTK: Tensor, v_BMTK: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Write a chunk at `start` and return keys and values of the whole stream, `[B, M, start + T, K]` views."""
        end = start + k_BMTK.shape[2]
        self.keys[:, :, start:end] = k_BMTK
        self.values[:, :, start:end] = v_BMTK
        return self.keys[:, :, :end], self.values[:, :, :end]

    def forget(self) -> Self:
        """An empty copy."""
        return self.fork()

    def crop(self, length: int) -> None:
        """Nothing to do: what lies behind the decoder's position is overwritten before it is read."""


def key_value_tensors(
    batch: int, heads: int, capacity: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Empty keys and values."""
    shape = (batch, heads, capacity, head_dim)
    return torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype)
