import math

import pytest
import torch
from torch import Tensor

from linnet.ops.decay.rates import (
    RateBank,
    barycentric,
    barycentric_places,
    coefficients,
    coefficients_and_slopes,
    rate_bank,
)

RATES = torch.cat([torch.zeros(1), torch.logspace(-10, 3, 1500)]).double()


def errors(bank: RateBank, ages: Tensor) -> tuple[float, float]:
    """Largest error of a weight, and of e times its derivative by the logarithm of the rate."""
    phi, slopes = coefficients_and_slopes(bank, RATES)
    fixed, weights = torch.exp(-bank.rates_R[:, None] * ages), torch.exp(-RATES[:, None] * ages)
    entry = torch.exp(-RATES * bank.nearest)[:, None]
    error = phi @ fixed - weights
    slope_error = slopes @ fixed + ages * weights - bank.nearest * error
    return float((entry * error).abs().max()), float((math.e * RATES[:, None] * entry * slope_error).abs().max())


@pytest.mark.parametrize("tolerance", [0.1, 1e-3, 1e-5, 1e-7, 1e-10])
@pytest.mark.parametrize(("nearest", "length"), [(1, 4), (2, 64), (32, 2048), (32, 65_536), (64, 10**7)])
def test_the_bounds_hold_and_are_within_the_tolerance(tolerance: float, nearest: int, length: int):
    bank = rate_bank(tolerance, nearest, length)
    assert max(bank.bound, bank.gradient_bound) <= tolerance
    ages = torch.cat([torch.zeros(1), torch.logspace(-2, 0, 500) * length]).double().clamp(max=length)
    ages = torch.cat([ages, torch.logspace(-3, math.log10(length), 500).double().clamp(max=length)])
    error, gradient_error = errors(bank, ages)
    rounding = 1e-13
    assert error <= bank.bound + rounding
    assert gradient_error <= bank.gradient_bound + rounding
    if nearest == 32:
        assert gradient_error > tolerance / 100, "more rates than the tolerance asks for"


def test_the_number_of_rates_grows_with_the_logarithm_of_length_and_tolerance():
    """The numbers in docs/layers/ted.md."""
    counts = [len(rate_bank(1e-5, 32, length).rates_R) for length in (2048, 8192, 65_536, 2**20, 2**24)]
    assert counts == [27, 31, 38, 49, 61]
    assert [len(rate_bank(t, 32, 65_536).rates_R) for t in (1e-3, 1e-5, 1e-7, 1e-9)] == [24, 38, 52, 67]


def test_coefficients_are_small_and_interpolate():
    bank = rate_bank(1e-5, 32, 65_536)
    phi = coefficients(bank, RATES)
    assert phi.abs().max() < 1.3
    assert phi.abs().sum(-1).max() < 2 / math.pi * math.log(len(bank.rates_R)) + 1
    torch.testing.assert_close(phi.sum(-1), torch.ones_like(RATES))
    eye = torch.eye(len(bank.rates_R), dtype=torch.float64)
    torch.testing.assert_close(coefficients(bank, bank.rates_R), eye)


def test_all_fixed_rates_are_positive():
    assert (rate_bank(1e-5, 32, 10**7).rates_R > 0).all()


def test_slopes_are_the_derivatives_of_the_coefficients():
    bank = rate_bank(1e-5, 32, 2048)
    rates = torch.logspace(-5, 1, 20, dtype=torch.float64).requires_grad_()
    step = 1e-6 * rates.detach()
    difference = (coefficients(bank, rates + step) - coefficients(bank, rates - step)) / (2 * step[:, None])
    torch.testing.assert_close(coefficients_and_slopes(bank, rates)[1], difference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tolerance", [0.0, 1e-11, 0.2, -1.0, math.nan])
def test_a_tolerance_out_of_range_is_refused(tolerance: float):
    with pytest.raises(ValueError, match=r"tolerance: .*: must be from 1e-10 to 0.1"):
        rate_bank(tolerance, 32, 2048)


@pytest.mark.parametrize("length", [128, 65_536])
def test_the_barycentric_form_gives_the_same_polynomials(length: int):
    bank = rate_bank(1e-5, 32, length)
    (fixed_R, factors_R), places = barycentric(bank), barycentric_places(bank, RATES)
    inner, y, value, slope, *_ = (x[:, None] for x in places.unbind(-1))
    phi, slopes = coefficients_and_slopes(bank, RATES)
    found = factors_R * value / (y - fixed_R)
    torch.testing.assert_close(found, phi, rtol=1e-7, atol=1e-9)
    found_slopes = (factors_R * slope - found) / (y - fixed_R) * inner
    torch.testing.assert_close(found_slopes, slopes, rtol=1e-5, atol=1e-5 * float(slopes.abs().max()))


def test_near_a_fixed_rate_the_next_terms_give_the_slope():
    bank = rate_bank(1e-5, 32, 2048)
    rates_R = bank.rates_R * (1 + 1e-7)
    (fixed_R, factors_R), places = barycentric(bank), barycentric_places(bank, rates_R)
    inner, y, *_, second, third = places.unbind(-1)
    _, slopes = coefficients_and_slopes(bank, rates_R)
    found = factors_R * (second - (y - fixed_R) * third) * inner
    torch.testing.assert_close(found, slopes.diagonal(), rtol=1e-6, atol=0)


def test_coefficients_in_a_graph_are_equal_even_at_a_fixed_rate(monkeypatch: pytest.MonkeyPatch):
    bank = rate_bank(1e-6, 16, 4096)
    rates = torch.cat([torch.logspace(-8, 1, 50, dtype=torch.float64), bank.rates_R])
    expected = coefficients(bank, rates)
    monkeypatch.setattr("linnet.ops.decay.rates.is_exporting", lambda: True)
    torch.testing.assert_close(coefficients(bank, rates), expected, atol=1e-9, rtol=0)
