"""Attention whose keys and values are linear in a latent vector of each token (DeepSeek-V2, arXiv 2405.04434, 2.1).

A token leaves an entry: a rotary key that all heads share, and a latent. Head n reads of it the key
`[rotary key; U_key,n latent]` and the value `U_value,n latent`. A score is linear in the latent, and so are sums:
`q . (U l) = (U^T q) . l` and `sum a (U l) = U (sum a l)`. With the maps at the queries and at the end, entries are read
as they are.

Legend: `B` batch, `N` heads, `T` queries, `S` entries, `P` width of the rotary key, `C` of the rest of a key,
`K = P + C`, `V` of a value, `R` of a latent, `E = P + R`. The queries are the last `T` of the `S` positions, unless
`last_BT` says which entry each sees last.
"""

import torch
from torch import Tensor

from linnet.ops.attention import KeyRange, attention_mask, attention_reference


def expanded(entries_BSE: Tensor, up_key_NCR: Tensor, up_value_NVR: Tensor) -> tuple[Tensor, Tensor]:
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
    """The definition: `[B, N, T, V]`, with the keys and the values of all entries."""
    k_BNSK, v_BNSV = expanded(entries_BSE, up_key_NCR, up_value_NVR)
    return attention_reference(q_BNTK, k_BNSK, v_BNSV, KeyRange(last_BT=last_BT), scale)


def latent_attention(
    q_BNTK: Tensor,
    entries_BSE: Tensor,
    up_key_NCR: Tensor,
    up_value_NVR: Tensor,
    scale: float,
    last_BT: Tensor | None = None,
) -> Tensor:
    """The same, for few queries: all heads read the entries, which are not expanded."""
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


MOST_QUERIES = 64
"""That have all their scores in memory at once."""


def absorbed_is_cheaper(queries: int, rank: int, content: int, value: int) -> bool:
    """Whether `queries` behind a long past are less work where the past is not expanded."""
    return queries <= MOST_QUERIES and queries * (2 * rank - content - value) <= rank * (content + value)
