"""Delta rules in chunks (`ops.delta_rule`) on a GPU: the pass over the chunks, and what a chunk of `gated_delta` is.

The pass takes each row and head in one program for some channels of the values, which holds the matrix from chunk to
chunk (`_onwards`, and `_back` for gradients). What a chunk is, whatever stands before it, is one program for each, with
one gate for each head (`_chunk`, `_chunk_gradients`): the triangular system is solved by its inverse, row by row.

Legend: `P` rows times value heads, `H` chunks, `C` tokens of one, `W` writes of one, `K` width of keys, `V` width of
values, `G` gates: 1, or K; `R` value heads of a key head. Sizes of blocks, powers of two, begin with a `B`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from linnet.ops.kernels import block, product_precision

MOST_VALUES = 32
"""Channels of the values that one program of the pass takes."""
WRITES = 32
"""That it takes at once."""
WIDTH = 32
"""Channels of a chunk's keys or values that are taken at once."""
FOR_PASS, FOR_CHUNKS = {"num_warps": 4, "num_stages": 1}, {"num_warps": 8, "num_stages": 1}
"""How kernels are built, so that shared memory holds what they take."""


@triton.jit
def _tile(ptr, index, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr):
    """Of the matrix at `index` among many, the block at a row and a column: places, and which of them are in it."""
    rows, columns = row + tl.arange(0, BR), column + tl.arange(0, BW)
    places = ptr + (index * ROWS + rows)[:, None] * COLUMNS + columns[None, :]
    return places, (rows < ROWS)[:, None] & (columns < COLUMNS)[None, :]


@triton.jit
def _block(ptr, index, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr):
    """The same, read; zeros beyond."""
    places, inside = _tile(ptr, index, row, column, ROWS, COLUMNS, BR, BW)
    return tl.load(places, inside, other=0.0)


@triton.jit
def _put(x, ptr, index, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr):
    """The same, written."""
    places, inside = _tile(ptr, index, row, column, ROWS, COLUMNS, BR, BW)
    tl.store(places, x, inside)


@triton.jit
def _kept(ptr, index, G: tl.constexpr, BK: tl.constexpr):
    """What is left of each row of the matrix, `[BK, 1]`."""
    at = tl.arange(0, BK)
    return tl.load(ptr + index * G + at % G, at < (BK if G == 1 else G), other=0.0)[:, None]


@triton.jit
def _onwards(
    u_ptr, w_ptr, k_ptr, kept_ptr, state_ptr, starts_ptr, written_ptr, end_ptr, H,
    W: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The matrix before each chunk, what each chunk writes, and the matrix behind the last one."""
    p, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    state = _block(state_ptr, p, 0, column, K, V, BK, BV)
    for chunk in range(H):
        index = p * H + chunk
        _put(state, starts_ptr, index, 0, column, K, V, BK, BV)
        after = state * _kept(kept_ptr, index, G, BK)
        for row in range(0, W, BW):
            w = _block(w_ptr, index, row, 0, W, K, BW, BK)
            written = _block(u_ptr, index, row, column, W, V, BW, BV) - tl.dot(w, state, input_precision=PRECISION)
            _put(written, written_ptr, index, row, column, W, V, BW, BV)
            k = _block(k_ptr, index, row, 0, W, K, BW, BK)
            after += tl.dot(tl.trans(k), written, input_precision=PRECISION)
        state = after
    _put(state, end_ptr, p, 0, column, K, V, BK, BV)


@triton.jit
def _back(
    of_written_ptr, of_before_ptr, w_ptr, k_ptr, kept_ptr, state_ptr, ends_ptr, writes_ptr, start_ptr, H,
    W: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the matrix behind each chunk, of what each chunk writes, and of the matrix before the first one.

    of_written, of_before: what the outputs ask of the chunk's writes and of the matrix before it.
    """
    p, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    state = _block(state_ptr, p, 0, column, K, V, BK, BV)
    for back in range(H):
        index = p * H + H - 1 - back
        _put(state, ends_ptr, index, 0, column, K, V, BK, BV)
        before = _block(of_before_ptr, index, 0, column, K, V, BK, BV) + state * _kept(kept_ptr, index, G, BK)
        for row in range(0, W, BW):
            k = _block(k_ptr, index, row, 0, W, K, BW, BK)
            writes = _block(of_written_ptr, index, row, column, W, V, BW, BV)
            writes += tl.dot(k, state, input_precision=PRECISION)
            _put(writes, writes_ptr, index, row, column, W, V, BW, BV)
            w = _block(w_ptr, index, row, 0, W, K, BW, BK)
            before -= tl.dot(tl.trans(w), writes, input_precision=PRECISION)
        state = before
    _put(state, start_ptr, p, 0, column, K, V, BK, BV)


@triton.jit
def _column(ptr, index, C: tl.constexpr, BC: tl.constexpr):
    """One number of each token of a chunk, `[BC]`."""
    at = tl.arange(0, BC)
    return tl.load(ptr + index * C + at, at < C, other=0.0)


@triton.jit
def _decays(log_alpha, BC: tl.constexpr):
    """What is left of token j for token i, 0 where j > i; from the chunk's start to each; from each to its end."""
    at = tl.arange(0, BC)
    behind = tl.where(at[:, None] > at[None, :], log_alpha[:, None], 0.0)
    # Summed up for each pair: the difference of two long sums would lose the small steps behind a large one.
    between = tl.where(at[:, None] >= at[None, :], tl.exp(tl.cumsum(behind, axis=0)), 0.0)
    return between, tl.exp(tl.cumsum(log_alpha, axis=0)), tl.exp(tl.sum(behind, axis=0))


@triton.jit
def _products(
    q_ptr, k_ptr, index, C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr
):
    """Of queries with keys, and of keys with keys, `[BC, BC]`."""
    read, known = tl.zeros([BC, BC], tl.float32), tl.zeros([BC, BC], tl.float32)
    for column in range(0, K, BW):
        q = _block(q_ptr, index, 0, column, C, K, BC, BW)
        k = _block(k_ptr, index, 0, column, C, K, BC, BW)
        read += tl.dot(q, tl.trans(k), input_precision=PRECISION)
        known += tl.dot(k, tl.trans(k), input_precision=PRECISION)
    return read, known


@triton.jit
def _inverse(lower, C: tl.constexpr, BC: tl.constexpr):
    """Of 1 + L, L strictly lower: each row from those above it, as a system is solved."""
    at = tl.arange(0, BC)
    inverse = tl.where(at[:, None] == at[None, :], 1.0, 0.0)
    for row in range(1, C):
        shares = tl.sum(tl.where((at == row)[:, None], lower, 0.0), axis=0)
        found = tl.sum(shares[:, None] * inverse, axis=0)
        inverse -= tl.where((at == row)[:, None], found[None, :], 0.0)
    return inverse


@triton.jit
def _chunk(
    q_ptr, k_ptr, v_ptr, log_alpha_ptr, beta_ptr, read_ptr, q_out_ptr, u_ptr, w_ptr, k_out_ptr, kept_ptr, scale, H,
    R: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BC: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`read, q, u, w, k, kept` of `ops.gated_delta`, with one gate for each head."""
    index = tl.program_id(0).to(tl.int64)
    of_key, at = index // (H * R) * H + index % H, tl.arange(0, BC)
    log_alpha, beta = _column(log_alpha_ptr, index, C, BC), _column(beta_ptr, index, C, BC)
    between, from_start, after = _decays(log_alpha, BC)
    tl.store(kept_ptr + index, tl.exp(tl.sum(log_alpha, axis=0)))
    read, known = _products(q_ptr, k_ptr, of_key, C, K, BC, BW, PRECISION)
    _put(scale * read * between, read_ptr, index, 0, 0, C, C, BC, BC)
    lower = tl.where(at[:, None] > at[None, :], beta[:, None] * known * between, 0.0)
    inverse = _inverse(lower, C, BC)
    for column in range(0, V, BW):
        v = beta[:, None] * _block(v_ptr, index, 0, column, C, V, BC, BW)
        _put(tl.dot(inverse, v, input_precision=PRECISION), u_ptr, index, 0, column, C, V, BC, BW)
    for column in range(0, K, BW):
        q = _block(q_ptr, of_key, 0, column, C, K, BC, BW)
        _put(q * (scale * from_start)[:, None], q_out_ptr, index, 0, column, C, K, BC, BW)
        k = _block(k_ptr, of_key, 0, column, C, K, BC, BW)
        _put(k * after[:, None], k_out_ptr, index, 0, column, C, K, BC, BW)
        w = tl.dot(inverse, k * (beta * from_start)[:, None], input_precision=PRECISION)
        _put(w, w_ptr, index, 0, column, C, K, BC, BW)


@triton.jit
def _chunk_gradients(
    q_ptr, k_ptr, v_ptr, log_alpha_ptr, beta_ptr, of_read_ptr, of_q_ptr, of_u_ptr, of_w_ptr, of_k_ptr, of_kept_ptr,
    q_out_ptr, k_out_ptr, v_out_ptr, log_alpha_out_ptr, beta_out_ptr, scale, H,
    R: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BC: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of the inputs of `_chunk`, from those of what it gives; of queries and keys for each value head by itself."""
    index = tl.program_id(0).to(tl.int64)
    of_key, at = index // (H * R) * H + index % H, tl.arange(0, BC)
    earlier = at[:, None] > at[None, :]
    log_alpha, beta = _column(log_alpha_ptr, index, C, BC), _column(beta_ptr, index, C, BC)
    between, from_start, after = _decays(log_alpha, BC)
    read, known = _products(q_ptr, k_ptr, of_key, C, K, BC, BW, PRECISION)
    lower = tl.where(earlier, beta[:, None] * known * between, 0.0)
    solver = _inverse(lower, C, BC)
    transposed = tl.trans(solver)

    of_lower, of_beta = tl.zeros([BC, BC], tl.float32), tl.zeros([BC], tl.float32)
    of_start, of_after = tl.zeros([BC], tl.float32), tl.zeros([BC], tl.float32)  # of their logarithms
    for column in range(0, V, BW):
        v = _block(v_ptr, index, 0, column, C, V, BC, BW)
        of_u = _block(of_u_ptr, index, 0, column, C, V, BC, BW)
        asked = tl.dot(transposed, of_u, input_precision=PRECISION)
        u = tl.dot(solver, beta[:, None] * v, input_precision=PRECISION)
        of_lower -= tl.dot(asked, tl.trans(u), input_precision=PRECISION)
        of_beta += tl.sum(asked * v, axis=1)
        _put(beta[:, None] * asked, v_out_ptr, index, 0, column, C, V, BC, BW)
    for column in range(0, K, BW):
        k = _block(k_ptr, of_key, 0, column, C, K, BC, BW)
        faded = k * from_start[:, None]
        asked = tl.dot(transposed, _block(of_w_ptr, index, 0, column, C, K, BC, BW), input_precision=PRECISION)
        w = tl.dot(solver, beta[:, None] * faded, input_precision=PRECISION)
        of_lower -= tl.dot(asked, tl.trans(w), input_precision=PRECISION)
        of_faded = tl.sum(asked * faded, axis=1)
        of_beta += of_faded
        q = _block(q_ptr, of_key, 0, column, C, K, BC, BW)
        of_q = _block(of_q_ptr, index, 0, column, C, K, BC, BW)
        of_start += beta * of_faded + scale * from_start * tl.sum(of_q * q, axis=1)
        of_after += after * tl.sum(_block(of_k_ptr, index, 0, column, C, K, BC, BW) * k, axis=1)

    of_lower = tl.where(earlier, of_lower, 0.0)
    of_read = scale * between * _block(of_read_ptr, index, 0, 0, C, C, BC, BC)
    of_between = of_lower * lower + of_read * read
    of_beta += tl.sum(of_lower * known * between, axis=1)
    of_known = of_lower * beta[:, None] * between
    both_ways = of_known + tl.trans(of_known)
    for column in range(0, K, BW):
        q = _block(q_ptr, of_key, 0, column, C, K, BC, BW)
        k = _block(k_ptr, of_key, 0, column, C, K, BC, BW)
        asked = tl.dot(transposed, _block(of_w_ptr, index, 0, column, C, K, BC, BW), input_precision=PRECISION)
        of_k = tl.dot(both_ways, k, input_precision=PRECISION) + (beta * from_start)[:, None] * asked
        of_k += tl.dot(tl.trans(of_read), q, input_precision=PRECISION)
        of_k += after[:, None] * _block(of_k_ptr, index, 0, column, C, K, BC, BW)
        of_q = tl.dot(of_read, k, input_precision=PRECISION)
        of_q += (scale * from_start)[:, None] * _block(of_q_ptr, index, 0, column, C, K, BC, BW)
        _put(of_k, k_out_ptr, index, 0, column, C, K, BC, BW)
        _put(of_q, q_out_ptr, index, 0, column, C, K, BC, BW)

    crossing = tl.where(earlier, tl.cumsum(of_between, axis=0, reverse=True), 0.0)
    of_log_alpha = tl.sum(crossing, axis=1) + tl.cumsum(of_start, axis=0, reverse=True)
    of_log_alpha += tl.cumsum(of_after, axis=0) - of_after
    of_log_alpha += tl.load(of_kept_ptr + index) * tl.exp(tl.sum(log_alpha, axis=0))
    tl.store(log_alpha_out_ptr + index * C + at, of_log_alpha, at < C)
    tl.store(beta_out_ptr + index * C + at, of_beta, at < C)


@torch.library.custom_op("linnet::delta_pass", mutates_args=())  # an operation, so that its FLOPs are counted
def pass_over_chunks(u: Tensor, w: Tensor, k: Tensor, kept: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix before each chunk, what each chunk writes, and the matrix behind the last one (`ops.delta_rule`)."""
    u, w, k, kept = _alike(u, w, k, kept)
    starts = u.new_empty(*u.shape[:4], w.shape[5], u.shape[5])
    written, end = torch.empty_like(u), starts.new_empty(state.shape)
    grid, sizes = _of_pass(u, w, kept)
    with torch.cuda.device_of(u):
        _onwards[grid](u, w, k, kept, state.contiguous(), starts, written, end, u.shape[3], **sizes, **FOR_PASS)
    return starts, written, end


@register_flop_formula(torch.ops.linnet.delta_pass)
def _pass_flops(u: torch.Size, w: torch.Size, *_: torch.Size, **__: Any) -> int:
    return 4 * u.numel() * w[-1]


def pass_back(
    of_written: Tensor, of_before: Tensor, w: Tensor, k: Tensor, kept: Tensor, of_state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the matrix behind each chunk, of what each chunk writes, and of the matrix before the first one."""
    of_written, w, k, kept = _alike(of_written, w, k, kept)
    of_before = of_before.contiguous()
    ends, writes, start = torch.empty_like(of_before), torch.empty_like(of_written), of_before.new_empty(of_state.shape)
    grid, sizes = _of_pass(of_written, w, kept)
    inputs = (of_written, of_before, w, k, kept, of_state.contiguous())
    with torch.cuda.device_of(of_written):
        _back[grid](*inputs, ends, writes, start, of_written.shape[3], **sizes, **FOR_PASS)
    return ends, writes, start


def _alike(u: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """All `[B, M, R, H, ...]`, each in one piece."""
    return u.contiguous(), *(x.expand(*u.shape[:4], *x.shape[4:]).contiguous() for x in others)


def _of_pass(u: Tensor, w: Tensor, kept: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    """Programs, and what they are compiled for."""
    writes, keys, values = u.shape[4], w.shape[5], u.shape[5]
    blocks = {"BW": min(WRITES, block(writes)), "BK": block(keys), "BV": min(MOST_VALUES, block(values))}
    widths = {"W": writes, "K": keys, "V": values, "G": kept.shape[4]}
    streams = u.shape[:3].numel()
    return (streams, triton.cdiv(values, blocks["BV"])), widths | blocks | {"PRECISION": product_precision()}


def chunks_of_heads(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """`read, q, u, w, k, kept` of `ops.gated_delta` with one gate for each head; differentiable once."""
    found: tuple[Tensor, ...] = _Chunks.apply(q, k, v, log_alpha, beta)
    return found


class _Chunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*inputs)
        found: tuple[Tensor, ...] = _chunks(*inputs)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        inputs = [x.contiguous() for x in ctx.saved_tensors]
        q, _, v, log_alpha, beta = inputs
        of_each = [v.new_empty(*v.shape[:5], q.shape[5]) for _ in range(2)]
        outs = [*of_each, torch.empty_like(v), torch.empty_like(log_alpha), torch.empty_like(beta)]
        programs, scale, sizes = _of_chunks(q, v)
        with torch.cuda.device_of(v):
            given = (x.contiguous() for x in gradients)
            _chunk_gradients[(programs,)](*inputs, *given, *outs, scale, v.shape[3], **sizes, **FOR_CHUNKS)
        return *(x.sum(2, keepdim=True) for x in outs[:2]), *outs[2:]


@torch.library.custom_op("linnet::delta_chunks", mutates_args=())
def _chunks(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v, log_alpha, beta = (x.contiguous() for x in (q, k, v, log_alpha, beta))
    shape, (chunk, keys) = v.shape[:4], q.shape[4:]
    read, kept = v.new_empty(*shape, chunk, chunk), v.new_empty(*shape, 1, 1)
    faded, w, left = (v.new_empty(*shape, chunk, keys) for _ in range(3))
    outs = (read, faded, torch.empty_like(v), w, left, kept)
    programs, scale, sizes = _of_chunks(q, v)
    with torch.cuda.device_of(v):
        _chunk[(programs,)](q, k, v, log_alpha, beta, *outs, scale, v.shape[3], **sizes, **FOR_CHUNKS)
    return outs


@register_flop_formula(torch.ops.linnet.delta_chunks)
def _chunks_flops(q: torch.Size, *_: torch.Size, **__: Any) -> int:
    """As the plain form counts: its products, once for each key head."""
    return 4 * q.numel() * q[4]


def _of_chunks(q: Tensor, v: Tensor) -> tuple[int, float, dict[str, Any]]:
    """Programs, the queries' scale, and what they are compiled for."""
    (*shape, chunk, values), keys = v.shape, q.shape[5]
    widths = {"R": v.shape[2], "C": chunk, "K": keys, "V": values}
    blocks = {"BC": block(chunk), "BW": min(WIDTH, block(max(keys, values)))}
    return torch.Size(shape).numel(), keys**-0.5, widths | blocks | {"PRECISION": product_precision()}
