"""Many minimizations at once: of functions whose minima are known."""

import numpy as np
import pytest

from linnet.scaling.minimize import minimize


def rosenbrock(x_SK, rows_S):
    a, b = x_SK.T
    value = (1 - a) ** 2 + 100 * (b - a**2) ** 2
    return value, np.stack((-2 * (1 - a) - 400 * a * (b - a**2), 200 * (b - a**2)), axis=1)


def kinked(x_SK, rows_S):
    """`|x| + 2 |y - 1|` and a little bowl: no gradient comes near zero on the way."""
    x, y = x_SK[:, 0], x_SK[:, 1] - 1
    value = np.abs(x) + 2 * np.abs(y) + 0.1 * (x**2 + y**2)
    return value, np.stack((np.sign(x) + 0.2 * x, 2 * np.sign(y) + 0.2 * y), axis=1)


STARTS = np.random.default_rng(0).uniform(-3, 3, (20, 2))


def test_every_start_reaches_the_bottom_of_a_curved_valley():
    found = minimize(rosenbrock, STARTS, tolerance=1e-14)
    assert found.converged_S.all()
    assert found.x_SK == pytest.approx(np.ones((20, 2)), abs=1e-5)
    assert found.value_S.max() < 1e-10


def test_kinks_do_not_stop_it():
    found = minimize(kinked, STARTS, tolerance=1e-12)
    assert found.x_SK == pytest.approx(np.tile([0.0, 1.0], (20, 1)), abs=1e-6)


def test_each_start_has_its_own_function():
    targets = np.linspace(-2, 2, 20)

    def bowls(x_SK, rows_S):
        distance = x_SK - targets[rows_S, None]
        return (distance**2).sum(axis=1), 2 * distance

    found = minimize(bowls, STARTS)
    assert found.x_SK == pytest.approx(np.tile(targets[:, None], (1, 2)), abs=1e-6)


def test_every_start_converges_once():
    converged: list[int] = []
    minimize(rosenbrock, STARTS, advance=converged.append)
    assert sum(converged) == len(STARTS)


def test_few_evaluations_leave_starts_on_the_way():
    found = minimize(rosenbrock, STARTS, evaluations=6)
    assert not found.converged_S.any()
    assert (found.value_S < rosenbrock(STARTS, None)[0]).all()


def test_a_start_without_a_finite_value_does_not_move():
    def half(x_SK, rows_S):
        value, gradient = rosenbrock(x_SK, rows_S)
        return np.where(x_SK[:, 0] < 0, np.nan, value), gradient

    starts = np.array([[-1.0, 0.0], [0.5, 0.5]])
    found = minimize(half, starts, tolerance=1e-14)
    assert (found.x_SK[0] == starts[0]).all()
    assert found.x_SK[1] == pytest.approx([1.0, 1.0], abs=1e-5)


def test_a_start_that_overflows_affects_no_other():
    def quartic(x, rows):
        return (x**4).sum(axis=1), 4 * x**3

    with np.errstate(all="raise", under="ignore"):
        found = minimize(quartic, np.array([[1e100, 0.0], [1.0, 2.0]]), tolerance=1e-12)
    assert not np.isfinite(found.value_S[0]) and found.value_S[1] < 1e-6
