"""The decaying sum in time and memory linear in the length.

Tokens are cut into chunks of C. What a token reads from its own chunk and the one before is exact: a matrix of weights
`[C, 2C]` per chunk. Sources further back have come into the bank (`rates.py`) when the reader's chunk began, and are
read from R sums that decay at fixed rates: the whole past of a chunk is `[R, H]` numbers.

Chunks are taken a segment at a time, so that what lies between inputs and outputs stays in the processor's cache; from
segment to segment the bank's sums are carried on. Forward keeps nothing but its inputs; backward makes the weights
again, segment by segment from the end.

Legend: `B` batch, `S` tokens, `N` heads, `H` channels of a head, `R` fixed rates, `P` rows times heads, `K` chunks of a
segment; a segment comes with the chunk before it (zeros at the start), so it has `K + 1`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.decay.rates import RateBank, bank_on, coefficients, coefficients_and_slopes, rate_bank
from linnet.ops.decay.reference import Keys
from linnet.ops.decay.segments import segments
from linnet.ops.kernels import use_kernels

CHUNK = 32
"""Tokens of a chunk; the fastest of 16, 32, 64 and 128 on a processor (experiments/LOG.md)."""

TOLERANCE = 1e-5

LOWEST_EXPONENT = -60.0

LARGEST_CHUNK, MOST_RATES = 64, 128
"""Of what kernels take."""


def decay_chunked(
    rates_BSN: Tensor, v_BSNH: Tensor, queries: int, tolerance: float = TOLERANCE, chunk: int = CHUNK
) -> Tensor:
    """`decay_reference` of all tokens, `[B, S, N, H]`, with every weight right to `tolerance`.

    Rates are float32 or wider, and the bank's sums are as wide as they. Differentiable once.

    Raises:
        ValueError: `queries` is not the number of tokens, or the tolerance is out of range (`rate_bank`).
    """
    if queries != rates_BSN.shape[1]:
        raise ValueError(f"queries: {queries}: must be all {rates_BSN.shape[1]} tokens")
    out: Tensor = _as_it_is(rates_BSN, v_BSNH, tolerance, chunk)
    return out


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def _as_it_is(rates_BSN: Tensor, v_BSNH: Tensor, tolerance: float, chunk: int) -> Any:
    """Also in a compiled model: its loop over chunks would be another graph for every length."""
    bank = bank_for(rates_BSN.shape[1], tolerance, chunk)
    if use_kernels(rates_BSN, v_BSNH) and rates_BSN.dtype == torch.float32 and fits(chunk, bank):
        from linnet.ops.kernels._decay import decay_by_kernels

        return decay_by_kernels(rates_BSN, v_BSNH, chunk, bank)
    return _Chunked.apply(rates_BSN, v_BSNH, chunk, bank)  # type: ignore[no-untyped-call]


def bank_for(length: int, tolerance: float, chunk: int) -> RateBank | None:
    """The bank for a sequence: made for the next power of two, so for few lengths; None where nothing is that far."""
    return rate_bank(tolerance, chunk, 1 << (length - 1).bit_length()) if length > 2 * chunk else None


def chunked_flops(length: int, width: int, heads: int, tolerance: float = TOLERANCE, chunk: int = CHUNK) -> int:
    """FLOPs of the forward pass over one sequence: 2 per multiply-add of its matrix products."""
    bank = bank_for(length, tolerance, chunk)
    return flops_with(0 if bank is None else len(bank.rates_R), length, width, heads, chunk)


def flops_with(count: int, length: int, width: int, heads: int, chunk: int) -> int:
    """The same of a bank of so many rates, 0 where there is none."""
    tokens = -(-length // chunk) * chunk
    return 2 * tokens * (2 * chunk * width + count * (heads * count + 2 * width))


def fits(chunk: int, bank: RateBank | None) -> bool:
    """Whether chunk and bank are as small as a kernel can hold."""
    return chunk <= LARGEST_CHUNK and (bank is None or len(bank.rates_R) <= MOST_RATES)


class _Chunked(torch.autograd.Function):
    """Both passes by hand: what they share is cheaper to make again than to keep."""

    @staticmethod
    def forward(ctx: Any, rates_BSN: Tensor, v_BSNH: Tensor, chunk: int, bank: RateBank | None) -> Tensor:
        ctx.save_for_backward(rates_BSN, v_BSNH)
        ctx.chunk, ctx.bank = chunk, bank
        out_BSNH = torch.empty_like(v_BSNH, memory_format=torch.contiguous_format)
        carried = None
        with torch.autocast(v_BSNH.device.type, enabled=False):
            for segment in segments(v_BSNH, chunk):
                rates_PKC, v_PKCH = segment.cut(rates_BSN[..., None])[..., 0], segment.cut(v_BSNH)
                out_PKCH = near_sums(rates_PKC, v_PKCH)
                if bank is not None:
                    carried = None if segment.start == 0 else carried
                    carried = add_far_sums(out_PKCH, bank, rates_PKC, v_PKCH.to(out_PKCH.dtype), carried)
                segment.put(out_PKCH, out_BSNH)
        return out_BSNH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BSNH: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rates_BSN, v_BSNH = ctx.saved_tensors
        grad_rates_BSN = torch.zeros_like(rates_BSN, memory_format=torch.contiguous_format)
        # Each token gets the gradients of two segments at most, so sums as narrow as the quantities lose nothing.
        grad_v_BSNH = torch.zeros_like(v_BSNH, memory_format=torch.contiguous_format)
        carried = None
        with torch.autocast(v_BSNH.device.type, enabled=False):
            for segment in reversed(list(segments(v_BSNH, ctx.chunk))):
                rates_PKC, v_PKCH = segment.cut(rates_BSN[..., None])[..., 0], segment.cut(v_BSNH)
                grad_PKCH = segment.cut(grad_BSNH)[:, 1:]
                grad_rates_PKC, grad_v_PKCH = near_gradients(rates_PKC, v_PKCH, grad_PKCH)
                if ctx.bank is not None:
                    inputs = (rates_PKC, v_PKCH.to(rates_PKC.dtype), grad_PKCH.to(rates_PKC.dtype))
                    carried = None if segment.end == v_BSNH.shape[1] else carried
                    carried = add_far_gradients(grad_rates_PKC, grad_v_PKCH, ctx.bank, *inputs, carried)
                segment.add(grad_rates_PKC[..., None], grad_rates_BSN[..., None])
                segment.add(grad_v_PKCH, grad_v_BSNH)
        return grad_rates_BSN, grad_v_BSNH, None, None


def near_ages(chunk: int, device: torch.device) -> Tensor:
    """Age of each source of two chunks for each reader of the second, 0 for what comes later: `[C, 2C]`."""
    steps = torch.arange(2 * chunk, device=device)
    return (steps[chunk:, None] - steps).clamp(min=0)


def faded_(exponents: Tensor) -> Tensor:
    """`exp`, in place, but not below 1e-26, which is far below any tolerance.

    Where `exp` itself gives numbers between 1e-45 and 1e-38, processors take a hundred times as long for each product.
    """
    return exponents.clamp_(min=LOWEST_EXPONENT).exp_()


def near_weights(rates_PKC: Tensor, ages: Tensor) -> Tensor:
    """Weights of the segment's chunks over themselves and the chunk before: `[P, K, C, 2C]`."""
    return faded_(pairs(rates_PKC)[:, :, None, :] * -ages).tril_(rates_PKC.shape[2])


def pairs(x_PKC: Tensor) -> Tensor:
    """Each chunk but the first, behind the one before it, `[P, K, 2C]` or `[P, K, 2C, H]`: a view."""
    chunk = x_PKC.shape[2]
    return x_PKC.flatten(1, 2).unfold(1, 2 * chunk, chunk).movedim(-1, 2)


def near_sums(rates_PKC: Tensor, v_PKCH: Tensor, keys: Keys | None = None) -> Tensor:
    """What each chunk of the segment reads from itself and the chunk before, `[P, K, C, H]`; as wide as the rates.

    keys: queries of the K chunks, and keys as the quantities come; `[P, K, C, M]` and `[P, K + 1, C, M]`.
    """
    weights = near_weights(rates_PKC, near_ages(rates_PKC.shape[2], rates_PKC.device)).to(v_PKCH.dtype)
    if keys is not None:
        weights *= keys.queries @ pairs(keys.keys).mT
    return (weights @ pairs(v_PKCH)).to(rates_PKC.dtype)


def near_gradients(rates_PKC: Tensor, v_PKCH: Tensor, grad_PKCH: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `near_sums`, of K + 1 chunks, both as wide as the rates."""
    chunk = rates_PKC.shape[2]
    ages = near_ages(chunk, rates_PKC.device)
    weights = near_weights(rates_PKC, ages)
    narrow = weights.to(v_PKCH.dtype).mT
    grad_v_PKCH = v_PKCH.new_zeros(v_PKCH.shape, dtype=rates_PKC.dtype)
    grad_v_PKCH[:, 1:] = narrow[:, :, chunk:] @ grad_PKCH
    grad_v_PKCH[:, :-1] += narrow[:, :, :chunk] @ grad_PKCH
    grad_weights = grad_PKCH @ pairs(v_PKCH).mT
    grad_pairs = -weights.mul_(ages).mul_(grad_weights).sum(2)
    grad_rates_PKC = torch.zeros_like(rates_PKC)
    grad_rates_PKC[:, 1:] = grad_pairs[:, :, chunk:]
    grad_rates_PKC[:, :-1] += grad_pairs[:, :, :chunk]
    return grad_rates_PKC, grad_v_PKCH


def entry_ages(chunk: int, device: torch.device) -> Tensor:
    """Age of each source of a chunk when the chunk after the next begins, and with it the source's time in the bank."""
    return torch.arange(2 * chunk, chunk, -1, device=device)


def readout(bank: RateBank, like: Tensor) -> Tensor:
    """What is left of the bank's sums for each reader of a chunk: `[C, R]`."""
    rates_R = bank_on(bank, like.device).rates_R
    steps = torch.arange(bank.nearest, dtype=torch.float64, device=like.device)
    return torch.exp(-steps[:, None] * rates_R).to(like.dtype)


def add_far_sums(
    out_PKCH: Tensor,
    bank: RateBank,
    rates_PKC: Tensor,
    v_PKCH: Tensor,
    carried_PRH: Tensor | None,
    keys: Keys | None = None,
) -> Tensor:
    """Add to each chunk of the segment what it reads from all before the chunk before it, through the bank.

    Takes the sums that its first chunk reads, gives those that the next segment's first chunk reads: `[P, R, H]`. With
    keys there is a sum for each fixed rate and each place in a key: R is then the number of both.
    """
    entries_KPCR = chunks_first(entries(bank, rates_PKC[:, :-1]).to(v_PKCH))
    readout_KPCR, v_KPCH = readout(bank, v_PKCH).expand(*entries_KPCR.shape[:2], -1, -1), chunks_first(v_PKCH[:, :-1])
    if keys is not None:
        entries_KPCR = by_key(entries_KPCR, chunks_first(keys.keys[:, :-1]))
        readout_KPCR = by_key(readout_KPCR, chunks_first(keys.queries))
    sums_KPRH = far_sums(bank, entries_KPCR, v_KPCH, carried_PRH)
    out_PKCH += (readout_KPCR @ sums_KPRH[:-1]).transpose(0, 1)
    return sums_KPRH[-1]


def chunks_first(x_PK: Tensor) -> Tensor:
    """`[P, K, ...] -> [K, P, ...]`, in one piece: products with the sums of all chunks but one then need no copies."""
    return x_PK.transpose(0, 1).contiguous()


def entries(bank: RateBank, rates_PKC: Tensor) -> Tensor:
    """With which factors the tokens of each chunk come into the bank, float64 `[P, K, C, R]`."""
    entry_PKC = faded_(-rates_PKC.double() * entry_ages(bank.nearest, rates_PKC.device))
    return coefficients(bank, rates_PKC) * entry_PKC[..., None]


def by_key(factors_XR: Tensor, key_XM: Tensor) -> Tensor:
    """A factor for each fixed rate and each place in a key, `[..., R M]`."""
    return (factors_XR[..., None] * key_XM[..., None, :]).flatten(-2)


def far_sums(
    bank: RateBank, factors_KPCR: Tensor, x_KPCH: Tensor, carried_PRH: Tensor | None, backwards: bool = False
) -> Tensor:
    """The sums that each chunk of the segment reads, and those that the chunk after it will, `[K + 1, P, R, H]`.

    Backwards: of what each chunk reads and its gradients, running from the end, the gradients of these sums.
    """
    chunks, streams, _, channels = x_KPCH.shape
    sums_KPRH = x_KPCH.new_empty(chunks + 1, streams, factors_KPCR.shape[3], channels)
    of_chunks, first = (sums_KPRH[:-1], sums_KPRH[-1]) if backwards else (sums_KPRH[1:], sums_KPRH[0])
    torch.bmm(factors_KPCR.flatten(0, 1).mT, x_KPCH.flatten(0, 1), out=of_chunks.flatten(0, 1))
    if carried_PRH is None:
        first.zero_()
    else:
        first.copy_(carried_PRH)
    sums = sums_KPRH.unbind(0)
    run_on(sums[::-1] if backwards else sums, bank)
    return sums_KPRH


def run_on(sums: Sequence[Tensor], bank: RateBank) -> None:
    """Running sums over the chunks, in place: each is its own and what the chunk's steps left of those before.

    `[..., R, H]`, or with keys `[..., R M, H]`.
    """
    # d - 1 instead of d: near 1 a rounded d would be another rate.
    rates_R = bank_on(bank, sums[0].device).rates_R
    less_R = torch.expm1(-rates_R * bank.nearest).to(sums[0].dtype)
    less_R1 = less_R.repeat_interleave(sums[0].shape[-2] // len(less_R))[:, None]
    for before, now in pairwise(sums):
        now.add_(before).addcmul_(before, less_R1)


def add_far_gradients(
    grad_rates_PKC: Tensor,
    grad_v_PKCH: Tensor,
    bank: RateBank,
    rates_PKC: Tensor,
    v_PKCH: Tensor,
    grad_PKCH: Tensor,
    carried_PRH: Tensor | None,
) -> Tensor:
    """Add the gradients of `add_far_sums`: its products the other way round, its running sums from the end.

    Takes the gradient of the sums that it gave, gives that of the sums that it took: `[P, R, H]`.
    """
    rates_KPC, v_KPCH, grad_KPCH = (chunks_first(x) for x in (rates_PKC[:, :-1], v_PKCH[:, :-1], grad_PKCH))
    readout_KPCR = readout(bank, v_PKCH).expand(*rates_KPC.shape[:2], -1, -1)
    grad_sums_KPRH = far_sums(bank, readout_KPCR, grad_KPCH, carried_PRH, backwards=True)
    entries_KPCR, slopes_KPCR = (x.to(v_PKCH) for x in entries_and_slopes(bank, rates_KPC))
    grad_v_PKCH[:, :-1] += (entries_KPCR @ grad_sums_KPRH[1:]).transpose(0, 1)
    grad_entries_KPCR = v_KPCH @ grad_sums_KPRH[1:].mT
    grad_rates_PKC[:, :-1] += (grad_entries_KPCR * slopes_KPCR).sum(-1).transpose(0, 1)
    return grad_sums_KPRH[0]


def entries_and_slopes(bank: RateBank, rates_KPC: Tensor) -> tuple[Tensor, Tensor]:
    """With which factors tokens come into the bank, and their slopes in the rate, float64 `[..., C, R]`."""
    ages_C = entry_ages(bank.nearest, rates_KPC.device)
    entry_KPC1 = faded_(-rates_KPC.double() * ages_C)[..., None]
    coefficients_KPCR, slopes_KPCR = coefficients_and_slopes(bank, rates_KPC)
    return coefficients_KPCR * entry_KPC1, (slopes_KPCR - ages_C[:, None] * coefficients_KPCR) * entry_KPC1
