"""Normalizations: specs, modules, and functions for one token.

Queries and keys can be normalized per head before the scores (Henry et al., arXiv 2010.04245), as in Qwen3 (arXiv
2505.09388), with one gain for all query heads and one for all key heads.

Shapes: `B` batch, `T` tokens, `N` query heads, `M` key heads, `J` both, `K` head width, `V` value width.
"""

from dataclasses import replace
from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, model_validator
from torch import Tensor, nn

from linnet.core.spec import Spec
from linnet.nn.cost import Cost
from linnet.ops.rms_norm import rms_norm

NormKind = Literal["rms", "layer"]


class NormSpec(Spec):
    """`rms` (scale by the root mean square, one gain) or `layer` (center and scale, gain and bias).

    unit_offset: the gain of `rms` is one plus the parameter, which starts at zero (Gemma).
    """

    kind: NormKind = "rms"
    eps: PositiveFloat = 1e-6
    unit_offset: bool = False

    @model_validator(mode="after")
    def _check_offset(self) -> Self:
        if self.unit_offset and self.kind != "rms":
            raise ValueError(f"unit_offset: True: requires kind: rms, not {self.kind}")
        return self

    def build(self, width: int) -> "RmsNorm | nn.LayerNorm":
        """The normalization of vectors of `width` elements."""
        if self.kind == "rms":
            return RmsNorm(width, self.eps, self.unit_offset)
        return nn.LayerNorm(width, eps=self.eps)

    def cost(self, width: int) -> Cost:
        """Parameters and activation memory; element-wise work has no FLOPs.

        `layer` keeps its input and two numbers for each token. `rms` keeps one number, and its output, which counts as
        the input of the next module if that keeps it too; with `unit_offset` also the sum.
        """
        if self.kind == "rms":
            gain = (lambda *_: width,) if self.unit_offset else ()
            return Cost(parameters=width, activations_per_token=1, activation_memory=gain)
        return Cost(parameters=2 * width, activations_per_token=width + 2)


class RmsNorm(nn.Module):
    """Root-mean-square normalization with a gain."""

    def __init__(self, width: int, eps: float, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if unit_offset else torch.ones(width))
        self.eps, self.unit_offset = eps, unit_offset

    @property
    def gain(self) -> Tensor:
        """With `unit_offset` in float32 at least, since few bits have no numbers between 1 and 1.004."""
        if not self.unit_offset:
            return self.weight
        return 1 + self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]`."""
        if not self.unit_offset:
            return rms_norm(x, self.weight, self.eps)
        gain_D = self.gain
        return rms_norm(x.to(gain_D.dtype), gain_D, self.eps).to(x.dtype)


def normed(norm: RmsNorm | nn.LayerNorm, x: Tensor) -> Tensor:
    """`norm(x)` in the precision of x, computed in that of the gain: under autocast they differ."""
    out: Tensor = norm(x.to(norm.weight.dtype))
    return out.to(x.dtype)


class GroupedRmsNorm(nn.Module):
    """Root-mean-square normalization of each of `groups` equal parts, in the precision of the input."""

    def __init__(self, width: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.groups, self.eps = groups, eps

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]`."""
        weight = self.weight.to(x.dtype)
        if self.groups == 1:
            return rms_norm(x, weight, self.eps)
        parts = zip(x.chunk(self.groups, dim=-1), weight.chunk(self.groups), strict=True)
        return torch.cat([rms_norm(part, gain, self.eps) for part, gain in parts], dim=-1)


class HeadLayerNorm(nn.Module):
    """Layer normalization of each head, with a gain for each channel of all heads, in the precision of the input."""

    def __init__(self, heads: int, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads * width))
        self.eps = eps

    def forward(self, x_BTNV: Tensor) -> Tensor:
        """`[B, T, N, V] -> [B, T, N V]`, heads of `width` V."""
        normed_BTNV = F.layer_norm(x_BTNV, x_BTNV.shape[-1:], eps=self.eps)
        return normed_BTNV.flatten(2) * self.weight.to(x_BTNV.dtype)


class BlockNormSpec(NormSpec):
    """The normalization of a block and its placement.

    `pre` is `x + f(norm(x))`, `post` `norm(x + f(x))`, `output` `x + norm(f(x))` (OLMo 2), and `sandwich`, with two
    norms, `x + norm(f(norm(x)))` (Gemma 3).
    """

    placement: Literal["pre", "post", "output", "sandwich"] = "pre"

    def branch_cost(self, width: int) -> Cost:
        """The cost of the norms of one branch; no other module keeps the output of an `rms` norm after the branch."""
        cost = self.cost(width)
        if self.placement == "sandwich":
            cost += self.cost(width)
        after = self.placement in ("output", "sandwich") and self.kind == "rms"
        return cost + Cost(activations_per_token=width) if after else cost


class HeadNormSpec(NormSpec):
    """The normalization of queries and of keys: of each head, or with `joint` of all heads together (OLMo 2)."""

    joint: bool = False

    def vectors(self, heads: int, kv_heads: int) -> int:
        """The number of vectors of a token that are normalized."""
        return 2 if self.joint else heads + kv_heads

    def heads_cost(self, heads: int, kv_heads: int, head_dim: int) -> Cost:
        """The parameters of both norms; their activation memory is that of attention (`AttentionShape`)."""
        elements = (heads + kv_heads) * head_dim if self.joint else 2 * head_dim
        cost = self.cost(elements)
        return replace(cost, activations_per_token=0)


class HeadNorm(nn.Module):
    """A normalization for queries and one for keys."""

    query: RmsNorm | nn.LayerNorm
    key: RmsNorm | nn.LayerNorm

    def __init__(self, spec: HeadNormSpec, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.joint = spec.joint
        query, key = (heads * head_dim, kv_heads * head_dim) if self.joint else (head_dim, head_dim)
        self.query, self.key = spec.build(query), spec.build(key)

    def forward(self, q_BTNK: Tensor, k_BTMK: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys with the same shapes and precision."""
        if self.joint:
            q_BTF, k_BTF = normed(self.query, q_BTNK.flatten(2)), normed(self.key, k_BTMK.flatten(2))
            return q_BTF.view(q_BTNK.shape), k_BTF.view(k_BTMK.shape)
        return normed(self.query, q_BTNK), normed(self.key, k_BTMK)
