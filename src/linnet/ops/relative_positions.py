"""Terms of attention that depend on the distance of query and key: the definition, a form for few queries, T5's biases.

A distance is the query's position minus the key's. A score is `scale q . (k + keys[r]) + bias[n, r]`, and what is read
of a key is `v + values[r]` (Shaw et al., arXiv 1803.02155, eq. 3, 4), for distances `r` below R; beyond R there are no
such terms. A bias, or a vector of keys, that all distances from R on share can be subtracted from all scores of a query
without changing the weights. The tables hold the remainder, so that most scores of a long text need nothing.

Legend: `B` batch, `N` query heads, `M` key-value heads, `T` queries, `F` queries of all heads that share keys and
values, `S` keys, `K` head width, `R` distances with entries of their own; `U` buckets, `L = T + S - 1` offsets.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.support import is_exporting


class Relative(NamedTuple):
    """Tables by distance, the nearest first; None for terms that are absent. All tables have the same R."""

    bias_NR: Tensor | None = None
    keys_RK: Tensor | None = None
    values_RK: Tensor | None = None

    def cut(self, length: int) -> "Relative":
        """Without distances from `length` on, which do not occur. A graph, whose lengths are unknown, keeps them."""
        if is_exporting():
            return self
        bias_NR, keys_RK, values_RK = self
        return Relative(
            None if bias_NR is None else bias_NR[:, :length],
            None if keys_RK is None else keys_RK[:length],
            None if values_RK is None else values_RK[:length],
        )


def distances(queries: int, keys: int, device: torch.device, last_BT: Tensor | None = None) -> Tensor:
    """Distance of each query and key, int64 `[T, S]`, or `[B, T, S]` where `last_BT` gives the key of each query."""
    if last_BT is None:
        last_BT = torch.arange(keys - queries, keys, device=device)
    return last_BT[..., None] - torch.arange(keys, device=device)


def softmax_with_sinks(scores_BNTS: Tensor, sinks_N: Tensor | None) -> Tensor:
    """The weights of scores, where each head has one more, learned score of a key whose value is zero.

    As in gpt-oss (arXiv 2508.10925, 2.4).
    """
    if sinks_N is None:
        return scores_BNTS.softmax(dim=-1)
    sinks_BNT1 = sinks_N.to(scores_BNTS.dtype)[:, None, None].expand(*scores_BNTS.shape[:3], 1)
    return torch.cat([scores_BNTS, sinks_BNT1], dim=-1).softmax(dim=-1)[..., :-1]


def bounded(scores: Tensor, soft_cap: float | None) -> Tensor:
    """`soft_cap tanh(scores / soft_cap)`, as in Gemma 2 (arXiv 2408.00118, 2)."""
    return scores if soft_cap is None else soft_cap * (scores / soft_cap).tanh()


def relative_reference(
    q_BNTK: Tensor,
    k_BNSK: Tensor,
    v_BNSK: Tensor,
    mask: Tensor,
    at: Tensor,
    scale: float,
    relative: Relative,
    sinks_N: Tensor | None = None,
) -> Tensor:
    """The definition, step by step, with a vector for every pair of query and key; at: from `distances`."""
    bias_NR, keys_RK, values_RK = relative
    scores_BNTS = q_BNTK @ k_BNSK.transpose(-1, -2)
    if keys_RK is not None:
        keys_BTSK = _gather_pairs(keys_RK, at).expand(len(q_BNTK), -1, -1, -1)
        scores_BNTS = scores_BNTS + torch.einsum("bntk,btsk->bnts", q_BNTK, keys_BTSK)
    scores_BNTS = scores_BNTS * scale
    if bias_NR is not None:
        scores_BNTS = scores_BNTS + _gather_pairs(bias_NR.t(), at).movedim(-1, -3)
    weights_BNTS = softmax_with_sinks(scores_BNTS.masked_fill(~mask, float("-inf")), sinks_N)
    out_BNTK = weights_BNTS @ v_BNSK
    if values_RK is not None:
        values_BTSK = _gather_pairs(values_RK, at).expand(len(q_BNTK), -1, -1, -1)
        out_BNTK = out_BNTK + torch.einsum("bnts,btsk->bntk", weights_BNTS, values_BTSK)
    return out_BNTK


def gathered_attention(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    mask: Tensor,
    at: Tensor,
    scale: float,
    relative: Relative,
    sinks_N: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """`relative_reference` for few queries: one product with the entry of each distance. `[B, N, T, K]`.

    soft_cap: bounds the scores; only without positions by distance.
    """
    bias_NR, keys_RK, values_RK = relative.cut(k_BMSK.shape[2])
    q_BNTK = q_BNTK * scale
    heads_and_queries, q_BMFK = q_BNTK.shape[1:3], q_BNTK.reshape(*k_BMSK.shape[:2], -1, q_BNTK.shape[3])
    scores_BNTS = torch.unflatten((q_BMFK @ k_BMSK.transpose(-1, -2)).flatten(1, 2), 1, heads_and_queries)
    if keys_RK is not None:
        by_distance_BNTR = F.pad(q_BNTK @ keys_RK.t(), (0, 1))
        scores_BNTS = scores_BNTS + by_distance_BNTR.gather(3, _expand_entries(at, len(keys_RK), scores_BNTS))
    if bias_NR is not None:
        scores_BNTS = scores_BNTS + _gather_pairs(bias_NR.t().to(scores_BNTS.dtype), at).movedim(-1, -3)
    scores_BNTS = bounded(scores_BNTS, soft_cap)
    weights_BNTS = softmax_with_sinks(scores_BNTS.masked_fill(~mask, float("-inf")), sinks_N)
    weights_BMFS = weights_BNTS.reshape(*q_BMFK.shape[:3], -1)
    out_BNTK: Tensor = torch.unflatten((weights_BMFS @ v_BMSK).flatten(1, 2), 1, heads_and_queries)
    if values_RK is not None:
        sums_BNTR = weights_BNTS.new_zeros(*weights_BNTS.shape[:3], len(values_RK) + 1)
        entries_BNTS = _expand_entries(at, len(values_RK), weights_BNTS)
        sums_BNTR = sums_BNTR.scatter_add(3, entries_BNTS, weights_BNTS)
        out_BNTK = out_BNTK + sums_BNTR[..., :-1] @ values_RK
    return out_BNTK


def _entries(at: Tensor, entries: int) -> Tensor:
    """Index of each pair's entry; `entries` for distances beyond, and for keys after the query, which are masked."""
    return at.clamp(max=entries).masked_fill(at < 0, entries)


def _gather_pairs(table_RX: Tensor, at: Tensor) -> Tensor:
    """The entry of each pair, `[..., T, S, X]`, zeros beyond R."""
    return F.pad(table_RX, (0, 0, 0, 1))[_entries(at, table_RX.shape[0])]  # `len` is never a symbol


def _expand_entries(at: Tensor, entries: int, like_BNTS: Tensor) -> Tensor:
    near = _entries(at, entries)
    return (near if near.dim() == 2 else near[:, None]).expand_as(like_BNTS)


# Distances in buckets, each with a bias for every head (Raffel et al., "T5", arXiv 1910.10683, sec. 2.1). The nearest
# half of the buckets hold one distance each; the others grow logarithmically up to `furthest`, and all distances from
# there on share the last one. Where tokens see both ways, half of all buckets are for keys after the query.


def position_buckets(offsets: Tensor, buckets: int = 32, furthest: int = 128, both_ways: bool = False) -> Tensor:
    """The bucket of each offset (the key's position minus the query's): int64, below `buckets`.

    With `both_ways` keys after the query have separate buckets; else they share the bucket of the query's own key.
    """
    if both_ways:
        buckets //= 2
    distance = offsets.abs() if both_ways else (-offsets).clamp(min=0)
    exact = buckets // 2
    # In float32, like the published models: the limits between buckets depend on its rounding.
    steps = (distance.clamp(min=1).float() / exact).log() / math.log(furthest / exact)
    wide = (exact + (steps * (buckets - exact)).long()).clamp(max=buckets - 1)
    bucket = torch.where(distance < exact, distance, wide)
    return bucket + buckets * (offsets > 0) if both_ways else bucket


def bucket_bias_reference(weights_UN: Tensor, offsets: Tensor, furthest: int = 128, both_ways: bool = False) -> Tensor:
    """The definition: the biases of scores with these offsets `[..., T, S]`, `[..., N, T, S]`."""
    return weights_UN[position_buckets(offsets, len(weights_UN), furthest, both_ways)].movedim(-1, -3)


def bucket_bias(weights_UN: Tensor, offsets: Tensor, furthest: int = 128, both_ways: bool = False) -> Tensor:
    """`bucket_bias_reference`, fast. Offsets `[T, S]` must be those of consecutive queries and consecutive keys.

    Then each diagonal has one entry, and so has the gradient: its sums take one pass, where adding the entries to their
    buckets one by one takes half of a layer's time (`experiments/LOG.md`).
    """
    if offsets.dim() > 2 or torch.compiler.is_compiling():
        return bucket_bias_reference(weights_UN, offsets, furthest, both_ways)
    offsets_L = torch.cat([offsets[:, 0].flip(0), offsets[0, 1:]])
    entries_NL = weights_UN[position_buckets(offsets_L, len(weights_UN), furthest, both_ways)].t()
    bias_NTS: Tensor = _ExpandDiagonals.apply(entries_NL, len(offsets))  # type: ignore[no-untyped-call]
    return bias_NTS


class _ExpandDiagonals(torch.autograd.Function):
    """`[N, L] -> [N, T, S]`: the first entry in the lower left corner, the last one in the upper right."""

    @staticmethod
    def forward(ctx: Any, entries_NL: Tensor, queries: int) -> Tensor:
        return entries_NL.unfold(-1, entries_NL.shape[-1] - queries + 1, 1).flip(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_bias_NTS: Tensor) -> tuple[Tensor, None]:
        """Sum the diagonals: in rows that each begin one place later, diagonals are columns."""
        heads, queries, keys = grad_bias_NTS.shape
        places = queries + keys - 1
        rows = grad_bias_NTS.new_zeros(heads, queries * places)
        later_NTS = rows.as_strided(grad_bias_NTS.shape, (queries * places, places - 1, 1), queries - 1)
        later_NTS.copy_(grad_bias_NTS)
        return rows.view(heads, queries, places).sum(1), None


def check_buckets(buckets: int, furthest: int, both_ways: bool = False) -> None:
    """`ValueError` for a number of buckets that cannot be filled."""
    one_way = buckets // (2 if both_ways else 1)
    if one_way < 2 or (both_ways and buckets % 2):
        raise ValueError(f"buckets: {buckets}: must be {'an even number from 4' if both_ways else '2 or more'}")
    if furthest <= one_way // 2:
        raise ValueError(f"furthest: {furthest}: must be above {one_way // 2}, which have buckets of their own")
