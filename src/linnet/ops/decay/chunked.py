"""The decaying sum in time and memory linear in the length.

Tokens are cut into chunks of C. What a token reads from its own chunk and the one before is exact: a matrix of weights
`[C, 2C]` per chunk. Sources further back have come into the bank (`rates.py`) when the reader's chunk began, and are
read from R sums that decay at fixed rates: the whole past of a chunk is `[R, H]` numbers.

Forward keeps nothing but its inputs; backward makes the weights again.

Legend: `B` batch, `S` tokens, `N` heads, `H` channels of a head, `R` fixed rates. The chunks of all rows and heads lie
one after another, `G` of them; each row and head begins with a chunk of zeros, so that every other has one before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.decay.rates import RateBank, coefficients, coefficients_and_slopes, rate_bank

CHUNK = 32
"""Tokens of a chunk; the fastest of 16, 32, 64 and 128 on a processor (experiments/LOG.md)."""

TOLERANCE = 1e-5


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


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _as_it_is(rates_BSN: Tensor, v_BSNH: Tensor, tolerance: float, chunk: int) -> Any:
    """Also in a compiled model: its loop over chunks would be another graph for every length."""
    bank = bank_for(rates_BSN.shape[1], tolerance, chunk)
    return _Chunked.apply(rates_BSN, v_BSNH, chunk, bank)  # type: ignore[no-untyped-call]


def bank_for(length: int, tolerance: float, chunk: int) -> RateBank | None:
    """The bank for a sequence: made for the next power of two, so for few lengths; None where nothing is that far."""
    return rate_bank(tolerance, chunk, 1 << (length - 1).bit_length()) if length > 2 * chunk else None


def chunked_flops(length: int, width: int, heads: int, tolerance: float = TOLERANCE, chunk: int = CHUNK) -> int:
    """FLOPs of the forward pass over one sequence: 2 per multiply-add of its matrix products."""
    bank = bank_for(length, tolerance, chunk)
    chunks, head_width = heads * _Chunks(1, length, heads, chunk).count, width // heads
    near = (chunks - 1) * chunk * 2 * chunk * head_width
    if bank is None:
        return 2 * near
    count = len(bank.rates_R)
    entries = chunks * chunk * count * (count + head_width)
    return 2 * (near + entries + (chunks - 2) * chunk * count * head_width)


@dataclass(frozen=True)
class _Chunks:
    """How `[B, S, N, H]` is cut, and back."""

    batch: int
    length: int
    heads: int
    chunk: int

    @property
    def count(self) -> int:
        """Chunks of a row and head, the zeros before them included."""
        return 1 - (-self.length // self.chunk)

    def cut(self, x_BSNH: Tensor) -> Tensor:
        """`[G, C, H]`, a copy."""
        after = (self.count - 1) * self.chunk - self.length
        x_BNSH = F.pad(x_BSNH.transpose(1, 2), (0, 0, self.chunk, after))
        return x_BNSH.reshape(-1, self.chunk, x_BSNH.shape[-1])

    def join(self, x_GCH: Tensor) -> Tensor:
        """`[B, S, N, H]`, a view."""
        x_BNSH = x_GCH.reshape(self.batch, self.heads, self.count * self.chunk, -1)
        return x_BNSH[:, :, self.chunk : self.chunk + self.length].transpose(1, 2)

    def rows(self, x_GRH: Tensor) -> Tensor:
        """`[B N, chunks, R, H]`, a view."""
        return x_GRH.view(self.batch * self.heads, self.count, *x_GRH.shape[1:])


class _Chunked(torch.autograd.Function):
    """Both passes by hand: what they share is cheaper to make again than to keep."""

    @staticmethod
    def forward(ctx: Any, rates_BSN: Tensor, v_BSNH: Tensor, chunk: int, bank: RateBank | None) -> Tensor:
        batch, length, heads = rates_BSN.shape
        ctx.save_for_backward(rates_BSN, v_BSNH)
        ctx.bank, ctx.chunks = bank, _Chunks(batch, length, heads, chunk)
        with torch.autocast(v_BSNH.device.type, enabled=False):
            rates_GC, v_GCH = ctx.chunks.cut(rates_BSN[..., None])[..., 0], ctx.chunks.cut(v_BSNH)
            out_GCH = near_sums(rates_GC, v_GCH)
            if bank is not None:
                add_far_sums(out_GCH, ctx.chunks, bank, rates_GC, v_GCH.to(out_GCH.dtype))
            out: Tensor = ctx.chunks.join(out_GCH).to(v_BSNH.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BSNH: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rates_BSN, v_BSNH = ctx.saved_tensors
        chunks: _Chunks = ctx.chunks
        with torch.autocast(v_BSNH.device.type, enabled=False):
            rates_GC, v_GCH = chunks.cut(rates_BSN[..., None])[..., 0], chunks.cut(v_BSNH)
            grad_GCH = chunks.cut(grad_BSNH)
            grad_rates_GC, grad_v_GCH = near_gradients(rates_GC, v_GCH, grad_GCH)
            if ctx.bank is not None:
                add_far_gradients(grad_rates_GC, grad_v_GCH, chunks, ctx.bank, rates_GC, v_GCH, grad_GCH)
            grad_rates_BSN = chunks.join(grad_rates_GC[..., None])[..., 0]
            grad_v_BSNH = chunks.join(grad_v_GCH).to(v_BSNH.dtype)
        return grad_rates_BSN, grad_v_BSNH, None, None


def near_ages(chunk: int, device: torch.device) -> Tensor:
    """Age of each source of two chunks for each reader of the second, 0 for what comes later: `[C, 2C]`."""
    steps = torch.arange(2 * chunk, device=device)
    return (steps[chunk:, None] - steps).clamp(min=0)


def near_weights(rates_GC: Tensor, ages: Tensor) -> Tensor:
    """Weights of all chunks but the first over themselves and the chunk before: `[G - 1, C, 2C]`."""
    chunk = rates_GC.shape[1]
    exponents = pairs(rates_GC)[:, None, :] * -ages
    return exponents.exp_().tril_(chunk)


def pairs(x_GC: Tensor) -> Tensor:
    """Each chunk behind the one before it, `[G - 1, 2C]` or `[G - 1, 2C, H]`: a view."""
    chunk = x_GC.shape[1]
    return x_GC.flatten(0, 1).unfold(0, 2 * chunk, chunk).movedim(-1, 1)


def near_sums(rates_GC: Tensor, v_GCH: Tensor) -> Tensor:
    """What a chunk reads from itself and the chunk before; the first chunk reads nothing: `[G, C, H]`, as the rates."""
    weights = near_weights(rates_GC, near_ages(rates_GC.shape[1], rates_GC.device)).to(v_GCH.dtype)
    out_GCH = torch.zeros(v_GCH.shape, dtype=rates_GC.dtype, device=v_GCH.device)
    add_product(out_GCH[1:], weights, pairs(v_GCH))
    return out_GCH


def add_product(out: Tensor, left: Tensor, right: Tensor) -> None:
    """`out += left @ right`, without a copy of the product where the precision is the same."""
    if out.dtype == left.dtype:
        out.baddbmm_(left, right)
    else:
        out += left @ right


def near_gradients(rates_GC: Tensor, v_GCH: Tensor, grad_GCH: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `near_sums`, both as wide as the rates."""
    chunk, grad_later = rates_GC.shape[1], grad_GCH[1:]
    ages = near_ages(chunk, rates_GC.device)
    weights = near_weights(rates_GC, ages)
    narrow = weights.to(v_GCH.dtype).mT
    grad_v_GCH = torch.zeros(v_GCH.shape, dtype=rates_GC.dtype, device=v_GCH.device)
    add_product(grad_v_GCH[1:], narrow[:, chunk:], grad_later)
    add_product(grad_v_GCH[:-1], narrow[:, :chunk], grad_later)
    grad_weights = grad_later @ pairs(v_GCH).mT
    grad_pairs = -weights.mul_(ages).mul_(grad_weights).sum(1)
    grad_rates_GC = torch.zeros_like(rates_GC)
    grad_rates_GC[1:] = grad_pairs[:, chunk:]
    grad_rates_GC[:-1] += grad_pairs[:, :chunk]
    return grad_rates_GC, grad_v_GCH


def entry_ages(chunk: int, device: torch.device) -> Tensor:
    """Age of each source of a chunk when the chunk after the next begins, and with it the source's time in the bank."""
    return torch.arange(2 * chunk, chunk, -1, device=device)


def readout(bank: RateBank, like: Tensor) -> Tensor:
    """What is left of the bank's sums for each reader of a chunk: `[C, R]`."""
    steps = torch.arange(bank.nearest, dtype=torch.float64)
    return torch.exp(-steps[:, None] * bank.rates_R).to(like)


def add_far_sums(out_GCH: Tensor, chunks: _Chunks, bank: RateBank, rates_GC: Tensor, v_GCH: Tensor) -> None:
    """Add to each chunk what it reads from all before the chunk before it, through the bank."""
    entry_GC = torch.exp(-rates_GC.double() * entry_ages(chunks.chunk, rates_GC.device))
    entries_GCR = (coefficients(bank, rates_GC) * entry_GC[..., None]).to(v_GCH)
    sums_GRH = entries_GCR.mT @ v_GCH
    run_on(chunks.rows(sums_GRH).unbind(1), bank)
    chunks.rows(sums_GRH)[:, -2:] = 0.0  # the next row starts anew
    add_product(out_GCH[2:], readout(bank, v_GCH).expand(len(out_GCH) - 2, -1, -1), sums_GRH[:-2])


def run_on(sums: Sequence[Tensor], bank: RateBank) -> None:
    """Running sums over the chunks, in place: each is its own and what the chunk's steps left of those before."""
    # d - 1 instead of d: near 1 a rounded d would be another rate.
    less_R1 = torch.expm1(-bank.rates_R * bank.nearest).to(sums[0])[:, None]
    for before, now in pairwise(sums):
        now.add_(before).addcmul_(before, less_R1)


def add_far_gradients(
    grad_rates_GC: Tensor,
    grad_v_GCH: Tensor,
    chunks: _Chunks,
    bank: RateBank,
    rates_GC: Tensor,
    v_GCH: Tensor,
    grad_GCH: Tensor,
) -> None:
    """Add the gradients of `add_far_sums`: its products the other way round, its running sums from the end."""
    v_GCH, grad_GCH = v_GCH.to(grad_v_GCH), grad_GCH.to(grad_v_GCH)
    grad_sums_GRH = v_GCH.new_zeros(len(v_GCH), len(bank.rates_R), v_GCH.shape[2])
    add_product(grad_sums_GRH[:-2], readout(bank, v_GCH).T.expand(len(v_GCH) - 2, -1, -1), grad_GCH[2:])
    chunks.rows(grad_sums_GRH)[:, -2:] = 0.0
    run_on(chunks.rows(grad_sums_GRH).unbind(1)[::-1], bank)
    ages_C = entry_ages(chunks.chunk, rates_GC.device)
    entry_GC1 = torch.exp(-rates_GC.double() * ages_C)[..., None]
    coefficients_GCR, slopes_GCR = coefficients_and_slopes(bank, rates_GC)
    add_product(grad_v_GCH, (coefficients_GCR * entry_GC1).to(v_GCH), grad_sums_GRH)
    grad_entries_GCR = v_GCH @ grad_sums_GRH.mT
    slopes_GCR = (slopes_GCR - ages_C[:, None] * coefficients_GCR) * entry_GC1
    grad_rates_GC += (grad_entries_GCR * slopes_GCR.to(v_GCH)).sum(-1)
