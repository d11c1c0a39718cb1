"""Softmax attention over a stream, and over all of a sequence: the slow, obvious forms and the fused kernel.

Legend: `B` batch, `N` query heads, `M` key-value heads (`N` a multiple of `M`), `T` queries, `S` keys, `K` head width;
values, and what is read of them, may have a width of their own.
Keys and values may be of fewer bits than queries, bfloat16 beside float32.
The queries are the last `T` of the `S` positions; query `t` sees keys `0 .. S-T+t`, unless its `KeyRange` is another.
Scores are divided by `sqrt(K)` (Vaswani et al., 2017, eq. 1), or multiplied by `scale` where it is given.
`relative`: what scores and values owe to the distance; `sinks_N`: a score in each head of nothing (`ops.relative`).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.blocked_attention import blocked_attention, blocked_is_faster
from linnet.ops.exporting import is_exporting, is_traced_or_differentiated
from linnet.ops.native import library
from linnet.ops.native.attention import attention_past
from linnet.ops.relative import Relative, distances, gathered_attention, relative_reference, softmax_with_sinks
from linnet.ops.windowed_attention import uses_blocks, windowed_attention


class KeyRange(NamedTuple):
    """Which keys each query sees: all up to its own, unless a field says less.

    padding_B: the first so many keys of each row are padding: no real query sees them. (A padding query sees itself,
        so that its output is finite.)
    window: the last so many positions alone, its own included (Beltagy et al., arXiv 2004.05150).
    sink_tokens: beside a window, so many at the beginning of the keys (Xiao et al., arXiv 2309.17453).
    last_BT: the last key that each query sees, in the place of `S-T+t`: rows at different positions, or with a prefix
        that sees all of itself.
    """

    padding_B: Tensor | None = None
    window: int | None = None
    sink_tokens: int = 0
    last_BT: Tensor | None = None


CAUSAL = KeyRange()


def attention_mask(queries: int, keys: int, device: torch.device, key_range: KeyRange = CAUSAL) -> Tensor:
    """Which query sees which key: bool `[T, S]`, or `[B, 1, T, S]` where rows differ."""
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
) -> Tensor:
    """The definition, step by step, with every score in memory."""
    queries, keys, device = q_BNTK.shape[2], k_BMSK.shape[2], q_BNTK.device
    mask = attention_mask(queries, keys, device, key_range)
    if relative is None:
        return full_attention_reference(q_BNTK, k_BMSK, v_BMSK, mask, scale, sinks_N=sinks_N)
    at = distances(queries, keys, device, key_range.last_BT)
    k_BNSK, v_BNSK = _of_all_heads(q_BNTK, k_BMSK, v_BMSK)
    return relative_reference(q_BNTK, k_BNSK, v_BNSK, mask, at, _factor(q_BNTK, scale), relative, sinks_N)


def attention(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    key_range: KeyRange = CAUSAL,
    scale: float | None = None,
    relative: Relative | None = None,
    sinks_N: Tensor | None = None,
) -> Tensor:
    """The same, fast: `[B, N, T, K]`.

    By PyTorch's fused kernel, or block by block: where a window leaves most scores out, and where that is faster. In a
    graph, which cannot choose by lengths, by products alone.
    """
    if k_BMSK.dtype != q_BNTK.dtype:
        return _over_fewer_bits(q_BNTK, k_BMSK, v_BMSK, key_range, scale, relative, sinks_N)
    padding_B, window, sink_tokens, last_BT = key_range
    if relative is not None or sinks_N is not None or sink_tokens or is_exporting():
        relative = Relative() if relative is None else relative
        return _without_kernel(q_BNTK, k_BMSK, v_BMSK, key_range, _factor(q_BNTK, scale), relative, sinks_N)
    queries, keys = q_BNTK.shape[2], k_BMSK.shape[2]
    if window is not None and uses_blocks(queries, window):
        return windowed_attention(q_BNTK, k_BMSK, v_BMSK, window, padding_B, scale)
    all_before = (window is None or window >= keys) and last_BT is None
    if all_before and queries == keys and _blocks_are_faster(q_BNTK, v_BMSK, padding_B is not None):
        return blocked_attention(q_BNTK, k_BMSK, v_BMSK, scale, None, padding_B)
    plain = all_before and padding_B is None
    mask = None if plain and queries in (1, keys) else attention_mask(queries, keys, q_BNTK.device, key_range)
    return _fused(q_BNTK, k_BMSK, v_BMSK, mask, scale, is_causal=plain and queries == keys and queries > 1)


def _over_fewer_bits(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    key_range: KeyRange,
    scale: float | None,
    relative: Relative | None,
    sinks_N: Tensor | None,
) -> Tensor:
    """One query of each stream by an own kernel; else keys and values become what the queries are."""
    compiled = library(q_BNTK.device) if q_BNTK.shape[2] == 1 and not is_traced_or_differentiated(q_BNTK) else None
    alone = key_range._replace(last_BT=None) == CAUSAL and relative is None and sinks_N is None
    if compiled is None or not alone or k_BMSK.dtype != torch.bfloat16:
        k_BMSK, v_BMSK = k_BMSK.to(q_BNTK.dtype), v_BMSK.to(q_BNTK.dtype)
        return attention(q_BNTK, k_BMSK, v_BMSK, key_range, scale, relative, sinks_N)
    streams, kv_heads, keys = k_BMSK.shape[:3]
    q_BMPK = q_BNTK.reshape(streams, kv_heads, -1, q_BNTK.shape[3])
    seen_B = (
        torch.full((streams,), keys, device="cpu")
        if key_range.last_BT is None
        else 1 + key_range.last_BT[:, 0].clamp(min=0)
    )
    return attention_past(compiled, q_BMPK, k_BMSK, v_BMSK, _factor(q_BNTK, scale), seen_B).view(q_BNTK.shape)


def full_attention_reference(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    bias_NTS: Tensor | None = None,
    sinks_N: Tensor | None = None,
) -> Tensor:
    """Every query sees every key, or where `mask`, bool `[B, 1, T or 1, S]`, says so; with every score in memory.

    bias_NTS: is added to scores, `[N, T, S]`, or `[B, N, T, S]` where rows differ.
    """
    k_BNSK, v_BNSK = _of_all_heads(q_BNTK, k_BMSK, v_BMSK)
    scores_BNTS = q_BNTK @ k_BNSK.transpose(-1, -2) * _factor(q_BNTK, scale)
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
    """The same, by PyTorch's fused kernel, which takes no bias that learns: `[B, N, T, K]`."""
    if bias_NTS is not None:
        return full_attention_reference(q_BNTK, k_BMSK, v_BMSK, mask, scale, bias_NTS)
    return _fused(q_BNTK, k_BMSK, v_BMSK, mask, scale)


def _fused(
    q_BNTK: Tensor, k_BMSK: Tensor, v_BMSK: Tensor, mask: Tensor | None, scale: float | None, is_causal: bool = False
) -> Tensor:
    """PyTorch's kernel."""
    if q_BNTK.shape[3] != v_BMSK.shape[3] and q_BNTK.device.type == "cpu" and q_BNTK.shape[2] == k_BMSK.shape[2]:
        return _fused_in_one_width(q_BNTK, k_BMSK, v_BMSK, mask, scale, is_causal)
    grouped = q_BNTK.shape[1] != k_BMSK.shape[1]
    out_BNTK: Tensor = F.scaled_dot_product_attention(
        q_BNTK, k_BMSK, v_BMSK, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
    return out_BNTK


def _fused_in_one_width(
    q_BNTK: Tensor, k_BMSK: Tensor, v_BMSK: Tensor, mask: Tensor | None, scale: float | None, is_causal: bool
) -> Tensor:
    """A processor's kernel has one width for keys and values: zeros change neither scores nor what is read."""
    key, value = q_BNTK.shape[3], v_BMSK.shape[3]
    scale = _factor(q_BNTK, scale)
    if key < value:
        q_BNTK, k_BMSK = F.pad(q_BNTK, (0, value - key)), F.pad(k_BMSK, (0, value - key))
    else:
        v_BMSK = F.pad(v_BMSK, (0, key - value))
    return _fused(q_BNTK, k_BMSK, v_BMSK, mask, scale, is_causal)[..., :value]


def _without_kernel(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    key_range: KeyRange,
    scale: float,
    relative: Relative,
    sinks_N: Tensor | None,
) -> Tensor:
    """A whole text in blocks, so that no table has an entry for each pair; few queries behind a past by gathering."""
    queries, keys, device = q_BNTK.shape[2], k_BMSK.shape[2], q_BNTK.device
    padding_B, window, sink_tokens, last_BT = key_range
    if not torch.compiler.is_compiling() and queries == keys and queries > 1 and last_BT is None:
        return blocked_attention(q_BNTK, k_BMSK, v_BMSK, scale, window, padding_B, relative, sinks_N, sink_tokens)
    mask, at = attention_mask(queries, keys, device, key_range), distances(queries, keys, device, last_BT)
    return gathered_attention(q_BNTK, k_BMSK, v_BMSK, mask, at, scale, relative, sinks_N)


def _blocks_are_faster(q_BNTK: Tensor, v_BMSK: Tensor, padded: bool) -> bool:
    """Whether own blocks read a whole text faster than PyTorch's kernel."""
    if q_BNTK.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    apart = q_BNTK.shape[3] != v_BMSK.shape[3]
    return apart if padded else blocked_is_faster(q_BNTK.shape[2], q_BNTK.dtype, apart)


def _factor(q_BNTK: Tensor, scale: float | None) -> float:
    """What scores are multiplied by."""
    return float(q_BNTK.shape[-1] ** -0.5) if scale is None else scale


def _of_all_heads(q_BNTK: Tensor, k_BMSK: Tensor, v_BMSK: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once for each query head, `[B, N, S, K]`."""
    groups = q_BNTK.shape[1] // k_BMSK.shape[1]
    k_BNSK, v_BNSK = (x_BMSK.repeat_interleave(groups, dim=1).to(q_BNTK.dtype) for x_BMSK in (k_BMSK, v_BMSK))
    return k_BNSK, v_BNSK
