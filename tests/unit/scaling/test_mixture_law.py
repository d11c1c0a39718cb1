import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.scaling.mixture_law import (
    MixtureLaw,
    fewest_runs,
    fit_mixture_law,
    mixture_design,
    predictions_without,
)

TRUE = MixtureLaw(np.array([1.0, 0.6]), np.array([[-0.6, 0.3, 0.5], [0.8, -0.9, 0.4]]))


def runs(count=14, noise=0.0):
    shares_NS = mixture_design(np.ones(3), count, seed=2)
    drawn_NT = np.random.default_rng(3).standard_normal((count, 2))
    return shares_NS, TRUE.predict(shares_NS) + noise * drawn_NT


def test_a_design_begins_with_the_centre_and_its_seed_decides_the_rest():
    design_NS = mixture_design(np.array([1.0, 3.0]), 2000, seed=5)
    assert design_NS[0].tolist() == [0.25, 0.75] and np.allclose(design_NS.sum(1), 1)
    assert np.allclose(design_NS.mean(0), [0.25, 0.75], atol=0.02)
    assert np.array_equal(design_NS, mixture_design(np.array([1.0, 3.0]), 2000, seed=5))
    assert not np.array_equal(design_NS, mixture_design(np.array([1.0, 3.0]), 2000, seed=6))


def test_a_planted_law_is_found_from_few_runs():
    shares_NS, losses_NT = runs()
    law = fit_mixture_law(shares_NS, losses_NT)
    new_MS = mixture_design(np.ones(3), 50, seed=9)
    assert np.abs(law.predict(new_MS) - TRUE.predict(new_MS)).max() < 6e-3
    assert np.abs(predictions_without(shares_NS, losses_NT) - losses_NT).max() < 2e-2


def test_errors_without_each_run_are_as_large_as_errors_on_new_runs():
    shares_NS, losses_NT = runs(30, noise=0.01)
    law, left_out_NT = fit_mixture_law(shares_NS, losses_NT), predictions_without(shares_NS, losses_NT)
    own, left_out = (np.square(found - losses_NT).mean() ** 0.5 for found in (law.predict(shares_NS), left_out_NT))
    assert 1.05 * own < left_out < 0.02


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 4.0]], ids=["equal", "unequal"])
def test_the_best_shares_are_those_of_a_grid(weights):
    steps = np.linspace(0, 1, 101)
    grid_MS = np.array([[a, b, 1 - a - b] for a in steps for b in steps if a + b <= 1 + 1e-9])
    values_M = TRUE.predict(grid_MS) @ np.array(weights)
    best_S = TRUE.best_shares(np.array(weights))
    assert float(TRUE.predict(best_S[None])[0] @ np.array(weights)) <= values_M.min() + 1e-4
    assert np.abs(best_S - grid_MS[values_M.argmin()]).max() < 0.02


def test_the_best_shares_keep_their_bounds():
    lowest_S, highest_S = np.array([0.1, 0.1, 0.2]), np.array([0.3, 1.0, 1.0])
    best_S = TRUE.best_shares(np.ones(2), lowest_S, highest_S)
    assert (best_S >= lowest_S - 1e-9).all() and (best_S <= highest_S + 1e-9).all() and best_S.sum() == pytest.approx(1)
    assert best_S[2] == pytest.approx(0.2)  # of no use to either target


def test_too_few_runs_are_refused():
    shares_NS, losses_NT = runs(fewest_runs(3) - 1)
    with pytest.raises(UserError, match="5 runs; a law of 3 sources needs at least 6"):
        fit_mixture_law(shares_NS, losses_NT)
