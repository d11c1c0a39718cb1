"""Normalisations over the last dimension."""

from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from linnet.nn.cost import Cost
from linnet.ops.rms_norm import rms_norm
from linnet.spec import Spec


class NormSpec(Spec):
    """`rms` (scale by the root mean square, one gain) or `layer` (centre and scale, gain and bias)."""

    kind: Literal["rms", "layer"] = "rms"
    eps: PositiveFloat = 1e-6

    def build(self, width: int) -> nn.Module:
        """The normalisation of vectors of `width` elements."""
        if self.kind == "rms":
            return RmsNorm(width, self.eps)
        return nn.LayerNorm(width, eps=self.eps)

    def cost(self, width: int) -> Cost:
        """Parameters, and its input with one number (`rms`) or two for each token: element-wise work has no FLOPs."""
        vectors = 1 if self.kind == "rms" else 2
        return Cost(parameters=vectors * width, kept_per_token=width + vectors)


class RmsNorm(nn.Module):
    """Root-mean-square normalisation with a gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]`."""
        return rms_norm(x, self.weight, self.eps)


class BlockNormSpec(NormSpec):
    """The normalisation of a block and where it stands.

    `pre`: `x + f(norm(x))`; `post`: `norm(x + f(x))`.
    """

    placement: Literal["pre", "post"] = "pre"
