"""Rank correlations against SciPy's, windows of neighbors, regret."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from linnet.design.validation import correlations, interval, regret, signs, windows

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=30)


@given(pairs)
def test_correlations_equal_scipys_also_with_ties(values):
    stats = pytest.importorskip("scipy.stats")
    x, y = np.array(values, dtype=float).T
    assume(len(set(x)) > 1 and len(set(y)) > 1)
    found = correlations(signs(x), signs(y))
    assert found.spearman == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found.kendall == pytest.approx(stats.kendalltau(x, y).statistic)


def test_only_order_counts_and_constants_have_no_correlation():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert correlations(signs(x), signs(np.exp(x))) == (1.0, 1.0)
    assert correlations(signs(x), signs(-x)) == (-1.0, -1.0)
    assert correlations(signs(x), signs(np.ones(4))) == (0.0, 0.0)


@given(st.integers(1, 60), st.integers(3, 25))
def test_every_model_is_in_a_window_of_neighbors(count: int, size: int):
    values = np.random.default_rng(count).permutation(count).astype(float)
    found = windows(values, size)
    assert {int(row) for rows in found for row in rows} == set(range(count))
    assert all(len(rows) == min(size, count) for rows in found)
    for rows in found:
        inside = values[rows]
        assert list(inside) == list(range(int(inside[0]), int(inside[0]) + len(rows)))


def test_windows_share_half():
    found = [set(rows.tolist()) for rows in windows(np.arange(200.0), 20)]
    assert len(found) == 19
    assert all(len(one & other) == 10 for one, other in pairwise(found))


def test_regret_is_the_loss_of_the_choice_minus_the_lowest():
    loss = np.array([3.0, 2.0, 5.0])
    assert regret(np.array([1.0, 2.0, 0.0]), loss) == 0
    assert regret(np.array([1.0, 0.0, 2.0]), loss) == 3
    assert regret(np.array([7.0, 0.0, 7.0]), loss) == 2  # the mean of its two choices


def test_an_interval_contains_95_percent():
    assert interval(list(range(1001))) == (25.0, 975.0)
