"""The objective of many starts at once against the formula, point by point, and its gradient against differences."""

import numpy as np
import pytest

from linnet.scaling.parametric import ROWS_AT_ONCE, HuberSum, huber_sum_reference
from linnet.scaling.points import Points

STARTS = np.array(
    [
        [5.0, 6.0, 0.5, 0.32, 0.36],
        [0.0, 0.0, -1.0, 0.0, 0.0],
        [25.0, 25.0, 1.0, 2.0, 2.0],
        [5.010635, 5.991465, 0.470004, 0.32, 0.36],  # the truth: residuals on the square side of the kink
    ]
)


@pytest.mark.parametrize("delta", [1e-3, 0.3])
def test_values_are_those_of_the_formula(points: Points, delta: float):
    objective = HuberSum.of(points, delta)
    found, _ = objective(objective.center(STARTS), np.arange(len(STARTS)))
    assert found == pytest.approx([huber_sum_reference(x, points, delta) for x in STARTS], rel=1e-9)


def test_both_sides_of_the_kink_occur(points: Points):
    near, far = (huber_sum_reference(STARTS[index], points, 1e-2) for index in (3, 1))
    assert near < 1e-4 * len(points) < far


@pytest.mark.parametrize("delta", [1e-3, 0.3])
def test_gradients_are_those_of_differences(points: Points, delta: float):
    objective = HuberSum.of(points, delta)
    rows = np.arange(len(STARTS))
    x = objective.center(STARTS + 0.01)
    _, gradient = objective(x, rows)
    step = 1e-7
    for unknown in range(5):
        move = step * np.eye(5)[unknown]
        slope = (objective(x + move, rows)[0] - objective(x - move, rows)[0]) / (2 * step)
        assert gradient[:, unknown] == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_more_starts_than_lie_in_the_cache_give_the_same(points: Points):
    objective = HuberSum.of(points)
    many = np.random.default_rng(0).uniform(0, 2, (2 * ROWS_AT_ONCE + 3, 5))
    value, gradient = objective(many, np.arange(len(many)))
    one_by_one = [objective(many[[row]], np.array([row])) for row in range(len(many))]
    assert value == pytest.approx([one[0][0] for one in one_by_one], rel=1e-12)
    assert gradient == pytest.approx(np.concatenate([one[1] for one in one_by_one]), rel=1e-9, abs=1e-15)


def test_a_weight_counts_a_point_so_often(points: Points):
    weights = np.zeros((2, len(points)))
    weights[0, [0, 3]] = 1, 2
    weights[1, [5]] = 4
    objective = HuberSum.of(points, weights_SP=weights)
    x = objective.center(STARTS[[0, 0]])
    drawn = [points[np.array([0, 3, 3])], points[np.array([5, 5, 5, 5])]]
    expected = [huber_sum_reference(STARTS[0], some) for some in drawn]
    assert objective(x, np.array([0, 1]))[0] == pytest.approx(expected)
    assert objective(x[:1], np.array([1]))[0] == pytest.approx(expected[1:])


def test_centring_leads_there_and_back(points: Points):
    objective = HuberSum.of(points)
    assert objective.uncenter(objective.center(STARTS)) == pytest.approx(STARTS)
