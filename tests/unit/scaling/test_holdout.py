"""Predictions of runs that were held out."""

import numpy as np
import pytest
from known_laws import TRUTH

from linnet.errors import UserError
from linnet.scaling.holdout import predict, split_by_flops
from linnet.scaling.points import Points


def test_those_with_the_most_flops_are_held_out(points: Points):
    small, large = split_by_flops(points, 0.25)
    assert len(large) == 7 and len(small) == 21
    assert small.flops.max() <= large.flops.min()
    assert (np.diff(small.flops) >= 0).all() and (np.diff(large.flops) >= 0).all()


@pytest.mark.parametrize("share", [0.01, 0.95])
def test_a_share_that_leaves_nothing_to_fit_or_to_predict_is_refused(points: Points, share: float):
    with pytest.raises(
        UserError, match=f"--hold-out {share}: leaves .* runs to fit, .* to predict; expected at least 6"
    ):
        split_by_flops(points, share)


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
