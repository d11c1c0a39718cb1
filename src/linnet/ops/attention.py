"""Softmax attention over a stream, and over all of a sequence: the slow, obvious forms and the fused kernel.

Legend: `B` batch, `N` query heads, `M` key-value heads (`N` a multiple of `M`), `T` queries, `S` keys, `K` head width;
values, and what is read of them, may have a width of their own.
The queries are the last `T` of the `S` positions; query `t` sees keys `0 .. S-T+t`. The first `padding_B[b]` keys of
row `b` are padding: no real query sees them. (A padding query sees itself, so that its output is finite.)
`last_BT`: where it is given, the last key that each query sees, in the place of `S-T+t`: rows at different positions,
or with a prefix that sees all of itself.
Scores are divided by `sqrt(K)` (Vaswani et al., 2017, eq. 1), or multiplied by `scale` where it is given. With a
`window` of W a query sees the last W positions alone, its own included (Beltagy et al., arXiv 2004.05150), and with
`first` so many at the beginning of the keys (Xiao et al., arXiv 2309.17453).
`relative`: what scores and values owe to the distance; `sinks_N`: a score in each head of nothing (`ops.relative`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.blocked_attention import blocked_attention, blocks_serve
from linnet.ops.relative import Relative, distances, gathered_attention, relative_reference, softmax_with_sinks
from linnet.ops.windowed_attention import in_blocks, windowed_attention


def visible(
    queries: int,
    keys: int,
    device: torch.device,
    padding_B: Tensor | None = None,
    window: int | None = None,
    last_BT: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """Which query sees which key: bool `[T, S]`, or `[B, 1, T, S]` where rows differ."""
    if last_BT is not None:
        query_T1 = last_BT[:, None, :, None]
    else:
        query_T1 = torch.arange(keys - queries, keys, device=device)[:, None]
    key_S = torch.arange(keys, device=device)
    causal_TS: Tensor = key_S <= query_T1
    if window is not None:
        causal_TS = causal_TS & ((key_S > query_T1 - window) | (key_S < first))
    if padding_B is None:
        return causal_TS
    real_B11S = (key_S >= padding_B[:, None])[:, None, None, :]
    return (causal_TS & real_B11S) | (key_S == query_T1)


def attention_reference(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    padding_B: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    last_BT: Tensor | None = None,
    relative: Relative | None = None,
    sinks_N: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """The definition, step by step, with every score in memory."""
    groups = q_BNTK.shape[1] // k_BMSK.shape[1]
    k_BNSK = k_BMSK.repeat_interleave(groups, dim=1)
    v_BNSK = v_BMSK.repeat_interleave(groups, dim=1)
    scale = q_BNTK.shape[-1] ** -0.5 if scale is None else scale
    queries, keys, device = q_BNTK.shape[2], k_BMSK.shape[2], q_BNTK.device
    mask = visible(queries, keys, device, padding_B, window, last_BT, first)
    if relative is not None:
        at = distances(queries, keys, device, last_BT)
        return relative_reference(q_BNTK, k_BNSK, v_BNSK, mask, at, scale, relative, sinks_N)
    scores_BNTS = q_BNTK @ k_BNSK.transpose(-1, -2) * scale
    weights_BNTS = softmax_with_sinks(scores_BNTS.masked_fill(~mask, float("-inf")), sinks_N)
    return weights_BNTS @ v_BNSK


def attention(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    padding_B: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    last_BT: Tensor | None = None,
    relative: Relative | None = None,
    sinks_N: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """The same, fast: `[B, N, T, K]`.

    By PyTorch's fused kernel, or block by block: where a window leaves most scores out, and where that is faster.
    """
    if relative is not None or sinks_N is not None or first:
        relative = Relative() if relative is None else relative
        return _without_kernel(q_BNTK, k_BMSK, v_BMSK, padding_B, scale, window, last_BT, relative, sinks_N, first)
    queries, keys = q_BNTK.shape[2], k_BMSK.shape[2]
    if window is not None and window >= keys:
        window = None
    if window is not None and in_blocks(queries, window):
        return windowed_attention(q_BNTK, k_BMSK, v_BMSK, window, padding_B, scale)
    grouped = q_BNTK.shape[1] != k_BMSK.shape[1]
    plain = padding_B is None and window is None and last_BT is None
    whole, single = queries == keys and plain, queries == 1 and plain
    on_cpu = q_BNTK.device.type == "cpu" and not torch.compiler.is_compiling()
    if whole and on_cpu and blocks_serve(queries, q_BNTK.dtype):
        return blocked_attention(q_BNTK, k_BMSK, v_BMSK, scale)
    values_apart = q_BNTK.shape[3] != v_BMSK.shape[3]  # no fused kernel of a CPU has such
    if values_apart and on_cpu and queries == keys and window is None and last_BT is None:
        return blocked_attention(q_BNTK, k_BMSK, v_BMSK, scale, None, padding_B)
    mask = None if whole or single else visible(queries, keys, q_BNTK.device, padding_B, window, last_BT)
    out_BNTK: Tensor = F.scaled_dot_product_attention(
        q_BNTK, k_BMSK, v_BMSK, attn_mask=mask, is_causal=whole and queries > 1, scale=scale, enable_gqa=grouped
    )
    return out_BNTK


def full_attention_reference(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    bias_NTS: Tensor | None = None,
) -> Tensor:
    """Every query sees every key, or where `mask`, bool `[B, 1, T or 1, S]`, says so; with every score in memory.

    bias_NTS: is added to scores, `[N, T, S]`, or `[B, N, T, S]` where rows differ.
    """
    groups = q_BNTK.shape[1] // k_BMSK.shape[1]
    k_BNSK, v_BNSK = (x_BMSK.repeat_interleave(groups, dim=1) for x_BMSK in (k_BMSK, v_BMSK))
    scale = q_BNTK.shape[-1] ** -0.5 if scale is None else scale
    scores_BNTS = q_BNTK @ k_BNSK.transpose(-1, -2) * scale
    if bias_NTS is not None:
        scores_BNTS = scores_BNTS + bias_NTS.to(scores_BNTS.dtype)
    if mask is not None:
        scores_BNTS = scores_BNTS.masked_fill(~mask, float("-inf"))
    weights_BNTS: Tensor = scores_BNTS.softmax(dim=-1)
    return weights_BNTS @ v_BNSK


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
    grouped = q_BNTK.shape[1] != k_BMSK.shape[1]
    out_BNTK: Tensor = F.scaled_dot_product_attention(
        q_BNTK, k_BMSK, v_BMSK, attn_mask=mask, scale=scale, enable_gqa=grouped
    )
    return out_BNTK


def _without_kernel(
    q_BNTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    padding_B: Tensor | None,
    scale: float | None,
    window: int | None,
    last_BT: Tensor | None,
    relative: Relative,
    sinks_N: Tensor | None,
    first: int,
) -> Tensor:
    """A whole text in blocks, so that no table has an entry for each pair; few queries behind a past by gathering."""
    queries, keys, device = q_BNTK.shape[2], k_BMSK.shape[2], q_BNTK.device
    scale = q_BNTK.shape[-1] ** -0.5 if scale is None else scale
    if queries == keys and queries > 1 and last_BT is None and not torch.compiler.is_compiling():
        return blocked_attention(q_BNTK, k_BMSK, v_BMSK, scale, window, padding_B, relative, sinks_N, first)
    mask = visible(queries, keys, device, padding_B, window, last_BT, first)
    at = distances(queries, keys, device, last_BT)
    return gathered_attention(q_BNTK, k_BMSK, v_BMSK, mask, at, scale, relative, sinks_N)
