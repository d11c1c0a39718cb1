"""The decode state of attention: the rotated keys and the values of every token so far, or of those in a window.

Legend: `B` batch, `M` key-value heads, `S` tokens so far, `T` tokens of the chunk, `K` head width, `W` window.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from linnet.layers.contract import State


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


class Recent(NamedTuple):
    """Keys and values that the tokens of a chunk may see, `[B, M, S, K]` each, and the position of the first."""

    keys: Tensor
    values: Tensor
    first: int


@dataclass
class WindowState(State):
    """Keys and values of the last W tokens, `[B, M, W, K]` each; the token at position p lies at `p mod W`."""

    keys: Tensor
    values: Tensor

    def append(self, k_BMTK: Tensor, v_BMTK: Tensor, start: int, ordered: bool) -> Recent:
        """Take in a chunk that begins at `start`; its first token needs W - 1 tokens of the past.

        A single token gets what lies here as it lies, which saves a copy, unless the keys are wanted `ordered`.
        """
        window, length = self.keys.shape[2], k_BMTK.shape[2]
        if length == 1 and not ordered:
            self._write(k_BMTK, v_BMTK, start)
            known = min(start + 1, window)
            return Recent(self.keys[:, :, :known], self.values[:, :, :known], start + 1 - known)
        first = max(0, start - window + 1)
        places = torch.arange(first, start, device=self.keys.device) % window
        pairs = (self.keys, k_BMTK), (self.values, v_BMTK)
        keys, values = (torch.cat([past[:, :, places], new], dim=2) for past, new in pairs)
        self._write(k_BMTK[:, :, -window:], v_BMTK[:, :, -window:], start + max(0, length - window))
        return Recent(keys, values, first)

    def _write(self, k_BMTK: Tensor, v_BMTK: Tensor, start: int) -> None:
        places = torch.arange(start, start + k_BMTK.shape[2], device=self.keys.device) % self.keys.shape[2]
        self.keys[:, :, places] = k_BMTK
        self.values[:, :, places] = v_BMTK

    def forget(self) -> Self:
        """An empty copy."""
        return self.fork()

    def crop(self, length: int) -> None:
        """`NotImplementedError` but for a length of 0: what a window has left behind is gone."""
        if length:
            raise NotImplementedError("a window keeps the last tokens alone, it cannot go back")


def key_value_tensors(
    batch: int, heads: int, capacity: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Empty keys and values."""
    shape = (batch, heads, capacity, head_dim)
    return torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype)
