"""Linear layers, and two tensors mixed with two numbers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from linnet.ops.linear import linear


class Linear(nn.Linear):
    """An affine map that decodes one stream as fast as the memory allows (`ops.linear`).

    Its weight starts as the model's description says, its bias at 0 unless its owner sets it. A map with a start of its
    own is a plain `torch.nn.Linear`.
    """

    def reset_parameters(self) -> None:
        """The bias at 0."""
        super().reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., inputs] -> [..., outputs]`."""
        return linear(x, self.weight, self.bias)


class FusedLinear(Linear):
    """Several linear maps of the same input, stored and computed as one: one read of the input, one large product.

    `parts` are the widths of the single maps; `split` takes the joint output `[..., sum(parts)]` apart. Initialization
    treats every part as a matrix of its own (Xavier depends on the shape).
    """

    def __init__(self, inputs: int, parts: Sequence[int], bias: bool) -> None:
        super().__init__(inputs, sum(parts), bias=bias)
        self.parts = tuple(parts)

    def split(self, joint: Tensor) -> tuple[Tensor, ...]:
        """`[..., sum(parts)]` -> one layout `[..., part]` for each part."""
        return torch.split(joint, list(self.parts), dim=-1)

    def part_weights(self) -> tuple[Tensor, ...]:
        """The weight `[part, inputs]` of each map, as views."""
        return torch.split(self.weight, list(self.parts), dim=0)


def uses_fused_backward(x: Tensor, *maps: nn.Module) -> bool:
    """Whether a fused form with gradients of its own serves: they are wanted, and the weights are unpacked."""
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and all(isinstance(module, Linear) for module in maps)
    )


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
