"""Queries and keys normalized head by head, before their scores (Henry et al., arXiv 2010.04245).

As in Qwen3 (arXiv 2505.09388): one gain of a head's width for all query heads, one for all key heads.

Legend: `B` batch, `T` tokens, `N` query heads, `M` key heads, `J` both, `K` head width.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor, nn

from linnet.nn.cost import Cost
from linnet.nn.norms import NormSpec, RmsNorm, normed
from linnet.ops.native.elementwise import layer_norm_row, rms_norm_row


class HeadNorm(nn.Module):
    """A normalization for queries and one for keys."""

    query: RmsNorm | nn.LayerNorm
    key: RmsNorm | nn.LayerNorm

    def __init__(self, spec: NormSpec, head_dim: int) -> None:
        super().__init__()
        self.query, self.key = spec.build(head_dim), spec.build(head_dim)

    def forward(self, q_BTNK: Tensor, k_BTMK: Tensor) -> tuple[Tensor, Tensor]:
        """The same shapes, in the precision that they had."""
        return normed(self.query, q_BTNK), normed(self.key, k_BTMK)

    def row(self, heads: int, kv_heads: int, compiled: ctypes.CDLL | None = None) -> Callable[[Tensor], Tensor]:
        """Of the heads of one token, `[J, K]`, queries first, in as few operations as can be; without gradients.

        compiled: the functions of `ops.native`, where they serve.
        """
        gain_JK, norm, eps = self._rows("weight", heads, kv_heads), self.query, self.query.eps
        shape = list(gain_JK.shape[1:])
        if isinstance(norm, RmsNorm):
            if compiled is not None:
                return rms_norm_row(compiled, gain_JK, eps)
            return lambda x_JK: torch.rms_norm(x_JK, shape, None, eps).mul_(gain_JK)
        bias_JK = self._rows("bias", heads, kv_heads)
        if compiled is not None:
            return layer_norm_row(compiled, gain_JK, bias_JK, eps)
        return lambda x_JK: torch.addcmul(bias_JK, torch.layer_norm(x_JK, shape, None, None, eps), gain_JK)

    def _rows(self, name: str, heads: int, kv_heads: int) -> Tensor:
        """A parameter of both norms, `[J, K]`: the one of each head."""
        pair = ((getattr(self.query, name), heads), (getattr(self.key, name), kv_heads))
        return torch.cat([parameter_K.detach().expand(count, -1) for parameter_K, count in pair])


def head_norm_cost(spec: NormSpec, head_dim: int) -> Cost:
    """The parameters of both; what they keep depends on what reads them."""
    return Cost(parameters=2 * spec.cost(head_dim).parameters)
