"""Products of the tokens of a chunk in pairs, faded by what lies between them, with no decay above 1.

    read_ij = sum over K of  q_i k_j exp(g_(j+1) + ... + g_i)     known_ij: the same with k_i in place of q_i,   j <= i

With one gate for each head the decay stands before the sum: a product of matrices. With one for each channel it does
not, and `exp(g_1 + ... + g_i) exp(-g_1 - ... - g_j)` would overflow. So a chunk is cut into blocks: between two
of them, a token i fades from the start of its own and a token j up to there; within one, pairs are made one by one
(as in flash-linear-attention's second level of chunks, arXiv 2312.06635, section 4.3).

Legend: `...` whatever is before the chunks, `C` tokens of a chunk, `S` blocks of it, `L` tokens of one, `K` width of
queries and keys, `G` gates: 1, or K.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 16
"""Tokens of a block."""


def pairs_reference(q_CK: Tensor, k_CK: Tensor, log_alpha_CG: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, `[..., C, C]` each, 0 where j > i. log_alpha_CG: logarithms of what is left in a step."""
    decays_CCG = _between(log_alpha_CG).exp()
    faded_CCK = k_CK[..., None, :, :] * decays_CCG
    read_CC, known_CC = ((x_CK[..., None, :] * faded_CCK).sum(-1).tril() for x_CK in (q_CK, k_CK))
    return read_CC, known_CC


def pairs(q_CK: Tensor, k_CK: Tensor, log_alpha_CG: Tensor) -> tuple[Tensor, Tensor]:
    """The same, fast; C has whole blocks. Above the diagonal the second is whatever comes."""
    if log_alpha_CG.shape[-1] > 1:
        return _by_channel(q_CK, k_CK, log_alpha_CG)
    decays_CC = _between(log_alpha_CG)[..., 0].exp().tril()
    k_KC = k_CK.transpose(-1, -2)
    return (q_CK @ k_KC) * decays_CC, (k_CK @ k_KC) * decays_CC


def _by_channel(q_CK: Tensor, k_CK: Tensor, log_alpha_CK: Tensor) -> tuple[Tensor, Tensor]:
    q_SLK, k_SLK, g_SLK = (torch.unflatten(x, -2, (-1, BLOCK)) for x in (q_CK, k_CK, log_alpha_CK))
    both_2SLK = torch.stack([q_SLK, k_SLK], dim=-4)
    found_2CC = _between_blocks(both_2SLK, k_SLK, g_SLK) + _within_blocks(both_2SLK, k_SLK, g_SLK)
    read_CC, known_CC = found_2CC.unbind(-3)
    return read_CC, known_CC


def _between_blocks(x_2SLK: Tensor, k_SLK: Tensor, g_SLK: Tensor) -> Tensor:
    """`[..., 2, C, C]`, 0 where j stands in i's block or a later one."""
    blocks = g_SLK.shape[-3]
    gap_SSK = _between(g_SLK.sum(-2))  # from the end of j's block to the end of i's
    gap_SSK = F.pad(gap_SSK, (0, 0, 0, 0, 1, 0))[..., :blocks, :, :]  # to its start
    left_SSLK = (after_each(g_SLK)[..., None, :, :, :] + gap_SSK[..., None, :]).exp()
    earlier_SS = torch.ones(blocks, blocks, dtype=g_SLK.dtype, device=g_SLK.device).tril(-1)
    faded_SCK = (k_SLK[..., None, :, :, :] * left_SSLK * earlier_SS[..., None, None]).flatten(-3, -2)
    read_2SLK = x_2SLK * g_SLK.cumsum(-2).exp()[..., None, :, :, :]
    return (read_2SLK @ faded_SCK.transpose(-1, -2)[..., None, :, :, :]).flatten(-3, -2)


def _within_blocks(x_2SLK: Tensor, k_SLK: Tensor, g_SLK: Tensor) -> Tensor:
    """`[..., 2, C, C]`, 0 where j does not stand in i's block, or behind i."""
    faded_SLLK = k_SLK[..., None, :, :] * _between(g_SLK).exp()
    found_SL2L = x_2SLK.movedim(-4, -2) @ faded_SLLK.transpose(-1, -2)
    found_2LLS = found_SL2L.movedim(-2, -4).tril().movedim(-3, -1)
    return torch.diag_embed(found_2LLS, dim1=-4, dim2=-2).flatten(-4, -3).flatten(-2, -1)


def after_each(x_CK: Tensor) -> Tensor:
    """The sum over the tokens behind each, `[..., C, K]`."""
    return F.pad(x_CK[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _between(x_CK: Tensor) -> Tensor:
    """The sum over the tokens behind j up to i, `[..., C(i), C(j), K]`, 0 where j >= i.

    Summed up by itself for each pair: the difference of two long sums would lose the small steps behind a large one.
    """
    length = x_CK.shape[-2]
    behind_CC1 = torch.ones(length, length, dtype=x_CK.dtype, device=x_CK.device).tril(-1)[..., None]
    return (x_CK[..., :, None, :] * behind_CC1).cumsum(-3)
