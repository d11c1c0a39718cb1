"""Two matrix memories with gates: the gated delta rule and gated linear attention (GLA).

The gated delta rule (Yang et al., 2024, arXiv 2412.06464, eq. 10, here with keys as rows): the matrix fades, and a
token replaces the value under its key. A gate for each channel of the key is as in Kimi Linear (arXiv 2510.26692, eq.
1):

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_(t-1) + beta_t k_t v_t^T,   o_t = S_t^T q_t / sqrt(K)

GLA (Yang et al., 2023, arXiv 2312.06635, eq. 3 with gates only for channels of the key, and the scale of the
published code) replaces nothing:

    S_t = Diag(alpha_t) S_(t-1) + k_t v_t^T,   o_t = S_t^T q_t / sqrt(K)

The `..._reference` functions are the definitions. The fast forms take chunks (`ops.delta_rule`); within a chunk the
writes of the delta rule follow from a triangular system. Every decay is the exponential of a sum of logarithms that are
at most 0, so nothing overflows, however fast the past fades.

Legend: `B` batch, `M` key heads, `N` value heads, `R` value heads of a key head, `T` tokens, `K` width of queries and
keys, `V` width of values, `G` gates of a head: 1, or K; what is cut into chunks is `[B, M, R, H, C, ...]`: `H` chunks,
`C` tokens of one.
"""

import torch
from torch import Tensor

from linnet.ops.delta_rule import (
    DeltaRule,
    chunk_length,
    pairs,
    pairs_by_channel,
    run_chunks,
    solve_unit_triangular,
    sum_after,
)
from linnet.ops.kernels import KernelTrial, use_kernels


def gated_delta_reference(
    q_BMTK: Tensor,
    k_BMTK: Tensor,
    v_BNTV: Tensor,
    log_alpha_BNTG: Tensor,
    beta_BNT: Tensor,
    state_BNKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: `[B, N, T, V]`, and the state `[B, N, K, V]` after the last one.

    q_BMTK, k_BMTK: shared by N / M consecutive value heads; keys of length 1 at most. log_alpha_BNTG: logarithms of the
    gates, at most 0, one for each head or for each channel of the key. beta_BNT: the fraction, 0 to 1, of the value
    under its key that a token replaces. state_BNKV: the state before the first token, if not 0.
    """
    groups = v_BNTV.shape[1] // k_BMTK.shape[1]
    q_BNTK, k_BNTK = (x.repeat_interleave(groups, dim=1) for x in (q_BMTK * q_BMTK.shape[3] ** -0.5, k_BMTK))
    if state_BNKV is None:
        state_BNKV = v_BNTV.new_zeros(*v_BNTV.shape[:2], k_BMTK.shape[3], v_BNTV.shape[3])
    outs = []
    for token in range(v_BNTV.shape[2]):
        q_BNK, k_BNK, v_BNV, log_alpha_BNG = (x[:, :, token] for x in (q_BNTK, k_BNTK, v_BNTV, log_alpha_BNTG))
        state_BNKV = state_BNKV * log_alpha_BNG.exp()[..., None]
        stored_BNV = (k_BNK[..., None, :] @ state_BNKV)[..., 0, :]
        written_BNV = beta_BNT[:, :, token, None] * (v_BNV - stored_BNV)
        state_BNKV = state_BNKV + k_BNK[..., None] * written_BNV[..., None, :]
        outs.append((q_BNK[..., None, :] @ state_BNKV)[..., 0, :])
    return torch.stack(outs, dim=2), state_BNKV


def gated_delta(
    q_BMTK: Tensor,
    k_BMTK: Tensor,
    v_BNTV: Tensor,
    log_alpha_BNTG: Tensor,
    beta_BNT: Tensor,
    state_BNKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`gated_delta_reference`, fast: time and memory linear in the length. Differentiable once."""
    if v_BNTV.shape[2] == 1:
        return gated_delta_reference(q_BMTK, k_BMTK, v_BNTV, log_alpha_BNTG, beta_BNT, state_BNKV)
    of_tokens = (q_BMTK, k_BMTK, v_BNTV, log_alpha_BNTG, beta_BNT[..., None])
    return run_chunks(_GATED_DELTA, chunk_length(v_BNTV.shape[2]), of_tokens, (), state_BNKV)


def _gated_delta_chunks(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """The parts of the chunks `[B, M, R, H, C, ...]` (`DeltaRule`)."""
    tensors = (q, k, v, log_alpha, beta)
    narrow = log_alpha.shape[-1] == 1 and all(x.dtype == torch.float32 for x in tensors)
    if narrow and use_kernels(TRIAL, *tensors):
        from linnet.ops.kernels._delta import ChunksOfHeads

        parts: tuple[Tensor, ...] = ChunksOfHeads.apply(*tensors)  # type: ignore[no-untyped-call]
        return parts
    q = q * q.shape[-1] ** -0.5
    read, overlap = pairs(q, k, log_alpha)
    from_start = log_alpha.cumsum(-2).exp()
    both = torch.cat([beta * v, (beta * from_start) * k], dim=-1)
    u, w = torch.split(solve_unit_triangular(beta * overlap, both), [v.shape[-1], k.shape[-1]], dim=-1)
    decay = from_start[..., -1, :, None]
    return read, q * from_start, u, w, k * sum_after(log_alpha).exp(), decay


def _trial_inputs() -> list[Tensor]:
    """130 tokens, in chunks that are not all full."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 130, 16, generator=generator) / 4 for _ in range(3))
    log_alpha, beta = -torch.rand(1, 2, 130, 1, generator=generator), torch.rand(1, 2, 130, generator=generator)
    return [q, k, v, log_alpha, beta]


TRIAL = KernelTrial("gated_delta", gated_delta, _trial_inputs)
_GATED_DELTA = DeltaRule(_gated_delta_chunks, fills=(0.0,) * 5, trial=TRIAL)


def gated_delta_flops(tokens: int, heads: tuple[int, int], widths: tuple[int, int], gates: int) -> int:
    """FLOPs of `gated_delta` for one sequence: 2 per multiply-add of its matrix products, without the triangular
    system.

    heads: of keys, of values. widths: of a key, of a value. gates: of a head, 1 or a key's width.
    """
    (key_heads, value_heads), (keys, values) = heads, widths
    if tokens == 1:
        return 4 * value_heads * keys * values
    chunk = chunk_length(tokens)
    padded = -(-tokens // chunk) * chunk
    pair_flops = 4 * key_heads * chunk * keys if gates == 1 else 2 * value_heads * (chunk - 1) * keys
    return padded * (pair_flops + value_heads * (6 * keys * values + 2 * chunk * values))


def gla_reference(
    q_BNTK: Tensor, k_BNTK: Tensor, v_BNTV: Tensor, log_alpha_BNTK: Tensor, state_BNKV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: `[B, N, T, V]`, and the state `[B, N, K, V]` after the last one.

    log_alpha_BNTK: logarithms of the gates, at most 0. state_BNKV: the state before the first token, if not 0.
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
    """`gla_reference`, fast: time and memory linear in the length. Differentiable once."""
    if v_BNTV.shape[2] == 1:
        return gla_reference(q_BNTK, k_BNTK, v_BNTV, log_alpha_BNTK, state_BNKV)
    of_tokens = (q_BNTK, k_BNTK, v_BNTV, log_alpha_BNTK)
    return run_chunks(_GLA, chunk_length(v_BNTV.shape[2]), of_tokens, (), state_BNKV)


def _gla_chunks(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor) -> tuple[Tensor | None, ...]:
    """The parts of the chunks `[B, M, R, H, C, ...]` (`DeltaRule`)."""
    q = q * q.shape[-1] ** -0.5
    from_start = log_alpha.cumsum(-2).exp()
    read = pairs_by_channel(q[..., None, :, :], k, log_alpha)[..., 0, :, :]
    return read, q * from_start, v, None, k * sum_after(log_alpha).exp(), from_start[..., -1, :, None]


_GLA = DeltaRule(_gla_chunks, fills=(0.0,) * 4)


def gla_flops(tokens: int, keys: int, values: int) -> int:
    """FLOPs of `gla` for one head and sequence: 2 per multiply-add of its matrix products."""
    if tokens == 1:
        return 2 * keys * values
    chunk = chunk_length(tokens)
    padded = -(-tokens // chunk) * chunk
    return padded * ((chunk - 1) * keys + 4 * keys * values + 2 * chunk * values)
