"""Two tensors mixed with two numbers, which are learned or fixed."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class WeightedSum(nn.Module):
    """`shares[0] x + shares[1] y`."""

    def __init__(self, of_x: float, of_y: float, learned: bool = True) -> None:
        super().__init__()
        self.fixed = of_x, of_y
        self.shares = nn.Parameter(torch.tensor([of_x, of_y])) if learned else None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Of the same shape as both."""
        if self.shares is None:
            of_x, of_y = self.fixed
            return torch.add(of_x * x, y, alpha=of_y)
        return torch.addcmul(self.shares[0] * x, self.shares[1], y)

    def row(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The same with the numbers as they are now, in as few operations as can be; without gradients."""
        of_x, of_y = self.fixed if self.shares is None else self.shares.tolist()
        return lambda x, y: torch.add(of_x * x, y, alpha=of_y)
