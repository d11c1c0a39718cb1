"""The published fit again: Besiroglu et al. (arXiv 2404.10102) on the 245 points read off Hoffmann et al.'s figure 4.

The points are no part of the project: `real_data`.
"""

from pathlib import Path

import numpy as np
import pytest

from linnet.scaling.frontier import isoflop, isoflop_groups
from linnet.scaling.law import ParametricLaw, read_law
from linnet.scaling.parametric import Fitted, HuberSum, bootstrap, fit, grid
from linnet.scaling.reliability import law_warnings
from linnet.scaling.runs import Points, read_run_table, without_highest

PUBLISHED = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}
STANDARD_ERRORS = {"E": 0.03, "A": 124.58, "B": 1293.23, "alpha": 0.02, "beta": 0.02}

OPTIMUM = {"E": 1.8172181, "A": 477.82587, "B": 2143.4174, "alpha": 0.3473105, "beta": 0.3671724}
OBJECTIVE = 1.01827401780e-3
"""The lowest that SciPy's L-BFGS-B comes to from the whole grid (see `test_scipy_finds_nothing_lower`)."""


@pytest.fixture(scope="module")
def points(real_data: Path) -> Points:
    path = real_data / "scaling" / "chinchilla_points.csv"
    if not path.is_file():
        pytest.skip(f"no {path}")
    return Points.of(without_highest(read_run_table(path), 5), "total")


@pytest.fixture(scope="module")
def fitted(points: Points) -> Fitted:
    return fit(points)


def test_the_fit_is_the_global_optimum(fitted: Fitted):
    law = fitted.law("fit", "total")
    assert fitted.objective == pytest.approx(OBJECTIVE, rel=1e-10)
    assert fitted.starts == 4500 and fitted.reached > 500
    for name, value in OPTIMUM.items():
        assert getattr(law, name) == pytest.approx(value, rel=1e-6)


def test_it_is_the_published_replication(fitted: Fitted, points: Points):
    """To the digits that matter: within a tenth of every standard error, and a little lower in the objective."""
    law = fitted.law("fit", "total")
    for name, value in PUBLISHED.items():
        assert abs(getattr(law, name) - value) < 0.1 * STANDARD_ERRORS[name]
    assert pytest.approx(PUBLISHED["E"], abs=5e-5) == law.E
    assert law.optimum[1] == pytest.approx(read_law("replication").optimum[1], abs=2e-3)
    published = read_law("replication")
    assert isinstance(published, ParametricLaw)
    x = np.array([[np.log(published.A), np.log(published.B), np.log(published.E), published.alpha, published.beta]])
    objective = HuberSum.of(points)
    assert 1 < objective(objective.center(x), np.array([0]))[0][0] / fitted.objective < 1.01


def test_the_bootstrap_gives_the_published_standard_errors(fitted: Fitted, points: Points):
    samples = bootstrap(points, fitted, resamples=100, seed=0)
    for name, found in zip(PUBLISHED, samples.std(axis=0), strict=True):
        assert 0.6 < found / STANDARD_ERRORS[name] < 1.5
    ends = np.quantile(samples, [0.025, 0.975], axis=0).T
    assert law_warnings(points, dict(zip(PUBLISHED, map(tuple, ends), strict=True)), 0.95) == []


def test_approach_2_gives_the_papers_exponents(points: Points):
    """Hoffmann et al., table 2: a = 0.49 (0.462 to 0.534), b = 0.51 (0.483 to 0.529)."""
    found = isoflop(isoflop_groups(points))
    assert 0.462 < found.parameters.exponent < 0.534
    assert 0.483 < found.tokens.exponent < 0.529


@pytest.mark.slow
def test_scipy_finds_nothing_lower(fitted: Fitted, points: Points):
    from scipy.optimize import minimize

    objective, row = HuberSum.of(points), np.array([0])

    def one(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(x[None], row)
        return value[0], gradient[0]

    tight = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 10_000, "maxfun": 20_000}
    starts = objective.center(grid())
    lowest = min(minimize(one, start, jac=True, method="L-BFGS-B", options=tight).fun for start in starts)
    assert lowest == pytest.approx(fitted.objective, rel=1e-10)
