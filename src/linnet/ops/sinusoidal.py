"""Sinusoidal positions (Vaswani et al., arXiv 1706.03762, sec. 3.5): sines and cosines at the angles of rotary ones.

Element 2i is the sine, element 2i + 1 the cosine of `position * 10000 ** (-2i / D)`.

Legend: `B` batch, `T` tokens, `D` width.
"""

import torch
from torch import Tensor

from linnet.ops.rotary import rotary_range, rotary_table

BASE = 10000.0


def sinusoidal(positions: Tensor, width: int, highest: int) -> Tensor:
    """For `positions` (`[T]` or `[B, T]`, all `< highest`), `[..., T, D]`, float32."""
    return _interleaved(rotary_table(positions, width, BASE, highest), width)


def sinusoidal_range(start: int, end: int, width: int, device: torch.device) -> Tensor:
    """The same for the positions from `start` to before `end`, `[T, D]`."""
    return _interleaved(rotary_range(start, end, width, BASE, device), width)


def _interleaved(table: tuple[Tensor, Tensor], width: int) -> Tensor:
    cos, sin = (part.squeeze(-2) for part in table)
    return torch.stack([sin, cos], dim=-1).flatten(-2)[..., :width]
