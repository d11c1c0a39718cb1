"""The page of a comparison: paired differences, and own numbers for a paper's table."""

from pathlib import Path

import pytest

from linnet.experiments.measures import CONTEXTS, DecodingSpeed, MemoryFigures, ModelMeasures, TaskScore
from linnet.experiments.results import CurvePoint, Failure, Findings, RunSummary, SeedResult
from linnet.experiments.suite_report import difference_table, own_values, side_by_side


def run(name: str, *bits: float, extra: ModelMeasures | None = None) -> RunSummary:
    outcomes = [
        SeedResult(seed, {"bits_per_byte": value, "accuracy": 0.25, "tokens": 9}, [CurvePoint(5, value)], 100.0)
        for seed, value in enumerate(bits)
    ]
    memory = MemoryFigures(4000, dict.fromkeys(CONTEXTS, 100))
    return RunSummary(name, 1000, 500, outcomes, [], 1e9, memory, extra)


def compared(*runs: RunSummary) -> Findings:
    return Findings("two", list(runs), [each for one in runs for each in one.failures])


def test_effects_common_to_a_seed_cancel():
    (table,) = difference_table(compared(run("a", 1.0, 2.0, 3.0), run("b", 1.11, 2.10, 3.12), run("c", 9.0, 2.0, 3.5)))
    assert table.columns == ("", "b", "c")
    less, interval = table.rows
    assert less[0] == "less a" and less[1].startswith("+0.1100 ± 0.0058\nworse, p = ")
    assert less[2].partition("\n")[2].startswith("not significant, p = ")
    low, high = (float(end) for end in interval[1].split(" to "))
    assert (low, high) == pytest.approx((0.11 - 4.303 * 0.005774, 0.11 + 4.303 * 0.005774), abs=2e-4)


def test_one_common_seed_gives_no_difference():
    assert difference_table(compared(run("a", 1.0, 2.0), run("b", 1.1))) == []


def test_a_run_without_a_result_is_named_and_has_no_column():
    lost = RunSummary("lost", None, None, [], [Failure("lost", 0, 3, "loss nan")])
    found = side_by_side(compared(run("a", 1.0, 2.0), lost))
    assert list(found.memory) == ["a"] and found.conclusion() == "lost, seed 0: diverged at step 3: loss nan."


def test_own_numbers_have_the_names_and_units_of_published_ones():
    speed = DecodingSpeed(tokens_per_s=50.0, runs=5, tokens=10, machine={})
    score = TaskScore(task="arc_easy", value=0.3125, standard_error=None, chance=0.25, items=16)
    own = own_values(run("a", 1.0, 2.0, extra=ModelMeasures(speed=speed, tasks=[score])))
    assert own["bits_per_byte"] == 1.5 and own["accuracy"] == 25.0 and own["arc_easy"] == 31.25
    assert own["decode_100_tokens_ms"] == 2000.0 and own["state_bytes_1M"] == 100 and own["weights_bytes"] == 4000
    assert "decode_tokens_per_s" not in own_values(run("a", 1.0))
    called_so = ModelMeasures(tasks=[score.model_copy(update={"task": "accuracy"})])
    assert own_values(run("a", 1.0, extra=called_so))["accuracy"] == 25.0, "that of the text, not of the task"


def test_pictures_are_drawn_where_there_are_curves(tmp_path: Path):
    assert [picture.name for picture in side_by_side(compared(run("a", 1.0))).pictures] == ["learning"]
