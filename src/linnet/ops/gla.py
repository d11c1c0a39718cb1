"""Gated linear attention: a matrix whose rows, one for each channel of the key, fade as the text says.

Yang et al., 2023 (arXiv 2312.06635), eq. 3 with a gate for each channel of the key alone, and the scale that the
published code has:

    S_t = Diag(alpha_t) S_(t-1) + k_t v_t^T,   o_t = S_t^T q_t / sqrt(K)

`gla_reference` is the definition. `gla` takes chunks (`ops.delta_chunks`, as a rule that takes nothing out): within
one, pairs of tokens (`ops.delta_pairs`), from chunk to chunk the matrices. Every decay is the exponential of a sum of
logarithms that are at most 0, so nothing overflows, however fast the past fades.

Legend: `B` batch, `N` heads, `T` tokens, `K` width of queries and keys, `V` width of values.
"""

import torch
from torch import Tensor

from linnet.ops.delta_chunks import DeltaRule, in_chunks
from linnet.ops.delta_pairs import after_each, chunk_length, pairs_by_channel


def gla_reference(
    q_BNTK: Tensor, k_BNTK: Tensor, v_BNTV: Tensor, log_alpha_BNTK: Tensor, state_BNKV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: `[B, N, T, V]`, and the state `[B, N, K, V]` behind the last one.

    log_alpha_BNTK: logarithms of what is left of the past, at most 0. state_BNKV: the state before the first token, if
    not 0.
    """
    if state_BNKV is None:
        state_BNKV = v_BNTV.new_zeros(*v_BNTV.shape[:2], k_BNTK.shape[3], v_BNTV.shape[3])
    scale, outs = k_BNTK.shape[3] ** -0.5, []
    for token in range(v_BNTV.shape[2]):
        q_BNK, k_BNK, v_BNV, log_alpha_BNK = (x[:, :, token] for x in (q_BNTK, k_BNTK, v_BNTV, log_alpha_BNTK))
        state_BNKV = log_alpha_BNK.exp()[..., None] * state_BNKV + k_BNK[..., None] * v_BNV[..., None, :]
        outs.append((scale * q_BNK[..., None, :] @ state_BNKV)[..., 0, :])
    return torch.stack(outs, dim=2), state_BNKV


def gla(
    q_BNTK: Tensor, k_BNTK: Tensor, v_BNTV: Tensor, log_alpha_BNTK: Tensor, state_BNKV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same, fast: in time and memory linear in the length. Differentiable once."""
    if v_BNTV.shape[2] == 1:
        return gla_reference(q_BNTK, k_BNTK, v_BNTV, log_alpha_BNTK, state_BNKV)
    if state_BNKV is None:
        state_BNKV = v_BNTV.new_zeros(*v_BNTV.shape[:2], k_BNTK.shape[3], v_BNTV.shape[3])
    of_tokens = (q_BNTK, k_BNTK, v_BNTV, log_alpha_BNTK)
    return in_chunks(RULE, chunk_length(v_BNTV.shape[2]), of_tokens, (), state_BNKV)


def _within(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor) -> tuple[Tensor | None, ...]:
    """What the chunks are, whatever state stands before each."""
    q = q * q.shape[-1] ** -0.5
    from_start = log_alpha.cumsum(-2).exp()
    read = pairs_by_channel(q[..., None, :, :], k, log_alpha)[..., 0, :, :]
    return read, q * from_start, v, None, k * after_each(log_alpha).exp(), from_start[..., -1, :, None]


RULE = DeltaRule(_within, fills=(0.0,) * 4)


def gla_flops(tokens: int, keys: int, values: int) -> int:
    """FLOPs of `gla` for one head and sequence: 2 per multiply-add of its matrix products."""
    if tokens == 1:
        return 2 * keys * values
    chunk = chunk_length(tokens)
    padded = -(-tokens // chunk) * chunk
    return padded * ((chunk - 1) * keys + 4 * keys * values + 2 * chunk * values)
