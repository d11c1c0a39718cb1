"""The gated delta rule: a matrix that fades, and in which a token replaces what stood under its key.

Yang et al., 2024 (arXiv 2412.06464), eq. 10, here with keys as rows; a gate for each channel of the key as in Kimi
Linear (arXiv 2510.26692, eq. 1):

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_(t-1) + beta_t k_t v_t^T,   o_t = S_t^T q_t / sqrt(K)

`gated_delta_reference` is the definition. `gated_delta` takes chunks: within one, what each token writes follows from a
triangular system, for all chunks of a segment side by side (`ops.delta_chunks`). Every decay is the exponential of a
sum of logarithms that are at most 0, so nothing overflows, however fast the past fades.

Legend: `B` batch, `M` key heads, `N` value heads, `R` value heads of a key head, `T` tokens, `K` width of queries and
keys, `V` width of values, `G` gates of a head: 1, or K; what is cut into chunks is `[B, M, R, H, C, ...]`: `H` chunks,
`C` tokens of one.
"""

import torch
from torch import Tensor

from linnet.ops.delta_chunks import DeltaRule, in_chunks
from linnet.ops.delta_pairs import after_each, chunk_length, pairs
from linnet.ops.kernels import use_kernels
from linnet.ops.unit_triangular import solved


def gated_delta_reference(
    q_BMTK: Tensor,
    k_BMTK: Tensor,
    v_BNTV: Tensor,
    log_alpha_BNTG: Tensor,
    beta_BNT: Tensor,
    state_BNKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: `[B, N, T, V]`, and the state `[B, N, K, V]` behind the last one.

    q_BMTK, k_BMTK: of N / M value heads in a row each; keys of length 1 at most. log_alpha_BNTG: logarithms of what is
    left of the past, at most 0, one for each head or for each channel of the key. beta_BNT: how much of the value
    under its key a token replaces, 0 to 1. state_BNKV: the state before the first token, if not 0.
    """
    groups = v_BNTV.shape[1] // k_BMTK.shape[1]
    q_BNTK, k_BNTK = (x.repeat_interleave(groups, dim=1) for x in (q_BMTK * q_BMTK.shape[3] ** -0.5, k_BMTK))
    if state_BNKV is None:
        state_BNKV = v_BNTV.new_zeros(*v_BNTV.shape[:2], k_BMTK.shape[3], v_BNTV.shape[3])
    outs = []
    for token in range(v_BNTV.shape[2]):
        q_BNK, k_BNK, v_BNV, log_alpha_BNG = (x[:, :, token] for x in (q_BNTK, k_BNTK, v_BNTV, log_alpha_BNTG))
        state_BNKV = state_BNKV * log_alpha_BNG.exp()[..., None]
        written_BNV = beta_BNT[:, :, token, None] * (v_BNV - _read(state_BNKV, k_BNK))
        state_BNKV = state_BNKV + k_BNK[..., None] * written_BNV[..., None, :]
        outs.append(_read(state_BNKV, q_BNK))
    return torch.stack(outs, dim=2), state_BNKV


def _read(state_BNKV: Tensor, key_BNK: Tensor) -> Tensor:
    """What stands under a key, `[B, N, V]`."""
    return (key_BNK[..., None, :] @ state_BNKV)[..., 0, :]


def gated_delta(
    q_BMTK: Tensor,
    k_BMTK: Tensor,
    v_BNTV: Tensor,
    log_alpha_BNTG: Tensor,
    beta_BNT: Tensor,
    state_BNKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same, fast: in time and memory linear in the length. Differentiable once."""
    if v_BNTV.shape[2] == 1:
        return gated_delta_reference(q_BMTK, k_BMTK, v_BNTV, log_alpha_BNTG, beta_BNT, state_BNKV)
    if state_BNKV is None:
        state_BNKV = v_BNTV.new_zeros(*v_BNTV.shape[:2], k_BMTK.shape[3], v_BNTV.shape[3])
    of_tokens = (q_BMTK, k_BMTK, v_BNTV, log_alpha_BNTG, beta_BNT[..., None])
    return in_chunks(RULE, chunk_length(v_BNTV.shape[2]), of_tokens, (), state_BNKV)


def _within(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """What the chunks `[B, M, R, H, C, ...]` are, whatever state stands before each."""
    tensors = (q, k, v, log_alpha, beta)
    if log_alpha.shape[-1] == 1 and all(x.dtype == torch.float32 for x in tensors) and use_kernels(*tensors):
        from linnet.ops.kernels._delta import chunks_of_heads

        return chunks_of_heads(*tensors)
    q = q * q.shape[-1] ** -0.5
    read, known = pairs(q, k, log_alpha)
    from_start = log_alpha.cumsum(-2).exp()
    both = torch.cat([beta * v, (beta * from_start) * k], dim=-1)
    u, w = torch.split(solved(beta * known, both), [v.shape[-1], k.shape[-1]], dim=-1)
    kept = from_start[..., -1, :, None]
    return read, q * from_start, u, w, k * after_each(log_alpha).exp(), kept


RULE = DeltaRule(_within, fills=(0.0,) * 5)


def gated_delta_flops(tokens: int, heads: tuple[int, int], widths: tuple[int, int], gates: int) -> int:
    """FLOPs of `gated_delta` for one sequence: 2 per multiply-add of its matrix products, the system's solution apart.

    heads: of keys, of values. widths: of a key, of a value. gates: of a head, 1 or a key's width.
    """
    (key_heads, value_heads), (keys, values) = heads, widths
    if tokens == 1:
        return 4 * value_heads * keys * values
    chunk = chunk_length(tokens)
    padded = -(-tokens // chunk) * chunk
    of_pairs = 4 * key_heads * chunk * keys if gates == 1 else 2 * value_heads * (chunk - 1) * keys
    return padded * (of_pairs + value_heads * (6 * keys * values + 2 * chunk * values))
