"""The decaying sum with keys: both forms and the bank against the definition, with the bound times |q . k|."""

from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from linnet.ops.decay import chunks
from linnet.ops.decay.bank import DecayBank
from linnet.ops.decay.rates import rate_bank
from linnet.ops.decay.reference import Keys, decay_definition, decay_reference
from linnet.ops.decay.sums import decay, decay_chunked, decay_flops, keyed_chunked

KEY, CHANNELS = 3, 4


def tokens(batch: int, length: int, heads: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Rates from 1e-7 to 30, quantities, queries and keys, and an upstream gradient."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.promote_types(dtype, torch.float32)
    rates = 10 ** (-7 + 8.477 * torch.rand(batch, length, heads, dtype=torch.float64, generator=generator))
    v, upstream = torch.randn(2, batch, length, heads, CHANNELS, dtype=torch.float64, generator=generator)
    q, k = torch.randn(2, batch, length, heads, KEY, dtype=torch.float64, generator=generator)
    return [rates.to(wide), *(x.to(dtype) for x in (v, q, k, upstream))]


def with_gradients(form, rates: Tensor, v: Tensor, q: Tensor, k: Tensor, upstream: Tensor) -> list[Tensor]:
    inputs = [x.clone().requires_grad_() for x in (rates, v, q, k)]
    out = form(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream)]


def exact(rates: Tensor, v: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return decay_reference(rates, v, rates.shape[1], Keys(q, k))


def assert_within(tolerance: float, actual: list[Tensor], expected: list[Tensor], *inputs: Tensor) -> None:
    """The error of a weight is at most the tolerance times |q . k|, bounded by sums of absolute values."""
    rates, v, q, k, upstream = (x.double().abs() for x in inputs)
    zero = torch.zeros_like(rates)
    _, *bounds = with_gradients(exact, zero, v, q, k, upstream)
    most = [exact(zero, v, q, k), bounds[0].abs(), *bounds[1:]]
    errors = [(a.double() - e.double()).abs() for a, e in zip(actual, expected, strict=True)]
    errors[1] = rates * errors[1] * 2.718
    # At a rate of 0 the gradient of a rate is a sum of ages; that of `rate * d weight / d rate` one of weights.
    most[1] = (v * most[2]).sum(-1)
    for error, bound in zip(errors, most, strict=True):
        assert (error <= tolerance * bound).all()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 90),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(0, 2**31),
    st.integers(1, 9),
    st.sampled_from([1, 100, 1000, 10**6]),
)
def test_chunked_equals_the_definition_with_all_gradients(length, batch, heads, chunk, seed, digits, numbers):
    inputs, tolerance = tokens(batch, length, heads, seed), 10.0**-digits
    with patch.object(chunks, "SEGMENT_NUMBERS", numbers):
        actual = with_gradients(lambda r, v, q, k: keyed_chunked(r, v, Keys(q, k), tolerance, chunk), *inputs)
    assert_within(tolerance + 1e-12, actual, with_gradients(exact, *inputs), *inputs)


@pytest.mark.parametrize("length", [1, 9])
def test_the_reference_is_the_definition(length: int):
    rates, v, q, k, _ = tokens(2, length, 2)
    for queries in {1, length}:
        keys = Keys(q[:, -queries:], k)
        expected = decay_definition(rates, v, queries, keys)
        torch.testing.assert_close(decay_reference(rates, v, queries, keys), expected)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_gradients_equal_finite_differences(length: int):
    rates, v, q, k, _ = tokens(1, length, 2)
    inputs = [x.requires_grad_() for x in (rates.clamp(0.01, 3), v, q, k)]
    assert torch.autograd.gradcheck(lambda r, v, q, k: keyed_chunked(r, v, Keys(q, k), 0.01, 2), inputs)


@pytest.mark.parametrize("rate", [0.0, 1e-30, 30.0, 1e30])
def test_any_rate_gives_finite_sums_and_gradients(rate: float):
    _, *inputs = tokens(1, 100, 1, dtype=torch.float32)
    rates = torch.full((1, 100, 1), rate)
    results = with_gradients(lambda r, v, q, k: keyed_chunked(r, v, Keys(q, k), 1e-5, 4), rates, *inputs)
    assert all(result.isfinite().all() for result in results)
    torch.testing.assert_close(results[0], exact(rates, *inputs[:3]), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, 2e-5), (torch.bfloat16, 2**-6)])
def test_the_error_in_lower_precision_is_its_rounding(dtype: torch.dtype, precision: float):
    inputs = tokens(2, 300, 2, dtype=dtype)
    actual = with_gradients(lambda r, v, q, k: keyed_chunked(r, v, Keys(q, k)), *inputs)
    assert_within(precision, actual, with_gradients(exact, *(x.double() for x in inputs)), *inputs)


def test_a_long_stream_keeps_the_tolerance_in_float32():
    """Each source in its own channel; keys and queries of length 1."""
    length, sources = 8192, 64
    rates = torch.logspace(-7, 1.477, sources).repeat(length // sources)[None, :, None]
    v = torch.zeros(1, length, 1, sources)
    v[0, torch.arange(sources), 0, torch.arange(sources)] = 1.0
    q, k = torch.nn.functional.normalize(torch.randn(2, 1, length, 1, 8), dim=-1)
    ages = torch.arange(length)[:, None] - torch.arange(sources)
    weights = torch.exp(-rates[0, :sources, 0].double() * ages.clamp(min=0)) * (ages >= 0)
    matched = weights * (q[0, :, 0].double() @ k[0, :sources, 0].double().T)
    assert (keyed_chunked(rates, v, Keys(q, k))[0, :, 0] - matched).abs().max() <= 1e-5


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 70), st.integers(1, 9), st.lists(st.integers(0, 70), max_size=8), st.integers(0, 2**31))
def test_a_bank_fed_in_any_pieces_equals_the_chunked_form(length, chunk, cuts, seed):
    rates, v, q, k, _ = tokens(2, length, 2, seed)
    fixed = rate_bank(1e-5, chunk, 1 << (length - 1).bit_length())
    bank = DecayBank.empty((2, 2, CHANNELS), fixed, torch.float64, key=KEY)
    bounds = [0, *sorted(min(cut, length) for cut in cuts), length]
    pieces = [slice(a, b) for a, b in pairwise(bounds)]
    actual = [bank.append(rates[:, p], v[:, p], Keys(q[:, p], k[:, p])) for p in pieces]
    expected = keyed_chunked(rates, v, Keys(q, k), 1e-5, chunk)
    torch.testing.assert_close(torch.cat(actual, dim=1), expected, rtol=1e-10, atol=1e-9)


def test_chunks_have_the_fastest_length_by_default():
    """Bit for bit those of 64 tokens with keys, of 32 without; other lengths give the same within the tolerance."""
    rates, v, q, k, _ = tokens(1, 700, 2, dtype=torch.float32)
    keys = Keys(q, k)
    by_itself, plain = decay(rates, v, 700, keys=keys), decay(rates, v, 700)
    of_32, of_64 = (keyed_chunked(rates, v, keys, chunk=chunk) for chunk in (32, 64))
    assert torch.equal(by_itself, of_64) and not torch.equal(by_itself, of_32)
    torch.testing.assert_close(of_32, of_64, rtol=0, atol=1e-3)
    assert torch.equal(plain, decay_chunked(rates, v, 700, chunk=32))
    assert decay_flops(700, 8, 2, key=KEY) == decay_flops(700, 8, 2, chunk=64, key=KEY)
    assert decay_flops(700, 8, 2) == decay_flops(700, 8, 2, chunk=32)


def test_a_key_of_width_one_is_a_factor():
    rates, v, _, _, _ = tokens(1, 100, 1)
    ones = torch.ones(1, 100, 1, 1, dtype=torch.float64)
    torch.testing.assert_close(keyed_chunked(rates, v, Keys(ones, 2 * ones), 1e-9, 4), 2 * decay(rates, v, 100))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 400), st.integers(1, 3), st.sampled_from(["auto", "reference", "chunked"]))
def test_predicted_flops_equal_counted_flops(length, heads, form):
    rates, v, q, k, _ = tokens(1, length, heads)
    predicted = decay_flops(length, heads * CHANNELS, heads, form, 1e-3, 16, KEY)
    with FlopCounterMode(display=False) as counter:
        decay(rates, v, length, form, 1e-3, 16, Keys(q, k))
    assert counter.get_total_flops() == predicted
