"""What is said of a law that its runs do not determine, and that nothing is said of one that they do."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linnet.scaling.determined import doubts
from linnet.scaling.fit import FitSettings, fit_runs
from linnet.scaling.fit_tables import fit_tables, fitted_law
from linnet.scaling.law_file import read_law
from linnet.scaling.points import Points
from linnet.scaling.study import read_run_table

LADDER = Path(__file__).parents[3] / "experiments" / "scaling" / "ladder.csv"
SOUND = {"E": (1.5, 1.9), "A": (100.0, 900.0), "B": (100.0, 900.0), "alpha": (0.3, 0.4), "beta": (0.3, 0.4)}


def spread(runs: int = 20, sizes: float = 30.0, tokens: float = 30.0) -> Points:
    """So many runs over such ranges, the lowest loss 2."""
    n, d = 1e6 * np.geomspace(1, sizes, runs), 1e7 * np.geomspace(1, tokens, runs)
    return Points(n, d, 6 * n * d, np.linspace(4, 2, runs))


def test_nothing_is_said_of_a_law_that_its_runs_determine():
    assert doubts(spread(), SOUND, 0.95) == []
    edge = {**SOUND, "E": (0.0201, 1.0), "alpha": (0.2, 0.4)}
    assert doubts(spread(10, 10.0001, 10.0001), edge, 0.95) == []


@pytest.mark.parametrize(
    ("points", "changed", "said"),
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
def test_each_rule_says_a_line_of_its_own(points: Points, changed: dict[str, tuple[float, float]], said: str):
    (line,) = doubts(points, {**SOUND, **changed}, 0.95)
    assert re.match(said, line), line


def test_the_runs_of_a_known_law_determine_it(few_starts, noisy_runs):
    runs = [replace(run, parameters={"total": run.parameters["total"]}) for run in noisy_runs]
    found = fit_runs(runs, FitSettings(resamples=50))
    assert found.chosen.law.warnings == ()


def test_six_unlike_runs_are_said_to_determine_nothing_and_their_intervals_are_readable(few_starts, tmp_path):
    rows = ["56480,153600,4.92", "12e4,2e6,3.1", "6e4,8e5,3.9", "9e5,7e5,3.3", "25e4,3e5,4.2", "2e6,24e5,2.4"]
    (tmp_path / "six.csv").write_text("\n".join(["parameters,tokens,loss", *rows]))
    with np.errstate(all="raise", under="ignore"):
        found = fit_runs(read_run_table(tmp_path / "six.csv"), FitSettings(resamples=200))
    begins = [line.split()[0] for line in found.chosen.law.warnings]
    assert begins == ["6", "alpha", "E"]
    table = fit_tables(found)[0]
    shown = {name: interval for name, _, interval in table.rows}
    assert (shown["A"], shown["E"]) == ("not determined", "0 to 0")
    assert all(f"Warning: {line}." in table.meaning for line in found.chosen.law.warnings)
    law = fitted_law(found, None, "x")
    (tmp_path / "law.json").write_text(json.dumps(law.model_dump(mode="json"), allow_nan=False))
    assert read_law(tmp_path / "law.json").warnings == found.chosen.law.warnings


def test_the_ladder_does_not_determine_e(few_starts):
    """As experiments/LOG.md says."""
    found = fit_runs(read_run_table(LADDER), FitSettings(resamples=100))
    assert "E is not determined" in " ".join(found.chosen.law.warnings)


def test_a_file_without_warnings_has_none(tmp_path):
    (tmp_path / "old.json").write_text('{"E": 1, "A": 10, "B": 10, "alpha": 0.3, "beta": 0.3}')
    assert read_law(tmp_path / "old.json").warnings == ()
    assert all(read_law(name).warnings == () for name in ("chinchilla", "kaplan", "replication"))
