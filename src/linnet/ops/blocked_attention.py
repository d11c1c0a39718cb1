"""Causal softmax attention on a CPU, block by block, by batched matrix products.

PyTorch's own kernel for CPUs reaches a third of what products reach there, in bfloat16 a tenth; only in float32 on
Intel's processors is it the faster one. Here a block of queries meets all keys that it can see in one product; its
weights are made again in the backward pass (Dao et al., arXiv 2205.14135, does so too), so that memory is that of
queries, keys and values. On a processor with tiles for products (AMX) PyTorch's forward pass in bfloat16 takes half the
time, and there it stands before this backward pass; from 512 tokens on both passes are PyTorch's.

Legend: `B` batch, `N` query heads, `M` key-value heads, `G` query heads for each of these, `T` tokens, `K` head width,
which for values and what is read may be another, `X` pairs of row and key-value head, `x` some of them, `q` queries of
a block times `G`, `s` keys that it sees.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.near_band import NearBand
from linnet.ops.processor import MKL_IS_FAST
from linnet.ops.relative import Relative

SCORES_OF_A_BLOCK = 1 << 19
"""At most so many at once, where a pair alone does not have more: they stay in a processor's cache."""

QUERIES_OF_A_BLOCK = {torch.bfloat16: 128}
OTHERWISE = 64
"""More are larger products, and more scores that are masked."""

FEWEST = 64
"""Tokens; below it the operations themselves take their time."""

TILES = torch.cpu._is_amx_tile_supported()
"""Whether the processor multiplies in tiles (AMX)."""

MOST = {torch.bfloat16: 511 if TILES else 1 << 30}
OTHERWISE_MOST = 0 if MKL_IS_FAST else 1024
"""Tokens; above it passes over scores take as long as the other kernel's products, in tiles or, in float32, by MKL."""

FUSED_FORWARD = frozenset({torch.bfloat16} if TILES else ())
"""Where PyTorch's forward pass is the faster one (`experiments/LOG.md` has the times)."""

NOTHING = 1e-25
"""A weight that changes no sum. Biases make many smaller ones, and the smallest take a processor ten times as long."""


def blocked_is_faster(tokens: int, dtype: torch.dtype, apart: bool = False) -> bool:
    """Whether blocks are as fast as PyTorch's kernel on a CPU, or faster (`experiments/LOG.md` has the times).

    apart: values have a width of their own; the kernel wants one width, and short texts are not worth filling up.
    """
    if apart and tokens < FEWEST:
        return True
    return FEWEST <= tokens <= MOST.get(dtype, OTHERWISE_MOST)


class _Block(NamedTuple):
    pairs: slice
    queries: slice
    seen: slice
    first: int

    def of_keys(self, x_XSK: Tensor, before: int = 0) -> Tensor:
        """What it sees of `[X, S, K]`, `[x, s, K]`, where `before` rows stand before that of the first token."""
        seen_xsK = x_XSK[self.pairs, self.seen.start + (before if self.first else 0) : self.seen.stop + before]
        return torch.cat([x_XSK[self.pairs, : self.first + before], seen_xsK], dim=1) if self.first else seen_xsK

    def parts(self, x_XSK: Tensor, of_xqs: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The same as views, each with its columns of `[x, q, s]`."""
        first, seen = x_XSK[self.pairs, : self.first], x_XSK[self.pairs, self.seen]
        pairs = [(first, of_xqs[..., : self.first]), (seen, of_xqs[..., self.first :])]
        return pairs if self.first else pairs[1:]

    def keys(self, device: torch.device) -> Tensor:
        """The places of what it sees, `[s]`."""
        seen_s = torch.arange(self.seen.start, self.seen.stop, device=device)
        return torch.cat([torch.arange(self.first, device=device), seen_s]) if self.first else seen_s


def _queries_of_a_block(tokens: int, dtype: torch.dtype) -> int:
    return min(tokens, QUERIES_OF_A_BLOCK.get(dtype, OTHERWISE))


def _blocks(q_XGTK: Tensor, window: int | None, first: int, kv_heads: int) -> Iterator[_Block]:
    """Pieces of work: some pairs, some queries, the keys that these see; how many first ones before a gap.

    The pairs are some key-value heads of one row, or all of some rows.
    """
    pairs, groups, tokens, _ = q_XGTK.shape
    queries = _queries_of_a_block(tokens, q_XGTK.dtype)
    keys = tokens if window is None else min(tokens, queries + window - 1 + first)
    together = max(1, SCORES_OF_A_BLOCK // (groups * queries * keys))
    if together < kv_heads:
        together = next(count for count in range(together, 0, -1) if kv_heads % count == 0)
    together -= together % kv_heads if together > kv_heads else 0
    for pair in range(0, pairs, together):
        for begin in range(0, tokens, queries):
            end = min(begin + queries, tokens)
            seen = 0 if window is None else max(0, begin - window + 1)
            apart = first if seen > first else 0
            seen = seen if apart or not first else 0
            yield _Block(slice(pair, min(pair + together, pairs)), slice(begin, end), slice(seen, end), apart)


def blocked_pairs(tokens: int, window: int | None, first: int = 0, dtype: torch.dtype = torch.float32) -> int:
    """How many scores are computed for a head and a sequence of `tokens` tokens, those that are masked included."""
    blocks = _blocks(torch.empty(1, 1, tokens, 0, dtype=dtype, device="meta"), window, first, 1)
    return sum(
        (block.queries.stop - block.queries.start) * (block.first + block.seen.stop - block.seen.start)
        for block in blocks
    )


def blocked_attention(
    q_BNTK: Tensor,
    k_BMTK: Tensor,
    v_BMTK: Tensor,
    scale: float | None = None,
    window: int | None = None,
    padding_B: Tensor | None = None,
    relative: Relative | None = None,
    sinks_N: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """Every query sees the keys up to its own: `[B, N, T, K]`; see `ops.attention`."""
    scale = q_BNTK.shape[-1] ** -0.5 if scale is None else scale
    tokens = q_BNTK.shape[2]
    tables = (Relative() if relative is None else relative).cut(min(tokens, window or tokens))
    given = (q_BNTK, k_BMTK, v_BMTK, scale, (window, first), padding_B, sinks_N, *tables)
    out: Tensor = _BlockedAttention.apply(*given)  # type: ignore[no-untyped-call]
    return out


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_BNTK: Tensor,
        k_BMTK: Tensor,
        v_BMTK: Tensor,
        scale: float,
        window: tuple[int | None, int],
        padding_B: Tensor | None,
        sinks_N: Tensor | None,
        *tables: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(q_BNTK, k_BMTK, v_BMTK, padding_B, sinks_N, *tables)
        ctx.scale, ctx.window = scale, window
        plain = window[0] is None and all(extra is None for extra in (padding_B, sinks_N, *tables))
        if plain and q_BNTK.dtype in FUSED_FORWARD and q_BNTK.shape[3] == v_BMTK.shape[3]:
            return _fused_forward(q_BNTK, k_BMTK, v_BMTK, scale)
        work = _Work(q_BNTK, k_BMTK, v_BMTK, scale, window, padding_B, sinks_N, Relative(*tables))
        width = v_BMTK.shape[3]
        batch, heads, tokens, _ = q_BNTK.shape
        out_BTNK = q_BNTK.new_empty(batch, tokens, heads, width)
        out_XGTK = q_BNTK.new_empty(*work.q_XGTK.shape[:3], width)
        for block in work.blocks():
            weights_xqs = work.weights(block)
            mixed_xqK = torch.bmm(weights_xqs, block.of_keys(work.v_XTK))
            if work.near is not None:
                work.near.add_values(mixed_xqK, work.by_groups(weights_xqs, block))
            part = out_XGTK[block.pairs, :, block.queries]
            part.copy_(mixed_xqK.view(part.shape))
        out_BNTK = out_BTNK.transpose(1, 2)
        return out_BNTK.copy_(out_XGTK.view(out_BNTK.shape))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        q_BNTK, k_BMTK, v_BMTK, padding_B, sinks_N, *tables = ctx.saved_tensors
        learned, relative = ctx.needs_input_grad[7:], Relative(*tables)
        work = _Work(q_BNTK, k_BMTK, v_BMTK, ctx.scale, ctx.window, padding_B, sinks_N, relative, learned)
        q_XGTK, k_XTK, v_XTK, near = work.q_XGTK, work.k_XTK, work.v_XTK, work.near
        of_out_XGTK = upstream.flatten(0, 1).reshape(*q_XGTK.shape[:3], -1)
        of_q_XGTK = torch.empty_like(q_XGTK)
        wide = torch.promote_types(q_XGTK.dtype, torch.float32)  # sums over blocks, so not in half precision
        of_k_XTK, of_v_XTK = torch.zeros_like(k_XTK, dtype=wide), torch.zeros_like(v_XTK, dtype=wide)
        for block in work.blocks():
            weights_xqs = work.weights(block)
            of_out_xqK = of_out_XGTK[block.pairs, :, block.queries].flatten(1, 2)
            of_weights_xqs = torch.bmm(of_out_xqK, block.of_keys(v_XTK).transpose(1, 2))
            if near is not None:
                weights_xGqs = work.by_groups(weights_xqs, block)
                near.add_of_weights(work.by_groups(of_weights_xqs, block), weights_xGqs, of_out_xqK)
            of_scores_xqs = torch.ops.aten._softmax_backward_data(of_weights_xqs, weights_xqs, -1, weights_xqs.dtype)
            if work.sinks is not None:
                work.sinks.add_gradient(work.by_groups(of_scores_xqs, block), block.pairs.start)
            of_q = of_q_XGTK[block.pairs, :, block.queries]
            q_xqK = q_XGTK[block.pairs, :, block.queries].flatten(1, 2)
            of_q_xqK = torch.bmm(of_scores_xqs, block.of_keys(k_XTK))
            if near is not None:
                near.add_of_queries(of_q_xqK, work.by_groups(of_scores_xqs, block), q_xqK, block.pairs.start)
            of_q.copy_(of_q_xqK.view(of_q.shape))
            for sum_xsK, of_xqs in block.parts(of_k_XTK, of_scores_xqs):
                _add_product(sum_xsK, of_xqs, q_xqK)
            for sum_xsK, of_xqs in block.parts(of_v_XTK, weights_xqs):
                _add_product(sum_xsK, of_xqs, of_out_xqK)
        of_k = of_k_XTK.mul_(ctx.scale).to(k_XTK.dtype).view(k_BMTK.shape)
        of_q_BNTK, of_v = of_q_XGTK.mul_(ctx.scale).view(q_BNTK.shape), of_v_XTK.to(v_XTK.dtype).view(v_BMTK.shape)
        of_tables = (None, None, None) if near is None else near.gradients(ctx.scale)
        of_sinks = None if work.sinks is None else work.sinks.of_sinks_MG.flatten().to(sinks_N.dtype)
        return of_q_BNTK, of_k, of_v, None, None, None, of_sinks, *of_tables


class _Work:
    """Queries, keys and values by pairs, `[X, G, T, K]` and twice `[X, T, K]`, and the weights of each block."""

    def __init__(
        self,
        q_BNTK: Tensor,
        k_BMTK: Tensor,
        v_BMTK: Tensor,
        scale: float,
        window: tuple[int | None, int],
        padding_B: Tensor | None,
        sinks_N: Tensor | None,
        relative: Relative,
        learned: Sequence[bool] = (),
    ) -> None:
        self.kv_heads, self.scale, (self.window, self.first) = k_BMTK.shape[1], scale, window
        groups = q_BNTK.shape[1] // self.kv_heads
        self.q_XGTK = q_BNTK.contiguous().view(-1, groups, *q_BNTK.shape[2:])
        self.k_XTK, self.v_XTK = k_BMTK.flatten(0, 1).contiguous(), v_BMTK.flatten(0, 1).contiguous()
        self.sinks, self.columns_XSK = None, self.k_XTK
        if sinks_N is not None:  # a column of scores more, before that of the first key
            self.sinks = _Sinks(sinks_N, self.kv_heads)
            self.columns_XSK = F.pad(self.k_XTK, (0, 0, 1, 0))
            self.k_XTK = self.columns_XSK[:, 1:]
        self.padding_X = None if padding_B is None else padding_B.repeat_interleave(self.kv_heads)
        self.near: NearBand | None = None
        if any(table is not None for table in relative):
            queries = _queries_of_a_block(q_BNTK.shape[2], q_BNTK.dtype)
            self.near = NearBand(relative, self.kv_heads, queries, q_BNTK.dtype, learned)

    def blocks(self) -> Iterator[_Block]:
        """See `_blocks`."""
        return _blocks(self.q_XGTK, self.window, self.first, self.kv_heads)

    def by_groups(self, pairs_xqs: Tensor, block: _Block) -> Tensor:
        """`[x, q, s]` as `[x, G, q, s]`."""
        return pairs_xqs.view(len(pairs_xqs), -1, block.queries.stop - block.queries.start, pairs_xqs.shape[2])

    def weights(self, block: _Block) -> Tensor:
        """The attention weights of a block, `[x, q, s]`."""
        q_xqK = self.q_XGTK[block.pairs, :, block.queries].flatten(1, 2)
        before = 0 if self.sinks is None else 1
        k_xKc = block.of_keys(self.columns_XSK, before).transpose(1, 2)
        scores_xqc = torch.baddbmm(q_xqK.new_empty(1, 1, 1), q_xqK, k_xKc, beta=0, alpha=self.scale)
        scores_xGqs = self.by_groups(scores_xqc, block)[..., before:]
        if self.near is not None:
            self.near.add_scores(scores_xGqs, q_xqK, block.pairs.start, self.scale)
        self._hide(scores_xGqs, block)
        if self.sinks is not None:
            self.sinks.write(self.by_groups(scores_xqc, block)[..., 0], block.pairs.start)
        weights_xqs = torch.softmax(scores_xqc, dim=-1)[..., before:]
        if self.near is None or self.near.bias_MGqW is None:
            return weights_xqs
        return F.threshold(weights_xqs, NOTHING, 0.0, inplace=True)

    def _hide(self, scores_xGqs: Tensor, block: _Block) -> None:
        """What lies behind the query, before its window, and in padding, unless it is the query's own key."""
        queries = scores_xGqs.shape[2]
        scores_xGqs[..., -queries:].add_(_hidden(queries, scores_xGqs.dtype, scores_xGqs.device))
        if self.window is None and self.padding_X is None:
            return
        keys_s = block.keys(scores_xGqs.device)
        query_q1 = torch.arange(block.queries.start, block.queries.stop, device=scores_xGqs.device)[:, None]
        if self.window is not None:
            before_window_qs = (keys_s <= query_q1 - self.window) & (keys_s >= self.first)
            scores_xGqs.masked_fill_(before_window_qs, float("-inf"))
        if self.padding_X is not None:
            of_padding_x11s = keys_s < self.padding_X[block.pairs, None, None, None]
            scores_xGqs.masked_fill_(of_padding_x11s & (keys_s != query_q1), float("-inf"))


class _Sinks:
    """The score of nothing in each head, and the sum of its gradient."""

    def __init__(self, sinks_N: Tensor, kv_heads: int) -> None:
        self.sinks_MG = sinks_N.detach().view(kv_heads, -1)
        wide = torch.promote_types(sinks_N.dtype, torch.float32)
        self.of_sinks_MG = torch.zeros_like(self.sinks_MG, dtype=wide)

    def write(self, column_xGq: Tensor, first: int) -> None:
        """Into a column of scores of the pairs from number `first` on."""
        own_MG = self.sinks_MG[self._heads(len(column_xGq), first)]
        torch.unflatten(column_xGq, 0, (-1, len(own_MG))).copy_(own_MG[..., None])

    def add_gradient(self, of_scores_xGqs: Tensor, first: int) -> None:
        """All scores of a query together have a gradient of 0: the sink has what those of the keys leave."""
        own_MG = self.of_sinks_MG[self._heads(len(of_scores_xGqs), first)]
        sums_xG = of_scores_xGqs.sum((2, 3), dtype=own_MG.dtype)
        own_MG -= torch.unflatten(sums_xG, 0, (-1, len(own_MG))).sum(0)

    def _heads(self, pairs: int, first: int) -> slice:
        head = first % len(self.sinks_MG)
        return slice(head, head + min(pairs, len(self.sinks_MG)))


@lru_cache(maxsize=8)
def _hidden(queries: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to the scores of a block's queries and their own keys, `[queries, queries]`."""
    with torch.inference_mode(False):
        return torch.full((queries, queries), float("-inf"), dtype=dtype, device=device).triu_(1)


def _add_product(sum_xsK: Tensor, of_xqs: Tensor, x_xqK: Tensor) -> None:
    """Add `of^T x`."""
    if sum_xsK.dtype == x_xqK.dtype:
        sum_xsK.baddbmm_(of_xqs.transpose(1, 2), x_xqK)
    else:
        sum_xsK += torch.bmm(of_xqs.transpose(1, 2), x_xqK)


def _fused_forward(q_BNTK: Tensor, k_BMTK: Tensor, v_BMTK: Tensor, scale: float) -> Tensor:
    """By PyTorch's kernel, `[B, N, T, K]`."""
    grouped = q_BNTK.shape[1] != k_BMTK.shape[1]
    out_BNTK: Tensor = F.scaled_dot_product_attention(
        q_BNTK, k_BMTK, v_BMTK, is_causal=True, scale=scale, enable_gqa=grouped
    )
    return out_BNTK
