"""Causal softmax attention on a CPU, block by block, by batched matrix products.

PyTorch's kernel for CPUs reaches a third of the speed of matrix products, in bfloat16 a tenth; it is faster only in
float32 on Intel's processors. Here a block of queries and all keys that it can see are one product. Its weights are
recomputed in the backward pass (as in Dao et al., arXiv 2205.14135), so memory is that of queries, keys and values. On
a processor with tiles for products (AMX) PyTorch's forward pass in bfloat16 takes half the time, and is used before
this backward pass; from 512 tokens on both passes are PyTorch's.

Legend: `B` batch, `N` query heads, `M` key-value heads, `G` query heads of each of these, `T` tokens, `K` head width
(of values and outputs it may be another), `X` pairs of row and key-value head, `x` some of them, `q` queries of a block
times `G`, `s` keys that the block sees; `R` distances, `W = q + R - 1` columns, `Y` pairs of row and head.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.relative_positions import Relative
from linnet.ops.support import MKL_IS_FAST

SCORES_PER_BLOCK = 1 << 19
"""Largest number of scores of a block of several pairs: they stay in the processor's cache."""

QUERIES_PER_BLOCK = {torch.bfloat16: 128}
DEFAULT_QUERIES_PER_BLOCK = 64
"""More queries give larger products, but also more masked scores."""

MIN_TOKENS = 64
"""With fewer tokens the overhead of the operations dominates."""

HAS_TILES = torch.cpu._is_amx_tile_supported()
"""True if the processor multiplies in tiles (AMX)."""

MAX_TOKENS = {torch.bfloat16: 511 if HAS_TILES else 1 << 30}
DEFAULT_MAX_TOKENS = 0 if MKL_IS_FAST else 1024
"""With more tokens the passes over scores take as long as the other kernel's products (in tiles, or by MKL)."""

FUSED_FORWARD = frozenset({torch.bfloat16} if HAS_TILES else ())
"""Dtypes in which PyTorch's forward pass is faster (`experiments/LOG.md` has the times)."""

NEGLIGIBLE = 1e-25
"""A smaller weight changes no sum. Biases cause many of them, and subnormal ones are ten times as slow."""


def blocked_is_faster(tokens: int, dtype: torch.dtype, widths_differ: bool = False) -> bool:
    """True if blocks are at least as fast as PyTorch's kernel on a CPU (`experiments/LOG.md` has the times).

    widths_differ: values have another width than keys; the kernel needs one width, and padding does not pay off for
    short texts.
    """
    if widths_differ and tokens < MIN_TOKENS:
        return True
    return MIN_TOKENS <= tokens <= MAX_TOKENS.get(dtype, DEFAULT_MAX_TOKENS)


class _Block(NamedTuple):
    """Some pairs, some queries, and the keys that these see: sink keys before a gap, then `seen`.

    heads: the key-value heads of the pairs. sinks: the number of sink keys; 0 if there is no gap.
    """

    pairs: slice
    heads: slice
    queries: slice
    seen: slice
    sinks: int

    def gather_keys(self, x_XSK: Tensor, offset: int = 0) -> Tensor:
        """The rows that the block sees, `[x, s, K]`; with an offset of 1 a column before the first key is included."""
        seen_xsK = x_XSK[self.pairs, self.seen.start + (offset if self.sinks else 0) : self.seen.stop + offset]
        return torch.cat([x_XSK[self.pairs, : self.sinks + offset], seen_xsK], dim=1) if self.sinks else seen_xsK

    def add_product(self, sum_XSK: Tensor, columns_xqs: Tensor, x_xqK: Tensor) -> None:
        """Add `columns^T x` to the rows that the block sees, in the precision of the sum."""
        parts = [(sum_XSK[self.pairs, self.seen], columns_xqs[..., self.sinks :])]
        if self.sinks:
            parts.append((sum_XSK[self.pairs, : self.sinks], columns_xqs[..., : self.sinks]))
        for sum_xsK, columns_xqs in parts:
            if sum_xsK.dtype == x_xqK.dtype:
                sum_xsK.baddbmm_(columns_xqs.transpose(1, 2), x_xqK)
            else:
                sum_xsK.add_(torch.bmm(columns_xqs.transpose(1, 2), x_xqK))


def _blocks(q_XGTK: Tensor, window: int | None, sink_tokens: int, kv_heads: int) -> Iterator[_Block]:
    """The blocks of a problem. The pairs of a block are some key-value heads of one row, or all of some rows."""
    pairs, groups, tokens, _ = q_XGTK.shape
    queries = min(tokens, QUERIES_PER_BLOCK.get(q_XGTK.dtype, DEFAULT_QUERIES_PER_BLOCK))
    keys = tokens if window is None else min(tokens, queries + window - 1 + sink_tokens)
    together = max(1, SCORES_PER_BLOCK // (groups * queries * keys))
    if together < kv_heads:
        together = next(count for count in range(together, 0, -1) if kv_heads % count == 0)
    together -= together % kv_heads if together > kv_heads else 0
    for pair in range(0, pairs, together):
        block_pairs, head = slice(pair, min(pair + together, pairs)), pair % kv_heads
        heads = slice(head, head + min(together, kv_heads))
        for begin in range(0, tokens, queries):
            end = min(begin + queries, tokens)
            seen = 0 if window is None else max(0, begin - window + 1)
            sinks = sink_tokens if seen > sink_tokens else 0
            seen = seen if sinks or not sink_tokens else 0
            yield _Block(block_pairs, heads, slice(begin, end), slice(seen, end), sinks)


def blocked_pairs(tokens: int, window: int | None, sink_tokens: int = 0, dtype: torch.dtype = torch.float32) -> int:
    """Number of scores that are computed for a head and a sequence of `tokens` tokens, masked ones included."""
    blocks = _blocks(torch.empty(1, 1, tokens, 0, dtype=dtype, device="meta"), window, sink_tokens, 1)
    return sum(
        (block.queries.stop - block.queries.start) * (block.sinks + block.seen.stop - block.seen.start)
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
    sink_tokens: int = 0,
    soft_cap: float | None = None,
) -> Tensor:
    """Every query sees the keys up to its own: `[B, N, T, K]`. Arguments as of `ops.attention`."""
    scale = q_BNTK.shape[-1] ** -0.5 if scale is None else scale
    tokens = q_BNTK.shape[2]
    tables = (Relative() if relative is None else relative).cut(min(tokens, window or tokens))
    shape = _Shape(scale, window, sink_tokens, soft_cap)
    arguments = (q_BNTK, k_BMTK, v_BMTK, shape, padding_B, sinks_N, *tables)
    out: Tensor = _BlockedAttention.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_BNTK: Tensor,
        k_BMTK: Tensor,
        v_BMTK: Tensor,
        shape: "_Shape",
        padding_B: Tensor | None,
        sinks_N: Tensor | None,
        *tables: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(q_BNTK, k_BMTK, v_BMTK, padding_B, sinks_N, *tables)
        ctx.shape = shape
        plain = all(extra is None for extra in (shape.window, shape.soft_cap, padding_B, sinks_N, *tables))
        if plain and q_BNTK.dtype in FUSED_FORWARD and q_BNTK.shape[3] == v_BMTK.shape[3]:
            grouped = q_BNTK.shape[1] != k_BMTK.shape[1]
            fused_BNTK: Tensor = F.scaled_dot_product_attention(
                q_BNTK, k_BMTK, v_BMTK, is_causal=True, scale=shape.scale, enable_gqa=grouped
            )
            return fused_BNTK
        problem = _Problem(q_BNTK, k_BMTK, v_BMTK, shape, padding_B, sinks_N, Relative(*tables))
        width = v_BMTK.shape[3]
        batch, heads, tokens, _ = q_BNTK.shape
        out_BTNK = q_BNTK.new_empty(batch, tokens, heads, width)
        out_XGTK = q_BNTK.new_empty(*problem.q_XGTK.shape[:3], width)
        for block in problem.blocks:
            weights_xqs, _ = problem.weights(block)
            mixed_xqK = torch.bmm(weights_xqs, block.gather_keys(problem.v_XTK))
            if problem.near is not None:
                problem.near.add_values(mixed_xqK, problem.by_groups(weights_xqs, block))
            part = out_XGTK[block.pairs, :, block.queries]
            part.copy_(mixed_xqK.view(part.shape))
        out_BNTK = out_BTNK.transpose(1, 2)
        return out_BNTK.copy_(out_XGTK.view(out_BNTK.shape))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        q_BNTK, k_BMTK, v_BMTK, padding_B, sinks_N, *tables = ctx.saved_tensors
        learned, relative = ctx.needs_input_grad[6:], Relative(*tables)
        problem = _Problem(q_BNTK, k_BMTK, v_BMTK, ctx.shape, padding_B, sinks_N, relative, learned)
        q_XGTK, k_XTK, v_XTK, near = problem.q_XGTK, problem.k_XTK, problem.v_XTK, problem.near
        grad_out_XGTK = upstream.flatten(0, 1).reshape(*q_XGTK.shape[:3], -1)
        grad_q_XGTK = torch.empty_like(q_XGTK)
        wide = torch.promote_types(q_XGTK.dtype, torch.float32)  # sums over blocks lose digits in half precision
        grad_k_XTK, grad_v_XTK = torch.zeros_like(k_XTK, dtype=wide), torch.zeros_like(v_XTK, dtype=wide)
        grad_sinks_MG: Tensor | None = None
        if problem.sinks_MG is not None:
            grad_sinks_MG = problem.sinks_MG.new_zeros(
                problem.sinks_MG.shape, dtype=torch.promote_types(sinks_N.dtype, torch.float32)
            )
        for block in problem.blocks:
            weights_xqs, slopes_xqs = problem.weights(block, with_slopes=True)
            grad_out_xqK = grad_out_XGTK[block.pairs, :, block.queries].flatten(1, 2)
            grad_weights_xqs = torch.bmm(grad_out_xqK, block.gather_keys(v_XTK).transpose(1, 2))
            if near is not None:
                weights_xGqs = problem.by_groups(weights_xqs, block)
                near.add_weight_gradients(problem.by_groups(grad_weights_xqs, block), weights_xGqs, grad_out_xqK)
            grad_scores_xqs = torch.ops.aten._softmax_backward_data(
                grad_weights_xqs, weights_xqs, -1, weights_xqs.dtype
            )
            if grad_sinks_MG is not None:
                # The gradients of all scores of a query sum to 0, so the sink's is minus the sum of those of the keys.
                own_MG = grad_sinks_MG[block.heads]
                sums_xG = problem.by_groups(grad_scores_xqs, block).sum((2, 3), dtype=own_MG.dtype)
                own_MG -= torch.unflatten(sums_xG, 0, (-1, len(own_MG))).sum(0)
            if slopes_xqs is not None:
                grad_scores_xqs = grad_scores_xqs * slopes_xqs
            grad_q = grad_q_XGTK[block.pairs, :, block.queries]
            q_xqK = q_XGTK[block.pairs, :, block.queries].flatten(1, 2)
            grad_q_xqK = torch.bmm(grad_scores_xqs, block.gather_keys(k_XTK))
            if near is not None:
                grad_scores_xGqs = problem.by_groups(grad_scores_xqs, block)
                near.add_query_gradients(grad_q_xqK, grad_scores_xGqs, q_xqK, block.heads)
            grad_q.copy_(grad_q_xqK.view(grad_q.shape))
            block.add_product(grad_k_XTK, grad_scores_xqs, q_xqK)
            block.add_product(grad_v_XTK, weights_xqs, grad_out_xqK)
        grad_q_BNTK = grad_q_XGTK.mul_(ctx.shape.scale).view(q_BNTK.shape)
        grad_k = grad_k_XTK.mul_(ctx.shape.scale).to(k_XTK.dtype).view(k_BMTK.shape)
        grad_v = grad_v_XTK.to(v_XTK.dtype).view(v_BMTK.shape)
        grad_tables = (None, None, None) if near is None else near.gradients(ctx.shape.scale)
        grad_sinks = None if grad_sinks_MG is None else grad_sinks_MG.flatten().to(sinks_N.dtype)
        return grad_q_BNTK, grad_k, grad_v, None, None, grad_sinks, *grad_tables


class _Shape(NamedTuple):
    """What restricts scores: see `ops.attention`."""

    scale: float
    window: int | None
    sink_tokens: int
    soft_cap: float | None


class _Problem:
    """Queries, keys and values by pairs, `[X, G, T, K]` and twice `[X, T, K]`, and the weights of each block."""

    def __init__(
        self,
        q_BNTK: Tensor,
        k_BMTK: Tensor,
        v_BMTK: Tensor,
        shape: _Shape,
        padding_B: Tensor | None,
        sinks_N: Tensor | None,
        relative: Relative,
        learned: Sequence[bool] = (),
    ) -> None:
        kv_heads, (self.scale, self.window, self.sink_tokens, self.soft_cap) = k_BMTK.shape[1], shape
        self.q_XGTK = q_BNTK.contiguous().view(-1, q_BNTK.shape[1] // kv_heads, *q_BNTK.shape[2:])
        self.blocks = list(_blocks(self.q_XGTK, self.window, self.sink_tokens, kv_heads))
        self.k_XTK, self.v_XTK = k_BMTK.flatten(0, 1).contiguous(), v_BMTK.flatten(0, 1).contiguous()
        self.sinks_MG, self.columns_XSK = None, self.k_XTK
        if sinks_N is not None:  # one more column of scores, before that of the first key
            self.sinks_MG = sinks_N.detach().view(kv_heads, -1)
            self.columns_XSK = F.pad(self.k_XTK, (0, 0, 1, 0))
            self.k_XTK = self.columns_XSK[:, 1:]
        self.padding_X = None if padding_B is None else padding_B.repeat_interleave(kv_heads)
        self.near: _NearBand | None = None
        if any(table is not None for table in relative):
            queries = min(q_BNTK.shape[2], QUERIES_PER_BLOCK.get(q_BNTK.dtype, DEFAULT_QUERIES_PER_BLOCK))
            self.near = _NearBand(relative, kv_heads, queries, q_BNTK.dtype, learned)

    def by_groups(self, pairs_xqs: Tensor, block: _Block) -> Tensor:
        """`[x, q, s]` as `[x, G, q, s]`."""
        return pairs_xqs.view(len(pairs_xqs), -1, block.queries.stop - block.queries.start, pairs_xqs.shape[2])

    def weights(self, block: _Block, with_slopes: bool = False) -> tuple[Tensor, Tensor | None]:
        """The attention weights of a block, `[x, q, s]`; with slopes also the derivatives of bounded scores."""
        q_xqK = self.q_XGTK[block.pairs, :, block.queries].flatten(1, 2)
        offset = 0 if self.sinks_MG is None else 1
        k_xKc = block.gather_keys(self.columns_XSK, offset).transpose(1, 2)
        scores_xqc = torch.baddbmm(q_xqK.new_empty(1, 1, 1), q_xqK, k_xKc, beta=0, alpha=self.scale)
        scores_xGqc = self.by_groups(scores_xqc, block)
        scores_xGqs, queries, device = scores_xGqc[..., offset:], scores_xGqc.shape[2], scores_xqc.device
        if self.near is not None:
            self.near.add_scores(scores_xGqs, q_xqK, block.heads, self.scale)
        slopes_xqs = None
        if self.soft_cap is not None:
            scores_xGqs.div_(self.soft_cap).tanh_()
            if with_slopes:
                slopes_xqs = (1 - scores_xGqs.square()).flatten(1, 2)
            scores_xGqs.mul_(self.soft_cap)
        # Mask keys after the query, before its window, and in padding unless the key is the query's own.
        scores_xGqs[..., -queries:].add_(_upper_triangle(queries, scores_xGqs.dtype, device))
        if self.window is not None or self.padding_X is not None:
            keys_s = torch.arange(block.seen.start, block.seen.stop, device=device)
            if block.sinks:
                keys_s = torch.cat([torch.arange(block.sinks, device=device), keys_s])
            query_q1 = torch.arange(block.queries.start, block.queries.stop, device=device)[:, None]
            if self.window is not None:
                before_window_qs = (keys_s <= query_q1 - self.window) & (keys_s >= self.sink_tokens)
                scores_xGqs.masked_fill_(before_window_qs, float("-inf"))
            if self.padding_X is not None:
                is_padding_x11s = keys_s < self.padding_X[block.pairs, None, None, None]
                scores_xGqs.masked_fill_(is_padding_x11s & (keys_s != query_q1), float("-inf"))
        if self.sinks_MG is not None:
            own_MG = self.sinks_MG[block.heads]
            torch.unflatten(scores_xGqc[..., 0], 0, (-1, len(own_MG))).copy_(own_MG[..., None])
        weights_xqs = torch.softmax(scores_xqc, dim=-1)[..., offset:]
        if self.near is None or self.near.bias_MGqW is None:
            return weights_xqs, slopes_xqs
        return F.threshold(weights_xqs, NEGLIGIBLE, 0.0, inplace=True), slopes_xqs


@lru_cache(maxsize=8)
def _upper_triangle(queries: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Minus infinity above the diagonal, `[queries, queries]`; added to a block's scores with its own keys."""
    with torch.inference_mode(False):
        return torch.full((queries, queries), float("-inf"), dtype=dtype, device=device).triu_(1)


# Terms that depend on the distance (`ops.relative_positions`), without an entry for each pair of query and key. For a
# query, a table's entries are in the R columns up to its own, so those of `q` queries lie in a band of `q + R - 1`
# columns, each row one column further. A band is written, read and summed as a strided view of such a rectangle.


def _band(rectangle_YqW: Tensor, entries: int) -> Tensor:
    """The view `[Y, q, R]` of a contiguous rectangle, the furthest distance first."""
    rows, queries, columns = rectangle_YqW.shape
    return rectangle_YqW.as_strided((rows, queries, entries), (queries * columns, columns + 1, 1))


def _to_rectangle(entries_YqR: Tensor) -> Tensor:
    """Entries, the furthest first, at their places in a rectangle `[Y, q, W]` of zeros."""
    rows, queries, entries = entries_YqR.shape
    rectangle_YqW = entries_YqR.new_zeros(rows, queries, queries + entries - 1)
    _band(rectangle_YqW, entries).copy_(entries_YqR)
    return rectangle_YqW


def _from_pairs(pairs_Yqs: Tensor, entries: int) -> Tensor:
    """The values of pairs at the R nearest distances, `[Y, q, R]`; the last column is the last query's own key."""
    rows, queries, keys = pairs_Yqs.shape
    columns = min(keys, queries + entries - 1)
    if columns == queries + entries - 1:
        rectangle_YqW = pairs_Yqs[..., keys - columns :].contiguous()
    else:
        rectangle_YqW = pairs_Yqs.new_zeros(rows, queries, queries + entries - 1)
        rectangle_YqW[..., -columns:] = pairs_Yqs
    return _band(rectangle_YqW, entries)


def _add_right_aligned(pairs_qs: Tensor, rectangle_qW: Tensor) -> None:
    """Add the last columns of `[..., q, W]` to those of `[..., q, s]`."""
    columns = min(pairs_qs.shape[-1], rectangle_qW.shape[-1])
    pairs_qs[..., -columns:] += rectangle_qW[..., -columns:]


class _NearBand:
    """Tables by distance for one pass, furthest first, and the sums of the gradients of those that are `learned`."""

    def __init__(
        self, relative: Relative, kv_heads: int, queries: int, dtype: torch.dtype, learned: Sequence[bool] = ()
    ) -> None:
        bias_NR, keys_RK, values_RK = relative
        self.queries = queries
        self.keys_RK = None if keys_RK is None else keys_RK.to(dtype).flip(0)
        self.values_RK = None if values_RK is None else values_RK.to(dtype).flip(0)
        self.bias_MGqW: Tensor | None = None
        if bias_NR is not None:
            rows_NqR = bias_NR.to(dtype).flip(1)[:, None].expand(-1, queries, -1)
            rectangle_NqW = _to_rectangle(rows_NqR)
            self.bias_MGqW = rectangle_NqW.view(kv_heads, -1, *rectangle_NqW.shape[1:])
        wide = torch.promote_types(dtype, torch.float32)
        tables = self.bias_MGqW, self.keys_RK, self.values_RK
        self.sums = [
            torch.zeros_like(table, dtype=wide) if needed and table is not None else None
            for table, needed in zip(tables, learned, strict=False)
        ]

    def add_scores(self, scores_xGqs: Tensor, q_xqK: Tensor, heads: slice, scale: float) -> None:
        """Add to the scores of the pairs of some key-value heads; `q_xqK` are the queries of all groups."""
        if self.keys_RK is not None:
            near_RK = self.keys_RK[-scores_xGqs.shape[3] :]
            by_distance = (q_xqK @ near_RK.t()).mul_(scale).view(-1, scores_xGqs.shape[2], len(near_RK))
            _add_right_aligned(scores_xGqs.flatten(0, 1), _to_rectangle(by_distance))
        if self.bias_MGqW is not None:
            _add_right_aligned(*self._with_bias(scores_xGqs, self.bias_MGqW, heads))

    def add_values(self, mixed_xqK: Tensor, weights_xGqs: Tensor) -> None:
        """Add the weighted values of distances to the result."""
        if self.values_RK is not None:
            near_RK = self.values_RK[-weights_xGqs.shape[3] :]
            sums_YqR = _from_pairs(weights_xGqs.flatten(0, 1), len(near_RK))
            mixed_xqK += (sums_YqR @ near_RK).view(mixed_xqK.shape)

    def add_weight_gradients(self, grad_weights_xGqs: Tensor, weights_xGqs: Tensor, grad_out_xqK: Tensor) -> None:
        """Add to the gradient of the weights, and sum that of the values."""
        if self.values_RK is None:
            return
        near_RK = self.values_RK[-weights_xGqs.shape[3] :]
        entries, queries = len(near_RK), weights_xGqs.shape[2]
        by_distance = (grad_out_xqK @ near_RK.t()).view(-1, queries, entries)
        _add_right_aligned(grad_weights_xGqs.flatten(0, 1), _to_rectangle(by_distance))
        if (grad_values_RK := self.sums[2]) is not None:
            sums_YqR = _from_pairs(weights_xGqs.flatten(0, 1), entries)
            grad_values_RK[-entries:] += sums_YqR.flatten(0, 1).t() @ grad_out_xqK.flatten(0, 1)

    def add_query_gradients(self, grad_q_xqK: Tensor, grad_scores_xGqs: Tensor, q_xqK: Tensor, heads: slice) -> None:
        """Add to the gradient of the queries, before it is scaled; sum those of keys and bias."""
        if self.keys_RK is not None:
            near_RK = self.keys_RK[-grad_scores_xGqs.shape[3] :]
            grad_entries_YqR = _from_pairs(grad_scores_xGqs.flatten(0, 1), len(near_RK))
            grad_q_xqK += (grad_entries_YqR @ near_RK).view(grad_q_xqK.shape)
            if (grad_keys_RK := self.sums[1]) is not None:
                grad_keys_RK[-len(near_RK) :] += grad_entries_YqR.flatten(0, 1).t() @ q_xqK.flatten(0, 1)
        if self.sums[0] is not None:
            grad_scores, grad_bias = self._with_bias(grad_scores_xGqs, self.sums[0], heads)
            columns = grad_scores[..., -grad_bias.shape[-1] :].sum(0, dtype=grad_bias.dtype)
            _add_right_aligned(grad_bias, columns)

    def gradients(self, scale: float) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of the bias `[N, R]`, keys and values `[R, K]`, the nearest first."""
        grad_bias, grad_keys, grad_values = self.sums
        if grad_bias is not None:
            entries = grad_bias.shape[-1] - self.queries + 1
            grad_bias = _band(grad_bias.flatten(0, 1), entries).sum(1).flip(1)
        return (
            grad_bias,
            None if grad_keys is None else grad_keys.mul_(scale).flip(0),
            None if grad_values is None else grad_values.flip(0),
        )

    def _with_bias(self, pairs_xGqs: Tensor, table_MGqW: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        """Pairs by rows `[rows, m, G, q, s]`, and their part of a table, `[m, G, q, W]`."""
        queries, entries = pairs_xGqs.shape[2], table_MGqW.shape[3] - table_MGqW.shape[2] + 1
        part = table_MGqW[heads, :, :queries, : queries + entries - 1]
        return pairs_xGqs.view(-1, len(part), *pairs_xGqs.shape[1:]), part
