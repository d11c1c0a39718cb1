"""Every example of every mixer in the registry, and how to fill one with random weights."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from linnet.layers.registry import MIXERS

WIDTH = 16
EXAMPLES = [spec for kind in MIXERS.values() for spec in kind.examples()]
Module = TypeVar("Module", bound=nn.Module)


def randomised(module: Module) -> Module:
    """Every weight away from its starting value, so that no zero bias, unit norm or identity hides a mistake."""
    with torch.no_grad():
        for parameter in [*module.parameters(), *module.buffers()]:
            parameter.add_(0.5 * torch.randn_like(parameter) / max(parameter.shape[-1], 1) ** 0.5)
    return module


def inputs(batch: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=dtype)
