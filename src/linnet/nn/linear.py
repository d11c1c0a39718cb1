"""Linear layers, and a weighted sum of two tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from linnet.nn.low_rank import frozen_parts
from linnet.ops.linear import linear
from linnet.ops.low_rank import LowRankParts, low_rank_linear
from linnet.ops.support import is_exporting


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
        parts = frozen_parts(self)
        if parts is None or torch.compiler.is_compiling() or is_exporting():
            return linear(x, self.weight, self.bias)
        return low_rank_linear(x, parts, self.bias)

    def factors(self) -> Tensor | LowRankParts:
        """What a fused form reads: the weight, or what it is made of where it is not trained itself."""
        parts = frozen_parts(self)
        return self.weight if parts is None else parts


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
    """True if a fused form with its own backward pass applies: gradients are enabled, and no map is packed."""
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and all(isinstance(module, Linear) for module in maps)
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
