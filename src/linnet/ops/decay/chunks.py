"""Building blocks of the decaying sum in linear time: segments of chunks, near tokens by pairs, far tokens by a bank.

Tokens are cut into chunks of C. What a token reads from its own chunk and the one before is exact: a matrix of weights
`[C, 2C]` per chunk. Sources further back have entered the bank (`rates.py`) when the reader's chunk began, and are read
from R sums that decay at fixed rates: the whole past of a chunk is `[R, H]` numbers.

With keys, each weight of near tokens is multiplied by its `q . k`, and the bank has a sum for each fixed rate and each
element of a key: tokens enter the bank as `(factor of the rate) * k`, and are read by `exp(-mu age) * q`. So the error
of a weight is the bank's error times `|q . k|`.

Chunks are taken a segment at a time, so that intermediate results stay in the processor's cache; the bank's sums are
carried from segment to segment.

Legend: `B` batch, `S` tokens, `N` heads, `H` channels of a head, `M` width of a key, `R` fixed rates, `F`: R times M,
`P` rows times heads, `K` chunks of a segment, `C` tokens of a chunk. A segment comes with the chunk before it (zeros at
the start), so it has `K + 1` chunks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.decay.rates import RateBank, bank_on, coefficients, coefficients_and_slopes
from linnet.ops.decay.reference import Keys
from linnet.ops.support import accumulation_dtype, widen

SEGMENT_NUMBERS = 2**20
"""Elements of a segment's quantities on a CPU, 4 MiB in float32. A GPU takes all at once."""

LOWEST_EXPONENT = -60.0

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""Rates `[B, S, N]`, queries and keys `[B, S, N, M]`, quantities `[B, S, N, H]`; or their chunks in a segment."""


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `end` of some rows of the batch; `start` is a multiple of the chunk."""

    rows: slice
    start: int
    end: int
    chunk: int

    def cut(self, x_BSNH: Tensor) -> Tensor:
        """The chunks of the segment after the one before them, zeros where the stream has none: `[P, K + 1, C, H]`.

        A view where possible: for one row and head, from the second segment on.
        """
        first = max(0, self.start - self.chunk)
        before, after = first + self.chunk - self.start, (self.start - self.end) % self.chunk
        x_BNSH = x_BSNH[self.rows, first : self.end].transpose(1, 2)
        if before or after:
            x_BNSH = F.pad(x_BNSH, (0, 0, before, after))
        return x_BNSH.reshape(x_BNSH.shape[0] * x_BNSH.shape[1], -1, self.chunk, x_BNSH.shape[3])

    def put(self, x_PKCH: Tensor, out_BSNH: Tensor) -> None:
        """Write the chunks of the segment to their place."""
        out_BSNH = out_BSNH[self.rows]
        batch, _, heads, channels = out_BSNH.shape
        x_BNSH = x_PKCH.reshape(batch, heads, -1, channels)[:, :, : self.end - self.start]
        out_BSNH[:, self.start : self.end] = x_BNSH.transpose(1, 2)

    def add(self, x_PKCH: Tensor, out_BSNH: Tensor) -> None:
        """Add the chunks of the segment and the one before to their place."""
        out_BSNH = out_BSNH[self.rows]
        batch, _, heads, channels = out_BSNH.shape
        first = max(0, self.start - self.chunk)
        x_BNSH = x_PKCH.reshape(batch, heads, -1, channels)[:, :, first + self.chunk - self.start :]
        out_BSNH[:, first : self.end] += x_BNSH[:, :, : self.end - first].transpose(1, 2)

    def cut_inputs(self, inputs: Inputs) -> Inputs:
        """The chunks of the segment after the one before them, for each input; the queries without the one before."""
        rates, q, k, v = inputs
        return self.cut(rates[..., None])[..., 0], self.cut(q)[:, 1:], self.cut(k), self.cut(v)


def segments(v_BSNH: Tensor, chunk: int, factor: int = 1) -> Iterator[Segment]:
    """The segments of a batch, by groups of rows. Long rows are taken one by one, which saves copies.

    factor: number of intermediate elements for each element of the quantities.
    """
    batch, length = v_BSNH.shape[:2]
    limit = SEGMENT_NUMBERS // factor if v_BSNH.device.type == "cpu" else v_BSNH.numel()
    at_once = max(1, min(batch, limit // max(1, v_BSNH[0].numel()))) if batch else 1
    chunks = max(1, limit // max(1, v_BSNH[:at_once, 0].numel() * chunk))
    if v_BSNH.device.type != "cpu":
        chunks = max(1, -(-length // chunk))
    for row in range(0, batch, at_once):
        for start in range(0, length, chunks * chunk):
            yield Segment(slice(row, row + at_once), start, min(start + chunks * chunk, length), chunk)


def exp_(exponents: Tensor) -> Tensor:
    """`exp` in place, but at least 1e-26, which is far below any tolerance.

    Where `exp` gives numbers between 1e-45 and 1e-38, processors take a hundred times as long for each product.
    """
    return exponents.clamp_(min=LOWEST_EXPONENT).exp_()


def near_ages(chunk: int, device: torch.device) -> Tensor:
    """Age of each source of two chunks for each reader of the second, 0 for later sources: `[C, 2C]`."""
    steps = torch.arange(2 * chunk, device=device)
    return (steps[chunk:, None] - steps).clamp(min=0)


def near_weights(rates_PKC: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the chunks of a segment over themselves and the chunk before, `[P, K, C, 2C]`, and `near_ages`."""
    ages = near_ages(rates_PKC.shape[2], rates_PKC.device)
    return exp_(pairs(rates_PKC)[:, :, None, :] * -ages).tril_(rates_PKC.shape[2]), ages


def pairs(x_PKC: Tensor) -> Tensor:
    """Each chunk but the first, after the one before it, `[P, K, 2C]` or `[P, K, 2C, H]`: a view."""
    chunk = x_PKC.shape[2]
    return x_PKC.flatten(1, 2).unfold(1, 2 * chunk, chunk).movedim(-1, 2)


def add_pairs(grad_pairs: Tensor) -> Tensor:
    """The gradient of the argument of `pairs`: `[P, K, 2C, H] -> [P, K + 1, C, H]`."""
    streams, chunks, two, channels = grad_pairs.shape
    grad = grad_pairs.new_zeros(streams, chunks + 1, two // 2, channels)
    grad[:, 1:] = grad_pairs[:, :, two // 2 :]
    grad[:, :-1] += grad_pairs[:, :, : two // 2]
    return grad


def near_sums(rates_PKC: Tensor, v_PKCH: Tensor, keys: Keys | None = None) -> Tensor:
    """What each chunk of the segment reads from itself and the chunk before, `[P, K, C, H]`, in the rates' precision.

    keys: queries of the K chunks `[P, K, C, M]`, and keys of all chunks `[P, K + 1, C, M]`.
    """
    weights = near_weights(rates_PKC)[0].to(v_PKCH.dtype)
    if keys is not None:
        weights *= keys.queries @ pairs(keys.keys).mT
    return (weights @ pairs(v_PKCH)).to(rates_PKC.dtype)


def near_gradients(rates_PKC: Tensor, v_PKCH: Tensor, grad_PKCH: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `near_sums` without keys, of K + 1 chunks, both in the rates' precision."""
    chunk = rates_PKC.shape[2]
    weights, ages = near_weights(rates_PKC)
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


def near_gradients_with_keys(cut: Inputs, grad_PKCH: Tensor) -> Inputs:
    """The gradients of `near_sums` with keys, in the rates' precision; cut: from `Segment.cut_inputs`."""
    rates_PKC, q_PKCM, k_PKCM, v_PKCH = cut
    weights, ages = near_weights(rates_PKC)
    pairs_k, narrow = pairs(k_PKCM), weights.to(v_PKCH.dtype)
    scores = q_PKCM @ pairs_k.mT
    grad_products = grad_PKCH @ pairs(v_PKCH).mT
    grad_scores = narrow * grad_products
    grad_q_PKCM = (grad_scores @ pairs_k).to(rates_PKC)
    grad_k = add_pairs((grad_scores.mT @ q_PKCM).to(rates_PKC))
    grad_v = add_pairs(((narrow * scores).mT @ grad_PKCH).to(rates_PKC))
    grad_pairs = -weights.mul_(ages).mul_(scores).mul_(grad_products).sum(2)
    return add_pairs(grad_pairs[..., None])[..., 0], grad_q_PKCM, grad_k, grad_v


def entry_factors(bank: RateBank, rates_PKC: Tensor) -> Tensor:
    """Factors with which the tokens of each chunk enter the bank, float64 `[P, K, C, R]`.

    They enter when the chunk after the next begins, at ages of 2 C to C + 1.
    """
    entry_PKC = exp_(-widen(rates_PKC) * torch.arange(2 * bank.nearest, bank.nearest, -1, device=rates_PKC.device))
    return coefficients(bank, rates_PKC) * entry_PKC[..., None]


def entry_factors_and_slopes(bank: RateBank, rates_KPC: Tensor) -> tuple[Tensor, Tensor]:
    """`entry_factors` and their derivatives with respect to the rate, float64 `[..., C, R]`."""
    ages_C = torch.arange(2 * bank.nearest, bank.nearest, -1, device=rates_KPC.device)
    entry_KPC1 = exp_(-widen(rates_KPC) * ages_C)[..., None]
    coefficients_KPCR, slopes_KPCR = coefficients_and_slopes(bank, rates_KPC)
    return coefficients_KPCR * entry_KPC1, (slopes_KPCR - ages_C[:, None] * coefficients_KPCR) * entry_KPC1


def read_factors(bank: RateBank, like: Tensor) -> Tensor:
    """What remains of the bank's sums for each reader of a chunk: `[C, R]`."""
    rates_R = bank_on(bank, like.device).rates_R
    steps = torch.arange(bank.nearest, dtype=accumulation_dtype(like.device), device=like.device)
    return torch.exp(-steps[:, None] * rates_R).to(like.dtype)


def by_key(factors_XR: Tensor, key_XM: Tensor) -> Tensor:
    """A factor for each fixed rate and each element of a key, `[..., R M]`."""
    return (factors_XR[..., None] * key_XM[..., None, :]).flatten(-2)


def chunks_first(x_PK: Tensor) -> Tensor:
    """`[P, K, ...] -> [K, P, ...]`, contiguous: products with the sums of all chunks but one then need no copies."""
    return x_PK.transpose(0, 1).contiguous()


def bank_sums(
    bank: RateBank, factors_KPCR: Tensor, x_KPCH: Tensor, carried_PRH: Tensor | None, backwards: bool = False
) -> Tensor:
    """The sums that each chunk of the segment reads, and those that the chunk after it will read, `[K + 1, P, R, H]`.

    Backwards: the gradients of the sums, from the end; the arguments are then factors and gradients of readers.
    """
    chunks, streams, _, channels = x_KPCH.shape
    sums_KPRH = x_KPCH.new_empty(chunks + 1, streams, factors_KPCR.shape[3], channels)
    added_KPRH, first = (sums_KPRH[:-1], sums_KPRH[-1]) if backwards else (sums_KPRH[1:], sums_KPRH[0])
    torch.bmm(factors_KPCR.flatten(0, 1).mT, x_KPCH.flatten(0, 1), out=added_KPRH.flatten(0, 1))
    if carried_PRH is None:
        first.zero_()
    else:
        first.copy_(carried_PRH)
    sums = sums_KPRH.unbind(0)
    accumulate_(sums[::-1] if backwards else sums, bank)
    return sums_KPRH


def accumulate_(sums: Sequence[Tensor], bank: RateBank) -> None:
    """Running sums over chunks in place: each is its own plus the decayed one before, `[..., R (M), H]`."""
    # The decay minus 1 instead of the decay: near 1 a rounded decay would be another rate.
    rates_R = bank_on(bank, sums[0].device).rates_R
    less_R = torch.expm1(-rates_R * bank.nearest).to(sums[0].dtype)
    less_R1 = less_R.repeat_interleave(sums[0].shape[-2] // len(less_R))[:, None]
    for before, now in pairwise(sums):
        now.add_(before).addcmul_(before, less_R1)


def add_far_sums(
    out_PKCH: Tensor,
    bank: RateBank,
    rates_PKC: Tensor,
    v_PKCH: Tensor,
    carried_PRH: Tensor | None,
    keys: Keys | None = None,
) -> Tensor:
    """Add to each chunk of the segment what it reads through the bank: all tokens before the previous chunk.

    Takes the sums that its first chunk reads and returns those that the next segment's first chunk reads: `[P, R, H]`.
    With keys R is the number of fixed rates times M.
    """
    entries_KPCR = chunks_first(entry_factors(bank, rates_PKC[:, :-1]).to(v_PKCH))
    readers_KPCR = read_factors(bank, v_PKCH).expand(*entries_KPCR.shape[:2], -1, -1)
    v_KPCH = chunks_first(v_PKCH[:, :-1])
    if keys is not None:
        entries_KPCR = by_key(entries_KPCR, chunks_first(keys.keys[:, :-1]))
        readers_KPCR = by_key(readers_KPCR, chunks_first(keys.queries))
    sums_KPRH = bank_sums(bank, entries_KPCR, v_KPCH, carried_PRH)
    out_PKCH += (readers_KPCR @ sums_KPRH[:-1]).transpose(0, 1)
    return sums_KPRH[-1]


def add_far_gradients(
    grad_rates_PKC: Tensor,
    grad_v_PKCH: Tensor,
    bank: RateBank,
    rates_PKC: Tensor,
    v_PKCH: Tensor,
    grad_PKCH: Tensor,
    carried_PRH: Tensor | None,
) -> Tensor:
    """Add the gradients of `add_far_sums` without keys: its products transposed, its running sums from the end.

    Takes the gradient of the sums that it returned, returns that of the sums that it took: `[P, R, H]`.
    """
    rates_KPC, v_KPCH, grad_KPCH = (chunks_first(x) for x in (rates_PKC[:, :-1], v_PKCH[:, :-1], grad_PKCH))
    readers_KPCR = read_factors(bank, v_PKCH).expand(*rates_KPC.shape[:2], -1, -1)
    grad_sums_KPRH = bank_sums(bank, readers_KPCR, grad_KPCH, carried_PRH, backwards=True)
    entries_KPCR, slopes_KPCR = (x.to(v_PKCH) for x in entry_factors_and_slopes(bank, rates_KPC))
    grad_v_PKCH[:, :-1] += (entries_KPCR @ grad_sums_KPRH[1:]).transpose(0, 1)
    grad_entries_KPCR = v_KPCH @ grad_sums_KPRH[1:].mT
    grad_rates_PKC[:, :-1] += (grad_entries_KPCR * slopes_KPCR).sum(-1).transpose(0, 1)
    return grad_sums_KPRH[0]


def add_query_gradients(
    grad_q_PKCM: Tensor, bank: RateBank, cut: Inputs, grad_PKCH: Tensor, carried_PFH: Tensor | None
) -> Tensor:
    """Add the gradients of the queries in `add_far_sums`, whose running sums are recomputed, from those it took."""
    rates_PKC, _, k_PKCM, v_PKCH = cut
    entries_KPCR = chunks_first(entry_factors(bank, rates_PKC[:, :-1]).to(v_PKCH))
    entries_KPCF = by_key(entries_KPCR, chunks_first(k_PKCM[:, :-1]))
    sums_KPFH = bank_sums(bank, entries_KPCF, chunks_first(v_PKCH[:, :-1]), carried_PFH)
    grad_readers = chunks_first(grad_PKCH) @ sums_KPFH[:-1].mT
    grad_readers = torch.unflatten(grad_readers, -1, (len(bank.rates_R), -1))
    grad_q_KPCM = (read_factors(bank, v_PKCH)[..., None, :] @ grad_readers)[..., 0, :]
    grad_q_PKCM += grad_q_KPCM.transpose(0, 1)
    return sums_KPFH[-1]


def add_source_gradients(
    segment: Segment, grads: Inputs, bank: RateBank, cut: Inputs, grad_PKCH: Tensor, carried_PFH: Tensor | None
) -> Tensor:
    """Add the gradients of rates, keys and quantities in `add_far_sums` with keys.

    Takes the gradient of the sums that it returned, returns that of the sums that it took: `[P, F, H]`.
    """
    rates_KPC, k_KPCM, v_KPCH = (chunks_first(x[:, :-1]) for x in (cut[0], cut[2], cut[3]))
    readers_KPCF = by_key(read_factors(bank, v_KPCH), chunks_first(cut[1]))
    grad_sums_KPFH = bank_sums(bank, readers_KPCF, chunks_first(grad_PKCH), carried_PFH, backwards=True)
    entries_KPCR, slopes_KPCR = (x.to(v_KPCH) for x in entry_factors_and_slopes(bank, rates_KPC))
    grad_v_KPCH = by_key(entries_KPCR, k_KPCM) @ grad_sums_KPFH[1:]
    grad_entries = v_KPCH @ grad_sums_KPFH[1:].mT
    grad_entries = torch.unflatten(grad_entries, -1, (len(bank.rates_R), -1))
    grad_k_KPCM = (entries_KPCR[..., None, :] @ grad_entries)[..., 0, :]
    grad_rates_KPC = ((grad_entries @ k_KPCM[..., None])[..., 0] * slopes_KPCR).sum(-1)
    of_chunks = grad_rates_KPC[..., None], grad_k_KPCM, grad_v_KPCH
    for grad, of_chunk in zip((grads[0][..., None], *grads[2:]), of_chunks, strict=True):
        segment.add(F.pad(of_chunk.transpose(0, 1), (0, 0, 0, 0, 0, 1)), grad)  # zeros for the last chunk
    return grad_sums_KPFH[0]


def chunked_flops(count: int, length: int, width: int, heads: int, chunk: int, key: int = 0) -> int:
    """FLOPs of the sum, 2 per multiply-add; count: rates of the bank, or 0; key: width of a key, 0 for none."""
    tokens = -(-length // chunk) * chunk
    return 2 * tokens * (2 * chunk * (width + heads * key) + count * (heads * count + 2 * max(1, key) * width))
