"""Labels keep their distance and their order, and are moved as little as that takes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.present.labels import apart, label_points
from linnet.present.style import new_figure


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.2))
def test_labels_keep_their_distance_and_order(values: list[float], gap: float):
    ascending = sorted(values)
    found = apart(ascending, gap)
    assert all(later - earlier >= gap * (1 - 1e-9) for earlier, later in pairwise(found))
    assert sum(found) == pytest.approx(sum(ascending), abs=1e-9)
    if all(later - earlier >= gap for earlier, later in pairwise(ascending)):
        assert found == pytest.approx(ascending)


@given(st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=12), st.floats(0.001, 0.09))
def test_labels_keep_between_ends_that_leave_them_the_room(values: list[float], gap: float):
    found = apart(sorted(values), gap, 0.0, 1.0)
    assert all(later - earlier >= gap * (1 - 1e-9) for earlier, later in pairwise(found))
    assert found[0] >= -1e-9 and found[-1] <= 1 + 1e-9


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_labels_of_points_at_the_same_place_stand_beside_each_other(scale: str):
    axes = new_figure(4, 3).subplots()
    axes.set(xscale=scale, xlim=(1, 100))
    label_points(axes, [10, 10, 50], [1, 2, 3], ["a", "b", "c"], "black", above=True)
    first, second, third = (text.xy[0] for text in axes.texts)
    assert first < 10 < second and third == pytest.approx(50)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_picture_of_one_point_has_its_label(scale: str):
    """On an axis of numbers so close to each other that its ends are the same."""
    axes = new_figure(4, 3).subplots()
    axes.set(xscale=scale)
    axes.get_xlim = lambda: (7.0, 7.0)
    label_points(axes, [7.0], [1], ["alone"], "black", above=True)
    assert [text.xy[0] for text in axes.texts] == [pytest.approx(7.0)]
