"""Predictions of runs that were held out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_laws import TRUTH

from linnet.core.errors import UserError
from linnet.scaling.holdout import fewest_runs, predict, split_by_flops
from linnet.scaling.points import Points


def test_those_with_the_most_flops_are_held_out(points: Points):
    small, large = split_by_flops(points, 0.25)
    assert len(large) == 7 and len(small) == 21
    assert small.flops.max() <= large.flops.min()
    assert (np.diff(small.flops) >= 0).all() and (np.diff(large.flops) >= 0).all()


@pytest.mark.parametrize(
    ("share", "runs", "said"),
    [
        (
            0.01,
            28,
            "of 28 runs 28 are left to fit and 0 to predict, at least 6 and 1 are needed; expected at least 51 runs",
        ),
        (
            0.95,
            28,
            "of 28 runs 1 are left to fit and 27 to predict, .*at least 110 runs or a share from 0.0357 to 0.786$",
        ),
        (0.5, 8, "of 8 runs 4 are left .*; expected at least 12 runs or a share from 0.125 to 0.25$"),
        (0.5, 6, "of 6 runs 3 are left .*; expected at least 12 runs$"),
        (1.0, 28, "expected a share between 0 and 1, as in 0.5$"),
        (float("nan"), 28, "expected a share between 0 and 1, as in 0.5$"),
    ],
)
def test_a_share_that_leaves_nothing_to_fit_or_to_predict_is_refused(points, share: float, runs: int, said: str):
    with pytest.raises(UserError, match=f"hold_out: {share}: {said}"):
        split_by_flops(points[np.arange(runs)], share)


@given(share=st.floats(1e-3, 1 - 1e-3))
def test_so_many_runs_are_enough_for_a_share_and_one_fewer_is_not(share: float):
    def divides(runs: int) -> bool:
        held = round(share * runs)
        return held >= 1 and runs - held >= 6

    fewest = fewest_runs(share)
    assert fewest is not None and divides(fewest) and not divides(fewest - 1)


def test_half_of_the_runs_take_twelve_as_the_help_says():
    assert fewest_runs(0.5) == 12
    assert fewest_runs(1.0) is None and fewest_runs(0.0) is None


def test_errors_and_intervals_are_those_of_the_law_and_its_samples():
    held = Points(np.array([1e6, 1e7]), np.array([1e8, 1e9]), np.array([6e14, 6e16]), np.array([4.0, 3.0]))
    known = Points(np.array([1e5]), np.array([1e6]), np.array([6e11]), np.array([6.0]))
    truth = np.array([[TRUTH.E, TRUTH.A, TRUTH.B, TRUTH.alpha, TRUTH.beta]])
    samples = np.repeat(truth, 101, axis=0)
    samples[:, 0] += np.linspace(-0.5, 0.5, 101)
    found = predict(TRUTH, samples, known, held, 0.9)
    expected = TRUTH.loss(held.parameters, held.tokens)
    assert found.predicted_P == pytest.approx(expected)
    assert found.low_P == pytest.approx(expected - 0.45) and found.high_P == pytest.approx(expected + 0.45)
    errors = expected / np.array([4.0, 3.0]) - 1
    assert found.rms_error == pytest.approx(np.sqrt((errors**2).mean()))
    assert found.rms_error_of_best_known == pytest.approx(np.sqrt((0.5**2 + 1) / 2))
    assert found.inside == sum(abs(expected - held.loss) <= 0.45)
    figures = found.figures()
    assert figures["runs"][1]["predicted"] == pytest.approx(expected[1])
    assert figures["largest_error"] == pytest.approx(abs(errors).max())
    assert figures["largest_training_flops_fitted"] == 6e11


def test_a_resample_with_huge_constants_has_a_loss():
    held = Points(np.array([1e9]), np.array([1e10]), np.array([6e19]), np.array([2.0]))
    samples = np.array([[1.5, 1e299, 1e299, 40.0, 40.0], [1.5, 1e299, 1e299, 34.0, 34.0]])
    with np.errstate(all="raise", under="ignore"):
        found = predict(TRUTH, samples, held, held, 0.9)
    assert np.isfinite([found.low_P, found.high_P]).all()
