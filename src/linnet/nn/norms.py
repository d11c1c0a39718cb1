"""Normalizations: specs, modules, and functions for one token.

Queries and keys can be normalized per head before the scores (Henry et al., arXiv 2010.04245), as in Qwen3 (arXiv
2505.09388), with one gain for all query heads and one for all key heads.

Shapes: `B` batch, `T` tokens, `N` query heads, `M` key heads, `J` both, `K` head width, `V` value width.
"""

import ctypes
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from linnet.core.spec import Spec
from linnet.nn.cost import Cost
from linnet.ops.native import elementwise
from linnet.ops.rms_norm import rms_norm, rms_norm_row

NormKind = Literal["rms", "layer"]

RowFunction = Callable[[Tensor], Tensor]
"""A function of a row `[1, D]`."""


class NormSpec(Spec):
    """`rms` (scale by the root mean square, one gain) or `layer` (center and scale, gain and bias)."""

    kind: NormKind = "rms"
    eps: PositiveFloat = 1e-6

    def build(self, width: int) -> "RmsNorm | nn.LayerNorm":
        """The normalization of vectors of `width` elements."""
        return RmsNorm(width, self.eps) if self.kind == "rms" else nn.LayerNorm(width, eps=self.eps)

    def cost(self, width: int) -> Cost:
        """Parameters and activation memory; element-wise work has no FLOPs.

        `layer` keeps its input and two numbers for each token. `rms` keeps one number, and its output, which counts as
        the input of the next module if that keeps it too.
        """
        if self.kind == "rms":
            return Cost(parameters=width, activations_per_token=1)
        return Cost(parameters=2 * width, activations_per_token=width + 2)


class RmsNorm(nn.Module):
    """Root-mean-square normalization with a gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]`."""
        return rms_norm(x, self.weight, self.eps)


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
    """The normalization of a block and its placement: `pre`, `x + f(norm(x))`, or `post`, `norm(x + f(x))`."""

    placement: Literal["pre", "post"] = "pre"


def norm_row(module: nn.Module | None, compiled: ctypes.CDLL | None = None) -> RowFunction | None:
    """The norm of one row in float32, in as few operations as possible; None for any other module.

    compiled: the functions of `ops.native`, if they are available.
    """
    if isinstance(module, RmsNorm):
        gain_D, eps = module.weight.float(), module.eps
        if compiled is not None:
            return elementwise.norm_row(compiled, gain_D, None, eps)
        return lambda x_1D: rms_norm_row(x_1D, gain_D, eps)
    if isinstance(module, nn.LayerNorm):
        if compiled is not None and module.weight is not None and module.bias is not None:
            return elementwise.norm_row(compiled, module.weight, module.bias, module.eps)
        shape, layer_eps = list(module.normalized_shape), module.eps
        weight_D, bias_D = (None if part is None else part.float() for part in (module.weight, module.bias))
        return lambda x_1D: torch.layer_norm(x_1D, shape, weight_D, bias_D, layer_eps)
    return None


class HeadNorm(nn.Module):
    """A normalization for queries and one for keys."""

    query: RmsNorm | nn.LayerNorm
    key: RmsNorm | nn.LayerNorm

    def __init__(self, spec: NormSpec, head_dim: int) -> None:
        super().__init__()
        self.query, self.key = spec.build(head_dim), spec.build(head_dim)

    def forward(self, q_BTNK: Tensor, k_BTMK: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys with the same shapes and precision."""
        return normed(self.query, q_BTNK), normed(self.key, k_BTMK)

    def row(self, heads: int, kv_heads: int, compiled: ctypes.CDLL | None = None) -> Callable[[Tensor], Tensor]:
        """`forward` for the heads of one token, `[J, K]`, queries first, without gradients.

        compiled: the functions of `ops.native`, if they are available.
        """

        def per_head(name: str) -> Tensor:
            parameters = ((getattr(self.query, name), heads), (getattr(self.key, name), kv_heads))
            return torch.cat([parameter_K.detach().expand(count, -1) for parameter_K, count in parameters])

        gain_JK, norm, eps = per_head("weight"), self.query, self.query.eps
        shape = list(gain_JK.shape[1:])
        if isinstance(norm, RmsNorm):
            if compiled is not None:
                return elementwise.norm_row(compiled, gain_JK, None, eps)
            return lambda x_JK: torch.rms_norm(x_JK, shape, None, eps).mul_(gain_JK)
        bias_JK = per_head("bias")
        if compiled is not None:
            return elementwise.norm_row(compiled, gain_JK, bias_JK, eps)
        return lambda x_JK: torch.addcmul(bias_JK, torch.layer_norm(x_JK, shape, None, None, eps), gain_JK)


def head_norm_cost(spec: NormSpec, head_dim: int) -> Cost:
    """The parameters of both norms; their activation memory is that of attention (`AttentionShape`)."""
    return Cost(parameters=2 * spec.cost(head_dim).parameters)
