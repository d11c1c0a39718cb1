"""Delta rules in chunks (`ops.delta_rule`) on a GPU: the pass over the chunks, and the chunks of `gated_delta`.

In the pass one program takes a row and head for some channels of the values, and holds the matrix from chunk to chunk
(`_forward_pass`, `_backward_pass`). The parts of a chunk that are independent of all other chunks, with one gate for
each head, are one program per chunk (`_chunk`, `_chunk_gradients`): the triangular system is solved by its inverse, row
by row.

Legend: `P` rows times value heads, `H` chunks, `C` tokens of one, `W` writes of one, `K` width of keys, `V` width of
values, `G` gates: 1, or K; `R` value heads of a key head. Sizes of blocks, powers of two, begin with a `B`. `grad_x` is
the gradient of x.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from linnet.ops.kernels import block, product_precision

MAX_VALUES = 32
"""Channels of the values that one program of the pass takes."""
WRITES_PER_BLOCK = 32
"""Writes that a program of the pass takes at once."""
CHANNELS_PER_BLOCK = 32
"""Channels of the keys or values of a chunk that are taken at once."""
PASS_OPTIONS, CHUNK_OPTIONS = {"num_warps": 4, "num_stages": 1}, {"num_warps": 8, "num_stages": 1}
"""Build options with which the data of a program fit into shared memory."""


@triton.jit
def _tile(ptr, index, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr):
    """Places of a block, at a row and a column, of the matrix number `index`, and which of them lie in the matrix."""
    rows, columns = row + tl.arange(0, BR), column + tl.arange(0, BW)
    places = ptr + (index * ROWS + rows)[:, None] * COLUMNS + columns[None, :]
    return places, (rows < ROWS)[:, None] & (columns < COLUMNS)[None, :]


@triton.jit
def _load(ptr, index, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr):
    """Load a block (`_tile`); zeros beyond the matrix."""
    places, inside = _tile(ptr, index, row, column, ROWS, COLUMNS, BR, BW)
    return tl.load(places, inside, other=0.0)


@triton.jit
def _store(x, ptr, index, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr):
    """Store a block (`_tile`)."""
    places, inside = _tile(ptr, index, row, column, ROWS, COLUMNS, BR, BW)
    tl.store(places, x, inside)


@triton.jit
def _load_decay(ptr, index, G: tl.constexpr, BK: tl.constexpr):
    """The decay of each row of the matrix over a chunk, `[BK, 1]`."""
    at = tl.arange(0, BK)
    return tl.load(ptr + index * G + at % G, at < (BK if G == 1 else G), other=0.0)[:, None]


@triton.jit
def _forward_pass(
    u_ptr, w_ptr, k_ptr, decay_ptr, state_ptr, starts_ptr, written_ptr, end_ptr, H,
    W: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The matrix before each chunk, what each chunk writes, and the matrix after the last one."""
    p, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    state = _load(state_ptr, p, 0, column, K, V, BK, BV)
    for chunk in range(H):
        index = p * H + chunk
        _store(state, starts_ptr, index, 0, column, K, V, BK, BV)
        after = state * _load_decay(decay_ptr, index, G, BK)
        for row in range(0, W, BW):
            w = _load(w_ptr, index, row, 0, W, K, BW, BK)
            written = _load(u_ptr, index, row, column, W, V, BW, BV) - tl.dot(w, state, input_precision=PRECISION)
            _store(written, written_ptr, index, row, column, W, V, BW, BV)
            k = _load(k_ptr, index, row, 0, W, K, BW, BK)
            after += tl.dot(tl.trans(k), written, input_precision=PRECISION)
        state = after
    _store(state, end_ptr, p, 0, column, K, V, BK, BV)


@triton.jit
def _backward_pass(
    grad_written_ptr, grad_before_ptr, w_ptr, k_ptr, decay_ptr, state_ptr, ends_ptr, writes_ptr, start_ptr, H,
    W: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the matrix after each chunk, of what each chunk writes, and of the matrix before the first one.

    grad_written, grad_before: the gradients that reach the writes, and the matrices before chunks, through the outputs.
    """
    p, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    state = _load(state_ptr, p, 0, column, K, V, BK, BV)
    for back in range(H):
        index = p * H + H - 1 - back
        _store(state, ends_ptr, index, 0, column, K, V, BK, BV)
        before = _load(grad_before_ptr, index, 0, column, K, V, BK, BV) + state * _load_decay(decay_ptr, index, G, BK)
        for row in range(0, W, BW):
            k = _load(k_ptr, index, row, 0, W, K, BW, BK)
            writes = _load(grad_written_ptr, index, row, column, W, V, BW, BV)
            writes += tl.dot(k, state, input_precision=PRECISION)
            _store(writes, writes_ptr, index, row, column, W, V, BW, BV)
            w = _load(w_ptr, index, row, 0, W, K, BW, BK)
            before -= tl.dot(tl.trans(w), writes, input_precision=PRECISION)
        state = before
    _store(state, start_ptr, p, 0, column, K, V, BK, BV)


@triton.jit
def _load_numbers(ptr, index, C: tl.constexpr, BC: tl.constexpr):
    """One number for each token of a chunk, `[BC]`."""
    at = tl.arange(0, BC)
    return tl.load(ptr + index * C + at, at < C, other=0.0)


@triton.jit
def _decays(log_alpha, BC: tl.constexpr):
    """Decays from token j to token i, 0 where j > i; from the start of the chunk to each; from each to its end."""
    at = tl.arange(0, BC)
    later = tl.where(at[:, None] > at[None, :], log_alpha[:, None], 0.0)
    # Summed separately for each pair: a difference of two long sums would lose small steps after a large one.
    between = tl.where(at[:, None] >= at[None, :], tl.exp(tl.cumsum(later, axis=0)), 0.0)
    return between, tl.exp(tl.cumsum(log_alpha, axis=0)), tl.exp(tl.sum(later, axis=0))


@triton.jit
def _products(
    q_ptr, k_ptr, index, C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr
):
    """Products of queries with keys, and of keys with keys, `[BC, BC]` each."""
    read, overlap = tl.zeros([BC, BC], tl.float32), tl.zeros([BC, BC], tl.float32)
    for column in range(0, K, BW):
        q = _load(q_ptr, index, 0, column, C, K, BC, BW)
        k = _load(k_ptr, index, 0, column, C, K, BC, BW)
        read += tl.dot(q, tl.trans(k), input_precision=PRECISION)
        overlap += tl.dot(k, tl.trans(k), input_precision=PRECISION)
    return read, overlap


@triton.jit
def _inverse(lower, C: tl.constexpr, BC: tl.constexpr):
    """The inverse of 1 + L, L strictly lower triangular: each row from those above it."""
    at = tl.arange(0, BC)
    inverse = tl.where(at[:, None] == at[None, :], 1.0, 0.0)
    for row in range(1, C):
        shares = tl.sum(tl.where((at == row)[:, None], lower, 0.0), axis=0)
        found = tl.sum(shares[:, None] * inverse, axis=0)
        inverse -= tl.where((at == row)[:, None], found[None, :], 0.0)
    return inverse


@triton.jit
def _chunk(
    q_ptr, k_ptr, v_ptr, log_alpha_ptr, beta_ptr, read_ptr, q_out_ptr, u_ptr, w_ptr, k_out_ptr, decay_ptr, scale, H,
    R: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BC: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`read, q, u, w, k, decay` of `ops.gated_delta`, with one gate for each head."""
    index = tl.program_id(0).to(tl.int64)
    key_index, at = index // (H * R) * H + index % H, tl.arange(0, BC)
    log_alpha, beta = _load_numbers(log_alpha_ptr, index, C, BC), _load_numbers(beta_ptr, index, C, BC)
    between, from_start, after = _decays(log_alpha, BC)
    tl.store(decay_ptr + index, tl.exp(tl.sum(log_alpha, axis=0)))
    read, overlap = _products(q_ptr, k_ptr, key_index, C, K, BC, BW, PRECISION)
    _store(scale * read * between, read_ptr, index, 0, 0, C, C, BC, BC)
    lower = tl.where(at[:, None] > at[None, :], beta[:, None] * overlap * between, 0.0)
    inverse = _inverse(lower, C, BC)
    for column in range(0, V, BW):
        v = beta[:, None] * _load(v_ptr, index, 0, column, C, V, BC, BW)
        _store(tl.dot(inverse, v, input_precision=PRECISION), u_ptr, index, 0, column, C, V, BC, BW)
    for column in range(0, K, BW):
        q = _load(q_ptr, key_index, 0, column, C, K, BC, BW)
        _store(q * (scale * from_start)[:, None], q_out_ptr, index, 0, column, C, K, BC, BW)
        k = _load(k_ptr, key_index, 0, column, C, K, BC, BW)
        _store(k * after[:, None], k_out_ptr, index, 0, column, C, K, BC, BW)
        w = tl.dot(inverse, k * (beta * from_start)[:, None], input_precision=PRECISION)
        _store(w, w_ptr, index, 0, column, C, K, BC, BW)


@triton.jit
def _chunk_gradients(
    q_ptr, k_ptr, v_ptr, log_alpha_ptr, beta_ptr,
    grad_read_ptr, grad_q_ptr, grad_u_ptr, grad_w_ptr, grad_k_ptr, grad_decay_ptr,
    q_out_ptr, k_out_ptr, v_out_ptr, log_alpha_out_ptr, beta_out_ptr, scale, H,
    R: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BC: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the inputs of `_chunk` from those of its outputs; of queries and keys separately per value head."""
    index = tl.program_id(0).to(tl.int64)
    key_index, at = index // (H * R) * H + index % H, tl.arange(0, BC)
    earlier = at[:, None] > at[None, :]
    log_alpha, beta = _load_numbers(log_alpha_ptr, index, C, BC), _load_numbers(beta_ptr, index, C, BC)
    between, from_start, after = _decays(log_alpha, BC)
    read, overlap = _products(q_ptr, k_ptr, key_index, C, K, BC, BW, PRECISION)
    lower = tl.where(earlier, beta[:, None] * overlap * between, 0.0)
    solver = _inverse(lower, C, BC)
    transposed = tl.trans(solver)

    grad_lower, grad_beta = tl.zeros([BC, BC], tl.float32), tl.zeros([BC], tl.float32)
    grad_start, grad_after = tl.zeros([BC], tl.float32), tl.zeros([BC], tl.float32)  # gradients of logarithms
    for column in range(0, V, BW):
        v = _load(v_ptr, index, 0, column, C, V, BC, BW)
        grad_u = _load(grad_u_ptr, index, 0, column, C, V, BC, BW)
        grad_right = tl.dot(transposed, grad_u, input_precision=PRECISION)
        u = tl.dot(solver, beta[:, None] * v, input_precision=PRECISION)
        grad_lower -= tl.dot(grad_right, tl.trans(u), input_precision=PRECISION)
        grad_beta += tl.sum(grad_right * v, axis=1)
        _store(beta[:, None] * grad_right, v_out_ptr, index, 0, column, C, V, BC, BW)
    for column in range(0, K, BW):
        k = _load(k_ptr, key_index, 0, column, C, K, BC, BW)
        faded = k * from_start[:, None]
        grad_right = tl.dot(transposed, _load(grad_w_ptr, index, 0, column, C, K, BC, BW), input_precision=PRECISION)
        w = tl.dot(solver, beta[:, None] * faded, input_precision=PRECISION)
        grad_lower -= tl.dot(grad_right, tl.trans(w), input_precision=PRECISION)
        grad_faded = tl.sum(grad_right * faded, axis=1)
        grad_beta += grad_faded
        q = _load(q_ptr, key_index, 0, column, C, K, BC, BW)
        grad_q = _load(grad_q_ptr, index, 0, column, C, K, BC, BW)
        grad_start += beta * grad_faded + scale * from_start * tl.sum(grad_q * q, axis=1)
        grad_after += after * tl.sum(_load(grad_k_ptr, index, 0, column, C, K, BC, BW) * k, axis=1)

    grad_lower = tl.where(earlier, grad_lower, 0.0)
    grad_read = scale * between * _load(grad_read_ptr, index, 0, 0, C, C, BC, BC)
    grad_between = grad_lower * lower + grad_read * read
    grad_beta += tl.sum(grad_lower * overlap * between, axis=1)
    grad_overlap = grad_lower * beta[:, None] * between
    grad_products = grad_overlap + tl.trans(grad_overlap)
    for column in range(0, K, BW):
        q = _load(q_ptr, key_index, 0, column, C, K, BC, BW)
        k = _load(k_ptr, key_index, 0, column, C, K, BC, BW)
        grad_right = tl.dot(transposed, _load(grad_w_ptr, index, 0, column, C, K, BC, BW), input_precision=PRECISION)
        grad_k = tl.dot(grad_products, k, input_precision=PRECISION) + (beta * from_start)[:, None] * grad_right
        grad_k += tl.dot(tl.trans(grad_read), q, input_precision=PRECISION)
        grad_k += after[:, None] * _load(grad_k_ptr, index, 0, column, C, K, BC, BW)
        grad_q = tl.dot(grad_read, k, input_precision=PRECISION)
        grad_q += (scale * from_start)[:, None] * _load(grad_q_ptr, index, 0, column, C, K, BC, BW)
        _store(grad_k, k_out_ptr, index, 0, column, C, K, BC, BW)
        _store(grad_q, q_out_ptr, index, 0, column, C, K, BC, BW)

    crossing = tl.where(earlier, tl.cumsum(grad_between, axis=0, reverse=True), 0.0)
    grad_log_alpha = tl.sum(crossing, axis=1) + tl.cumsum(grad_start, axis=0, reverse=True)
    grad_log_alpha += tl.cumsum(grad_after, axis=0) - grad_after
    grad_log_alpha += tl.load(grad_decay_ptr + index) * tl.exp(tl.sum(log_alpha, axis=0))
    tl.store(log_alpha_out_ptr + index * C + at, grad_log_alpha, at < C)
    tl.store(beta_out_ptr + index * C + at, grad_beta, at < C)


@torch.library.custom_op("linnet::delta_pass", mutates_args=())  # a custom operator, so that its FLOPs are counted
def pass_over_chunks(u: Tensor, w: Tensor, k: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix before each chunk, what each chunk writes, and the matrix after the last one (`ops.delta_rule`)."""
    u, w, k, decay = _expand_alike(u, w, k, decay)
    starts = u.new_empty(*u.shape[:4], w.shape[5], u.shape[5])
    written, end = torch.empty_like(u), starts.new_empty(state.shape)
    grid, sizes = _pass_grid(u, w, decay)
    with torch.cuda.device_of(u):
        _forward_pass[grid](
            u, w, k, decay, state.contiguous(), starts, written, end, u.shape[3], **sizes, **PASS_OPTIONS
        )
    return starts, written, end


@register_flop_formula(torch.ops.linnet.delta_pass)
def _pass_flops(u: torch.Size, w: torch.Size, *_: torch.Size, **__: Any) -> int:
    return 4 * u.numel() * w[-1]


def pass_back(
    grad_written: Tensor, grad_before: Tensor, w: Tensor, k: Tensor, decay: Tensor, grad_state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the matrix after each chunk, of what each chunk writes, and of the matrix before the first one."""
    grad_written, w, k, decay = _expand_alike(grad_written, w, k, decay)
    grad_before = grad_before.contiguous()
    ends, writes = torch.empty_like(grad_before), torch.empty_like(grad_written)
    start = grad_before.new_empty(grad_state.shape)
    grid, sizes = _pass_grid(grad_written, w, decay)
    inputs = (grad_written, grad_before, w, k, decay, grad_state.contiguous())
    with torch.cuda.device_of(grad_written):
        _backward_pass[grid](*inputs, ends, writes, start, grad_written.shape[3], **sizes, **PASS_OPTIONS)
    return ends, writes, start


def _expand_alike(u: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """All tensors as contiguous `[B, M, R, H, ...]`."""
    return u.contiguous(), *(x.expand(*u.shape[:4], *x.shape[4:]).contiguous() for x in others)


def _pass_grid(u: Tensor, w: Tensor, decay: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of programs, and the sizes for which they are compiled."""
    writes, keys, values = u.shape[4], w.shape[5], u.shape[5]
    blocks = {"BW": min(WRITES_PER_BLOCK, block(writes)), "BK": block(keys), "BV": min(MAX_VALUES, block(values))}
    widths = {"W": writes, "K": keys, "V": values, "G": decay.shape[4]}
    streams = u.shape[:3].numel()
    return (streams, triton.cdiv(values, blocks["BV"])), widths | blocks | {"PRECISION": product_precision()}


class ChunksOfHeads(torch.autograd.Function):
    """q, k, v, log_alpha, beta -> `read, q, u, w, k, decay` of `ops.gated_delta` with one gate for each head."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*inputs)
        parts: tuple[Tensor, ...] = _chunks(*inputs)
        return parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        inputs = [x.contiguous() for x in ctx.saved_tensors]
        q, _, v, log_alpha, beta = inputs
        of_value_heads = [v.new_empty(*v.shape[:5], q.shape[5]) for _ in range(2)]
        outs = [*of_value_heads, torch.empty_like(v), torch.empty_like(log_alpha), torch.empty_like(beta)]
        programs, scale, sizes = _chunk_grid(q, v)
        with torch.cuda.device_of(v):
            contiguous = (x.contiguous() for x in gradients)
            _chunk_gradients[(programs,)](*inputs, *contiguous, *outs, scale, v.shape[3], **sizes, **CHUNK_OPTIONS)
        return *(x.sum(2, keepdim=True) for x in outs[:2]), *outs[2:]


@torch.library.custom_op("linnet::delta_chunks", mutates_args=())
def _chunks(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v, log_alpha, beta = (x.contiguous() for x in (q, k, v, log_alpha, beta))
    shape, (chunk, keys) = v.shape[:4], q.shape[4:]
    read, decay = v.new_empty(*shape, chunk, chunk), v.new_empty(*shape, 1, 1)
    faded, w, to_end = (v.new_empty(*shape, chunk, keys) for _ in range(3))
    outs = (read, faded, torch.empty_like(v), w, to_end, decay)
    programs, scale, sizes = _chunk_grid(q, v)
    with torch.cuda.device_of(v):
        _chunk[(programs,)](q, k, v, log_alpha, beta, *outs, scale, v.shape[3], **sizes, **CHUNK_OPTIONS)
    return outs


@register_flop_formula(torch.ops.linnet.delta_chunks)
def _chunks_flops(q: torch.Size, *_: torch.Size, **__: Any) -> int:
    """Counted as in the plain form: its products, once for each key head."""
    return 4 * q.numel() * q[4]


def _chunk_grid(q: Tensor, v: Tensor) -> tuple[int, float, dict[str, Any]]:
    """The number of programs, the scale of the queries, and the sizes for which they are compiled."""
    (*shape, chunk, values), keys = v.shape, q.shape[5]
    widths = {"R": v.shape[2], "C": chunk, "K": keys, "V": values}
    blocks = {"BC": block(chunk), "BW": min(CHANNELS_PER_BLOCK, block(max(keys, values)))}
    return torch.Size(shape).numel(), keys**-0.5, widths | blocks | {"PRECISION": product_precision()}
