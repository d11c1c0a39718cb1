"""Approach 3 finds the law that made the points; its intervals hold it."""

import itertools

import numpy as np
import pytest
from known_laws import TRUTH

from linnet.core.errors import UserError
from linnet.scaling.parametric import bootstrap, constants, fit, grid, huber_sum_reference
from linnet.scaling.points import Points

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


def test_the_seed_decides_the_resamples(points):
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
