from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from linnet.ops.decay import chunks
from linnet.ops.decay.reference import decay_reference
from linnet.ops.decay.sums import CHUNKED_ABOVE, decay, decay_chunked, decay_flops


def tokens(
    batch: int, length: int, heads: int, channels: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Rates from 1e-7 to 30, quantities, and an upstream gradient."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.promote_types(dtype, torch.float32)
    rates = 10 ** (-7 + 8.477 * torch.rand(batch, length, heads, dtype=torch.float64, generator=generator))
    v, upstream = torch.randn(2, batch, length, heads, channels, dtype=torch.float64, generator=generator).to(dtype)
    return rates.to(wide), v, upstream


def gradients(form, rates: Tensor, v: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rates, v = rates.clone().requires_grad_(), v.clone().requires_grad_()
    out = form(rates, v)
    return (out.detach(), *torch.autograd.grad(out, (rates, v), upstream))


def exact(rates: Tensor, v: Tensor) -> Tensor:
    return decay_reference(rates, v, rates.shape[1])


def assert_within(tolerance: float, actual, expected, rates: Tensor, v: Tensor, upstream: Tensor) -> None:
    """The error of each weight is at most the tolerance, that of a sum this times the sum of absolute values."""
    v, upstream = v.double().abs(), upstream.double().abs()
    out, grad_rates, grad_v = [(a.double() - e.double()).abs() for a, e in zip(actual, expected, strict=True)]
    assert (out <= tolerance * v.cumsum(1)).all()
    later = upstream.flip(1).cumsum(1).flip(1)
    assert (grad_v <= tolerance * later).all()
    assert (rates.double() * grad_rates <= tolerance / 2.718 * (v * later).sum(-1)).all()


@settings(max_examples=60, deadline=None)
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
    inputs, tolerance = tokens(batch, length, heads, 3, seed), 10.0**-digits
    with patch.object(chunks, "SEGMENT_NUMBERS", numbers):
        actual = gradients(lambda r, v: decay_chunked(r, v, length, tolerance, chunk), *inputs)
    assert_within(tolerance + 1e-13, actual, gradients(exact, *inputs), *inputs)


@pytest.mark.parametrize("length", [1, 2, 7, 12, 13])
def test_gradients_equal_finite_differences(length: int):
    rates, v, _ = tokens(2, length, 2, 3)
    rates = rates.clamp(0.01, 3)
    inputs = (rates.requires_grad_(), v.requires_grad_())
    assert torch.autograd.gradcheck(lambda r, v: decay_chunked(r, v, length, 0.01, 2), inputs)


@pytest.mark.parametrize("rate", [0.0, 1e-30, 1e-7, 0.5, 30.0, 1e4, 1e30])
def test_any_rate_gives_finite_sums_and_gradients(rate: float):
    _, v, upstream = tokens(1, 100, 1, 2, dtype=torch.float32)
    rates = torch.full((1, 100, 1), rate)
    results = gradients(lambda r, v: decay_chunked(r, v, 100, 1e-5, 4), rates, v, upstream)
    assert all(result.isfinite().all() for result in results)
    torch.testing.assert_close(results[0], exact(rates, v), atol=1e-4, rtol=0)


def truth_of_few(rates: Tensor, v: Tensor, readers: Tensor) -> Tensor:
    """The sums of a few tokens of a long stream, `[B, readers, N, H]`, in float64."""
    ages = readers[:, None] - torch.arange(rates.shape[1])
    weights = torch.exp(-rates.double()[:, None] * ages.clamp(min=0)[None, :, :, None]) * (ages >= 0)[None, :, :, None]
    return torch.einsum("btsn,bsnh->btnh", weights, v.double())


@pytest.mark.parametrize(("length", "tolerance"), [(257, 1e-3), (257, 1e-5), (2048, 1e-3), (65_536, 1e-5)])
def test_a_long_stream_keeps_the_tolerance_in_float32(length: int, tolerance: float):
    """Each source in its own channel, so that errors cannot cancel in a sum."""
    rates = torch.logspace(-7, 1.477, 64).repeat(length // 64 + 1)[:length][None, :, None]
    v = torch.zeros(1, length, 1, 64)
    v[0, torch.arange(64), 0, torch.arange(64)] = 1.0
    out = decay_chunked(rates, v, length, tolerance)
    readers = torch.cat([torch.arange(0, length, max(1, length // 500)), torch.tensor([length - 1])])
    assert (out[:, readers] - truth_of_few(rates, v, readers)).abs().max() <= tolerance


@pytest.mark.parametrize("length", [1000, 65_536])
def test_sums_over_a_long_stream_in_float32(length: int):
    rates, v, _ = tokens(1, length, 1, 4, dtype=torch.float32)
    readers = torch.arange(0, length, max(1, length // 300))
    error = (decay_chunked(rates, v, length)[:, readers] - truth_of_few(rates, v, readers)).abs()
    assert (error <= 1e-5 * v.abs().cumsum(1)[:, readers]).all()


@pytest.mark.parametrize("length", [300, 65_536])
def test_the_error_of_bfloat16_inputs_is_their_rounding(length: int):
    """The weights of near tokens and the result are rounded to 8 bits; the bank is not."""
    rates, v, _ = tokens(1, length, 1, 8, dtype=torch.bfloat16)
    readers = torch.arange(0, length, max(1, length // 300))
    exact_sums = truth_of_few(rates, v, readers)
    error = (decay_chunked(rates, v, length)[:, readers].double() - exact_sums).abs()
    near = v.double().abs().unfold(1, min(64, length), 1).sum(-1).amax(1)
    far = 1e-5 * v.double().abs().cumsum(1)[:, readers]
    assert (error <= 2**-8 * exact_sums.abs() + 2**-8 * near + far).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_in_lower_precision_equal_the_reference(dtype: torch.dtype):
    inputs = tokens(2, 300, 2, 8, dtype=dtype)
    actual = gradients(lambda r, v: decay_chunked(r, v, 300), *inputs)
    wide = [x.double() for x in inputs]
    precision = {torch.float32: 2e-5, torch.bfloat16: 2**-7}[dtype]
    assert_within(precision, actual, gradients(exact, *wide), *inputs)


def test_rows_and_heads_do_not_touch_each_other():
    rates, v, _ = tokens(3, 50, 2, 2)
    alone = decay_chunked(rates[1:2, :, 1:], v[1:2, :, 1:], 50, 1e-5, 4)
    v[[0, 2]] = torch.nan
    v[:, :, 0] = torch.nan
    torch.testing.assert_close(decay_chunked(rates, v, 50, 1e-5, 4)[1:2, :, 1:], alone)


def test_under_autocast_the_bank_stays_wide():
    rates, v, _ = tokens(1, 300, 1, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        actual = decay_chunked(rates, v, 300)
    assert torch.equal(actual, decay_chunked(rates, v, 300))


def test_the_last_tokens_alone_are_refused():
    rates, v, _ = tokens(1, 9, 1, 2)
    with pytest.raises(ValueError, match="queries: 3: must be all 9 tokens"):
        decay_chunked(rates, v, 3)


@pytest.mark.parametrize("length", [CHUNKED_ABOVE, CHUNKED_ABOVE + 1])
def test_auto_selects_the_faster_form(length: int):
    rates, v, _ = tokens(1, length, 1, 2)
    form = decay_chunked if length > CHUNKED_ABOVE else decay_reference
    assert torch.equal(decay(rates, v, length), form(rates, v, length))
    assert torch.equal(decay(rates, v, length, "reference"), exact(rates, v))
    assert torch.equal(decay(rates, v, length, "chunked"), decay_chunked(rates, v, length))


def test_the_last_tokens_of_a_state_are_exact():
    rates, v, _ = tokens(1, 400, 1, 2)
    assert torch.equal(decay(rates, v, 3, "chunked"), decay_reference(rates, v, 3))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["auto", "reference", "chunked"]))
def test_predicted_flops_equal_counted_flops(length, heads, channels, form):
    rates, v, _ = tokens(1, length, heads, channels)
    predicted = decay_flops(length, heads * channels, heads, form, 1e-3, 16)  # and the bank is made, once for all
    with FlopCounterMode(display=False) as counter:
        decay(rates, v, length, form, 1e-3, 16)
    assert counter.get_total_flops() == predicted
