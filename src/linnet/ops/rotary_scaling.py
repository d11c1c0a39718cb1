"""Rotary positions beyond the trained length: how the angles of a head's pairs are made smaller.

Legend: `K` elements that are turned, `T0` trained length. Pair `i` turns by `base ** (-2i / K)` for each position.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interpolation:
    """Position interpolation: all positions divided by `factor` (Chen et al., arXiv 2306.15595, eq. 4)."""

    factor: float

    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Angles for each position, `[K/2]`, float32."""
        return unscaled(width, base, device) / self.factor

    @property
    def gain(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class NtkBase:
    """A larger base, so that the slowest pair is divided by `factor` and the fastest by nothing.

    bloc97, 2023; Peng et al., arXiv 2309.00071, eq. 16.
    """

    factor: float

    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Angles for each position, `[K/2]`, float32."""
        return unscaled(width, self.base(width, base), device)

    def base(self, width: int, base: float) -> float:
        """The larger base, of `width` elements."""
        larger: float = base * self.factor ** (width / max(width - 2, 1))
        return larger

    @property
    def gain(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class YarnRamp:
    """Pairs that turn often within T0 stay, slow ones are divided by `factor`, those between by something between.

    Peng et al., arXiv 2309.00071, eq. 17 to 23. fast, slow: turns within T0 from which on, and below which, a pair is
    fast or slow. gain: what cosines and sines are multiplied by, the paper's `sqrt(1/t)`.
    """

    factor: float
    trained: int
    fast: float
    slow: float
    gain: float

    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Angles for each position, `[K/2]`, float32; the pairs between are counted in whole ones."""
        low = max(math.floor(self._pair(self.fast, width, base)), 0)
        high = min(math.ceil(self._pair(self.slow, width, base)), width - 1)
        pairs = torch.arange(width // 2, dtype=torch.float32, device=device)
        divided = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
        as_trained = unscaled(width, base, device)
        return as_trained * (1 - divided) + as_trained / self.factor * divided

    def _pair(self, turns: float, width: int, base: float) -> float:
        """The pair, as a real number, that turns so often within T0."""
        return width * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(base))


Scaling = Interpolation | NtkBase | YarnRamp


def unscaled(width: int, base: float, device: torch.device) -> Tensor:
    """Angles for each position as trained, `[K/2]`, float32."""
    exponents: Tensor = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    return base**-exponents


def dynamic_factor(factor: float, length: int, trained: int) -> float:
    """The factor of `NtkBase` that Transformers' dynamic scaling has for a text of `length` tokens."""
    return max(1.0, factor * length / trained - (factor - 1))


def yarn_gain(factor: float) -> float:
    """The paper's `sqrt(1/t) = 0.1 ln(factor) + 1` (eq. 22)."""
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
