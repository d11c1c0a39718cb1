import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from linnet.evaluation.student import below, quantile

DEGREES = st.one_of(st.integers(1, 60), st.sampled_from([999, 12_345, 1_000_000]))


@given(st.floats(-60, 60), DEGREES)
def test_a_probability_is_scipys(t, degrees):
    assert below(t, degrees) == pytest.approx(stats.t.cdf(t, degrees), rel=1e-8, abs=1e-14)


@given(st.floats(0.0005, 0.9995), DEGREES)
def test_a_quantile_is_scipys(share, degrees):
    assert quantile(share, degrees) == pytest.approx(stats.t.ppf(share, degrees), rel=1e-7, abs=1e-9)


def test_values_of_tables():
    """Of one degree of freedom it is Cauchy's distribution; 12.706 and 2.228 stand in every table."""
    assert below(1.0, 1) == pytest.approx(0.75) and below(0.0, 7) == 0.5
    assert (round(quantile(0.975, 1), 3), round(quantile(0.975, 10), 3)) == (12.706, 2.228)


def test_the_ends():
    assert (below(math.inf, 3), below(-math.inf, 3), below(-1e200, 3)) == (1, 0, 0)
    assert math.isnan(below(math.nan, 3))
