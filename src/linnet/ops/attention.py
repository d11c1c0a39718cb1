"""Softmax attention: the definition with all scores in memory, and the fast forms, chosen by lengths and masks.

Legend: `B` batch, `N` query heads, `M` key-value heads (`N` is a multiple of `M`), `T` queries, `S` keys, `K` head
width. Values, and what is read of them, may have a width of their own; keys and values may have fewer bits than queries
(bfloat16 with float32). The queries are the last `T` of the `S` positions; query `t` sees keys `0 .. S-T+t` unless a
`KeyRange` restricts it. Scores are divided by `sqrt(K)` (Vaswani et al., 2017, eq. 1), or multiplied by `scale` if it
is given. `relative`: terms of scores and values that depend on the distance; `sinks_N`: the learned score of an
additional key whose value is zero; `soft_cap`: a bound of the scores (`ops.relative_positions`).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.blocked_attention import blocked_attention, blocked_is_faster
from linnet.ops.native import captures_custom_ops, library
from linnet.ops.native.attention import attention_past
from linnet.ops.relative_positions import (
    Relative,
    bounded,
    distances,
    gathered_attention,
    relative_reference,
    softmax_with_sinks,
)
from linnet.ops.support import is_exporting, is_traced_or_differentiated


class KeyRange(NamedTuple):
    """The keys that each query sees: all up to its own position, unless a field restricts them.

    padding_B: number of padding keys at the start of each row, which real queries do not see. (A padding query sees
        itself, so that its output is finite.)
    window: only the last `window` positions, its own included (Beltagy et al., arXiv 2004.05150).
    sink_tokens: in addition to a window, the first keys of the sequence (Xiao et al., arXiv 2309.17453).
    last_BT: the last key of each query, in place of `S-T+t`: for rows at different positions, or with a prefix that
        sees all of itself.
    """

    padding_B: Tensor | None = None
    window: int | None = None
    sink_tokens: int = 0
    last_BT: Tensor | None = None


CAUSAL = KeyRange()


def attention_mask(queries: int, keys: int, device: torch.device, key_range: KeyRange = CAUSAL) -> Tensor:
    """True where a query sees a key: bool `[T, S]`, or `[B, 1, T, S]` where rows differ."""
    if key_range.last_BT is not None:
        query_T1 = key_range.last_BT[:, None, :, None]
    else:
        query_T1 = torch.arange(keys - queries, keys, device=device)[:, None]
    key_S = torch.arange(keys, device=device)
    causal_TS: Tensor = key_S <= query_T1
    if key_range.window is not None:
        causal_TS = causal_TS & ((key_S > query_T1 - key_range.window) | (key_S < key_range.sink_tokens))
    if key_range.padding_B is None:
        return causal_TS
    real_B11S = (key_S >= key_range.padding_B[:, None])[:, None, None, :]
    return (causal_TS & real_B11S) | (key_S == query_T1)


def attention_reference(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    key_range: KeyRange = CAUSAL,
    scale: float | None = None,
    relative: Relative | None = None,
    sinks_N: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """The definition, step by step, with every score in memory; soft_cap: only without `relative`."""
    queries, keys, device = q_BNTK.shape[2], k_BMSK.shape[2], q_BNTK.device
    mask = attention_mask(queries, keys, device, key_range)
    if relative is None:
        return full_attention_reference(q_BNTK, k_BMSK, v_BMSK, mask, scale, sinks_N=sinks_N, soft_cap=soft_cap)
    at, groups = distances(queries, keys, device, key_range.last_BT), q_BNTK.shape[1] // k_BMSK.shape[1]
    scale = q_BNTK.shape[3] ** -0.5 if scale is None else scale
    k_BNSK, v_BNSK = (x_BMSK.repeat_interleave(groups, dim=1).to(q_BNTK.dtype) for x_BMSK in (k_BMSK, v_BMSK))
    return relative_reference(q_BNTK, k_BNSK, v_BNSK, mask, at, scale, relative, sinks_N)


def attention(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    key_range: KeyRange = CAUSAL,
    scale: float | None = None,
    relative: Relative | None = None,
    sinks_N: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """`attention_reference`, fast: `[B, N, T, K]`.

    By PyTorch's fused kernel, or block by block where a window excludes most scores and where that is faster. An
    exported graph, which cannot choose by lengths, has plain products, or a native operator for one query of each
    stream.
    """
    plain_scores = relative is None and sinks_N is None and soft_cap is None
    if captures_custom_ops() and plain_scores and _fits_operator(q_BNTK, k_BMSK, v_BMSK, key_range):
        return _operator(q_BNTK, k_BMSK, v_BMSK, key_range, scale)
    if k_BMSK.dtype != q_BNTK.dtype:
        return _mixed_precision_attention(q_BNTK, k_BMSK, v_BMSK, key_range, scale, relative, sinks_N, soft_cap)
    queries, keys, device = q_BNTK.shape[2], k_BMSK.shape[2], q_BNTK.device
    padding_B, window, sink_tokens, last_BT = key_range
    if relative is not None or sinks_N is not None or sink_tokens or soft_cap is not None or is_exporting():
        # PyTorch has no kernel for these. A whole text is computed in blocks, so that no tensor has an entry for each
        # pair of query and key; few queries after a long past are computed by gathering.
        relative = Relative() if relative is None else relative
        scale = q_BNTK.shape[3] ** -0.5 if scale is None else scale
        if not torch.compiler.is_compiling() and queries == keys and queries > 1 and last_BT is None:
            extras = (relative, sinks_N, sink_tokens, soft_cap)
            return blocked_attention(q_BNTK, k_BMSK, v_BMSK, scale, window, padding_B, *extras)
        mask_TS, at = attention_mask(queries, keys, device, key_range), distances(queries, keys, device, last_BT)
        return gathered_attention(q_BNTK, k_BMSK, v_BMSK, mask_TS, at, scale, relative, sinks_N, soft_cap)
    if window is not None and uses_blocks(queries, window):
        return windowed_attention(q_BNTK, k_BMSK, v_BMSK, window, padding_B, scale)
    sees_all = (window is None or window >= keys) and last_BT is None
    if sees_all and queries == keys and device.type == "cpu" and not torch.compiler.is_compiling():
        widths_differ = q_BNTK.shape[3] != v_BMSK.shape[3]
        if widths_differ if padding_B is not None else blocked_is_faster(queries, q_BNTK.dtype, widths_differ):
            return blocked_attention(q_BNTK, k_BMSK, v_BMSK, scale, None, padding_B)
    plain = sees_all and padding_B is None
    mask = None if plain and queries in (1, keys) else attention_mask(queries, keys, device, key_range)
    return _fused(q_BNTK, k_BMSK, v_BMSK, mask, scale, is_causal=plain and queries == keys and queries > 1)


def _fits_operator(q_BNTK: Tensor, k_BMSK: Tensor, v_BMSK: Tensor, key_range: KeyRange) -> bool:
    """True for one query of each stream that sees all keys up to a position."""
    one_query = q_BNTK.shape[2] == 1 and key_range.last_BT is not None
    dtypes = q_BNTK.dtype in (torch.float32, torch.bfloat16) and k_BMSK.dtype in (torch.float32, torch.bfloat16)
    alike = k_BMSK.shape == v_BMSK.shape and q_BNTK.device.type == "cpu"
    return one_query and dtypes and alike and key_range._replace(last_BT=None) == CAUSAL


def _operator(q_BNTK: Tensor, k_BMSK: Tensor, v_BMSK: Tensor, key_range: KeyRange, scale: float | None) -> Tensor:
    """`attention` as a native operator in a graph; it computes in float32."""
    from linnet.ops.native.custom_ops import attention_past

    assert key_range.last_BT is not None
    streams, kv_heads, _, width = k_BMSK.shape
    q_BMPK = q_BNTK.reshape(streams, kv_heads, -1, width).float().contiguous()
    last_B = key_range.last_BT[:, 0].expand(streams)
    out_BMPK: Tensor = attention_past(q_BMPK, k_BMSK, v_BMSK, last_B, width**-0.5 if scale is None else scale)
    return out_BMPK.view(q_BNTK.shape).to(q_BNTK.dtype)


def _mixed_precision_attention(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    key_range: KeyRange,
    scale: float | None,
    relative: Relative | None,
    sinks_N: Tensor | None,
    soft_cap: float | None,
) -> Tensor:
    """Read one query of each stream by a native function; otherwise convert keys and values to the queries' dtype."""
    one_query = q_BNTK.shape[2] == 1 and not is_traced_or_differentiated(q_BNTK)
    native = library(q_BNTK.device) if one_query else None
    plain = relative is None and sinks_N is None and soft_cap is None
    causal = key_range._replace(last_BT=None) == CAUSAL and plain
    if native is None or not causal or k_BMSK.dtype != torch.bfloat16:
        k_BMSK, v_BMSK = k_BMSK.to(q_BNTK.dtype), v_BMSK.to(q_BNTK.dtype)
        return attention(q_BNTK, k_BMSK, v_BMSK, key_range, scale, relative, sinks_N, soft_cap)
    streams, kv_heads, keys = k_BMSK.shape[:3]
    q_BMPK = q_BNTK.reshape(streams, kv_heads, -1, q_BNTK.shape[3])
    if key_range.last_BT is None:
        lengths_B = torch.full((streams,), keys, device="cpu")
    else:
        lengths_B = 1 + key_range.last_BT[:, 0].clamp(min=0)
    scale = q_BNTK.shape[3] ** -0.5 if scale is None else scale
    return attention_past(native, q_BMPK, k_BMSK, v_BMSK, scale, lengths_B).view(q_BNTK.shape)


def full_attention_reference(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    bias_NTS: Tensor | None = None,
    sinks_N: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Every query sees every key, or those where `mask`, bool `[B, 1, T or 1, S]`, is true; all scores in memory.

    bias_NTS: added to the scores, `[N, T, S]`, or `[B, N, T, S]` where rows differ.
    """
    groups = q_BNTK.shape[1] // k_BMSK.shape[1]
    k_BNSK, v_BNSK = (x_BMSK.repeat_interleave(groups, dim=1).to(q_BNTK.dtype) for x_BMSK in (k_BMSK, v_BMSK))
    scale = q_BNTK.shape[3] ** -0.5 if scale is None else scale
    scores_BNTS = bounded(q_BNTK @ k_BNSK.transpose(-1, -2) * scale, soft_cap)
    if bias_NTS is not None:
        scores_BNTS = scores_BNTS + bias_NTS.to(scores_BNTS.dtype)
    if mask is not None:
        scores_BNTS = scores_BNTS.masked_fill(~mask, float("-inf"))
    return softmax_with_sinks(scores_BNTS, sinks_N) @ v_BNSK


def full_attention(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    bias_NTS: Tensor | None = None,
) -> Tensor:
    """`full_attention_reference` by PyTorch's fused kernel, which has no gradient of a bias: `[B, N, T, K]`."""
    if bias_NTS is not None:
        return full_attention_reference(q_BNTK, k_BMSK, v_BMSK, mask, scale, bias_NTS)
    return _fused(q_BNTK, k_BMSK, v_BMSK, mask, scale)


def _fused(
    q_BNTK: Tensor, k_BMSK: Tensor, v_BMSK: Tensor, mask: Tensor | None, scale: float | None, is_causal: bool = False
) -> Tensor:
    """PyTorch's kernel. On a CPU it has one width for keys and values, so the narrower ones are padded with zeros."""
    key, value = q_BNTK.shape[3], v_BMSK.shape[3]
    if key != value and q_BNTK.device.type == "cpu" and q_BNTK.shape[2] == k_BMSK.shape[2]:
        scale = key**-0.5 if scale is None else scale
        if key < value:
            q_BNTK, k_BMSK = F.pad(q_BNTK, (0, value - key)), F.pad(k_BMSK, (0, value - key))
        else:
            v_BMSK = F.pad(v_BMSK, (0, key - value))
    grouped = q_BNTK.shape[1] != k_BMSK.shape[1]
    out_BNTK: Tensor = F.scaled_dot_product_attention(
        q_BNTK, k_BMSK, v_BMSK, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
    return out_BNTK if out_BNTK.shape[3] == value else out_BNTK[..., :value]


def uses_blocks(queries: int, window: int) -> bool:
    """True if `windowed_attention` is less work than all pairs under a mask."""
    return queries > 2 * window


def windowed_pairs(tokens: int, window: int) -> int:
    """Number of scores that are computed for a sequence of `tokens` tokens, masked ones included."""
    if not uses_blocks(tokens, window):
        return tokens * tokens
    return -(-tokens // window) * window * 2 * window


def windowed_attention(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    window: int,
    padding_B: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Every query sees the last `window` keys up to its own: `[B, N, T, K]`, with work and memory for `2 W` keys each.

    The queries are cut into blocks of the window's length W (`C` blocks); the keys that a block can see lie in its own
    block and the one before.
    """
    batch, heads, queries, _ = q_BNTK.shape
    missing, trailing = window - (k_BMSK.shape[2] - queries), -queries % window
    blocks = (queries + trailing) // window
    q_XNWK = F.pad(q_BNTK, (0, 0, 0, trailing)).reshape(batch, heads, blocks, window, -1).transpose(1, 2).flatten(0, 1)
    # Each block of keys and values with the one before it: `[B C, M, 2 W, K]`.
    k_XMVK, v_XMVK = (
        F.pad(x, (0, 0, missing, trailing)).unfold(2, 2 * window, window).permute(0, 2, 1, 4, 3).flatten(0, 1)
        for x in (k_BMSK, v_BMSK)
    )
    # The mask is true where a query of a block sees a key of its two blocks, `[B C, 1, W, 2 W]`. The first `missing`
    # keys stand for tokens before the first; a query that is itself padding sees itself.
    device = q_BNTK.device
    query_W1, key_V = torch.arange(window, device=device)[:, None] + window, torch.arange(2 * window, device=device)
    near_WV = (key_V <= query_W1) & (key_V > query_W1 - window)
    index_CV = torch.arange(blocks, device=device)[:, None] * window + key_V - missing
    first_B = torch.zeros(batch, dtype=torch.long, device=device) if padding_B is None else padding_B
    real_BCV = index_CV >= first_B[:, None, None]
    mask = ((near_WV & real_BCV[:, :, None]) | (key_V == query_W1)).flatten(0, 1)[:, None]
    grouped = q_BNTK.shape[1] != k_BMSK.shape[1]
    out_XNWK = F.scaled_dot_product_attention(q_XNWK, k_XMVK, v_XMVK, attn_mask=mask, scale=scale, enable_gqa=grouped)
    out_BCNWK = out_XNWK.reshape(batch, blocks, heads, window, -1)
    return out_BCNWK.transpose(1, 2).flatten(2, 3)[:, :, :queries]


# Latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1): keys and values are linear in a latent vector of each token.
#
# A token's entry is a rotary key that all heads share, and a latent. Head n has the key `[rotary key; U_key,n latent]`
# and the value `U_value,n latent`. Scores and sums are linear in the latent: `q . (U l) = (U^T q) . l` and
# `sum a (U l) = U (sum a l)`, so the maps can be applied to the queries and to the result, and entries are read as they
# are.
#
# Legend: `P` width of the rotary key, `C` of the rest of a key, `K = P + C`, `V` of a value, `R` of a latent,
# `E = P + R`; `S` entries.

MAX_ABSORBED_QUERIES = 64
"""Queries whose scores are all in memory at once."""


def expand_latents(entries_BSE: Tensor, up_key_NCR: Tensor, up_value_NVR: Tensor) -> tuple[Tensor, Tensor]:
    """The keys `[B, N, S, K]` and the values `[B, N, S, V]` of all entries."""
    rank, heads = up_key_NCR.shape[2], len(up_key_NCR)
    rotary_BSP, latent_BSR = torch.split(entries_BSE, [entries_BSE.shape[2] - rank, rank], dim=2)
    rotary_BNSP = rotary_BSP.unsqueeze(1).expand(-1, heads, -1, -1)
    latent_B1RS = latent_BSR.transpose(1, 2).unsqueeze(1)
    key_BNCS, value_BNVS = up_key_NCR @ latent_B1RS, up_value_NVR @ latent_B1RS
    return torch.cat([rotary_BNSP, key_BNCS.transpose(2, 3)], dim=3), value_BNVS.transpose(2, 3)


def latent_attention_reference(
    q_BNTK: Tensor,
    entries_BSE: Tensor,
    up_key_NCR: Tensor,
    up_value_NVR: Tensor,
    scale: float,
    last_BT: Tensor | None = None,
) -> Tensor:
    """The definition: `[B, N, T, V]`, with the keys and the values of all entries; last_BT: see `KeyRange`."""
    k_BNSK, v_BNSV = expand_latents(entries_BSE, up_key_NCR, up_value_NVR)
    return attention_reference(q_BNTK, k_BNSK, v_BNSV, KeyRange(last_BT=last_BT), scale)


def latent_attention(
    q_BNTK: Tensor,
    entries_BSE: Tensor,
    up_key_NCR: Tensor,
    up_value_NVR: Tensor,
    scale: float,
    last_BT: Tensor | None = None,
) -> Tensor:
    """`latent_attention_reference` for few queries: all heads read the entries, which are not expanded."""
    queries, keys = q_BNTK.shape[2], entries_BSE.shape[1]
    content = up_key_NCR.shape[1]
    rotary = q_BNTK.shape[3] - content
    rotary_BNTP, content_BNTC = torch.split(q_BNTK, [rotary, content], dim=3)
    q_BNTE = torch.cat([rotary_BNTP, content_BNTC @ up_key_NCR], dim=3)
    joint_BXS = q_BNTE.flatten(1, 2) @ entries_BSE.transpose(1, 2)
    scores_BNTS = joint_BXS.view(*q_BNTK.shape[:3], keys) * scale
    if queries > 1 or last_BT is not None:
        mask = attention_mask(queries, keys, q_BNTK.device, KeyRange(last_BT=last_BT))
        scores_BNTS = scores_BNTS.masked_fill(~mask, float("-inf"))
    weights_BXS = scores_BNTS.softmax(dim=3).flatten(1, 2)
    read_BNTR = (weights_BXS @ entries_BSE[..., rotary:]).view(*q_BNTK.shape[:3], -1)
    out_BNTV: Tensor = read_BNTR @ up_value_NVR.transpose(1, 2)
    return out_BNTV


def absorbed_is_cheaper(queries: int, rank: int, content: int, value: int) -> bool:
    """True if reading unexpanded entries is less work for `queries` queries after a long past."""
    return queries <= MAX_ABSORBED_QUERIES and queries * (2 * rank - content - value) <= rank * (content + value)
