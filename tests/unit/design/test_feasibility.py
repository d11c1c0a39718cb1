"""Pareto dominance: for every dropped row, one that stays is as good."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from linnet.design.feasibility import margins, non_dominated_by_width

rows = st.lists(st.tuples(st.integers(0, 1), *[st.integers(0, 3)] * 3), min_size=1, max_size=30)


@given(rows, st.sampled_from([0.0, 1.0]), st.sampled_from([5, 30_000_000]))
def test_for_each_dropped_row_one_that_stays_is_as_good(drawn, margin: float, most: int):
    table = np.array(drawn, dtype=np.float64)
    width, compared, margin_K = table[:, 0].astype(int), table[:, 1:], np.array([0.0, margin, 0.0])
    kept = np.sort(non_dominated_by_width(width, compared, margin_K, most))
    assert len(set(kept)) == len(kept)
    for row in set(range(len(table))) - set(kept):
        as_good = (compared[kept] + margin_K <= compared[row]).all(1) & (width[kept] == width[row])
        assert as_good.any()
    if most > 30 * 30 and not margin:
        for row in kept:
            others = kept[(kept != row) & (width[kept] == width[row])]
            assert not (compared[others] <= compared[row]).all(1).any()


def test_no_rows_give_no_rows():
    assert len(non_dominated_by_width(np.zeros(0, dtype=int), np.zeros((0, 2)), np.zeros(2))) == 0


def test_only_sums_of_whole_numbers_are_exact():
    assert margins([np.array([1.0, 2e9]), np.array([1.0, 0.5])], [8.0, -8.0], 0.25).tolist() == [0.0, 2.0]
