"""Whole fits: all approaches, all ways of counting, held-out runs, tables and files."""

import json
from dataclasses import replace

import numpy as np
import pytest
from known_laws import TRUTH, known_runs

from linnet.core.errors import UserError
from linnet.present.style import png_of
from linnet.scaling.fit import Exponents, Fit, FitSettings, fit_runs, fitted_law
from linnet.scaling.fit_report import FitReport, format_constant, format_interval
from linnet.scaling.law import read_law
from linnet.scaling.runs import Run

SETTINGS = FitSettings(resamples=20, flops_tolerance=0.3)


def ends(runs) -> list[Run]:
    """Return the ends of runs with one way of counting."""
    return [_with(run, tokens_T=run.tokens_T[-1:], flops_T=run.flops_T[-1:], loss_T=run.loss_T[-1:]) for run in runs]


def counted_once(runs) -> list[Run]:
    """Return the runs with one way of counting: a third of the work."""
    return [_with(run) for run in runs]


def _with(run: Run, **changes) -> Run:
    return replace(run, parameters={"total": run.parameters["total"]}, **changes)


def report(found: Fit) -> FitReport:
    return FitReport(found, found.chosen.law, len(found.runs))


@pytest.fixture(scope="module")
def found(few_starts, noisy_runs):
    return fit_runs(noisy_runs, SETTINGS, "mine")


def test_approach_3_gives_the_law_with_its_intervals(found, few_starts: int):
    law = found.chosen.law
    assert law.name == "mine" and law.counted == "total"
    assert law.alpha == pytest.approx(TRUTH.alpha, abs=0.03)
    assert law.intervals is not None and law.intervals["alpha"][0] < law.alpha < law.intervals["alpha"][1]
    assert found.chosen.fitted.starts == few_starts
    parametric = found.chosen.parametric
    assert parametric.a == pytest.approx(TRUTH.optimum[1], abs=0.03)
    assert parametric.a_interval[0] < parametric.a < parametric.a_interval[1]
    assert parametric.a + parametric.b == pytest.approx(1)


def test_approach_1_needs_curves_and_states_what_is_missing_without_them(found, few_starts, noisy_runs):
    assert isinstance(found.chosen.envelope, Exponents)
    again = fit_runs(ends(noisy_runs), SETTINGS).chosen
    assert isinstance(again.envelope, str) and "have it for none" in again.envelope
    assert again.law.alpha == pytest.approx(found.chosen.law.alpha)


def test_the_way_of_counting_decides_the_exponents(found):
    a = {counted: one.parametric.a for counted, one in found.by_counting.items()}
    assert list(a) == ["total", "without_embedding", "matrices_and_head"]
    assert abs(a["without_embedding"] - a["total"]) > 0.02
    assert a["matrices_and_head"] == pytest.approx(a["total"], abs=0.003)
    shown = next(table for table in report(found).tables() if table.title == "Ways of counting")
    assert [row[0] for row in shown.rows] == ["total", "without embedding", "matrices and head"]


def test_a_way_of_counting_without_a_law_is_named_and_the_others_are_fitted(few_starts):
    runs = known_runs()
    for run in runs:
        run.parameters["matrices_and_head"] = 1e13 / run.parameters["total"]
    found = fit_runs(runs, SETTINGS)
    assert list(found.by_counting) == ["total", "without_embedding"]
    assert "do not show how the loss falls" in found.failed["matrices_and_head"]
    shown = next(table for table in report(found).tables() if table.title == "Ways of counting")
    assert "matrices and head: the fit has" in shown.meaning
    with pytest.raises(UserError, match="do not show how the loss falls"):
        fit_runs(runs, FitSettings(counted="matrices_and_head", resamples=20))


def test_larger_runs_are_predicted_from_smaller_ones(few_starts, noisy_runs):
    runs, settings = ends(noisy_runs), FitSettings(resamples=20, share_held=0.5)
    found = fit_runs(runs, settings)
    prediction = found.prediction
    assert prediction is not None
    assert len(found.runs) == len(prediction.held) == 14
    assert max(run.flops_T[-1] for run in found.runs) <= prediction.held.flops.min()
    assert prediction.rms_error < 0.05 < 0.2 < prediction.rms_error_of_no_progress
    # The held-out losses do not influence the law.
    for index in np.argsort([run.flops_T[-1] for run in runs], kind="stable")[14:]:
        runs[index] = replace(runs[index], loss_T=np.array([99.0]))
    again = fit_runs(runs, settings)
    assert again.chosen.law.A == found.chosen.law.A
    assert again.prediction is not None and again.prediction.rms_error > 0.9


def test_the_highest_losses_are_dropped(few_starts):
    runs = ends(known_runs())
    for index in (3, 20):
        runs[index].loss_T[-1] = 50.0
    found = fit_runs(runs, FitSettings(resamples=20, drop_highest=2))
    assert len(found.runs) == 26
    assert found.chosen.law.alpha == pytest.approx(TRUTH.alpha, rel=0.01)


def test_the_file_of_a_law_can_be_read_and_describes_the_fit(found, tmp_path):
    law = fitted_law(found, 3.5, "linnet plan fit x")
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(law.model_dump(mode="json"), allow_nan=False))
    again = read_law(path)
    assert again.loss(1e6, 1e8) == law.loss(1e6, 1e8)
    assert (again.source, again.counted) == ("linnet plan fit x", "total")
    assert again.sizes == pytest.approx((2e5, 2e7))
    plain = json.loads(path.read_text())
    assert {"E", "A", "B", "alpha", "beta", "objective", "intervals"} <= plain.keys()
    assert plain["intervals"].keys() == {"E", "A", "B", "alpha", "beta"}
    assert plain["fit"]["runs"] == 28 and plain["bytes_per_token"] == 3.5
    assert plain["fit"]["approaches"].keys() == {"1", "2", "3"}
    assert plain["fit"]["countings"].keys() == {"total", "without_embedding", "matrices_and_head"}


def test_the_tables_have_the_figures(found):
    tables = {table.title: table for table in report(found).tables()}
    assert list(tables) == ["Law", "Exponents", "Ways of counting"]
    law = {name: value for name, value, _ in tables["Law"].rows}
    assert float(law["alpha"]) == pytest.approx(found.chosen.law.alpha, rel=1e-3)
    rows = {row[0][0]: row for row in tables["Exponents"].rows}
    assert float(rows["3"][1]) == pytest.approx(found.chosen.parametric.a, abs=6e-4)


@pytest.mark.parametrize(
    ("value", "text"), [(2.5341e-8, "2.534e-8"), (0.0, "0"), (1.7e-14, "0"), (0.25, "0.2500"), (2.53e6, "2.530e6")]
)
def test_constants_of_any_magnitude_are_short(value: float, text: str):
    assert format_constant(value) == text


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((0.25, 0.5), "0.2500 to 0.5000"),
        ((-0.5, 0.5), "-0.5000 to 0.5000"),
        ((3.5e-9, 1.8), "below 1.800"),
        ((0.2, 1.3e16), "not determined"),
        ((1e-3, 1e232), "not determined"),
        (None, ""),
    ],
)
def test_an_interval_without_significant_digits_is_described_in_words(interval, text: str):
    assert format_interval(interval) == text


def test_every_part_of_a_fit_has_a_picture(few_starts, noisy_runs):
    found = fit_runs(counted_once(noisy_runs), FitSettings(resamples=20, flops_tolerance=0.3, share_held=0.3))
    pictures = report(found).plots()
    names = [picture.name for picture in pictures]
    assert names[:3] == ["held_out", "law", "frontier"]
    assert ("envelope" in names) == isinstance(found.chosen.envelope, Exponents)
    assert ("isoflop" in names) == isinstance(found.chosen.isoflop, Exponents)
    assert all(png_of(picture.drawing.figure()).startswith(b"\x89PNG") and picture.caption for picture in pictures)


def test_the_seed_changes_only_the_intervals(found, few_starts, noisy_runs):
    runs = counted_once(noisy_runs)
    again = fit_runs(runs, SETTINGS, "mine").chosen.law
    assert again == found.chosen.law
    other = fit_runs(runs, replace(SETTINGS, seed=1)).chosen.law
    assert other.A == again.A and other.intervals != again.intervals
