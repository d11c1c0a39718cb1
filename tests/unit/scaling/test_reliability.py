"""Warnings about laws that their runs do not determine, and predictions of held-out runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_laws import TRUTH

from linnet.core.errors import UserError
from linnet.scaling.fit import FitSettings, fit_runs, fitted_law
from linnet.scaling.fit_report import FitReport
from linnet.scaling.law import read_law
from linnet.scaling.reliability import fewest_runs, law_warnings, predict, split_by_flops
from linnet.scaling.runs import Points, read_run_table

LADDER = Path(__file__).parents[3] / "experiments" / "scaling" / "ladder.csv"
SOUND = {"E": (1.5, 1.9), "A": (100.0, 900.0), "B": (100.0, 900.0), "alpha": (0.3, 0.4), "beta": (0.3, 0.4)}


def spread(runs: int = 20, sizes: float = 30.0, tokens: float = 30.0) -> Points:
    """Return runs over these ranges; the lowest loss is 2."""
    n, d = 1e6 * np.geomspace(1, sizes, runs), 1e7 * np.geomspace(1, tokens, runs)
    return Points(n, d, 6 * n * d, np.linspace(4, 2, runs))


def test_a_law_that_its_runs_determine_has_no_warnings():
    assert law_warnings(spread(), SOUND, 0.95) == []
    edge = {**SOUND, "E": (0.0201, 1.0), "alpha": (0.2, 0.4)}
    assert law_warnings(spread(10, 10.0001, 10.0001), edge, 0.95) == []


@pytest.mark.parametrize(
    ("points", "changed", "message"),
    [
        (spread(9), {}, "9 runs for five unknowns: .*expected at least 10$"),
        (spread(sizes=9.9), {}, "sizes from 1 M to 9.90 M, a factor of 9.9: .*expected a factor of at least 10$"),
        (spread(tokens=3), {}, "numbers of tokens from 10 M to 30 M, a factor of 3: "),
        (spread(), {"alpha": (0.1, 0.21)}, "alpha is not determined: its 95% interval is 0.1 to 0.21, .* parameters "),
        (spread(), {"beta": (-0.1, 0.3)}, "beta is not determined: its 95% interval is -0.1 to 0.3, .* with tokens "),
        (spread(), {"beta": (np.nan, np.nan)}, "beta is not determined"),
        (spread(), {"E": (0.019, 1.9)}, "E is not determined: it may be 0 .*below 1% of the lowest loss, 2"),
    ],
)
def test_each_rule_has_its_own_warning(points: Points, changed: dict[str, tuple[float, float]], message: str):
    (line,) = law_warnings(points, {**SOUND, **changed}, 0.95)
    assert re.match(message, line), line


def test_the_runs_of_a_known_law_determine_it(few_starts, noisy_runs):
    runs = [replace(run, parameters={"total": run.parameters["total"]}) for run in noisy_runs]
    found = fit_runs(runs, FitSettings(resamples=50))
    assert found.chosen.law.warnings == ()
    (frontier,) = (one for one in FitReport(found, found.chosen.law, 36).plots() if one.name == "frontier")
    (line,) = (one for one in frontier.drawing.panels[0].series if one.name.startswith("approach 3"))
    flops = found.chosen.points.flops
    assert flops.min() <= min(line.x) and max(line.x) <= flops.max() * (1 + 1e-9), "nothing beyond the runs"
    assert (line.low <= line.y).all() and (line.y <= line.high).all() and (line.high < 10 * line.low).all()


def test_six_different_runs_determine_nothing_and_their_intervals_are_readable(few_starts, tmp_path):
    rows = ["56480,153600,4.92", "12e4,2e6,3.1", "6e4,8e5,3.9", "9e5,7e5,3.3", "25e4,3e5,4.2", "2e6,24e5,2.4"]
    (tmp_path / "six.csv").write_text("\n".join(["parameters,tokens,loss", *rows]))
    with np.errstate(all="raise", under="ignore"):
        found = fit_runs(read_run_table(tmp_path / "six.csv"), FitSettings(resamples=200))
    begins = [line.split()[0] for line in found.chosen.law.warnings]
    assert begins == ["6", "alpha", "E"]
    table = FitReport(found, found.chosen.law, 6).tables()[0]
    shown = {name: interval for name, _, interval in table.rows}
    assert (shown["A"], shown["E"]) == ("not determined", "0 to 0")
    assert all(f"Warning: {line}." in table.meaning for line in found.chosen.law.warnings)
    law = fitted_law(found, None, "x")
    pictures = {one.name: one for one in FitReport(found, law, 6).plots()}
    for name in ("law", "frontier"):
        assert "No line: the runs do not determine the best size" in pictures[name].caption
    assert not any(line.name.startswith("approach 3") for line in pictures["frontier"].drawing.panels[0].series)
    (tmp_path / "law.json").write_text(json.dumps(law.model_dump(mode="json"), allow_nan=False))
    assert read_law(tmp_path / "law.json").warnings == found.chosen.law.warnings


def test_the_ladder_does_not_determine_e(few_starts):
    """As experiments/LOG.md states."""
    found = fit_runs(read_run_table(LADDER), FitSettings(resamples=100))
    assert "E is not determined" in " ".join(found.chosen.law.warnings)


def test_a_file_without_warnings_has_none(tmp_path):
    (tmp_path / "old.json").write_text('{"E": 1, "A": 10, "B": 10, "alpha": 0.3, "beta": 0.3}')
    assert read_law(tmp_path / "old.json").warnings == ()
    assert all(read_law(name).warnings == () for name in ("chinchilla", "kaplan", "replication"))


def test_the_runs_with_the_most_flops_are_held_out(points: Points):
    small, large = split_by_flops(points, 0.25)
    assert len(large) == 7 and len(small) == 21
    assert small.flops.max() <= large.flops.min()
    assert (np.diff(small.flops) >= 0).all() and (np.diff(large.flops) >= 0).all()


@pytest.mark.parametrize(
    ("share", "runs", "message"),
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
def test_a_share_that_leaves_nothing_to_fit_or_to_predict_is_refused(points, share: float, runs: int, message: str):
    with pytest.raises(UserError, match=f"hold_out: {share}: {message}"):
        split_by_flops(points[np.arange(runs)], share)


@given(share=st.floats(1e-3, 1 - 1e-3))
def test_fewest_runs_are_enough_for_a_share_and_one_fewer_is_not(share: float):
    def divides(runs: int) -> bool:
        held = round(share * runs)
        return held >= 1 and runs - held >= 6

    fewest = fewest_runs(share)
    assert fewest is not None and divides(fewest) and not divides(fewest - 1)


def test_holding_out_half_takes_twelve_runs_as_the_help_states():
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
    assert found.rms_error_of_no_progress == pytest.approx(np.sqrt((0.5**2 + 1) / 2))
    assert found.inside == sum(abs(expected - held.loss) <= 0.45)
    figures = found.to_dict()
    assert figures["runs"][1]["predicted"] == pytest.approx(expected[1])
    assert figures["largest_error"] == pytest.approx(abs(errors).max())
    assert figures["largest_training_flops_fitted"] == 6e11


def test_a_resample_with_huge_constants_has_a_loss():
    held = Points(np.array([1e9]), np.array([1e10]), np.array([6e19]), np.array([2.0]))
    samples = np.array([[1.5, 1e299, 1e299, 40.0, 40.0], [1.5, 1e299, 1e299, 34.0, 34.0]])
    with np.errstate(all="raise", under="ignore"):
        found = predict(TRUTH, samples, held, held, 0.9)
    assert np.isfinite([found.low_P, found.high_P]).all()
