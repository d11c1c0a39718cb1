"""Plain shapes of a wanted size."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.scaling.candidate import candidate, least_parameters
from linnet.scaling.counts import COUNTINGS, parameter_counts


@settings(max_examples=12)
@given(st.floats(2e6, 2e10), st.sampled_from(COUNTINGS), st.sampled_from([257, 4096, 32000]))
def test_the_size_is_near_the_wanted_one(size: float, counted, vocabulary: int):
    if counted != "without_embedding" and size < 4 * least_parameters(vocabulary):
        size *= 10
    spec = candidate(size, counted, vocabulary, 128)
    assert parameter_counts(spec).by_name()[counted] == pytest.approx(size, rel=0.12)
    assert (spec.vocab_size, spec.context_length) == (vocabulary, 128)
    assert spec.d_model / 4 <= 64 * spec.layers <= max(128, 2 * spec.d_model)


def test_the_smallest_shape_is_its_own_nearest():
    smallest = least_parameters(4096)
    assert parameter_counts(candidate(smallest, "total", 4096, 8)).total == smallest


@pytest.mark.parametrize(("size", "side"), [(1e4, "larger"), (1e15, "smaller")])
def test_what_no_shape_comes_near_is_refused(size: float, side: str):
    with pytest.raises(UserError, match=rf"the nearest shape .* 32,000 has .*; expected a {side} budget"):
        candidate(size, "total", 32000, 128)
