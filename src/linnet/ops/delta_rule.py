"""Recurrences of matrices (delta rules), computed in chunks: products of token pairs, triangular systems, the pass.

A rule describes a chunk independently of the matrix S before it: its tokens write `u - w S`, read
`q S + read (u - w S)` and leave `decay S + k^T (u - w S)` (the WY form; Yang et al., 2024, arXiv 2406.06484, section
3). A rule that removes nothing from S has no w: what all its chunks add is then known at once. Only the matrices pass
from chunk to chunk; everything else is computed for many chunks side by side. The forward pass saves its inputs and the
matrix before each chunk; the backward pass recomputes the rest, one segment of chunks at a time.

Within a chunk, pairs of tokens are decayed by the gates between them:

    read_ij = sum over K of  q_i k_j exp(g_(j+1) + ... + g_i)    overlap_ij: the same with k_i in place of q_i,   j <= i

With one gate for each head the decay is a factor of the sum, which is a product of matrices. With one gate for each
channel it is not, and `exp(g_1 + ... + g_i) exp(-g_1 - ... - g_j)` would overflow. So a chunk is halved recursively:
for a pair in two halves, i decays from the seam to itself and j up to the seam, two factors of at most 1 each, and all
such pairs are one product of matrices. Sums over blocks are computed from their halves, never as a difference.

Legend: `B` batch, `M` key heads, `N` value heads, `R` value heads of a key head, `T` tokens, `K` width of keys, `V`
width of values; `H` chunks, `C` tokens of one (a power of two where gates are by channel), `X` readers, `G` gates: 1,
or K; `S` blocks of a chunk, `L` tokens of one. What is cut into chunks is `[B, M, R, H, C, ...]`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.kernels import KernelTrial, use_kernels
from linnet.ops.support import apply_eagerly, is_exporting, segment_length, segment_slices, states_before

CHUNK = 64
"""Tokens of a chunk."""

MIN_CHUNK = 16
"""Tokens of a chunk of a short sequence: the products of kernels need at least this number."""

MAX_KERNEL_KEYS = 256
"""Width of the keys that a kernel supports."""

MAX_BY_POWERS = 8
"""Largest triangular system that is solved by powers: for more equations powers would far exceed their sum."""


class DeltaRule(NamedTuple):
    """A recurrence.

    within: computes `read, q, u, w, k, decay` of chunks from their tokens and from the parameters of heads; w may be
    None. fills: the padding after the last token in each tensor of tokens, which causes no write and no decay.
    trial: tests the kernels of its pass on a device.
    """

    within: Callable[..., tuple[Any, ...]]
    fills: tuple[float, ...]
    trial: KernelTrial | None = None


def chunk_length(tokens: int) -> int:
    """Tokens of a chunk of a sequence: a power of two."""
    return min(CHUNK, max(MIN_CHUNK, 1 << (tokens - 1).bit_length()))


def run_chunks(
    rule: DeltaRule, chunk: int, of_tokens: Sequence[Tensor], of_heads: Sequence[Tensor], state_BNKV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The outputs `[B, N, T, V]` and the state `[B, N, K, V]` after the last token; differentiable once.

    of_tokens: `[B, M, T, ...]` or `[B, N, T, ...]`: queries, keys, values, and others; the first of key heads.
    of_heads: `[N, ...]`. state_BNKV: the state before the first token, if not 0.
    """
    if state_BNKV is None:
        _, k, v, *_ = of_tokens
        state_BNKV = v.new_zeros(*v.shape[:2], k.shape[3], v.shape[3])
    out_BNTV, end_BNKV = apply_eagerly(_RunChunks, rule, chunk, *of_tokens, *of_heads, state_BNKV)
    return out_BNTV, end_BNKV


class _RunChunks(torch.autograd.Function):
    """Both passes over the chunks are explicit; gradients within chunks are autograd's, from recomputed values."""

    @staticmethod
    def forward(ctx: Any, rule: DeltaRule, chunk: int, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        *inputs_but_state, state_BNKV = inputs
        cut, of_heads = _cut(rule, chunk, inputs_but_state)
        outs, starts = [], []
        state = torch.unflatten(state_BNKV, 1, (cut[0].shape[1], -1))
        for place in _segments(cut):
            read, q, u, w, k, decay = rule.within(*(x[:, :, :, place] for x in cut), *of_heads)
            before, written, state = _forward_pass(rule, u, w, k, decay, state)
            starts.append(before)
            outs.append(q @ before + read @ written)
        ctx.rule, ctx.chunk = rule, chunk
        ctx.save_for_backward(*inputs_but_state, torch.cat(starts, dim=3))
        return _join(outs, inputs_but_state[2]), state.flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out_BNTV: Tensor, grad_end_BNKV: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, starts = ctx.saved_tensors
        cut, of_heads = _cut(ctx.rule, ctx.chunk, inputs)
        heads, gradients = cut[0].shape[1], []
        grad_out = _to_chunks(grad_out_BNTV, heads, ctx.chunk)
        grad_state = torch.unflatten(grad_end_BNKV, 1, (heads, -1))
        with torch.autocast(grad_out.device.type, enabled=False):  # the forward pass was in one precision
            for place in reversed(_segments(cut)):
                tensors = (*(x[:, :, :, place] for x in cut), *of_heads)
                leaves = [x.detach().requires_grad_() for x in tensors]
                with torch.enable_grad():
                    parts = ctx.rule.within(*leaves)
                segment = starts[:, :, :, place], grad_out[:, :, :, place]
                grad_parts, grad_state = _part_gradients(ctx.rule, parts, *segment, grad_state)
                present = [part for part in parts if part is not None]
                gradients.append(torch.autograd.grad(present, leaves, grad_parts))
        columns = list(zip(*reversed(gradients), strict=True))
        grad_inputs = (
            _join(column, x) if index < len(cut) else torch.stack(column).sum(0).view_as(x)
            for index, (column, x) in enumerate(zip(columns, inputs, strict=True))
        )
        return None, None, *grad_inputs, grad_state.flatten(1, 2)


def _forward_pass(
    rule: DeltaRule, u: Tensor, w: Tensor | None, k: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix before each chunk, what each chunk writes, and the matrix after the last one."""
    if w is None:
        before, state = states_before((k.transpose(-1, -2) @ u).unbind(3), decay.unbind(3), state)
        return torch.stack(before, dim=3), u, state
    if _kernels_fit(rule, u, w, k, decay, state):
        from linnet.ops.kernels._delta import pass_over_chunks

        by_kernel: tuple[Tensor, Tensor, Tensor] = pass_over_chunks(u, w, k, decay, state)
        return by_kernel
    before, written = [], []
    for u_h, w_h, k_h, decay_h in zip(*(x.unbind(3) for x in (u, w, k, decay)), strict=True):
        before.append(state)
        written.append(u_h - w_h @ state)
        state = state * decay_h + k_h.transpose(-1, -2) @ written[-1]
    return torch.stack(before, dim=3), torch.stack(written, dim=3), state


def _backward_pass(
    rule: DeltaRule,
    grad_written: Tensor,
    grad_before: Tensor,
    w: Tensor | None,
    k: Tensor,
    decay: Tensor,
    grad_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the matrix after each chunk, of what each chunk writes, and of the matrix before the first one.

    grad_written, grad_before: the gradients that reach the writes, and the matrices before chunks, through the outputs.
    """
    if w is None:
        grad_ends, grad_state = states_before(grad_before.unbind(3)[::-1], decay.unbind(3)[::-1], grad_state)
        grad_end = torch.stack(grad_ends[::-1], dim=3)
        return grad_end, grad_written + k @ grad_end, grad_state
    if _kernels_fit(rule, grad_written, grad_before, w, k, decay, grad_state):
        from linnet.ops.kernels._delta import pass_back

        return pass_back(grad_written, grad_before, w, k, decay, grad_state)
    grad_ends, grad_writes = [], []
    for chunk in reversed(range(w.shape[3])):
        tensors = (k, w, decay, grad_written, grad_before)
        k_h, w_h, decay_h, grad_written_h, grad_before_h = (x[:, :, :, chunk] for x in tensors)
        grad_ends.append(grad_state)
        grad_writes.append(grad_written_h + k_h @ grad_state)
        grad_state = grad_state * decay_h + grad_before_h - w_h.transpose(-1, -2) @ grad_writes[-1]
    return torch.stack(grad_ends[::-1], dim=3), torch.stack(grad_writes[::-1], dim=3), grad_state


def _kernels_fit(rule: DeltaRule, *tensors: Tensor) -> bool:
    """True if a kernel computes the pass: in float32, with matrices that one program can hold."""
    if rule.trial is None or tensors[-1].shape[-2] > MAX_KERNEL_KEYS:
        return False
    return all(x.dtype == torch.float32 for x in tensors) and use_kernels(rule.trial, *tensors)


def _part_gradients(
    rule: DeltaRule, parts: Sequence[Any], before: Tensor, grad_out: Tensor, grad_state: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the parts of a rule and of the state before the first chunk, from those of outputs and last
    state.
    """
    read, q, u, w, k, decay = parts  # a backward pass that is differentiable once records no graph of them
    written, grad_written = u if w is None else u - w @ before, read.transpose(-1, -2) @ grad_out
    grad_before = q.transpose(-1, -2) @ grad_out
    grad_end, grad_written, grad_state = _backward_pass(rule, grad_written, grad_before, w, k, decay, grad_state)
    grad_decay = (grad_end * before).sum(-1, keepdim=True)
    grad_read, grad_q = grad_out @ written.transpose(-1, -2), grad_out @ before.transpose(-1, -2)
    grad_w = [] if w is None else [-grad_written @ before.transpose(-1, -2)]
    grad_k = written @ grad_end.transpose(-1, -2)
    return [grad_read, grad_q, grad_written, *grad_w, grad_k, grad_decay.sum_to_size(decay.shape)], grad_state


def _cut(rule: DeltaRule, chunk: int, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors of tokens in chunks, and those of heads as `[M, R, 1, 1, ...]`."""
    count, heads = len(rule.fills), inputs[0].shape[1]
    of_tokens = [_to_chunks(x, heads, chunk, fill) for x, fill in zip(inputs[:count], rule.fills, strict=True)]
    return of_tokens, [torch.unflatten(x, 0, (heads, -1))[:, :, None, None] for x in inputs[count:]]


def _to_chunks(x_BNTK: Tensor, heads: int, chunk: int, fill: float = 0.0) -> Tensor:
    """`[B, N, T, K] -> [B, M, R, H, C, K]`, padded with `fill`."""
    batch, _, length, width = x_BNTK.shape
    padded = F.pad(x_BNTK, (0, 0, 0, -length % chunk), value=fill) if length % chunk else x_BNTK
    return padded.reshape(batch, heads, -1, padded.shape[2] // chunk, chunk, width)


def _join(chunks: Sequence[Tensor], like: Tensor) -> Tensor:
    """Segments of chunks as tokens, in the shape of `like`: `[B, N, T, ...]`."""
    return torch.cat(list(chunks), dim=3).flatten(3, 4).flatten(1, 2)[:, :, : like.shape[2]].reshape(like.shape)


def _segments(cut: Sequence[Tensor]) -> list[slice]:
    """Segments of chunks that are computed side by side."""
    key, _, v, *_ = cut
    *_, chunks, chunk, width = key.shape
    segment = segment_length(v[..., 0, 0, 0].numel(), width, chunk, key.device.type)
    return segment_slices(chunks, segment // chunk)


def pairs_reference(q_CK: Tensor, k_CK: Tensor, log_alpha_CG: Tensor) -> tuple[Tensor, Tensor]:
    """The definition of read and known, `[..., C, C]` each, 0 where j > i. log_alpha_CG: logarithms of the gates."""
    decays_CCG = _gates_between(log_alpha_CG).exp()
    decayed_CCK = k_CK[..., None, :, :] * decays_CCG
    read_CC, overlap_CC = ((x_CK[..., None, :] * decayed_CCK).sum(-1).tril() for x_CK in (q_CK, k_CK))
    return read_CC, overlap_CC


def pairs(q_CK: Tensor, k_CK: Tensor, log_alpha_CG: Tensor) -> tuple[Tensor, Tensor]:
    """`pairs_reference`, fast. Above the diagonal the second result is arbitrary."""
    if log_alpha_CG.shape[-1] > 1:
        read_CC, overlap_CC = pairs_by_channel(torch.stack([q_CK, k_CK], dim=-3), k_CK, log_alpha_CG).unbind(-3)
        return read_CC, overlap_CC
    decays_CC = _gates_between(log_alpha_CG)[..., 0].exp().tril()
    k_KC = k_CK.transpose(-1, -2)
    return (q_CK @ k_KC) * decays_CC, (k_CK @ k_KC) * decays_CC


def pairs_by_channel(x_XCK: Tensor, k_CK: Tensor, log_alpha_CK: Tensor) -> Tensor:
    """`[..., X, C, C]`, 0 where j > i: the products of each reader with each key, with a gate for each channel."""
    k_CK = k_CK.expand_as(log_alpha_CK)  # of a head whose keys several value heads share
    products_XSLL = (x_XCK * k_CK[..., None, :, :]).sum(-1)[..., None, None]
    from_start_SLK = log_alpha_CK[..., None, :]  # from the start of its block up to each token
    to_end_SLK = torch.zeros_like(from_start_SLK)  # from after each token to the end of its block
    while products_XSLL.shape[-3] > 1:
        x_XSLK, k_SLK = (torch.unflatten(x, -2, from_start_SLK.shape[-3:-1]) for x in (x_XCK, k_CK))
        # Products of each second block with the one before it, `[..., X, S / 2, L, L]`.
        late_XSLK = _halves(x_XSLK)[1] * _halves(from_start_SLK)[1].exp()[..., None, :, :, :]
        early_SLK = _halves(k_SLK)[0] * _halves(to_end_SLK)[0].exp()
        across_XSLL = late_XSLK @ early_SLK.transpose(-1, -2)[..., None, :, :, :]
        # Two blocks become one.
        early, late = _halves(products_XSLL)
        upper = F.pad(early, (0, early.shape[-1]))
        products_XSLL = torch.cat([upper, torch.cat([across_XSLL, late], dim=-1)], dim=-2)
        (early, late), (early_to_end, late_to_end) = _halves(from_start_SLK), _halves(to_end_SLK)
        from_start_SLK = torch.cat([early, late + early[..., -1:, :]], dim=-2)
        to_end_SLK = torch.cat([early_to_end + late[..., -1:, :], late_to_end], dim=-2)
    return products_XSLL[..., 0, :, :]


def _halves(x_SLK: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second ones of all pairs of neighboring blocks, `[..., S / 2, L, K]`."""
    return x_SLK[..., ::2, :, :], x_SLK[..., 1::2, :, :]


def sum_after(x_CK: Tensor) -> Tensor:
    """The sum over the tokens after each, `[..., C, K]`."""
    return F.pad(x_CK[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _gates_between(x_CK: Tensor) -> Tensor:
    """The sum over the tokens after j up to i, `[..., C(i), C(j), K]`, 0 where j >= i.

    Summed separately for each pair: a difference of two long sums would lose small steps after a large one.
    """
    length = x_CK.shape[-2]
    later_CC1 = torch.ones(length, length, dtype=x_CK.dtype, device=x_CK.device).tril(-1)[..., None]
    return (x_CK[..., :, None, :] * later_CC1).cumsum(-3)


def solve_unit_triangular(below_CC: Tensor, right_CV: Tensor) -> Tensor:
    """x of `(1 + below) x = right`, `[..., C, V]`; only the part of `below` below the diagonal is used."""
    if is_exporting():  # ONNX has no operator for it
        return solve_by_products(below_CC, right_CV)
    x_CV: Tensor = torch.linalg.solve_triangular(below_CC, right_CV, upper=False, unitriangular=True)
    return x_CV


def solve_by_products(below_CC: Tensor, right_CV: Tensor) -> Tensor:
    """`solve_unit_triangular` by products alone: first one half of x, then the other from the remainder."""
    size, half = below_CC.shape[-1], below_CC.shape[-1] // 2
    if size > MAX_BY_POWERS:
        first_HV = solve_by_products(below_CC[..., :half, :half], right_CV[..., :half, :])
        rest_HV = right_CV[..., half:, :] - below_CC[..., half:, :half] @ first_HV
        return torch.cat([first_HV, solve_by_products(below_CC[..., half:, half:], rest_HV)], dim=-2)
    # With `N = -below`, whose C-th power is 0, x is `(1 + N) (1 + N^2) (1 + N^4) ... right`.
    power_CC, x_CV, reached = -below_CC.tril(-1), right_CV, 1
    while reached < size:
        x_CV = x_CV + power_CC @ x_CV
        power_CC, reached = power_CC @ power_CC, 2 * reached
    return x_CV
