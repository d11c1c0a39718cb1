"""Labels keep their distance and their order, and are moved as little as that takes."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes

from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.style import label_points, new_figure, spread


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.2))
def test_labels_keep_their_distance_and_order(values: list[float], gap: float):
    ascending = sorted(values)
    found = spread(ascending, gap)
    assert all(later - earlier >= gap * (1 - 1e-9) for earlier, later in pairwise(found))
    assert sum(found) == pytest.approx(sum(ascending), abs=1e-9)
    if all(later - earlier >= gap for earlier, later in pairwise(ascending)):
        assert found == pytest.approx(ascending)


@given(st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=12), st.floats(0.001, 0.09))
def test_labels_keep_between_ends_that_leave_them_the_room(values: list[float], gap: float):
    found = spread(sorted(values), gap, 0.0, 1.0)
    assert all(later - earlier >= gap * (1 - 1e-9) for earlier, later in pairwise(found))
    assert found[0] >= -1e-9 and found[-1] <= 1 + 1e-9


Point = tuple[float, float]


def labeled(points: Sequence[Point], lines: Sequence[tuple[Point, Point]] = (), scale: str = "log") -> Axes:
    """Each with the name of its number, and room for all of them."""
    axes = new_figure(6, 5).subplots()
    axes.set(xscale=scale, xlim=(1, 100), ylim=(0, 1))
    axes.figure.draw_without_rendering()
    if points:
        label_points(axes, [(x, y, f"number {i}", "black") for i, (x, y) in enumerate(points)], lines)
    axes.figure.draw_without_rendering()
    return axes


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("seed", range(4))
def test_names_of_points_lie_on_nothing(seed: int, scale: str):
    drawn = Random(seed)
    points = [(drawn.uniform(10, 50), drawn.uniform(0.1, 0.9)) for _ in range(14)]
    axes = labeled(points, scale=scale)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == [f"number {i}" for i in range(len(points))]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert not any(box.contains(*place) for box in boxes for place in axes.transData.transform(points))
    panel = axes.get_window_extent()
    assert all(panel.containsx(x) and panel.containsy(y) for box in boxes for x, y in (box.min, box.max))


def test_names_of_points_lie_on_no_line():
    point = (10.0, 0.5)
    upright = ((10.0, 10.0), (0.0, 1.0))
    flat = ((1.0, 100.0), (0.5, 0.5))
    (text,) = labeled([point], [upright, flat]).texts
    (x, y), box = text.axes.transData.transform(point), text.get_window_extent()
    assert not box.x0 <= x <= box.x1 and not box.y0 <= y <= box.y1


def test_names_leave_the_panel_as_it_is():
    axes = labeled([(10.0, 0.5), (10.0, 0.5)])
    assert axes.get_xlim() == (1, 100) and axes.get_ylim() == (0, 1)
    assert axes.get_window_extent().bounds == pytest.approx(labeled([]).get_window_extent().bounds)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_picture_of_one_point_has_its_label(scale: str):
    """On an axis of numbers so close to each other that its ends are the same."""
    panel = Panel(Axis(scale=scale), Axis(), [Series([7.0], [1.0], style="o", labels=["alone"])])
    assert [text.get_text() for text in Plot([panel]).figure().axes[0].texts] == ["alone"]
