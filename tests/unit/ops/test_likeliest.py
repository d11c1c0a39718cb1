import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops.likeliest import GROUP, likeliest, likeliest_reference


@given(
    rows=st.integers(1, 4),
    numbers=st.integers(1, 5 * GROUP),
    levels=st.sampled_from([1, 3, 1000]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_the_first_of_the_highest_also_among_equals(rows, numbers, levels, dtype):
    logits = torch.randint(levels, (rows, numbers)).to(dtype) - levels
    for fast, slow in zip(likeliest(logits), likeliest_reference(logits), strict=True):
        assert torch.equal(fast, slow)


@pytest.mark.parametrize("place", [0, GROUP - 1, GROUP, 2 * GROUP + 3, 3 * GROUP, 3 * GROUP + 4])
def test_every_place_is_found_with_minus_infinity_around_it(place):
    logits = torch.full((2, 3 * GROUP + 5), float("-inf"))
    logits[1, place] = -1e30
    highest, found = likeliest(logits)
    assert found[:, 0].tolist() == [0, place] and highest[:, 0].tolist() == [float("-inf"), logits[1, place].item()]


def test_a_row_with_what_is_no_number_says_so():
    logits = torch.randn(2, 2 * GROUP)
    logits[1, GROUP + 7] = torch.nan
    highest, place = likeliest(logits)
    assert highest[1].isnan() and place[1] == GROUP + 7 and highest[0].isfinite()
