"""The decaying sum in chunks (`ops.decay.sums`) on a GPU.

The readers of a chunk see the chunk itself and the one before exactly, and everything further back through the sums of
the bank. The forward pass is three kernels: what each chunk adds to the bank (`_enter`), running sums over the chunks
(`_accumulate`), and what all tokens read (`_read`). The backward pass is the reverse: the gradients of the sums from
the readers of each chunk, running sums from the end, and the gradients of the sources of each chunk (`_gradients_of_v`,
`_gradients_of_rates`). Only the inputs are saved.

The coefficients of the bank are computed where they are used, in float64, by the barycentric form of the same
polynomials (`ops.decay.rates.barycentric`).

Legend: `B` batch, `S` tokens, `N` heads, `H` channels of a head, `R` fixed rates, `C` tokens of a chunk, `K` chunks,
`P` rows times heads. Sizes of blocks, powers of two, begin with a `B` in kernels: `BC`, `BR`, `BH`.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from linnet.ops.decay.chunks import chunked_flops, read_factors
from linnet.ops.decay.rates import RateBank, bank_on, barycentric, barycentric_places
from linnet.ops.kernels import block, product_precision

LOWEST_EXPONENT = tl.constexpr(-60.0)
SAME_RATE, NEAR_RATE = tl.constexpr(1e-9), tl.constexpr(2e-6)
"""Distances in y: below the first a coefficient is that of the fixed rate itself; below the second its derivative is
computed from the next two terms of a series."""

MAX_BLOCK_CHANNELS = 64
"""Largest number of channels of a block."""
SUMS_PER_PROGRAM = 256
"""Elements of the sums that one program carries from chunk to chunk."""
RATE_OPTIONS = {"num_warps": 8, "num_stages": 1}
"""Build options with which the most expensive kernel fits into registers and shared memory."""


@triton.jit
def _tokens(
    ptr, b, n, step, first, column, S, CHUNK: tl.constexpr, H: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr
):
    """Places of the tokens of a chunk from `first` on, `[BC, BH]`, and which are in the chunk, the stream, the head."""
    at, columns = tl.arange(0, BC), column + tl.arange(0, BH)
    real = (at < CHUNK) & (first + at >= 0) & (first + at < S)
    places = ptr + ((b * S + first + at) * step + n * H)[:, None] + columns[None, :]
    return places, real[:, None] & (columns < H)[None, :]


@triton.jit
def _token_numbers(ptr, b, n, N, first, S, WIDTH: tl.constexpr, CHUNK: tl.constexpr, BC: tl.constexpr):
    """Places of the first of `WIDTH` numbers of each token of a chunk, `[BC]`, and which of the tokens are real."""
    at = tl.arange(0, BC)
    real = (at < CHUNK) & (first + at >= 0) & (first + at < S)
    return ptr + ((b * S + first + at) * N + n) * WIDTH, real


@triton.jit
def _sums(ptr, index, count, column, H: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr):
    """Places of the sums of a chunk, `[BR, BH]`, and which are among the first `count`, and in the head."""
    r, columns = tl.arange(0, BR), column + tl.arange(0, BH)
    return ptr + ((index * R + r) * H)[:, None] + columns[None, :], (r < count)[:, None] & (columns < H)[None, :]


@triton.jit
def _weights(rates, BETWEEN: tl.constexpr, CHUNK: tl.constexpr, BC: tl.constexpr):
    """Weights of the sources of a chunk for the readers `BETWEEN` chunks later, and their ages: `[BC readers, BC]`."""
    at = tl.arange(0, BC)
    ages = at[:, None] + BETWEEN * CHUNK - at[None, :]
    seen = (ages >= 0) & (at < CHUNK)[:, None] & (at < CHUNK)[None, :]
    ages = tl.maximum(ages, 0).to(tl.float32)
    return tl.where(seen, tl.exp(tl.maximum(-rates[None, :] * ages, LOWEST_EXPONENT)), 0.0), ages


@triton.jit
def _entry_decays(rates, CHUNK: tl.constexpr, BC: tl.constexpr):
    """The decay of each source up to the start of the chunk after the next, and its age then: `[BC]`, in float64."""
    ages = (2 * CHUNK - tl.arange(0, BC)).to(tl.float32)
    return tl.exp(tl.maximum(-rates * ages, LOWEST_EXPONENT)).to(tl.float64), ages.to(tl.float64)


@triton.jit
def _coefficients(places, real, fixed_ptr, R: tl.constexpr, BR: tl.constexpr):
    """`phi_r` at the rates of a chunk, `[BC, BR]`, `y - y_r`, its inverse, and the factors `c_r`; in float64."""
    r = tl.arange(0, BR)
    fixed_y = tl.load(fixed_ptr + r, mask=r < R, other=3.0)
    factors = tl.load(fixed_ptr + R + r, mask=r < R, other=0.0)
    y, value = tl.load(places + 1, real, other=0.0), tl.load(places + 2, real, other=0.0)
    apart = y[:, None] - fixed_y[None, :]
    same = tl.abs(apart) < SAME_RATE
    divisor = tl.where(same, 1.0, apart)
    inverse = (1.0 / divisor.to(tl.float32)).to(tl.float64)
    inverse *= 2.0 - divisor * inverse  # a step of Newton's method gives 1e-14; many GPUs divide float64 slowly
    return tl.where(same, 1.0, factors[None, :] * value[:, None] * inverse), apart, inverse, factors


@triton.jit
def _readout(ptr, R: tl.constexpr, CHUNK: tl.constexpr, BC: tl.constexpr, BR: tl.constexpr):
    """The decay of the sums for each reader, `[BC, BR]`."""
    at, r = tl.arange(0, BC), tl.arange(0, BR)
    return tl.load(ptr + at[:, None] * R + r[None, :], mask=(at < CHUNK)[:, None] & (r < R)[None, :], other=0.0)


@triton.jit
def _enter(
    x_ptr, rates_ptr, polynomials_ptr, fixed_ptr, readout_ptr, sums_ptr, step, S, N, K,
    SOURCES: tl.constexpr, H: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr,
    BC: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What the sources of chunk k add to the sums; without `SOURCES`, the gradients from the readers of chunk k + 2."""
    program, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BH
    b, n, k = program // (N * K), program // K % N, program % K
    if SOURCES:
        first = k * CHUNK
        places, real = _token_numbers(rates_ptr, b, n, N, first, S, 1, CHUNK, BC)
        rates = tl.load(places, real, other=0.0)
        places, real = _token_numbers(polynomials_ptr, b, n, N, first, S, 6, CHUNK, BC)
        phi, _, _, _ = _coefficients(places, real, fixed_ptr, R, BR)
        decays, _ = _entry_decays(rates, CHUNK, BC)
        factors = (phi * decays[:, None]).to(tl.float32)
    else:
        first = (k + 2) * CHUNK
        factors = _readout(readout_ptr, R, CHUNK, BC, BR)
    x_places, x_real = _tokens(x_ptr, b, n, step, first, column, S, CHUNK, H, BC, BH)
    x = tl.load(x_places, x_real, other=0.0).to(tl.float32)
    sums_places, inside = _sums(sums_ptr, program, R, column, H, R, BR, BH)
    tl.store(sums_places, tl.dot(tl.trans(factors), x, input_precision=PRECISION), inside)


@triton.jit
def _accumulate(sums_ptr, less_ptr, K, BACKWARDS: tl.constexpr, H: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    """Running sums over the chunks, in place: each is its own plus the decayed one before."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < R * H
    less = tl.load(less_ptr + at // H, inside, other=0.0)
    start = tl.program_id(0).to(tl.int64) * K
    step = R * H
    if BACKWARDS:
        start += K - 1
        step = -R * H
    places, sums = sums_ptr + start * R * H + at, tl.zeros([BLOCK], tl.float32)
    for _ in range(K):
        sums += sums * less + tl.load(places, inside, other=0.0)
        tl.store(places, sums, inside)
        places += step


@triton.jit
def _read(
    v_ptr, rates_ptr, readout_ptr, sums_ptr, out_ptr, step, S, N, K,
    FAR: tl.constexpr, H: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr,
    BC: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What the tokens of chunk k read."""
    program, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BH
    b, n, k = program // (N * K), program // K % N, program % K
    out = tl.zeros([BC, BH], tl.float32)
    for between in tl.static_range(2):
        first = (k - between) * CHUNK
        places, real = _token_numbers(rates_ptr, b, n, N, first, S, 1, CHUNK, BC)
        rates = tl.load(places, real, other=0.0)
        weights, _ = _weights(rates, between, CHUNK, BC)
        v_places, v_real = _tokens(v_ptr, b, n, step, first, column, S, CHUNK, H, BC, BH)
        v = tl.load(v_places, v_real, other=0.0)
        out += tl.dot(weights, v.to(tl.float32), input_precision=NEAR)
    if FAR:
        count = tl.where(k >= 2, R, 0)
        sums_places, inside = _sums(sums_ptr, (b * N + n) * (K - 2) + k - 2, count, column, H, R, BR, BH)
        sums = tl.load(sums_places, inside, other=0.0)
        out += tl.dot(_readout(readout_ptr, R, CHUNK, BC, BR), sums, input_precision=PRECISION)
    out_places, out_real = _tokens(out_ptr, b, n, N * H, k * CHUNK, column, S, CHUNK, H, BC, BH)
    tl.store(out_places, out, out_real)


@triton.jit
def _gradients_of_v(
    g_ptr, rates_ptr, polynomials_ptr, fixed_ptr, sums_ptr, out_ptr, S, N, K,
    FAR: tl.constexpr, H: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr,
    BC: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the quantities of chunk k, from readers there, in the next chunk, and through the sums."""
    program, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BH
    b, n, k = program // (N * K), program // K % N, program % K
    places, real = _token_numbers(rates_ptr, b, n, N, k * CHUNK, S, 1, CHUNK, BC)
    rates = tl.load(places, real, other=0.0)
    out = tl.zeros([BC, BH], tl.float32)
    for between in tl.static_range(2):
        weights, _ = _weights(rates, between, CHUNK, BC)
        g_places, g_real = _tokens(g_ptr, b, n, N * H, (k + between) * CHUNK, column, S, CHUNK, H, BC, BH)
        g = tl.load(g_places, g_real, other=0.0)
        out += tl.dot(tl.trans(weights), g.to(tl.float32), input_precision=NEAR)
    if FAR:
        places, real = _token_numbers(polynomials_ptr, b, n, N, k * CHUNK, S, 6, CHUNK, BC)
        phi, _, _, _ = _coefficients(places, real, fixed_ptr, R, BR)
        decays, _ = _entry_decays(rates, CHUNK, BC)
        count = tl.where(k < K - 2, R, 0)
        sums_places, inside = _sums(sums_ptr, (b * N + n) * (K - 2) + k, count, column, H, R, BR, BH)
        sums = tl.load(sums_places, inside, other=0.0)
        out += tl.dot((phi * decays[:, None]).to(tl.float32), sums, input_precision=PRECISION)
    out_places, out_real = _tokens(out_ptr, b, n, N * H, k * CHUNK, column, S, CHUNK, H, BC, BH)
    tl.store(out_places, out, out_real)


@triton.jit
def _gradients_of_rates(
    v_ptr, g_ptr, rates_ptr, polynomials_ptr, fixed_ptr, sums_ptr, out_ptr, step, S, N, K,
    FAR: tl.constexpr, H: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr,
    BC: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the rates of chunk k: those of their weights for the same readers, times the weights' slopes."""
    program = tl.program_id(0).to(tl.int64)
    b, n, k = program // (N * K), program // K % N, program % K
    grad_weights_here, grad_weights_next = tl.zeros([BC, BC], tl.float32), tl.zeros([BC, BC], tl.float32)
    grad_entries = tl.zeros([BC, BR], tl.float32)
    count = tl.where(k < K - 2, R, 0)
    for column in range(0, H, BH):
        v_places, v_real = _tokens(v_ptr, b, n, step, k * CHUNK, column, S, CHUNK, H, BC, BH)
        here_places, here_real = _tokens(g_ptr, b, n, N * H, k * CHUNK, column, S, CHUNK, H, BC, BH)
        there_places, there_real = _tokens(g_ptr, b, n, N * H, (k + 1) * CHUNK, column, S, CHUNK, H, BC, BH)
        v = tl.load(v_places, v_real, other=0.0).to(tl.float32)
        here = tl.load(here_places, here_real, other=0.0).to(tl.float32)
        there = tl.load(there_places, there_real, other=0.0).to(tl.float32)
        grad_weights_here += tl.dot(here, tl.trans(v), input_precision=NEAR)
        grad_weights_next += tl.dot(there, tl.trans(v), input_precision=NEAR)
        if FAR:
            sums_places, inside = _sums(sums_ptr, (b * N + n) * (K - 2) + k, count, column, H, R, BR, BH)
            sums = tl.load(sums_places, inside, other=0.0)
            grad_entries += tl.dot(v, tl.trans(sums), input_precision=PRECISION)
    places, real = _token_numbers(rates_ptr, b, n, N, k * CHUNK, S, 1, CHUNK, BC)
    rates = tl.load(places, real, other=0.0)
    weights, ages = _weights(rates, 0, CHUNK, BC)
    out = -tl.sum(weights * ages * grad_weights_here, axis=0)
    weights, ages = _weights(rates, 1, CHUNK, BC)
    out -= tl.sum(weights * ages * grad_weights_next, axis=0)
    if FAR:
        places, real = _token_numbers(polynomials_ptr, b, n, N, k * CHUNK, S, 6, CHUNK, BC)
        phi, apart, inverse, factors = _coefficients(places, real, fixed_ptr, R, BR)
        inner, slope = tl.load(places, real, other=0.0), tl.load(places + 3, real, other=0.0)
        second, third = tl.load(places + 4, real, other=0.0), tl.load(places + 5, real, other=0.0)
        decays, entry_ages = _entry_decays(rates, CHUNK, BC)
        near_slopes = factors[None, :] * (second[:, None] - apart * third[:, None])
        slopes = tl.where(tl.abs(apart) < NEAR_RATE, near_slopes, (factors[None, :] * slope[:, None] - phi) * inverse)
        slopes = (slopes * inner[:, None] - entry_ages[:, None] * phi) * decays[:, None]
        out += tl.sum(grad_entries * slopes.to(tl.float32), axis=1)
    out_places, out_real = _token_numbers(out_ptr, b, n, N, k * CHUNK, S, 1, CHUNK, BC)
    tl.store(out_places, out, out_real)


class DecayByKernels(torch.autograd.Function):
    """`ops.decay.sums.decay_chunked` of float32 rates, `[B, S, N, H]`."""

    @staticmethod
    def forward(ctx: Any, rates_BSN: Tensor, v_BSNH: Tensor, chunk: int, bank: RateBank | None) -> Tensor:
        ctx.save_for_backward(rates_BSN, v_BSNH)
        ctx.chunk, ctx.bank = chunk, bank
        places = [] if bank is None else [barycentric_places(bank, rates_BSN)]
        out_BSNH: Tensor = _forward(rates_BSN, v_BSNH, chunk, [*places, *_constants(bank, v_BSNH.device)])
        return out_BSNH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BSNH: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rates_BSN, v_BSNH = ctx.saved_tensors
        places = [] if ctx.bank is None else [barycentric_places(ctx.bank, rates_BSN)]
        bank_tensors = [*places, *_constants(ctx.bank, v_BSNH.device)]
        return *_backward(rates_BSN, v_BSNH, grad_BSNH, ctx.chunk, bank_tensors), None, None


@lru_cache(maxsize=64)
def _constants(bank: RateBank | None, device: torch.device) -> tuple[Tensor, ...]:
    """Fixed rates and factors `[2, R]`, the decay of the sums over a chunk minus 1 `[R]`, and the readout `[C, R]`."""
    if bank is None:
        return ()
    with torch.inference_mode(False):
        less_R = torch.expm1(-bank_on(bank, device).rates_R * bank.nearest).float()
        return barycentric(bank).to(device), less_R, read_factors(bank, less_R)


@torch.library.custom_op("linnet::decay", mutates_args=())  # a custom operator, so that its FLOPs are counted
def _forward(rates_BSN: Tensor, v_BSNH: Tensor, chunk: int, bank_tensors: list[Tensor]) -> Tensor:
    """bank_tensors: `barycentric_places` of the rates and `_constants`; empty without a bank."""
    rates_BSN, (v_BSNH, step) = rates_BSN.contiguous(), _with_step(v_BSNH)
    out_BSNH = torch.empty_like(v_BSNH, memory_format=torch.contiguous_format)
    batch, length, heads, channels = v_BSNH.shape
    chunks, sizes = triton.cdiv(length, chunk), _sizes(v_BSNH, chunk, bank_tensors)
    sums = _running_sums(v_BSNH, step, rates_BSN, bank_tensors, sizes, sources=True) if bank_tensors else out_BSNH
    grid = (batch * heads * chunks, triton.cdiv(channels, sizes["BH"]))
    readout = bank_tensors[-1] if bank_tensors else out_BSNH
    inputs = (v_BSNH, rates_BSN, readout, sums, out_BSNH, step, length, heads, chunks)
    with torch.cuda.device_of(v_BSNH):
        _read[grid](*inputs, FAR=bool(bank_tensors), **sizes)
    return out_BSNH


@register_flop_formula(torch.ops.linnet.decay)
def _flops(rates: torch.Size, v: torch.Size, chunk: int, bank_tensors: list[torch.Size], **_: Any) -> int:
    """Counted as in the plain form."""
    batch, length, heads, channels = v
    return batch * chunked_flops(bank_tensors[2][0] if bank_tensors else 0, length, heads * channels, heads, chunk)


def _backward(
    rates_BSN: Tensor, v_BSNH: Tensor, grad_BSNH: Tensor, chunk: int, bank_tensors: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The gradients of rates and quantities."""
    rates_BSN, (v_BSNH, step) = rates_BSN.contiguous(), _with_step(v_BSNH)
    grad_BSNH = grad_BSNH.to(v_BSNH.dtype).contiguous()
    batch, length, heads, channels = v_BSNH.shape
    chunks, sizes = triton.cdiv(length, chunk), _sizes(v_BSNH, chunk, bank_tensors)
    grad_rates, grad_v = torch.empty_like(rates_BSN), torch.empty_like(grad_BSNH)
    places, fixed, sums = grad_BSNH, grad_BSNH, grad_BSNH
    if bank_tensors:
        places, fixed, *_ = bank_tensors
        sums = _running_sums(grad_BSNH, heads * channels, rates_BSN, bank_tensors, sizes, sources=False)
    programs, shape, far = batch * heads * chunks, (length, heads, chunks), bool(bank_tensors)
    known = (rates_BSN, places, fixed, sums)
    with torch.cuda.device_of(v_BSNH):
        grid = (programs, triton.cdiv(channels, sizes["BH"]))
        _gradients_of_v[grid](grad_BSNH, *known, grad_v, *shape, FAR=far, **sizes)
        _gradients_of_rates[(programs,)](
            v_BSNH, grad_BSNH, *known, grad_rates, step, *shape, FAR=far, **sizes, **RATE_OPTIONS
        )
    return grad_rates, grad_v


def _running_sums(
    x_BSNH: Tensor, step: int, rates_BSN: Tensor, bank_tensors: list[Tensor], sizes: dict[str, Any], sources: bool
) -> Tensor:
    """The sums of the bank after each chunk but the last two, or (without `sources`) their gradients.

    `[P, K - 2, R, H]`.
    """
    places, fixed, less_R, readout = bank_tensors
    batch, length, heads, channels = x_BSNH.shape
    streams, chunks, count = batch * heads, triton.cdiv(length, sizes["CHUNK"]) - 2, len(less_R)
    sums = torch.empty(streams, chunks, count, channels, device=x_BSNH.device)
    grid = (streams * chunks, triton.cdiv(channels, sizes["BH"]))
    numbers = {"H": channels, "R": count, "BLOCK": SUMS_PER_PROGRAM}
    with torch.cuda.device_of(x_BSNH):
        inputs = (x_BSNH, rates_BSN, places, fixed, readout, sums, step, length, heads, chunks)
        _enter[grid](*inputs, SOURCES=sources, **sizes)
        across = (streams, triton.cdiv(count * channels, SUMS_PER_PROGRAM))
        _accumulate[across](sums, less_R, chunks, BACKWARDS=not sources, **numbers)
    return sums


def _with_step(x_BSNH: Tensor) -> tuple[Tensor, int]:
    """The tensor with contiguous tokens at even distances, copied if necessary, and the distance."""
    _, length, _, channels = x_BSNH.shape
    step = x_BSNH.stride(1)
    if x_BSNH.stride() != (length * step, step, channels, 1):
        x_BSNH = x_BSNH.contiguous()
    return x_BSNH, x_BSNH.stride(1)


def _sizes(v_BSNH: Tensor, chunk: int, bank_tensors: list[Tensor]) -> dict[str, Any]:
    """The sizes for which kernels are compiled."""
    channels, count = v_BSNH.shape[3], len(bank_tensors[2]) if bank_tensors else 1
    blocks = {"BC": block(chunk), "BR": block(count), "BH": min(MAX_BLOCK_CHANNELS, block(channels))}
    precision = product_precision()
    near = precision if v_BSNH.dtype == torch.float32 else "tf32"  # which is exact for bfloat16
    return {"H": channels, "R": count, "CHUNK": chunk, "NEAR": near, "PRECISION": precision, **blocks}
