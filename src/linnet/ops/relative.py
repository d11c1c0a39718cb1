"""What attention owes to the distance of query and key: the definition, and a form that gathers, for few queries.

A distance is the query's position less the key's. A score is `scale q . (k + keys[r]) + bias[n, r]`, and what is read
of a key `v + values[r]` (Shaw et al., arXiv 1803.02155, eq. 3, 4), for distances `r` below R; beyond there is nothing.

A bias, or a vector of keys, that all distances from R on share can be taken from all scores of a query: the weights
stay as they are. Tables here are what is left then, so that most scores of a long text need nothing.

Legend: `B` batch, `N` query heads, `M` key-value heads, `T` queries, `F` those of all heads that share keys and values,
`S` keys, `K` head width, `R` distances that have entries of their own.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.exporting import is_exporting


class Relative(NamedTuple):
    """Tables by distance, the nearest first; None for none. All that are given have the same R."""

    bias_NR: Tensor | None = None
    keys_RK: Tensor | None = None
    values_RK: Tensor | None = None

    def cut(self, most: int) -> "Relative":
        """Without the distances from `most` on, which nothing has; in a graph, which knows no lengths, with them."""
        if is_exporting():
            return self
        bias_NR, keys_RK, values_RK = self
        return Relative(
            None if bias_NR is None else bias_NR[:, :most],
            None if keys_RK is None else keys_RK[:most],
            None if values_RK is None else values_RK[:most],
        )


class RelativePositionRow:
    """Keys and values of distances for one token of one stream, that of the furthest key first.

    beyond_K: what is read whatever the distance.
    """

    def __init__(self, keys_RK: Tensor, values_RK: Tensor, beyond_K: Tensor) -> None:
        self._keys_KR, self._values_RK = keys_RK.flip(0).t().contiguous(), values_RK.flip(0)
        self._beyond_K = beyond_K

    def add_scores(self, scores_MGS: Tensor, q_MGK: Tensor, scale: float) -> None:
        """Add to the scores of the nearest keys, the last ones, in place."""
        near = min(scores_MGS.shape[2], len(self._values_RK))
        scores_MGS[..., -near:] += scale * (q_MGK @ self._keys_KR[:, -near:])

    def read(self, read_MGK: Tensor, weights_MGS: Tensor) -> Tensor:
        """What has been read of the keys' own values, with what their distances add."""
        near = min(weights_MGS.shape[2], len(self._values_RK))
        return read_MGK + weights_MGS[..., -near:] @ self._values_RK[-near:] + self._beyond_K


def distances(queries: int, keys: int, device: torch.device, last_BT: Tensor | None = None) -> Tensor:
    """Of each query and key, int64 `[T, S]`, or `[B, T, S]` where `last_BT` says at which key each query stands."""
    if last_BT is None:
        last_BT = torch.arange(keys - queries, keys, device=device)
    return last_BT[..., None] - torch.arange(keys, device=device)


def softmax_with_sinks(scores_BNTS: Tensor, sinks_N: Tensor | None) -> Tensor:
    """The weights of scores; a sink of each head takes its share of them, and nothing is read of it.

    As one more score, learned, of a key whose value is zero (gpt-oss, arXiv 2508.10925, 2.4).
    """
    if sinks_N is None:
        return scores_BNTS.softmax(dim=-1)
    sinks_BNT1 = sinks_N.to(scores_BNTS.dtype)[:, None, None].expand(*scores_BNTS.shape[:3], 1)
    return torch.cat([scores_BNTS, sinks_BNT1], dim=-1).softmax(dim=-1)[..., :-1]


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
    """The definition, step by step, with a vector for every pair of query and key; at: see `distances`."""
    bias_NR, keys_RK, values_RK = relative
    scores_BNTS = q_BNTK @ k_BNSK.transpose(-1, -2)
    if keys_RK is not None:
        scores_BNTS = scores_BNTS + torch.einsum(
            "bntk,btsk->bnts", q_BNTK, _by_pairs(keys_RK, at).expand(len(q_BNTK), -1, -1, -1)
        )
    scores_BNTS = scores_BNTS * scale
    if bias_NR is not None:
        scores_BNTS = scores_BNTS + _by_pairs(bias_NR.t(), at).movedim(-1, -3)
    weights_BNTS = softmax_with_sinks(scores_BNTS.masked_fill(~mask, float("-inf")), sinks_N)
    out_BNTK = weights_BNTS @ v_BNSK
    if values_RK is not None:
        out_BNTK = out_BNTK + torch.einsum(
            "bnts,btsk->bntk", weights_BNTS, _by_pairs(values_RK, at).expand(len(q_BNTK), -1, -1, -1)
        )
    return out_BNTK


def _by_pairs(table_RX: Tensor, at: Tensor) -> Tensor:
    """The entry of each pair, `[..., T, S, X]`: zeros beyond."""
    return F.pad(table_RX, (0, 0, 0, 1))[_entries(at, table_RX.shape[0])]  # `len` is never a symbol


def gathered_attention(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    mask: Tensor,
    at: Tensor,
    scale: float,
    relative: Relative,
    sinks_N: Tensor | None = None,
) -> Tensor:
    """The same, by products with each distance's entry once: for few queries. `[B, N, T, K]`."""
    bias_NR, keys_RK, values_RK = relative.cut(k_BMSK.shape[2])
    q_BNTK = q_BNTK * scale
    by_head, q_BMFK = q_BNTK.shape[1:3], q_BNTK.reshape(*k_BMSK.shape[:2], -1, q_BNTK.shape[3])
    scores_BNTS = torch.unflatten((q_BMFK @ k_BMSK.transpose(-1, -2)).flatten(1, 2), 1, by_head)
    if keys_RK is not None:
        of_distances_BNTR = F.pad(q_BNTK @ keys_RK.t(), (0, 1))
        scores_BNTS = scores_BNTS + of_distances_BNTR.gather(3, _by_heads(at, len(keys_RK), scores_BNTS))
    if bias_NR is not None:
        scores_BNTS = scores_BNTS + _by_pairs(bias_NR.t().to(scores_BNTS.dtype), at).movedim(-1, -3)
    weights_BNTS = softmax_with_sinks(scores_BNTS.masked_fill(~mask, float("-inf")), sinks_N)
    weights_BMFS = weights_BNTS.reshape(*q_BMFK.shape[:3], -1)
    out_BNTK: Tensor = torch.unflatten((weights_BMFS @ v_BMSK).flatten(1, 2), 1, by_head)
    if values_RK is not None:
        sums_BNTR = weights_BNTS.new_zeros(*weights_BNTS.shape[:3], len(values_RK) + 1)
        sums_BNTR = sums_BNTR.scatter_add(3, _by_heads(at, len(values_RK), weights_BNTS), weights_BNTS)
        out_BNTK = out_BNTK + sums_BNTR[..., :-1] @ values_RK
    return out_BNTK


def _entries(at: Tensor, entries: int) -> Tensor:
    """Which entry each pair has; one more beyond, and for keys behind the query, which are not seen."""
    return at.clamp(max=entries).masked_fill(at < 0, entries)


def _by_heads(at: Tensor, entries: int, like_BNTS: Tensor) -> Tensor:
    near = _entries(at, entries)
    return (near if near.dim() == 2 else near[:, None]).expand_as(like_BNTS)
