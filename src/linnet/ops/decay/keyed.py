"""The decaying sum with keys, in time and memory linear in the length.

`o_t = sum_{j <= t} exp(-rate_j (t - j)) (q_t . k_j) v_j`: what `chunked.py` does, with each weight of near tokens
multiplied by its `q . k`, and with a sum in the bank for each fixed rate and each place in a key: tokens come into
the bank as `(factor of the rate) * k`, and are read by `exp(-mu age) * q`. So a weight is wrong by the bank's error
times `|q . k|`.

Legend: `B` batch, `S` tokens, `N` heads, `H` channels of a head, `M` width of a key, `R` fixed rates, `P` rows times
heads, `K` chunks of a segment, `C` tokens of a chunk; `F`: R times M.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.decay.chunked import (
    TOLERANCE,
    add_far_sums,
    bank_for,
    by_key,
    chunks_first,
    entries,
    entries_and_slopes,
    far_sums,
    near_ages,
    near_sums,
    near_weights,
    pairs,
    readout,
)
from linnet.ops.decay.rates import RateBank
from linnet.ops.decay.reference import Keys
from linnet.ops.decay.segments import Segment, segments

CHUNK = 64
"""Tokens of a chunk. Each has R M sums, so longer ones are the fastest than without keys (experiments/LOG.md)."""

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""Rates `[B, S, N]`, queries and keys `[B, S, N, M]`, quantities `[B, S, N, H]`; or their chunks in a segment."""


def keyed_chunked(
    rates_BSN: Tensor, v_BSNH: Tensor, keys: Keys, tolerance: float = TOLERANCE, chunk: int = CHUNK
) -> Tensor:
    """`decay_reference` of all tokens, `[B, S, N, H]`, each weight right to `tolerance` times its `|q . k|`.

    Rates are float32 or wider, and the bank's sums are as wide as they. Differentiable once.

    Raises:
        ValueError: the tolerance is out of range (`rate_bank`).
    """
    out: Tensor = _as_it_is((rates_BSN, *keys, v_BSNH), tolerance, chunk)
    return out


@_disable_dynamo
def _as_it_is(inputs: Inputs, tolerance: float, chunk: int) -> Any:
    bank = bank_for(inputs[0].shape[1], tolerance, chunk)
    return _Keyed.apply(*inputs, chunk, bank)  # type: ignore[no-untyped-call]


def keyed_flops(length: int, width: int, heads: int, key: int, tolerance: float = TOLERANCE, chunk: int = CHUNK) -> int:
    """FLOPs of the forward pass over one sequence: 2 per multiply-add of its matrix products."""
    bank, tokens = bank_for(length, tolerance, chunk), -(-length // chunk) * chunk
    near = tokens * 2 * chunk * (width + heads * key)
    if bank is None:
        return 2 * near
    count = len(bank.rates_R)
    return 2 * (near + tokens * count * (heads * count + 2 * key * width))


class _Keyed(torch.autograd.Function):
    """Forward keeps its inputs alone; backward makes the weights and the sums again."""

    @staticmethod
    def forward(ctx: Any, rates: Tensor, q: Tensor, k: Tensor, v: Tensor, chunk: int, bank: RateBank | None) -> Tensor:
        ctx.save_for_backward(rates, q, k, v)
        ctx.chunk, ctx.bank = chunk, bank
        out_BSNH = torch.empty_like(v, memory_format=torch.contiguous_format)
        with torch.autocast(v.device.type, enabled=False):
            carried = None
            for segment in _segments(v, q, chunk, bank):
                rates_PKC, q_PKCM, k_PKCM, v_PKCH = _cut(segment, (rates, q, k, v))
                out_PKCH = near_sums(rates_PKC, v_PKCH, Keys(q_PKCM, k_PKCM))
                if bank is not None:
                    wide = Keys(q_PKCM.to(rates_PKC), k_PKCM.to(rates_PKC))
                    carried = None if segment.start == 0 else carried
                    carried = add_far_sums(out_PKCH, bank, rates_PKC, v_PKCH.to(rates_PKC), carried, wide)
                segment.put(out_PKCH, out_BSNH)
        return out_BSNH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BSNH: Tensor) -> tuple[Tensor | None, ...]:
        inputs: Inputs = ctx.saved_tensors
        rates, q, k, v = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in inputs)
        grads: Inputs = (rates, q, k, v)
        whole, bank = list(_segments(inputs[3], inputs[1], ctx.chunk, ctx.bank)), ctx.bank
        with torch.autocast(grad_BSNH.device.type, enabled=False):
            carried = None
            for segment in whole:  # what is read of the past, and of the queries
                cut, grad_PKCH = _cut(segment, inputs), segment.cut(grad_BSNH)[:, 1:]
                of_segment = _near_gradients(cut, grad_PKCH)
                if bank is not None:
                    carried = None if segment.start == 0 else carried
                    carried = _add_to_queries(of_segment[1], bank, _wide(cut), grad_PKCH.to(cut[0]), carried)
                _add(segment, of_segment, grads)
            for segment in reversed(whole) if bank is not None else ():  # of what comes into the bank
                carried = None if segment.end == grad_BSNH.shape[1] else carried
                grad_PKCH = segment.cut(grad_BSNH)[:, 1:].to(inputs[0])
                carried = _add_to_sources(segment, grads, bank, _wide(_cut(segment, inputs)), grad_PKCH, carried)
        return (*grads, None, None)


def _segments(v_BSNH: Tensor, q_BSNM: Tensor, chunk: int, bank: RateBank | None) -> Iterator[Segment]:
    """As without keys, but shorter: of a token there are R M numbers for each head, more than it has channels."""
    times = 1 if bank is None else max(1, len(bank.rates_R) * q_BSNM.shape[3] // max(1, v_BSNH.shape[3]))
    return segments(v_BSNH, chunk, times)


def _cut(segment: Segment, inputs: Inputs) -> Inputs:
    """The segment's chunks of each, behind the one before them; of the queries without that."""
    rates, q, k, v = inputs
    return segment.cut(rates[..., None])[..., 0], segment.cut(q)[:, 1:], segment.cut(k), segment.cut(v)


def _wide(cut: Inputs) -> Inputs:
    rates, q, k, v = cut
    return rates, q.to(rates), k.to(rates), v.to(rates)


def _add(segment: Segment, of_segment: Inputs, grads: tuple[Tensor, ...]) -> None:
    rates, q, k, v = of_segment
    segment.add(rates[..., None], grads[0][..., None])
    segment.put(q, grads[1])
    segment.add(k, grads[2])
    segment.add(v, grads[3])


def _near_gradients(cut: Inputs, grad_PKCH: Tensor) -> Inputs:
    """The gradients of `near_sums`, as wide as the rates, of the chunks that `_cut` gives."""
    rates_PKC, q_PKCM, k_PKCM, v_PKCH = cut
    ages = near_ages(rates_PKC.shape[2], rates_PKC.device)
    weights = near_weights(rates_PKC, ages)
    pairs_k, narrow = pairs(k_PKCM), weights.to(v_PKCH.dtype)
    scores = q_PKCM @ pairs_k.mT
    grad_products = grad_PKCH @ pairs(v_PKCH).mT
    grad_scores = narrow * grad_products
    grad_q_PKCM = (grad_scores @ pairs_k).to(rates_PKC)
    grad_k = _unpaired((grad_scores.mT @ q_PKCM).to(rates_PKC))
    grad_v = _unpaired(((narrow * scores).mT @ grad_PKCH).to(rates_PKC))
    grad_pairs = -weights.mul_(ages).mul_(scores).mul_(grad_products).sum(2)
    return _unpaired(grad_pairs[..., None])[..., 0], grad_q_PKCM, grad_k, grad_v


def _unpaired(grad_pairs: Tensor) -> Tensor:
    """The gradient of what `pairs` was given: `[P, K, 2C, H] -> [P, K + 1, C, H]`."""
    streams, chunks, two, channels = grad_pairs.shape
    grad = grad_pairs.new_zeros(streams, chunks + 1, two // 2, channels)
    grad[:, 1:] = grad_pairs[:, :, two // 2 :]
    grad[:, :-1] += grad_pairs[:, :, : two // 2]
    return grad


def _add_to_queries(
    grad_q_PKCM: Tensor, bank: RateBank, cut: Inputs, grad_PKCH: Tensor, carried_PFH: Tensor | None
) -> Tensor:
    """Add the gradients of the queries by `add_far_sums`, whose running sums are made again, from those it took."""
    rates_PKC, _, k_PKCM, v_PKCH = cut
    entries_KPCF = by_key(chunks_first(entries(bank, rates_PKC[:, :-1]).to(v_PKCH)), chunks_first(k_PKCM[:, :-1]))
    sums_KPFH = far_sums(bank, entries_KPCF, chunks_first(v_PKCH[:, :-1]), carried_PFH)
    grad_readout = chunks_first(grad_PKCH) @ sums_KPFH[:-1].mT
    grad_readout = torch.unflatten(grad_readout, -1, (len(bank.rates_R), -1))
    grad_q_KPCM = (readout(bank, v_PKCH)[..., None, :] @ grad_readout)[..., 0, :]
    grad_q_PKCM += grad_q_KPCM.transpose(0, 1)
    return sums_KPFH[-1]


def _add_to_sources(
    segment: Segment, grads: Inputs, bank: RateBank, cut: Inputs, grad_PKCH: Tensor, carried_PFH: Tensor | None
) -> Tensor:
    """Add the gradients of rates, keys and quantities by `add_far_sums`.

    Takes the gradient of the sums that it gave, gives that of those that it took, `[P, F, H]`.
    """
    rates_KPC, k_KPCM, v_KPCH = (chunks_first(x[:, :-1]) for x in (cut[0], cut[2], cut[3]))
    readout_KPCF = by_key(readout(bank, v_KPCH), chunks_first(cut[1]))
    grad_sums_KPFH = far_sums(bank, readout_KPCF, chunks_first(grad_PKCH), carried_PFH, backwards=True)
    entries_KPCR, slopes_KPCR = (x.to(v_KPCH) for x in entries_and_slopes(bank, rates_KPC))
    grad_v_KPCH = by_key(entries_KPCR, k_KPCM) @ grad_sums_KPFH[1:]
    grad_entries = v_KPCH @ grad_sums_KPFH[1:].mT
    grad_entries = torch.unflatten(grad_entries, -1, (len(bank.rates_R), -1))
    grad_k_KPCM = (entries_KPCR[..., None, :] @ grad_entries)[..., 0, :]
    grad_rates_KPC = ((grad_entries @ k_KPCM[..., None])[..., 0] * slopes_KPCR).sum(-1)
    of_chunks = grad_rates_KPC[..., None], grad_k_KPCM, grad_v_KPCH
    for grad, of_chunk in zip((grads[0][..., None], *grads[2:]), of_chunks, strict=True):
        segment.add(F.pad(of_chunk.transpose(0, 1), (0, 0, 0, 0, 0, 1)), grad)  # nothing of the last chunk
    return grad_sums_KPFH[0]
