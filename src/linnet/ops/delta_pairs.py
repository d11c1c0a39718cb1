"""Products of the tokens of a chunk in pairs, faded by what lies between them, with no decay above 1.

    read_ij = sum over K of  q_i k_j exp(g_(j+1) + ... + g_i)     known_ij: the same with k_i in place of q_i,   j <= i

With one gate for each head the decay stands before the sum: a product of matrices. With one for each channel it does
not, and `exp(g_1 + ... + g_i) exp(-g_1 - ... - g_j)` would overflow. So a chunk is cut in halves, and these again: of a
pair in two halves, i fades from the seam up to itself and j up to the seam, two factors of at most 1 each, and all such
pairs are one product of matrices. Sums over blocks come from those over their halves, never from a difference of two.

Legend: `...` whatever is before the chunks, `C` tokens of a chunk, a power of two, `X` readers, `K` width of queries
and keys, `G` gates: 1, or K; in `_halved` `S` blocks of a chunk, `L` tokens of one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
"""Tokens of a chunk."""

LEAST = 16
"""Of a short one: what the kernels' products take."""


def chunk_length(tokens: int) -> int:
    """Tokens of a chunk of a sequence: a power of two."""
    return min(CHUNK, max(LEAST, 1 << (tokens - 1).bit_length()))


def pairs_reference(q_CK: Tensor, k_CK: Tensor, log_alpha_CG: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, `[..., C, C]` each, 0 where j > i. log_alpha_CG: logarithms of what is left in a step."""
    decays_CCG = _between(log_alpha_CG).exp()
    faded_CCK = k_CK[..., None, :, :] * decays_CCG
    read_CC, known_CC = ((x_CK[..., None, :] * faded_CCK).sum(-1).tril() for x_CK in (q_CK, k_CK))
    return read_CC, known_CC


def pairs(q_CK: Tensor, k_CK: Tensor, log_alpha_CG: Tensor) -> tuple[Tensor, Tensor]:
    """The same, fast. Above the diagonal the second is whatever comes."""
    if log_alpha_CG.shape[-1] > 1:
        read_CC, known_CC = pairs_by_channel(torch.stack([q_CK, k_CK], dim=-3), k_CK, log_alpha_CG).unbind(-3)
        return read_CC, known_CC
    decays_CC = _between(log_alpha_CG)[..., 0].exp().tril()
    k_KC = k_CK.transpose(-1, -2)
    return (q_CK @ k_KC) * decays_CC, (k_CK @ k_KC) * decays_CC


def pairs_by_channel(x_XCK: Tensor, k_CK: Tensor, log_alpha_CK: Tensor) -> Tensor:
    """`[..., X, C, C]`, 0 where j > i: what each of the readers has of each key, with a gate for each channel."""
    k_CK = k_CK.expand_as(log_alpha_CK)  # of a head whose keys serve several
    found_XSLL = (x_XCK * k_CK[..., None, :, :]).sum(-1)[..., None, None]
    since_SLK = log_alpha_CK[..., None, :]  # from before its block up to each token
    behind_SLK = torch.zeros_like(since_SLK)  # from behind each token to the end of its block
    while found_XSLL.shape[-3] > 1:
        x_XSLK, k_SLK = (torch.unflatten(x, -2, since_SLK.shape[-3:-1]) for x in (x_XCK, k_CK))
        found_XSLL = _joined(found_XSLL, _across(x_XSLK, k_SLK, since_SLK, behind_SLK))
        (early, late), (early_behind, late_behind) = _halves(since_SLK), _halves(behind_SLK)
        since_SLK = torch.cat([early, late + early[..., -1:, :]], dim=-2)
        behind_SLK = torch.cat([early_behind + late[..., -1:, :], late_behind], dim=-2)
    return found_XSLL[..., 0, :, :]


def _across(x_XSLK: Tensor, k_SLK: Tensor, since_SLK: Tensor, behind_SLK: Tensor) -> Tensor:
    """Of each second block with the one before it, `[..., X, S / 2, L, L]`."""
    late_XSLK = _halves(x_XSLK)[1] * _halves(since_SLK)[1].exp()[..., None, :, :, :]
    early_SLK = _halves(k_SLK)[0] * _halves(behind_SLK)[0].exp()
    return late_XSLK @ early_SLK.transpose(-1, -2)[..., None, :, :, :]


def _joined(found_SLL: Tensor, across_SLL: Tensor) -> Tensor:
    """Two blocks as one, `[..., S / 2, 2 L, 2 L]`."""
    early, late = _halves(found_SLL)
    return torch.cat([F.pad(early, (0, early.shape[-1])), torch.cat([across_SLL, late], dim=-1)], dim=-2)


def _halves(x_SLK: Tensor) -> tuple[Tensor, Tensor]:
    """Of all pairs of neighboring blocks the first ones and the second ones, `[..., S / 2, L, K]`."""
    return x_SLK[..., ::2, :, :], x_SLK[..., 1::2, :, :]


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
