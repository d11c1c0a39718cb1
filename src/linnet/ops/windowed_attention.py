"""Attention within a window, block by block: the work and memory of `2 W` keys for each query, not of all.

The queries are cut into blocks of `W`; the keys that a block can see lie in its own block and the one before.

Legend: `B` batch, `N` query heads, `M` key-value heads, `T` queries, `S` keys, `K` head width, `W` window, `C` blocks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def uses_blocks(queries: int, window: int) -> bool:
    """Whether blocks are less work than all pairs under a mask."""
    return queries > 2 * window


def windowed_pairs(tokens: int, window: int) -> int:
    """How many scores are computed for a sequence of `tokens` tokens, those that are masked included."""
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
    """Every query sees the last `window` keys up to its own: `[B, N, T, K]`; see `ops.attention`."""
    batch, heads, queries, _ = q_BNTK.shape
    past = k_BMSK.shape[2] - queries
    missing, behind = window - past, -queries % window
    blocks = (queries + behind) // window
    q_BNUK = F.pad(q_BNTK, (0, 0, 0, behind))
    q_XNWK = q_BNUK.reshape(batch, heads, blocks, window, -1).transpose(1, 2).flatten(0, 1)
    k_XMVK, v_XMVK = (_neighborhoods(F.pad(x, (0, 0, missing, behind)), window) for x in (k_BMSK, v_BMSK))
    mask = _mask(blocks, window, missing, padding_B, q_BNTK)
    grouped = q_BNTK.shape[1] != k_BMSK.shape[1]
    out_XNWK = F.scaled_dot_product_attention(q_XNWK, k_XMVK, v_XMVK, attn_mask=mask, scale=scale, enable_gqa=grouped)
    out_BCNWK = out_XNWK.reshape(batch, blocks, heads, window, -1)
    return out_BCNWK.transpose(1, 2).flatten(2, 3)[:, :, :queries]


def _neighborhoods(x_BMSK: Tensor, window: int) -> Tensor:
    """`[B, M, (C + 1) W, K] -> [B C, M, 2 W, K]`: each block with the one before it."""
    x_BMCKV = x_BMSK.unfold(2, 2 * window, window)
    return x_BMCKV.permute(0, 2, 1, 4, 3).flatten(0, 1)


def _mask(blocks: int, window: int, missing: int, padding_B: Tensor | None, like: Tensor) -> Tensor:
    """Which query of a block sees which key of its neighborhood, bool `[B C, 1, W, 2 W]`.

    The first `missing` keys stand for tokens before the first; a query that is itself padding sees itself.
    """
    batch, device = like.shape[0], like.device
    query_W1 = torch.arange(window, device=device)[:, None] + window
    key_V = torch.arange(2 * window, device=device)
    near_WV = (key_V <= query_W1) & (key_V > query_W1 - window)
    index_CV = torch.arange(blocks, device=device)[:, None] * window + key_V - missing
    first_B = torch.zeros(batch, dtype=torch.long, device=device) if padding_B is None else padding_B
    real_BCV = index_CV >= first_B[:, None, None]
    mask_BCWV = (near_WV & real_BCV[:, :, None]) | (key_V == query_W1)
    return mask_BCWV.flatten(0, 1)[:, None]
