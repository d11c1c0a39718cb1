"""A comparison as a table and as files."""

from pathlib import Path

import pytest

from linnet.core.checksum import read_checked_json
from linnet.experiments.comparison.figures import Breakdown, ComparedFigures, CurvePoint, Findings, Outcome
from linnet.experiments.comparison.output import findings_table, meaning, write_findings


def outcome(seed: int, bits: float, tokens: int = 100, leak: float | None = None) -> Outcome:
    evaluation = {"bits_per_byte": bits, "accuracy": 0.25 + 0.01 * seed, "tokens": tokens}
    evaluation |= {} if leak is None else {"leak": leak}
    return Outcome(seed, evaluation, [CurvePoint(5, bits)], tokens_per_s=1000.0 * (seed + 1))


def found(*runs: ComparedFigures) -> Findings:
    return Findings("two", list(runs), [each for run in runs for each in run.broken_down])


def row(one: ComparedFigures) -> dict[str, str]:
    table = findings_table(found(one))
    return dict(zip(table.columns, table.rows[0], strict=True))


def test_a_row_tells_quality_and_cost():
    one = ComparedFigures("a", 12345, 678, [outcome(0, 1.0, leak=0.01), outcome(1, 1.5, leak=0.03)], [], 4.56e9)
    assert row(one) == {
        "run": "a",
        "seeds": "2",
        "bits per byte": "1.2500 ± 0.3536",
        "accuracy, %": "25.50 ± 0.71",
        "leak": "+0.0200",
        "parameters": "12,345",
        "training FLOPs": "4.56e9",
        "tokens": "678",
        "tokens/s": "1,500",
    }


def test_of_one_seed_no_spread_is_known_and_a_causal_model_leaks_nothing():
    cells = row(ComparedFigures("a", 1, 1, [outcome(0, 1.0)]))
    assert (cells["bits per byte"], cells["leak"], cells["training FLOPs"]) == ("1.0000", "none", "–")


def test_a_run_that_came_to_nothing_says_so_in_its_row():
    lost = ComparedFigures("a", None, None, [], [Breakdown("a", 0, 3, "loss nan"), Breakdown("a", 1, 4, "loss nan")])
    assert list(row(lost).values()) == ["a", "0 of 2", "diverged", *["–"] * 6]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([[outcome(0, 1.0)], [outcome(4, 1.0)]], "one seed: nothing is known of the spread; causal, on the same"),
        ([[outcome(0, 1.0), outcome(1, 1.0)]], "mean ± standard deviation over 2 seeds; causal, on the same held-out"),
        ([[outcome(0, 1.0)], [outcome(0, 1.0), outcome(1, 1.0)]], "deviation over the seeds of each run; causal"),
        ([[outcome(0, 1.0)]], "held-out documents, 100 tokens;"),
        ([[outcome(0, 1.0)], [outcome(0, 1.0, 2000)]], "on 100 to 2,000 held-out tokens, not the same of all: linnet"),
    ],
)
def test_the_table_says_what_means_are_over_and_what_they_were_measured_on(runs: list[list[Outcome]], said: str):
    assert said in meaning(found(*(ComparedFigures("a", 1, 1, outcomes) for outcomes in runs)))


def test_means_without_those_that_came_to_nothing_say_so():
    lost = ComparedFigures("a", 1, 1, [outcome(0, 1.0)], [Breakdown("a", 1, 3, "loss nan")])
    assert "over the seeds that were trained to the end;" in meaning(found(lost))


def test_figures_and_curves_are_written(tmp_path: Path):
    findings = found(ComparedFigures("a", 1, 1, [outcome(0, 1.0)]))
    write_findings(findings, tmp_path / "new")
    assert read_checked_json(tmp_path / "new" / "comparison.json") == findings.to_dict()
    assert (tmp_path / "new" / "curves.png").stat().st_size > 5000
