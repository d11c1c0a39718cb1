"""The recurrence of RWKV-7: a matrix that fades by channel; a token removes the value under one key and adds another.

Peng et al., 2025 (arXiv 2503.14456), section 4.1, here with keys as rows. Of each token: r is the query, k and v the
key and value that it adds, w and a the logits of the decay of channels and of the fraction that is removed (the
in-context learning rate).

    d_t  = exp(-exp(-1/2) sigmoid(w_t))                  eta_t = sigmoid(a_t)
    e_t  = k_t * erased / |k_t * erased|                 k'_t  = k_t * (1 + (eta_t - 1) * mixed)
    S_t  = Diag(d_t) S_(t-1) - (eta_t * e_t) (e_t^T S_(t-1)) + k'_t v_t^T,      o_t = S_t^T r_t

`rwkv7_reference` is the definition. `rwkv7` takes chunks (`ops.delta_rule`). A step keeps at least
`exp(-exp(-1/2)) = 0.545` of a channel, so decays within a chunk factor into one number for each of two tokens, both
relative to the middle of the chunk: none exceeds `e^(CHUNK exp(-1/2) / 2)`.

Legend: `B` batch, `N` heads, `T` tokens, `K` width of a head's keys, `V` of its values; what is cut into chunks is
`[B, N, 1, H, C, ...]`: `H` chunks, `C` tokens of one, `2C` what its tokens add and what they remove.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.delta_rule import DeltaRule, run_chunks, solve_unit_triangular
from linnet.ops.gated_delta import TRIAL
from linnet.ops.rms_norm import rms_norm

CHUNK = 32
"""Tokens of a chunk."""

MAX_DECAY = math.exp(-0.5)
"""The fastest decay of a channel: minus the logarithm of what one step keeps."""

MIN_KEY_NORM = 1e-12
"""Keys to be removed are divided by their norm, but not by less than this."""


def rwkv7_reference(
    r_BNTK: Tensor,
    w_BNTK: Tensor,
    k_BNTK: Tensor,
    v_BNTV: Tensor,
    a_BNTK: Tensor,
    erased_NK: Tensor,
    mixed_NK: Tensor,
    state_BNKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: `[B, N, T, V]`, and the state `[B, N, K, V]` after the last one.

    state_BNKV: the state before the first token, if not 0.
    """
    if state_BNKV is None:
        state_BNKV = v_BNTV.new_zeros(*v_BNTV.shape[:2], k_BNTK.shape[3], v_BNTV.shape[3])
    keys = _keys_and_decays(w_BNTK, k_BNTK, a_BNTK, erased_NK[:, None], mixed_NK[:, None])
    log_d_BNTK, eta_BNTK, e_BNTK, k_BNTK = keys
    outs = []
    for token in range(v_BNTV.shape[2]):
        r_BNK, log_d_BNK, k_BNK, v_BNV, eta_BNK, e_BNK = (
            x[:, :, token] for x in (r_BNTK, log_d_BNTK, k_BNTK, v_BNTV, eta_BNTK, e_BNTK)
        )
        stored_BNV = (e_BNK[..., None, :] @ state_BNKV)[..., 0, :]
        state_BNKV = log_d_BNK.exp()[..., None] * state_BNKV
        state_BNKV = state_BNKV - (eta_BNK * e_BNK)[..., None] * stored_BNV[..., None, :]
        state_BNKV = state_BNKV + k_BNK[..., None] * v_BNV[..., None, :]
        outs.append((r_BNK[..., None, :] @ state_BNKV)[..., 0, :])
    return torch.stack(outs, dim=2), state_BNKV


def _keys_and_decays(
    w: Tensor, k: Tensor, a: Tensor, erased: Tensor, mixed: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logarithms of decays, learning rates, keys that are removed and keys that are added, `[..., K]`."""
    eta, width = a.sigmoid(), k.shape[-1]
    e = rms_norm(k * erased, k.new_full((width,), width**-0.5), MIN_KEY_NORM**2 / width)
    return -MAX_DECAY * w.sigmoid(), eta, e, k * torch.addcmul(1 - mixed, eta, mixed)


def rwkv7(
    r_BNTK: Tensor,
    w_BNTK: Tensor,
    k_BNTK: Tensor,
    v_BNTV: Tensor,
    a_BNTK: Tensor,
    erased_NK: Tensor,
    mixed_NK: Tensor,
    state_BNKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`rwkv7_reference`, fast: time and memory linear in the length. Differentiable once."""
    if v_BNTV.shape[2] == 1:
        return rwkv7_reference(r_BNTK, w_BNTK, k_BNTK, v_BNTV, a_BNTK, erased_NK, mixed_NK, state_BNKV)
    of_tokens = (r_BNTK, k_BNTK, v_BNTV, w_BNTK, a_BNTK)
    return run_chunks(_RWKV7, min(CHUNK, v_BNTV.shape[2]), of_tokens, (erased_NK, mixed_NK), state_BNKV)


def _rwkv7_chunks(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, a: Tensor, erased: Tensor, mixed: Tensor
) -> tuple[Tensor, ...]:
    """The parts of the chunks (`DeltaRule`). Writes are first the values, then what is removed."""
    chunk = k.shape[-2]
    log_d, eta, e, k = _keys_and_decays(w, k, a, erased, mixed)
    sums = log_d.cumsum(-2)
    middle = sums[..., chunk // 2, None, :].detach()
    up, before, down = (sums - middle).exp(), (sums - log_d - middle).exp(), (middle - sums).exp()
    early = torch.cat([k * down, eta * e * down], dim=-2)
    pairs = torch.cat([r * up, -e * before], dim=-2) @ early.transpose(-1, -2)
    read_pairs, stored_pairs = pairs.chunk(2, dim=-2)
    read = torch.cat([part.tril() for part in read_pairs.chunk(2, dim=-1)], dim=-1)
    added, removed = (part.tril(-1) for part in stored_pairs.chunk(2, dim=-1))
    both = torch.cat([added @ v, -e * (sums - log_d).exp()], dim=-1)
    solution = solve_unit_triangular(-removed, both)
    u, w = torch.split(solution, [v.shape[-1], k.shape[-1]], dim=-1)
    end = sums[..., -1, None, :]
    written, by_state = torch.cat([v, u], dim=-2), torch.cat([torch.zeros_like(w), -w], dim=-2)
    return read, r * sums.exp(), written, by_state, early * (end - middle).exp(), end.exp().transpose(-1, -2)


_RWKV7 = DeltaRule(_rwkv7_chunks, fills=(0.0, 0.0, 0.0, -math.inf, 0.0), trial=TRIAL)


def rwkv7_output(
    o_BTNV: Tensor,
    r_BTNK: Tensor,
    k_BTNK: Tensor,
    v_BTNV: Tensor,
    a_BTNK: Tensor,
    gate_BTNV: Tensor,
    mixed_NK: Tensor,
    bonus_NK: Tensor,
    gain_NV: Tensor,
    bias_NV: Tensor,
    eps: float,
) -> Tensor:
    """The output of heads: `((o - mean) / deviation * gain + bias + (r^T (bonus * k')) v) * gate`."""
    normed_BTNV = torch.addcmul(bias_NV, F.layer_norm(o_BTNV, o_BTNV.shape[-1:], eps=eps), gain_NV)
    added_BTNK = k_BTNK * torch.addcmul(1 - mixed_NK, a_BTNK.sigmoid(), mixed_NK)
    bonus_BTN1 = (r_BTNK * bonus_NK * added_BTNK).sum(-1, keepdim=True)
    return torch.addcmul(normed_BTNV, bonus_BTN1, v_BTNV) * gate_BTNV


def rwkv7_flops(tokens: int, heads: int, keys: int, values: int) -> int:
    """FLOPs of `rwkv7` for one sequence: 2 per multiply-add of its matrix products, without the triangular system."""
    if tokens == 1:
        return 4 * heads * keys * values
    chunk = min(CHUNK, tokens)
    padded = -(-tokens // chunk) * chunk
    return padded * heads * (10 * keys * values + 8 * chunk * keys + 6 * chunk * values)
