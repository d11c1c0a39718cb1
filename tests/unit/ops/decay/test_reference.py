import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops.decay.reference import decay_definition, decay_rates, decay_reference


@given(st.floats(-80, 80))
def test_rates_are_positive_and_follow_the_definition(logit):
    rate = decay_rates(torch.tensor(logit, dtype=torch.float64)).item()
    assert rate > 0
    expected = math.log1p(math.exp(-logit)) if logit > -700 else -logit
    assert math.isclose(rate, expected, rel_tol=1e-9)


def test_rates_of_extreme_logits_stay_finite_in_float32():
    rates = decay_rates(torch.tensor([-1e4, -100.0, 80.0]))
    assert rates.isfinite().all()
    assert (rates > 0).all()


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**31))
def test_matrix_form_equals_the_sums(length, queries, heads, seed):
    generator = torch.Generator().manual_seed(seed)
    rates = 3 * torch.rand(2, length, heads, dtype=torch.float64, generator=generator)
    values = torch.randn(2, length, heads, 4, dtype=torch.float64, generator=generator)
    queries = min(queries, length)
    torch.testing.assert_close(decay_reference(rates, values, queries), decay_definition(rates, values, queries))


def test_a_rate_belongs_to_its_source():
    """A slow first token remains after many fast ones."""
    rates = torch.tensor([1e-4, 5.0, 5.0, 5.0, 5.0])[None, :, None]
    values = torch.eye(5)[None, :, None]
    last = decay_reference(rates, values, 1)[0, 0, 0]
    torch.testing.assert_close(last[0], torch.tensor(math.exp(-4e-4)))
    assert (last[1:4] < 0.01).all()
    assert last[4] == 1
