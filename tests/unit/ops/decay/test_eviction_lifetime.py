"""Lifetimes against the decaying quantities themselves, a context that is stepped through, and extreme values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linnet.ops.decay.eviction import (
    EvictionPolicy,
    fading_ages,
    half_lives,
    lifetimes,
    lifetimes_definition,
    relevance,
    survivors,
)

SEEDS = st.integers(0, 2**31)
HEADS = st.integers(1, 5)
THRESHOLDS = st.floats(1e-9, 3.0)
MOST = 400


def tokens(seed: int, heads: int, count: int = 20, slowest: float = 0.05) -> tuple[Tensor, Tensor]:
    """Norms from 1e-6 to 10 and rates from `slowest` to 30, float64."""
    uniform = torch.rand(2, count, heads, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    low = math.log10(slowest)
    return 10 ** (-6 + 7 * uniform[0]), 10 ** (low + (1.48 - low) * uniform[1])


@given(SEEDS, HEADS, st.integers(0, 30))
def test_relevance_is_the_norm_of_the_remaining_contribution(seed, heads, age):
    generator = torch.Generator().manual_seed(seed)
    v_XNC = torch.randn(6, heads, 4, dtype=torch.float64, generator=generator)
    rates_XN = 3 * torch.rand(6, heads, dtype=torch.float64, generator=generator)
    left_XNC = torch.exp(-rates_XN * age)[..., None] * v_XNC
    expected = left_XNC.flatten(1).norm(dim=1)
    actual = relevance(v_XNC.norm(dim=-1), rates_XN, torch.tensor(float(age)))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


def test_relevance_of_one_head_equals_the_published_one_bit_for_bit():
    norms_X1, rates_X1 = tokens(0, heads=1)
    ages_X = torch.arange(20.0, dtype=torch.float64)
    published = norms_X1[:, 0] * torch.exp(-rates_X1[:, 0] * ages_X)
    assert relevance(norms_X1, rates_X1, ages_X).equal(published)
    assert relevance(norms_X1.float(), rates_X1.float(), ages_X.float()).dtype == torch.float32


def test_relevance_of_several_heads_does_not_underflow():
    norms_XN = torch.full((1, 4), 1e-200, dtype=torch.float64)
    torch.testing.assert_close(relevance(norms_XN, torch.zeros(1, 4), torch.zeros(1)), norms_XN[:, 0] * 2)


@given(SEEDS, HEADS, THRESHOLDS)
def test_the_fast_form_counts_the_steps_of_the_definition(seed, heads, threshold):
    norms_XN, rates_XN = tokens(seed, heads, slowest=0.1)
    expected = lifetimes_definition(norms_XN, rates_XN, threshold, MOST)
    assert lifetimes(norms_XN, rates_XN, threshold).equal(expected)
    assert expected.max() < MOST, "all of them have ended"


@settings(max_examples=20)
@given(SEEDS, HEADS, THRESHOLDS)
def test_a_context_that_evicts_below_the_threshold_holds_a_token_for_its_lifetime(seed, heads, threshold):
    """Step by step, as in a decoder: relevance decreases by a factor in each step, tokens below are evicted."""
    norms_XN, rates_XN = tokens(seed, heads, slowest=0.1)
    policy = EvictionPolicy(threshold=threshold, min_tokens_to_keep=0)
    present_1X, held_X = torch.ones(1, len(norms_XN), dtype=torch.bool), torch.zeros(len(norms_XN))
    left_XN = norms_XN.clone()
    for _ in range(MOST):
        present_1X = survivors(left_XN.norm(dim=1)[None], present_1X, policy)
        held_X += present_1X[0]
        left_XN = left_XN * torch.exp(-rates_XN)
    assert lifetimes(norms_XN, rates_XN, threshold).float().equal(held_X)


@given(SEEDS, st.integers(1, 16), st.floats(1e-12, 100.0))
def test_very_long_lifetimes_end_as_predicted(seed, heads, threshold):
    norms_XN, rates_XN = tokens(seed, heads, count=200, slowest=1e-11)
    found = lifetimes(norms_XN, rates_XN, threshold)
    assert (found >= 0).all() and found.equal(found.floor())
    assert (relevance(norms_XN, rates_XN, found) < threshold).all()
    before = relevance(norms_XN, rates_XN, (found - 1).clamp(min=0))
    assert (before >= threshold)[found > 0].all()


@settings(max_examples=30)
@given(SEEDS, HEADS, st.integers(0, 10**6))
def test_a_threshold_that_is_reached_exactly_at_an_integer_age(seed, heads, age):
    """The rounded crossing may lie on either side; the relevance itself decides."""
    norms_XN, rates_XN = tokens(seed, heads, slowest=1e-6)
    rates_XN = rates_XN.clamp(max=600 / max(age, 20))  # not to underflow
    just_X = relevance(norms_XN, rates_XN, torch.tensor(float(age)))
    for norms_N, rates_N, just in zip(norms_XN, rates_XN, just_X, strict=True):
        assert lifetimes(norms_N, rates_N, float(just)) == age + 1
        assert lifetimes(norms_N, rates_N, float(torch.nextafter(just, torch.tensor(math.inf)))) == age


@given(SEEDS, HEADS, THRESHOLDS, st.floats(1.0, 1e3))
def test_a_higher_threshold_never_extends_a_lifetime(seed, heads, threshold, factor):
    norms_XN, rates_XN = tokens(seed, heads)
    assert (lifetimes(norms_XN, rates_XN, threshold * factor) <= lifetimes(norms_XN, rates_XN, threshold)).all()


def test_the_published_formula():
    norms_X1, rates_X1 = tokens(1, heads=1, count=100)
    exact_X = torch.log(norms_X1 / 1e-8)[:, 0] / rates_X1[:, 0]
    assert lifetimes(norms_X1, rates_X1, 1e-8).equal(exact_X.clamp(min=-1).floor() + 1)


@pytest.mark.parametrize(
    ("norms", "rates", "lifetime"),
    [
        ([0.0], [1.0], 0),
        ([0.5], [0.0], 0),
        ([1.0], [0.0], math.inf),
        ([2.0], [0.0], math.inf),
        ([1.0], [1.0], 1),  # at age 0 not below
        ([1.0, 0.0], [1e30, 0.0], 1),
        ([0.8, 0.8], [0.0, 0.0], math.inf),
        ([0.8, 0.8], [0.0, 1.0], 1),  # 0.8^2 (1 + e^-2) < 1
        ([0.8, 0.8], [0.0, 0.1], 3),
        ([1.0, 5.0], [0.0, 9.0], math.inf),
        ([5.0, 0.0], [1e-300, 9.0], 1.6094379124341e300),
    ],
)
def test_edge_cases(norms: list[float], rates: list[float], lifetime: float):
    norms_1N, rates_1N = torch.tensor([[norms], [rates]], dtype=torch.float64)
    assert lifetimes(norms_1N, rates_1N, 1.0).item() == pytest.approx(lifetime)


def test_float32_is_computed_in_float64():
    norms_XN, rates_XN = (x.float() for x in tokens(2, heads=2, slowest=1e-6))
    found = lifetimes(norms_XN, rates_XN, 1e-8)
    assert found.dtype == torch.float64 and found.equal(lifetimes(norms_XN.double(), rates_XN.double(), 1e-8))


def test_shapes():
    norms_XN, rates_XN = tokens(3, heads=2, count=24)
    flat = lifetimes(norms_XN, rates_XN, 1e-3)
    assert lifetimes(norms_XN.view(2, 3, 4, 2), rates_XN.view(2, 3, 4, 2), 1e-3).equal(flat.view(2, 3, 4))
    assert lifetimes(norms_XN[:0], rates_XN[:0], 1e-3).shape == (0,)


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.inf, math.nan])
def test_thresholds_without_a_lifetime_are_refused(threshold: float):
    with pytest.raises(ValueError, match=r"threshold: .*: must be a finite number above 0"):
        lifetimes(torch.ones(1, 1), torch.ones(1, 1), threshold)


@given(SEEDS, HEADS)
def test_half_of_the_relevance_remains_at_the_half_life(seed, heads):
    norms_XN, rates_XN = tokens(seed, heads, slowest=1e-9)
    found = half_lives(norms_XN, rates_XN)
    halves = relevance(norms_XN, rates_XN, torch.zeros(())) / 2
    torch.testing.assert_close(relevance(norms_XN, rates_XN, found), halves, rtol=1e-9, atol=0)


def test_half_lives_of_one_head_and_of_tokens_without_quantity():
    norms_X1, rates_X1 = tokens(4, heads=1)
    torch.testing.assert_close(half_lives(norms_X1, rates_X1), math.log(2) / rates_X1[:, 0], rtol=1e-12, atol=0)
    torch.testing.assert_close(half_lives(0 * norms_X1, rates_X1), math.log(2) / rates_X1[:, 0], rtol=1e-12, atol=0)
    assert half_lives(torch.ones(1, 1), torch.zeros(1, 1)).item() == math.inf


def test_an_age_at_which_a_fast_head_decides_about_a_slow_one():
    """The slow head is barely below the level, so the remainder of the fast one decides when the sum passes it."""
    norms_1N, rates_1N = torch.tensor([[[1 - 1e-12, 1.0]], [[0.0, 3.0]]], dtype=torch.float64)
    age = fading_ages(norms_1N, rates_1N, torch.ones(1))
    assert age.item() == pytest.approx(-math.log(2e-12) / 6, rel=1e-3)
