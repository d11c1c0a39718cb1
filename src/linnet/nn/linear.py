"""Linear layers, and a weighted sum of two tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from linnet.ops.linear import linear


class Linear(nn.Linear):
    """An affine map with a fast product for one stream (`ops.linear`).

    The description of the model decides the initial weight; the initial bias is 0 unless its owner sets it. A map with
    its own initialization is a plain `torch.nn.Linear`.
    """

    def reset_parameters(self) -> None:
        """PyTorch's initial weight, and a bias of 0."""
        super().reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., inputs] -> [..., outputs]`."""
        return linear(x, self.weight, self.bias)


class FusedLinear(Linear):
    """Several linear maps of the same input, stored and computed as one: one read of the input, one large product.

    `parts` are the widths of the single maps; `split` splits the joint output `[..., sum(parts)]`. Each part is
    initialized as a separate matrix (Xavier depends on the shape).
    """

    def __init__(self, inputs: int, parts: Sequence[int], bias: bool) -> None:
        super().__init__(inputs, sum(parts), bias=bias)
        self.parts = tuple(parts)

    def split(self, joint: Tensor) -> tuple[Tensor, ...]:
        """Views of the parts, `[..., sum(parts)]` -> `[..., part]` for each part."""
        return torch.split(joint, list(self.parts), dim=-1)

    def part_weights(self) -> tuple[Tensor, ...]:
        """The weight `[part, inputs]` of each map, as views."""
        return torch.split(self.weight, list(self.parts), dim=0)


def uses_fused_backward(x: Tensor, *maps: nn.Module) -> bool:
    """True if a fused form with its own backward pass applies: gradients are enabled, and the maps are plain.

    Packed maps have no such form, and where the weight is a sum (`training.lora`) it would compute the gradient of all.
    """
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and all(isinstance(module, Linear) and not parametrize.is_parametrized(module) for module in maps)
    )


class WeightedSum(nn.Module):
    """`shares[0] x + shares[1] y`, of two tensors with the same shape; the weights can be learned."""

    def __init__(self, x_share: float, y_share: float, learned: bool = True) -> None:
        super().__init__()
        self.fixed = x_share, y_share
        self.shares = nn.Parameter(torch.tensor([x_share, y_share])) if learned else None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The weighted sum, with gradients."""
        if self.shares is None:
            return torch.add(self.fixed[0] * x, y, alpha=self.fixed[1])
        return torch.addcmul(self.shares[0] * x, self.shares[1], y)
