"""Approach 3 finds the law that made the points, and its intervals contain it; the objective and its gradient."""

import itertools

import numpy as np
import pytest
from known_laws import TRUTH

from linnet.core.errors import UserError
from linnet.scaling.parametric import ROWS_AT_ONCE, HuberSum, bootstrap, constants, fit, grid, huber_sum_reference
from linnet.scaling.runs import Points

CONSTANTS = ("E", "A", "B", "alpha", "beta")


def test_the_grid_is_the_papers():
    found = grid()
    assert found.shape == (4500, 5)
    expected = itertools.product(
        (0, 5, 10, 15, 20, 25), (0, 5, 10, 15, 20, 25), (-1, -0.5, 0, 0.5, 1), (0, 0.5, 1, 1.5, 2), (0, 0.5, 1, 1.5, 2)
    )
    assert sorted(map(tuple, found.tolist())) == sorted(tuple(map(float, row)) for row in expected)


def test_points_of_a_law_give_the_law(runs):
    points = Points.of(runs, "total")
    found = fit(points, starts_S5=grid()[::50])
    law = found.law("found", "total")
    for name in CONSTANTS:
        assert getattr(law, name) == pytest.approx(getattr(TRUTH, name), rel=2e-3)
    assert found.objective < 1e-9
    assert 1 <= found.reached <= found.starts == 90


def test_no_move_from_the_optimum_is_better(points):
    found = fit(points, starts_S5=grid()[::50])
    assert huber_sum_reference(found.x_5, points) == pytest.approx(found.objective, rel=1e-9)
    random = np.random.default_rng(0)
    for scale in (1e-5, 1e-3, 1e-1):
        for move in scale * random.standard_normal((50, 5)):
            assert huber_sum_reference(found.x_5 + move, points) >= found.objective


def test_the_resamples_spread_as_far_as_the_truth_is_away(points):
    found = fit(points, starts_S5=grid()[::50])
    samples = bootstrap(points, found, resamples=40, seed=1)
    assert samples.shape == (40, 5)
    best, spread = constants(found.x_5[None])[0], samples.std(axis=0)
    truth = np.array([getattr(TRUTH, name) for name in CONSTANTS])
    assert (abs(best - truth) < 3 * spread).all()
    assert (spread < [0.1, 60, 200, 0.05, 0.05]).all() and (spread > 0).all()


def test_the_seed_determines_the_resamples(points):
    found = fit(points, starts_S5=grid()[::200])
    first, again, other = (bootstrap(points, found, resamples=3, seed=seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_huge_constants_do_not_overflow():
    assert np.isfinite(constants(np.array([[1e4, 800.0, -1e4, 1.0, 1.0]]))).all()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (slice(0, 5), "5 runs are too few for a law's five unknowns; expected at least 6"),
        (slice(0, 8), "the runs have 2 different sizes; expected at least 3"),
    ],
)
def test_points_that_cannot_tell_are_refused(points, chosen: slice, message: str):
    with pytest.raises(UserError, match=message):
        fit(points[np.arange(len(points))[chosen]])


def test_a_loss_that_rises_with_size_gives_no_law(points):
    upside_down = Points(1e13 / points.parameters, points.tokens, points.flops, points.loss)
    found = fit(upside_down, starts_S5=grid()[::100])
    with pytest.raises(UserError, match=r"the fit has (A|alpha) = .*: the runs do not show how the loss falls"):
        found.law("wrong", "total")


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
