"""Retention: a sum over the past in which each head decays at its own fixed rate (Sun et al., arXiv 2307.08621).

    o_t = sum over j <= t of  gamma^(t - j) (q_t . k_j) v_j

Three forms: `retention_reference` (eq. 5, all pairs), `retention` (eq. 7, chunks, linear in the length) and
`retention_step` (eq. 6, one more token). All continue from a sum if one is given, and return the next one.

Legend: `B` batch, `N` heads, `T` tokens, `K` width of queries and keys, `V` width of values, `C` tokens of a chunk, `H`
chunks.
"""

import torch
from torch import Tensor

from linnet.ops.support import states_before

CHUNK = 64
"""Tokens of a chunk."""


def retention_reference(
    q_BNTK: Tensor, k_BNTK: Tensor, v_BNTV: Tensor, log_gamma_N: Tensor, sum_BNKV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition: `[B, N, T, V]` with every pair in memory, and the sum `[B, N, K, V]` after the last token.

    log_gamma_N: the logarithm of each head's decay in one step. sum_BNKV: the sum over all tokens before, if any.
    """
    scores_BNTT = (q_BNTK @ k_BNTK.transpose(2, 3)) * decays(log_gamma_N, q_BNTK.shape[2])
    to_end_NT1, from_start_NT1 = _to_the_end(log_gamma_N, q_BNTK.shape[2])
    out_BNTV, end_BNKV = scores_BNTT @ v_BNTV, (k_BNTK * to_end_NT1).transpose(2, 3) @ v_BNTV
    if sum_BNKV is not None:
        out_BNTV = out_BNTV + (q_BNTK * from_start_NT1) @ sum_BNKV
        end_BNKV = end_BNKV + sum_BNKV * from_start_NT1[:, -1:]
    return out_BNTV, end_BNKV


def retention(
    q_BNTK: Tensor, k_BNTK: Tensor, v_BNTV: Tensor, log_gamma_N: Tensor, sum_BNKV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same in time and memory linear in the length: whole chunks side by side, then the remainder."""
    length = q_BNTK.shape[2]
    whole = length // CHUNK * CHUNK
    if sum_BNKV is None:
        sum_BNKV = q_BNTK.new_zeros(*q_BNTK.shape[:2], q_BNTK.shape[3], v_BNTV.shape[3])
    outs = []
    for begin, end, chunk in ((0, whole, CHUNK), (whole, length, length - whole)):
        if begin < end:
            # One copy here, instead of one in every product.
            q_BNHCK, k_BNHCK, v_BNHCV = (
                x[:, :, begin:end].reshape(*x.shape[:2], -1, chunk, x.shape[3]).contiguous()
                for x in (q_BNTK, k_BNTK, v_BNTV)
            )
            out_BNHCV, sum_BNKV = _chunks(q_BNHCK, k_BNHCK, v_BNHCV, log_gamma_N, sum_BNKV)
            outs.append(out_BNHCV.flatten(2, 3))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2), sum_BNKV


def _chunks(
    q_BNHCK: Tensor, k_BNHCK: Tensor, v_BNHCV: Tensor, log_gamma_N: Tensor, sum_BNKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Each chunk by all of its pairs, and the past of the chunk by its sum."""
    chunk = q_BNHCK.shape[3]
    to_end_NC1, from_start_NC1 = _to_the_end(log_gamma_N, chunk)
    added = ((k_BNHCK * to_end_NC1[:, None]).transpose(3, 4) @ v_BNHCV).unbind(2)
    sums, end_BNKV = states_before(added, [from_start_NC1[:, -1:]] * len(added), sum_BNKV)
    scores_BNHCC = (q_BNHCK @ k_BNHCK.transpose(3, 4)) * decays(log_gamma_N, chunk)[:, None]
    before_BNHKV = torch.stack(sums, dim=2)
    return scores_BNHCC @ v_BNHCV + (q_BNHCK * from_start_NC1[:, None]) @ before_BNHKV, end_BNKV


def retention_step(
    q_BNK: Tensor, k_BNK: Tensor, v_BNV: Tensor, log_gamma_N: Tensor, sum_BNKV: Tensor
) -> tuple[Tensor, Tensor]:
    """One more token: its output `[B, N, V]`, and the next sum."""
    gamma_N11 = log_gamma_N.exp()[:, None, None]
    next_BNKV = torch.addcmul(k_BNK[..., None] * v_BNV[..., None, :], sum_BNKV, gamma_N11)
    return (q_BNK[..., None, :] @ next_BNKV)[..., 0, :], next_BNKV


def decays(log_gamma_N: Tensor, length: int) -> Tensor:
    """`gamma^(t - j)` where token t sees j, 0 elsewhere: `[N, T, T]`."""
    index_T = torch.arange(length, device=log_gamma_N.device)
    ages_TT = index_T[:, None] - index_T
    return (log_gamma_N[:, None, None] * ages_TT.clamp(min=0)).exp().masked_fill(ages_TT < 0, 0.0)


def _to_the_end(log_gamma_N: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Decay of each token up to the last one, and of the past up to each token: `[N, T, 1]` each."""
    decay_NT1 = (log_gamma_N[:, None] * torch.arange(length, device=log_gamma_N.device)).exp()[..., None]
    return decay_NT1.flip(1), decay_NT1 * log_gamma_N.exp()[:, None, None]


def retention_flops(tokens: int, key_width: int, value_width: int) -> int:
    """FLOPs of `retention` for one head and sequence: 2 per multiply-add of its matrix products."""
    last = tokens % CHUNK
    pairs = (tokens - last) * CHUNK + last * last
    return 2 * (key_width + value_width) * pairs + 4 * tokens * key_width * value_width
