"""The decaying sum, `o_t = sum_{j <= t} exp(-rate_j (t - j)) v_j`, with or without keys, in its fastest form.

`decay` selects between the definition as one matrix (`reference.py`) and the chunked form, which takes time and memory
linear in the length (`chunks.py` explains it). The forward pass saves only its inputs; the backward pass recomputes the
weights and the sums, segment by segment from the end.

Legend: `B` batch, `S` tokens, `N` heads, `H` channels of a head, `M` width of a key.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.decay.chunks import (
    Inputs,
    Segment,
    add_far_gradients,
    add_far_sums,
    add_query_gradients,
    add_source_gradients,
    chunked_flops,
    near_gradients,
    near_gradients_with_keys,
    near_sums,
    segments,
)
from linnet.ops.decay.rates import RateBank, rate_bank
from linnet.ops.decay.reference import Keys, decay_reference
from linnet.ops.kernels import KernelTrial, use_kernels

Form = Literal["auto", "reference", "chunked"]

CHUNKED_ABOVE = 256
"""With more tokens the chunked form is faster, forward and backward together (`experiments/LOG.md`)."""

CHUNK = 32
"""Tokens of a chunk without keys; the fastest of 16, 32, 64 and 128 on a processor (`experiments/LOG.md`)."""

KEYED_CHUNK = 64
"""Tokens of a chunk with keys. Each chunk has R M sums, so longer chunks are faster (`experiments/LOG.md`)."""

TOLERANCE = 1e-5

MAX_KERNEL_CHUNK, MAX_KERNEL_RATES = 64, 128


def decay(
    rates_BSN: Tensor,
    v_BSNH: Tensor,
    queries: int,
    form: Form = "auto",
    tolerance: float = TOLERANCE,
    chunk: int | None = None,
    keys: Keys | None = None,
) -> Tensor:
    """The sums of the last `queries` tokens, `[B, T, N, H]`; exact unless these are all tokens of the sequence.

    chunk: tokens of a chunk in the chunked form; None: the fastest number.
    """
    length = rates_BSN.shape[1]
    if queries < length or not uses_chunks(form, length):
        return decay_reference(rates_BSN, v_BSNH, queries, keys)
    chunk = chunk or default_chunk(keys is not None)
    if keys is None:
        return decay_chunked(rates_BSN, v_BSNH, queries, tolerance, chunk)
    return keyed_chunked(rates_BSN, v_BSNH, keys, tolerance, chunk)


def uses_chunks(form: Form, length: int) -> bool:
    """True if a whole sequence of `length` tokens takes the chunked form; `auto`: where that is faster."""
    return form == "chunked" or (form == "auto" and length > CHUNKED_ABOVE)


def default_chunk(has_keys: bool) -> int:
    """The fastest number of tokens of a chunk."""
    return KEYED_CHUNK if has_keys else CHUNK


def decay_flops(
    length: int,
    width: int,
    heads: int,
    form: Form = "auto",
    tolerance: float = TOLERANCE,
    chunk: int | None = None,
    key: int = 0,
) -> int:
    """FLOPs of the forward pass over one sequence: 2 per multiply-add of its matrix products.

    key: width of a key, 0 for none.
    """
    if not uses_chunks(form, length):
        return 2 * (width + heads * key) * length**2
    chunk = chunk or default_chunk(key > 0)
    bank = bank_for(length, tolerance, chunk)
    return chunked_flops(0 if bank is None else len(bank.rates_R), length, width, heads, chunk, key)


def bank_for(length: int, tolerance: float, chunk: int) -> RateBank | None:
    """The bank for a sequence, for the next power of two as length; None where no token is that far away."""
    return rate_bank(tolerance, chunk, 1 << (length - 1).bit_length()) if length > 2 * chunk else None


@_disable_dynamo  # the loop over segments would be a new graph for each length
def decay_chunked(
    rates_BSN: Tensor, v_BSNH: Tensor, queries: int, tolerance: float = TOLERANCE, chunk: int = CHUNK
) -> Tensor:
    """`decay_reference` of all tokens, `[B, S, N, H]`, with every weight correct to `tolerance`.

    Rates are float32 or wider, and the bank's sums have their precision. Differentiable once.

    Raises:
        ValueError: `queries` is not the number of tokens, or the tolerance is out of range (`rate_bank`).
    """
    if queries != rates_BSN.shape[1]:
        raise ValueError(f"queries: {queries}: must be all {rates_BSN.shape[1]} tokens")
    bank = bank_for(rates_BSN.shape[1], tolerance, chunk)
    small = chunk <= MAX_KERNEL_CHUNK and (bank is None or len(bank.rates_R) <= MAX_KERNEL_RATES)
    if small and rates_BSN.dtype == torch.float32 and use_kernels(_TRIAL, rates_BSN, v_BSNH):
        from linnet.ops.kernels._decay import DecayByKernels

        by_kernels: Tensor = DecayByKernels.apply(rates_BSN, v_BSNH, chunk, bank)  # type: ignore[no-untyped-call]
        return by_kernels
    out: Tensor = _Chunked.apply(rates_BSN, v_BSNH, chunk, bank)  # type: ignore[no-untyped-call]
    return out


def _trial_inputs() -> list[Tensor]:
    """130 tokens, in chunks that are not all full."""
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(1, 130, 2, generator=generator), torch.randn(1, 130, 2, 16, generator=generator)]


_TRIAL = KernelTrial("decay", lambda rates, v: (decay_chunked(rates, v, v.shape[1]),), _trial_inputs)


def _segments(v_BSNH: Tensor, q_BSNM: Tensor | None, chunk: int, bank: RateBank | None) -> Iterator[Segment]:
    """The segments of a batch, shorter with keys: a token then has R M intermediate numbers for each head."""
    factor = 1
    if bank is not None and q_BSNM is not None:
        factor = max(1, len(bank.rates_R) * q_BSNM.shape[3] // max(1, v_BSNH.shape[3]))
    return segments(v_BSNH, chunk, factor)


def _chunked_sums(rates_BSN: Tensor, v_BSNH: Tensor, keys: Keys | None, chunk: int, bank: RateBank | None) -> Tensor:
    """The forward pass, with or without keys."""
    out_BSNH = torch.empty_like(v_BSNH, memory_format=torch.contiguous_format)
    carried = None
    with torch.autocast(v_BSNH.device.type, enabled=False):
        for segment in _segments(v_BSNH, None if keys is None else keys.queries, chunk, bank):
            rates_PKC, v_PKCH = segment.cut(rates_BSN[..., None])[..., 0], segment.cut(v_BSNH)
            cut = None if keys is None else Keys(segment.cut(keys.queries)[:, 1:], segment.cut(keys.keys))
            out_PKCH = near_sums(rates_PKC, v_PKCH, cut)
            if bank is not None:
                carried = None if segment.start == 0 else carried
                wide = None if cut is None else Keys(*(x.to(rates_PKC) for x in cut))
                carried = add_far_sums(out_PKCH, bank, rates_PKC, v_PKCH.to(rates_PKC), carried, wide)
            segment.put(out_PKCH, out_BSNH)
    return out_BSNH


class _Chunked(torch.autograd.Function):
    """Both passes are explicit: shared intermediate results are cheaper to recompute than to save."""

    @staticmethod
    def forward(ctx: Any, rates_BSN: Tensor, v_BSNH: Tensor, chunk: int, bank: RateBank | None) -> Tensor:
        ctx.save_for_backward(rates_BSN, v_BSNH)
        ctx.chunk, ctx.bank = chunk, bank
        return _chunked_sums(rates_BSN, v_BSNH, None, chunk, bank)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BSNH: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rates_BSN, v_BSNH = ctx.saved_tensors
        grad_rates_BSN = torch.zeros_like(rates_BSN, memory_format=torch.contiguous_format)
        # A token receives gradients of at most two segments, so the precision of the quantities suffices for the sums.
        grad_v_BSNH = torch.zeros_like(v_BSNH, memory_format=torch.contiguous_format)
        carried = None
        with torch.autocast(v_BSNH.device.type, enabled=False):
            for segment in reversed(list(_segments(v_BSNH, None, ctx.chunk, ctx.bank))):
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


@_disable_dynamo
def keyed_chunked(
    rates_BSN: Tensor, v_BSNH: Tensor, keys: Keys, tolerance: float = TOLERANCE, chunk: int = KEYED_CHUNK
) -> Tensor:
    """`decay_reference` of all tokens, `[B, S, N, H]`, each weight correct to `tolerance` times its `|q . k|`.

    Rates are float32 or wider, and the bank's sums have their precision. Differentiable once.

    Raises:
        ValueError: the tolerance is out of range (`rate_bank`).
    """
    bank = bank_for(rates_BSN.shape[1], tolerance, chunk)
    out: Tensor = _Keyed.apply(rates_BSN, *keys, v_BSNH, chunk, bank)  # type: ignore[no-untyped-call]
    return out


class _Keyed(torch.autograd.Function):
    """The forward pass saves only its inputs; the backward pass recomputes weights and sums."""

    @staticmethod
    def forward(ctx: Any, rates: Tensor, q: Tensor, k: Tensor, v: Tensor, chunk: int, bank: RateBank | None) -> Tensor:
        ctx.save_for_backward(rates, q, k, v)
        ctx.chunk, ctx.bank = chunk, bank
        return _chunked_sums(rates, v, Keys(q, k), chunk, bank)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BSNH: Tensor) -> tuple[Tensor | None, ...]:
        inputs: Inputs = ctx.saved_tensors
        rates, q, k, v = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in inputs)
        grads: Inputs = (rates, q, k, v)
        whole, bank = list(_segments(inputs[3], inputs[1], ctx.chunk, ctx.bank)), ctx.bank
        with torch.autocast(grad_BSNH.device.type, enabled=False):
            # Forward: gradients of near tokens, and of the queries that read the bank.
            carried = None
            for segment in whole:
                cut, grad_PKCH = segment.cut_inputs(inputs), segment.cut(grad_BSNH)[:, 1:]
                grad_rates, grad_q, grad_k, grad_v = near_gradients_with_keys(cut, grad_PKCH)
                if bank is not None:
                    carried = None if segment.start == 0 else carried
                    carried = add_query_gradients(grad_q, bank, _widen(cut), grad_PKCH.to(cut[0]), carried)
                segment.add(grad_rates[..., None], rates[..., None])
                segment.put(grad_q, q)
                segment.add(grad_k, k)
                segment.add(grad_v, v)
            # From the end: gradients of the inputs of the bank.
            for segment in reversed(whole) if bank is not None else ():
                carried = None if segment.end == grad_BSNH.shape[1] else carried
                grad_PKCH = segment.cut(grad_BSNH)[:, 1:].to(inputs[0])
                cut = _widen(segment.cut_inputs(inputs))
                carried = add_source_gradients(segment, grads, bank, cut, grad_PKCH, carried)
        return (*grads, None, None)


def _widen(cut: Inputs) -> Inputs:
    """All inputs in the precision of the rates."""
    rates, q, k, v = cut
    return rates, q.to(rates), k.to(rates), v.to(rates)
