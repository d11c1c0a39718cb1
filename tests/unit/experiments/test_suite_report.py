"""A comparison as a table and as files."""

import pytest

from linnet.experiments.results import CurvePoint, Failure, Findings, RunSummary, SeedResult
from linnet.experiments.suite_report import results_table, table_meaning


def outcome(seed: int, bits: float, tokens: int = 100, leak: float | None = None) -> SeedResult:
    evaluation = {"bits_per_byte": bits, "accuracy": 0.25 + 0.01 * seed, "tokens": tokens}
    evaluation |= {} if leak is None else {"leak": leak}
    return SeedResult(seed, evaluation, [CurvePoint(5, bits)], tokens_per_s=1000.0 * (seed + 1))


def found(*runs: RunSummary) -> Findings:
    return Findings("two", list(runs), [each for run in runs for each in run.failures])


def row(one: RunSummary) -> dict[str, str]:
    table = results_table(found(one))
    return dict(zip(table.columns, table.rows[0], strict=True))


def test_a_row_has_quality_and_cost():
    one = RunSummary("a", 12345, 678, [outcome(0, 1.0, leak=0.01), outcome(1, 1.5, leak=0.03)], [], 4.56e9)
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


def test_one_seed_has_no_spread_and_a_causal_model_no_leak():
    cells = row(RunSummary("a", 1, 1, [outcome(0, 1.0)]))
    assert (cells["bits per byte"], cells["leak"], cells["training FLOPs"]) == ("1.0000", "none", "–")


def test_a_run_without_a_result_has_its_outcome_in_its_row():
    lost = RunSummary("a", None, None, [], [Failure("a", 0, 3, "loss nan"), Failure("a", 1, 4, "loss nan")])
    assert list(row(lost).values()) == ["a", "0 of 2", "diverged", *["–"] * 6]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([[outcome(0, 1.0)], [outcome(4, 1.0)]], "one seed: the spread is not known; causal, on the same"),
        ([[outcome(0, 1.0), outcome(1, 1.0)]], "mean ± standard deviation over 2 seeds; causal, on the same held-out"),
        ([[outcome(0, 1.0)], [outcome(0, 1.0), outcome(1, 1.0)]], "deviation over the seeds of each run; causal"),
        ([[outcome(0, 1.0)]], "held-out documents, 100 tokens;"),
        ([[outcome(0, 1.0)], [outcome(0, 1.0, 2000)]], "on 100 to 2,000 held-out tokens, not the same for all: linnet"),
    ],
)
def test_the_table_states_its_seeds_and_its_text(runs: list[list[SeedResult]], said: str):
    assert said in table_meaning(found(*(RunSummary("a", 1, 1, outcomes) for outcomes in runs)))


def test_means_state_that_seeds_are_missing():
    lost = RunSummary("a", 1, 1, [outcome(0, 1.0)], [Failure("a", 1, 3, "loss nan")])
    assert "over the seeds that were trained to the end;" in table_meaning(found(lost))
