"""The gated delta rule: a matrix that fades, and in which a token replaces what stood under its key.

Yang et al., 2024 (arXiv 2412.06464), eq. 10, here with keys as rows; a gate for each channel of the key as in Kimi
Linear (arXiv 2510.26692, eq. 1):

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_(t-1) + beta_t k_t v_t^T,   o_t = S_t^T q_t / sqrt(K)

`gated_delta_reference` is the definition. `gated_delta` takes chunks: within one, what each token writes follows from a
triangular system (the WY form), for all chunks of a segment side by side; only the matrices go on from chunk to chunk.
Every decay is the exponential of a sum of logarithms that are at most 0, so nothing overflows, however fast the past
fades. Forward keeps its inputs and the state before each chunk; backward makes the rest again.

Legend: `B` batch, `M` key heads, `N` value heads, `R` value heads of a key head, `T` tokens, `K` width of queries and
keys, `V` width of values, `G` gates of a head: 1, or K; `H` chunks, `C` tokens of one. What is cut into chunks is
`[B, M, R, H, C, ...]`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.delta_pairs import BLOCK, after_each, pairs
from linnet.ops.segments import places_of, segment_length

CHUNK = 64
"""Tokens of a chunk."""


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
    out_BNTV, end_BNKV = _as_it_is(q_BMTK, k_BMTK, v_BNTV, log_alpha_BNTG, beta_BNT, state_BNKV)
    return out_BNTV, end_BNKV


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def _as_it_is(*inputs: Tensor) -> Any:
    """Also in a compiled model: its loop over chunks would be another graph for every length."""
    return _GatedDelta.apply(*inputs)  # type: ignore[no-untyped-call]


class _GatedDelta(torch.autograd.Function):
    """The pass over the chunks by hand, both ways; gradients within them by autograd, from what is made again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        *of_tokens, state_BNKV = inputs
        cut, outs, starts = _cut(of_tokens), [], []
        state = torch.unflatten(state_BNKV, 1, (cut[0].shape[1], -1))
        for place in _places(cut):
            read, q, u, w, k, kept = _within(*(x[:, :, :, place] for x in cut))
            before, written = [], []
            for u_h, w_h, k_h, kept_h in zip(*(x.unbind(3) for x in (u, w, k, kept)), strict=True):
                before.append(state)
                written.append(u_h - w_h @ state)
                state = state * kept_h + k_h.transpose(-1, -2) @ written[-1]
            starts.append(torch.stack(before, dim=3))
            outs.append(q @ starts[-1] + read @ torch.stack(written, dim=3))
        ctx.save_for_backward(*of_tokens, torch.cat(starts, dim=3))
        return _joined(outs, of_tokens[2]), state.flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out_BNTV: Tensor, of_end_BNKV: Tensor) -> tuple[Tensor, ...]:
        *of_tokens, starts = ctx.saved_tensors
        cut, gradients = _cut(of_tokens), []
        of_out = _chunked(of_out_BNTV, cut[0].shape[1], cut[0].shape[4])
        of_state = torch.unflatten(of_end_BNKV, 1, (cut[0].shape[1], -1))
        with torch.autocast(of_out.device.type, enabled=False):  # the forward pass was in one precision
            for place in reversed(_places(cut)):
                within = [x[:, :, :, place].detach().requires_grad_() for x in cut]
                with torch.enable_grad():
                    parts = _within(*within)
                before = starts[:, :, :, place]
                of_parts, of_state = _gradients(parts, before, of_out[:, :, :, place], of_state)
                gradients.append(torch.autograd.grad(parts, within, of_parts))
        columns = zip(*reversed(gradients), strict=True)
        found = (_joined(column, x) for column, x in zip(columns, of_tokens, strict=True))
        return *found, of_state.flatten(1, 2)


def _within(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """What the chunks `[B, M, R, H, C, ...]` are, whatever state stands before each.

    Of S before a chunk: the tokens write `u - w S`, read `q S + read (u - w S)`, and leave `kept S + k^T (u - w S)`.
    """
    q = q * q.shape[-1] ** -0.5
    read, known = pairs(q, k, log_alpha)
    from_start = log_alpha.cumsum(-2).exp()
    both = torch.cat([beta * v, (beta * from_start) * k], dim=-1)
    solved = torch.linalg.solve_triangular(beta * known, both, upper=False, unitriangular=True)
    u, w = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    kept = from_start[..., -1, :, None]
    return read, q * from_start, u, w, k * after_each(log_alpha).exp(), kept


def _gradients(
    parts: Sequence[Tensor], before: Tensor, of_out: Tensor, of_state: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Of what `_within` gives, and of the state before the first chunk, from those of outputs and of the last state."""
    read, q, u, w, k, kept = (part.detach() for part in parts)
    written, of_written = u - w @ before, read.transpose(-1, -2) @ of_out
    of_before = q.transpose(-1, -2) @ of_out
    of_ends, of_writes = [], []
    for chunk in reversed(range(u.shape[3])):
        k_h, w_h, kept_h, of_h, of_before_h = (x[:, :, :, chunk] for x in (k, w, kept, of_written, of_before))
        of_ends.append(of_state)
        of_writes.append(of_h + k_h @ of_state)
        of_state = of_state * kept_h + of_before_h - w_h.transpose(-1, -2) @ of_writes[-1]
    of_end, of_written = (torch.stack(found[::-1], dim=3) for found in (of_ends, of_writes))
    of_kept = (of_end * before).sum(-1, keepdim=True)
    of_read, of_q = of_out @ written.transpose(-1, -2), of_out @ before.transpose(-1, -2)
    of_w, of_k = -of_written @ before.transpose(-1, -2), written @ of_end.transpose(-1, -2)
    return [of_read, of_q, of_written, of_w, of_k, of_kept.sum_to_size(kept.shape)], of_state


def chunk_length(tokens: int) -> int:
    """Tokens of a chunk: whole blocks."""
    return min(CHUNK, -(-tokens // BLOCK) * BLOCK)


def _cut(of_tokens: Sequence[Tensor]) -> list[Tensor]:
    """Queries, keys, values, gates and shares as chunks."""
    q_BMTK, k_BMTK, v_BNTV, log_alpha_BNTG, beta_BNT = of_tokens
    heads, chunk = q_BMTK.shape[1], chunk_length(q_BMTK.shape[2])
    return [_chunked(x, heads, chunk) for x in (q_BMTK, k_BMTK, v_BNTV, log_alpha_BNTG, beta_BNT[..., None])]


def _chunked(x_BNTK: Tensor, heads: int, chunk: int) -> Tensor:
    """`[B, N, T, K] -> [B, M, R, H, C, K]`, zeros behind: they write nothing, and nothing fades."""
    batch, _, length, width = x_BNTK.shape
    padded = F.pad(x_BNTK, (0, 0, 0, -length % chunk)) if length % chunk else x_BNTK
    return padded.reshape(batch, heads, -1, padded.shape[2] // chunk, chunk, width)


def _joined(chunks: Sequence[Tensor], like: Tensor) -> Tensor:
    """Segments of chunks as tokens, in the shape of `like`: `[B, N, T, ...]`."""
    joined = torch.cat(list(chunks), dim=3).flatten(3, 4).flatten(1, 2)[:, :, : like.shape[2]]
    return joined.reshape(like.shape)


def _places(cut: Sequence[Tensor]) -> list[slice]:
    """Of the segments: chunks that are worked on side by side, of so many numbers of keys."""
    _, k, v, *_ = cut
    *_, chunks, chunk, width = k.shape
    segment = segment_length(v[..., 0, 0, 0].numel(), width, chunk, k.device.type)
    return places_of(chunks, segment // chunk)


def gated_delta_flops(tokens: int, heads: tuple[int, int], widths: tuple[int, int], gates: int) -> int:
    """FLOPs of `gated_delta` for one sequence: 2 per multiply-add of its matrix products, the system's solution apart.

    heads: of keys, of values. widths: of a key, of a value. gates: of a head, 1 or a key's width.
    """
    (key_heads, value_heads), (keys, values) = heads, widths
    if tokens == 1:
        return 4 * value_heads * keys * values
    chunk = chunk_length(tokens)
    padded = -(-tokens // chunk) * chunk
    of_pairs = 4 * key_heads * chunk * keys if gates == 1 else 4 * value_heads * (chunk + BLOCK) * keys
    return padded * (of_pairs + value_heads * (6 * keys * values + 2 * chunk * values))
