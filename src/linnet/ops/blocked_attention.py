"""Causal softmax attention on a CPU, block by block, by batched matrix products.

PyTorch's own kernel for CPUs reaches a third of what products reach there, in bfloat16 a tenth. Here a block of queries
meets all keys that it can see in one product; its weights are made again in the backward pass (Dao et al.,
arXiv 2205.14135, does so too), so that memory is that of queries, keys and values.

Legend: `B` batch, `N` query heads, `M` key-value heads, `G` query heads for each of these, `T` tokens, `K` head
width, `X` pairs of row and key-value head, `x` some of them, `q` queries of a block times `G`, `s` keys that it sees.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SCORES_OF_A_BLOCK = 1 << 19
"""At most so many at once, where a pair alone does not have more: they stay in a processor's cache."""

QUERIES_OF_A_BLOCK = {torch.bfloat16: 128}
OTHERWISE = 64
"""More are larger products, and more scores that are masked."""

FEWEST = 64
"""Tokens; below it the operations themselves take their time."""

MOST = {torch.bfloat16: 1 << 30}
OTHERWISE_MOST = 1024
"""Tokens; above it the passes over scores take as long in float32 as the other kernel's products."""


def blocks_serve(tokens: int, dtype: torch.dtype) -> bool:
    """Whether blocks are as fast as PyTorch's kernel on a CPU, or faster (`experiments/LOG.md` has the times)."""
    return FEWEST <= tokens <= MOST.get(dtype, OTHERWISE_MOST)


class _Block(NamedTuple):
    pairs: slice
    queries: slice
    seen: slice


def _blocks(q_XGTK: Tensor) -> Iterator[_Block]:
    """Pieces of work: some pairs, some queries, the keys up to the last of these."""
    pairs, groups, tokens, _ = q_XGTK.shape
    queries = QUERIES_OF_A_BLOCK.get(q_XGTK.dtype, OTHERWISE)
    together = max(1, SCORES_OF_A_BLOCK // (groups * queries * tokens))
    for first in range(0, pairs, together):
        for begin in range(0, tokens, queries):
            end = min(begin + queries, tokens)
            yield _Block(slice(first, first + together), slice(begin, end), slice(0, end))


def blocked_attention(q_BNTK: Tensor, k_BMTK: Tensor, v_BMTK: Tensor, scale: float | None = None) -> Tensor:
    """Every query sees the keys up to its own: `[B, N, T, K]`; see `ops.attention`."""
    scale = q_BNTK.shape[-1] ** -0.5 if scale is None else scale
    out: Tensor = _BlockedAttention.apply(q_BNTK, k_BMTK, v_BMTK, scale)  # type: ignore[no-untyped-call]
    return out


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BNTK: Tensor, k_BMTK: Tensor, v_BMTK: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(q_BNTK, k_BMTK, v_BMTK)
        ctx.scale = scale
        q_XGTK, k_XTK, v_XTK = _by_pairs(q_BNTK, k_BMTK, v_BMTK)
        out_BTNK = torch.empty_like(q_BNTK.transpose(1, 2), memory_format=torch.contiguous_format)
        out_XGTK = torch.empty_like(q_XGTK)
        for block in _blocks(q_XGTK):
            weights_xqs = _weights(q_XGTK, k_XTK, block, scale)
            mixed_xqK = torch.bmm(weights_xqs, v_XTK[block.pairs, block.seen])
            part = out_XGTK[block.pairs, :, block.queries]
            part.copy_(mixed_xqK.view(part.shape))
        out_BNTK = out_BTNK.transpose(1, 2)
        return out_BNTK.copy_(out_XGTK.view(out_BNTK.shape))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_BNTK, k_BMTK, v_BMTK = ctx.saved_tensors
        q_XGTK, k_XTK, v_XTK = _by_pairs(q_BNTK, k_BMTK, v_BMTK)
        of_out_XGTK = upstream.reshape(q_BNTK.shape).flatten(0, 1).view(q_XGTK.shape)
        of_q_XGTK = torch.empty_like(q_XGTK)
        wide = torch.promote_types(q_XGTK.dtype, torch.float32)  # sums over blocks, so not in half precision
        of_k_XTK, of_v_XTK = torch.zeros_like(k_XTK, dtype=wide), torch.zeros_like(v_XTK, dtype=wide)
        for block in _blocks(q_XGTK):
            weights_xqs = _weights(q_XGTK, k_XTK, block, ctx.scale)
            of_out_xqK = of_out_XGTK[block.pairs, :, block.queries].flatten(1, 2)
            of_weights_xqs = torch.bmm(of_out_xqK, v_XTK[block.pairs, block.seen].transpose(1, 2))
            of_scores_xqs = torch.ops.aten._softmax_backward_data(of_weights_xqs, weights_xqs, -1, weights_xqs.dtype)
            of_q = of_q_XGTK[block.pairs, :, block.queries]
            of_q.copy_(torch.bmm(of_scores_xqs, k_XTK[block.pairs, block.seen]).view(of_q.shape))
            q_xqK = q_XGTK[block.pairs, :, block.queries].flatten(1, 2)
            _add_product(of_k_XTK[block.pairs, block.seen], of_scores_xqs, q_xqK)
            _add_product(of_v_XTK[block.pairs, block.seen], weights_xqs, of_out_xqK)
        of_k = of_k_XTK.mul_(ctx.scale).to(k_XTK.dtype).view(k_BMTK.shape)
        return of_q_XGTK.mul_(ctx.scale).view(q_BNTK.shape), of_k, of_v_XTK.to(v_XTK.dtype).view(v_BMTK.shape), None


def _by_pairs(q_BNTK: Tensor, k_BMTK: Tensor, v_BMTK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`[X, G, T, K]` and twice `[X, T, K]`, contiguous."""
    groups = q_BNTK.shape[1] // k_BMTK.shape[1]
    q_XGTK = q_BNTK.contiguous().view(-1, groups, *q_BNTK.shape[2:])
    return q_XGTK, k_BMTK.flatten(0, 1).contiguous(), v_BMTK.flatten(0, 1).contiguous()


def _weights(q_XGTK: Tensor, k_XTK: Tensor, block: _Block, scale: float) -> Tensor:
    """The attention weights of a block, `[x, q, s]`."""
    q_xqK = q_XGTK[block.pairs, :, block.queries].flatten(1, 2)
    k_xKs = k_XTK[block.pairs, block.seen].transpose(1, 2)
    scores_xqs = torch.baddbmm(q_xqK.new_empty(1, 1, 1), q_xqK, k_xKs, beta=0, alpha=scale)
    queries = block.queries.stop - block.queries.start
    scores_xGqs = scores_xqs.view(len(scores_xqs), -1, queries, scores_xqs.shape[2])
    scores_xGqs[..., block.queries] += _hidden(queries, scores_xqs.dtype)
    return torch.softmax(scores_xqs, dim=-1)


@lru_cache(maxsize=8)
def _hidden(queries: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of a block's queries and their own keys, `[queries, queries]`."""
    with torch.inference_mode(False):
        return torch.full((queries, queries), float("-inf"), dtype=dtype).triu_(1)


def _add_product(sum_xsK: Tensor, of_xqs: Tensor, x_xqK: Tensor) -> None:
    """Add `of^T x`."""
    if sum_xsK.dtype == x_xqK.dtype:
        sum_xsK.baddbmm_(of_xqs.transpose(1, 2), x_xqK)
    else:
        sum_xsK += torch.bmm(of_xqs.transpose(1, 2), x_xqK)
