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
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.decay.chunked import (
    CHUNK,
    TOLERANCE,
    add_far_sums,
    bank_for,
    by_key,
    entries,
    entry_ages,
    faded_,
    far_sums,
    near_ages,
    near_sums,
    near_weights,
    pairs,
    readout,
    run_on,
)
from linnet.ops.decay.rates import RateBank, coefficients_and_slopes
from linnet.ops.decay.reference import Keys
from linnet.ops.decay.segments import Segment, segments

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
        grads = tuple(torch.zeros_like(x, memory_format=torch.contiguous_format) for x in inputs)
        with torch.autocast(grad_BSNH.device.type, enabled=False):
            carried = None
            for segment, before_PFH in _from_the_end(inputs, ctx.chunk, ctx.bank):
                cut, grad_PKCH = _cut(segment, inputs), segment.cut(grad_BSNH)[:, 1:]
                of_segment = _near_gradients(cut, grad_PKCH)
                if ctx.bank is not None:
                    states = (before_PFH, None if segment.end == grad_BSNH.shape[1] else carried)
                    carried = _add_far_gradients(of_segment, ctx.bank, _wide(cut), grad_PKCH.to(cut[0]), states)
                _add(segment, of_segment, grads)
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


def _from_the_end(inputs: Inputs, chunk: int, bank: RateBank | None) -> Iterator[tuple[Segment, Tensor | None]]:
    """The segments from the last to the first, each with the sums that its first chunk reads."""
    all_segments, before = list(_segments(inputs[3], inputs[1], chunk, bank)), list[Tensor | None]()
    carried = None
    for segment in all_segments:
        carried = None if segment.start == 0 else carried
        before.append(carried)
        if bank is not None and segment.end < inputs[3].shape[1]:
            rates_PKC, _, k_PKCM, v_PKCH = _cut(segment, inputs)
            entries_PKCF = by_key(entries(bank, rates_PKC[:, :-1]).to(rates_PKC), k_PKCM[:, :-1].to(rates_PKC))
            carried = far_sums(bank, entries_PKCF, v_PKCH.to(rates_PKC), carried)[:, -1]
    return zip(reversed(all_segments), reversed(before), strict=True)


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


def _add_far_gradients(
    of_segment: Inputs, bank: RateBank, cut: Inputs, grad_PKCH: Tensor, states: tuple[Tensor | None, Tensor | None]
) -> Tensor:
    """Add the gradients of `add_far_sums`; its running sums are made again, and their gradients run from the end.

    states: the sums that it took, `[P, F, H]`, and the gradient of those that it gave. Gives that of those it took.
    """
    grad_rates_PKC, grad_q_PKCM, grad_k_PKCM, grad_v_PKCH = of_segment
    rates_PKC, q_PKCM, k_PKCM, v_PKCH = cut
    rates_PKC, earlier_k_PKCM = rates_PKC[:, :-1], k_PKCM[:, :-1]
    ages_C = entry_ages(bank.nearest, rates_PKC.device)
    entry_PKC1 = faded_(-rates_PKC.double() * ages_C)[..., None]
    coefficients_PKCR, slopes_PKCR = coefficients_and_slopes(bank, rates_PKC)
    slopes_PKCR = ((slopes_PKCR - ages_C[:, None] * coefficients_PKCR) * entry_PKC1).to(v_PKCH)
    entries_PKCR = (coefficients_PKCR * entry_PKC1).to(v_PKCH)
    entries_PKCF, readout_CR = by_key(entries_PKCR, earlier_k_PKCM), readout(bank, v_PKCH)

    sums_PKFH = far_sums(bank, entries_PKCF, v_PKCH, states[0])
    grad_readout = torch.unflatten(grad_PKCH @ sums_PKFH[:, :-1].mT, -1, (len(bank.rates_R), -1))
    grad_q_PKCM += (grad_readout.mT @ readout_CR[..., None])[..., 0]

    grad_sums_PKFH = torch.zeros_like(sums_PKFH)
    torch.matmul(by_key(readout_CR, q_PKCM).mT, grad_PKCH, out=grad_sums_PKFH[:, :-1])
    if states[1] is not None:
        grad_sums_PKFH[:, -1] = states[1]
    run_on(grad_sums_PKFH.unbind(1)[::-1], bank)
    grad_v_PKCH[:, :-1] += entries_PKCF @ grad_sums_PKFH[:, 1:]
    grad_entries = torch.unflatten(v_PKCH[:, :-1] @ grad_sums_PKFH[:, 1:].mT, -1, (len(bank.rates_R), -1))
    grad_k_PKCM[:, :-1] += (grad_entries.mT @ entries_PKCR[..., None])[..., 0]
    grad_rates_PKC[:, :-1] += ((grad_entries @ earlier_k_PKCM[..., None])[..., 0] * slopes_PKCR).sum(-1)
    return grad_sums_PKFH[:, 0]
