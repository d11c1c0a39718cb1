"""What a comparison measures beside the likelihood: asked for in its file, kept with its figures, read again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from linnet.core.errors import UserError
from linnet.experiments import measures
from linnet.experiments.jobs import Runner
from linnet.experiments.recorded import recorded
from linnet.experiments.results import ResultTable, read_rows
from linnet.experiments.run import compare, run_suite
from linnet.experiments.suite import Suite

PLAIN: dict[str, Any] = {
    "text": {"stories": 30},
    "tokenizer": {"kind": "bytes"},
    "model": {
        "vocab_size": 257,
        "d_model": 8,
        "context_length": 32,
        "blocks": [{"mixer": {"kind": "attention", "heads": 2}}],
    },
    "training": {"steps": 2, "batch_size": 2, "threads": 1, "evaluate": {"every": 1, "tokens": 64}},
    "seeds": [3],
    "runs": [{"name": "one"}, {"name": "two", "set": {"model.d_model": 12}}],
}


def test_further_measures_are_recorded_and_read_again(tmp_path: Path):
    rows = [{"context": "A bird", "choices": ["sang", "was"], "gold": 0}] * 3
    (tmp_path / "q.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    prompts = [{"prompt": "Sing", "answer": "la", "type": "songs"}, {"prompt": "Jump", "answer": "no"}]
    (tmp_path / "p.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in prompts))
    wanted = {
        "tasks": {"task_file": str(tmp_path / "q.jsonl")},
        "samples": {"tokens": 3},
        "instructions": {"files": [str(tmp_path / "p.jsonl")]},
    }
    before = compare(PLAIN, tmp_path / "out")
    assert before.runs[0].extra is None
    found = compare({**PLAIN, "measures": wanted}, tmp_path / "out")
    one, two = (run.extra for run in found.runs)
    assert one is not None and two is not None and (one.seed, one.speed, one.abilities) == (3, None, [])
    assert [score.task for score in two.tasks] == ["q"] and [sample.prompt for sample in one.samples] == [""]
    assert [(score.group, score.items, score.chance) for score in one.instructions] == [
        ("songs", 1, None),
        ("(no type)", 1, None),
        ("all", 2, None),
    ]
    again = recorded([tmp_path / "out"])
    assert [run.extra for run in again.runs] == [one, two] and again.to_dict() == found.to_dict()
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| prompts songs (chance –" in text
    assert "| task q (chance 50.0 %) |" in text and "decoding" not in text


@pytest.mark.parametrize(("measure", "settings"), [("samples", {"tokens": 3}), ("speed", {"tokens": 2})])
def test_a_new_run_is_measured_beside_recorded_ones_whose_models_are_gone(
    tmp_path: Path, measure: str, settings: dict[str, int]
):
    def run(names: list[str], out: str) -> None:
        runs = [each for each in PLAIN["runs"] if each["name"] in names]
        suite = Suite.parse({**PLAIN, "runs": runs, "measures": {measure: settings}}, "test")
        run_suite(suite, tmp_path / out, Runner([].append), record=ResultTable(tmp_path / "record.jsonl"))

    run(["one"], "first")
    before = ResultTable(tmp_path / "record.jsonl").find("suite", "one", 3, measure)
    shutil.rmtree(tmp_path / "first")
    if measure == "speed":  # which is compared with that of the others
        with pytest.raises(UserError, match="one-seed-3"):
            run(["one", "two"], "second")
        return
    run(["one", "two"], "second")
    after = ResultTable(tmp_path / "record.jsonl")
    assert before is not None and after.find("suite", "one", 3, measure) == before
    assert after.find("suite", "two", 3, measure) is not None and not (tmp_path / "second/runs/one-seed-3").exists()


@pytest.mark.parametrize(("section", "field"), [("tasks", "task_file"), ("instructions", "files")])
def test_unreadable_questions_are_refused_before_anything_is_written(tmp_path: Path, section: str, field: str):
    path = str(tmp_path / "none.jsonl")
    wanted = {section: {field: [path] if field == "files" else path}}
    with pytest.raises(UserError, match=rf"measures: {section}: .*none\.jsonl"):
        compare({**PLAIN, "measures": wanted}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_section_is_refused():
    with pytest.raises(UserError, match=r"measures.*task_file"):
        Suite.parse({**PLAIN, "measures": {"task_file": "q.jsonl"}}, "test")


def test_questions_that_fail_do_not_lose_trained_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object) -> None:
        raise UserError("not of this model")

    rows = [{"context": "A bird", "choices": ["sang", "was"], "gold": 0}] * 3
    (tmp_path / "q.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setattr(measures, "measure_suite", fail)
    with pytest.raises(UserError, match="not of this model"):
        compare({**PLAIN, "measures": {"tasks": {"task_file": str(tmp_path / "q.jsonl")}}}, tmp_path / "out")
    assert len(recorded([tmp_path / "out"]).runs) == 2


def test_baselines_and_speeds_are_recorded_rows(tmp_path: Path):
    wanted = {"ngram": {"order": 2}, "training_speed": {}, "decoding_speed": {}}
    first = compare({**PLAIN, "measures": wanted}, tmp_path / "out")
    rows = {(row.run, row.measure): row for row in read_rows(tmp_path / "out" / "results.jsonl")}
    assert rows["n-gram", "likelihood"].values["order"] == 2
    assert first.ngram is not None and first.ngram["bits_per_byte"] > 0
    for run in ("one", "two"):
        training, decoding = rows[run, "training_speed"], rows[run, "decoding_speed"]
        assert training.values.keys() == {"step_s", "training_tokens_per_s"} and training.values["step_s"] > 0
        assert decoding.values.keys() == {"decode_tokens_per_s"} and decoding.values["decode_tokens_per_s"] > 0
        assert decoding.inputs == {"model": training.inputs["model"]} and "step" in training.inputs
        assert {"processor", "date"} <= decoding.origin.keys()
    logged: list[str] = []
    compare({**PLAIN, "measures": wanted}, tmp_path / "out", logged.append)
    again = {(row.run, row.measure): row for row in read_rows(tmp_path / "out" / "results.jsonl")}
    assert again == rows and not any("measuring" in line or "counting" in line for line in logged)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is measured, `step` or `decoding`, with the number of runs; the times themselves are made up."""
    found: list[tuple[str, int]] = []

    def seconds(steps: dict[str, object]) -> dict[str, float]:
        found.append(("step", len(steps)))
        return dict.fromkeys(steps, 0.5)

    def speeds(models: list[object], *settings: object) -> list[float]:
        found.append(("decoding", len(models)))
        return [7.0] * len(models)

    monkeypatch.setattr("linnet.experiments.run.seconds_in_turn", seconds)
    monkeypatch.setattr("linnet.experiments.run.decode_speeds", speeds)
    return found


@pytest.mark.parametrize(("measure", "what"), [("training_speed", "step"), ("decoding_speed", "decoding")])
def test_each_speed_is_measured_alone(measure: str, what: str, tmp_path: Path, measured: list[tuple[str, int]]):
    compare({**PLAIN, "measures": {measure: {}}}, tmp_path / "out")
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    assert measured == [(what, 2)]
    assert [row.run for row in rows if row.measure == measure] == ["one", "two"]
    assert {row.measure for row in rows} == {"training", "likelihood", measure}
    suite, record = Suite.parse({**PLAIN, "measures": {measure: {}}}, "test"), ResultTable()
    run_suite(suite, tmp_path / "out", Runner([].append), record=record)  # rows of the folder come into a new record
    assert measured == [(what, 2)] and [row.run for row in record.of("suite", measure)] == ["one", "two"]


def test_an_old_row_with_both_speeds_is_one_of_training(tmp_path: Path, measured: list[tuple[str, int]]):
    suite = Suite.parse({**PLAIN, "measures": {"training_speed": {}}}, "test")
    run_suite(suite, tmp_path / "first", Runner([].append), record=ResultTable(tmp_path / "record.jsonl"))
    record = ResultTable(tmp_path / "record.jsonl")
    old = [
        row.model_copy(update={"values": {**row.values, "decode_tokens_per_s": 3.0}})
        for row in record.of("suite", "training_speed")
    ]
    record.add(old)
    both = Suite.parse({**PLAIN, "measures": {"training_speed": {}, "decoding_speed": {}}}, "test")
    logged: list[str] = []
    run_suite(both, tmp_path / "second", Runner(logged.append), record=record)
    assert measured == [("step", 2), ("decoding", 2)] and "suite: 0 to train; 6 rows are in the record" in logged
    after = ResultTable(tmp_path / "record.jsonl")
    assert len(old) == 2 and after.of("suite", "training_speed") == old
    assert [row.values for row in after.of("suite", "decoding_speed")] == [{"decode_tokens_per_s": 7.0}] * 2


def test_decoding_is_measured_again_for_another_model_or_a_new_run_alone(
    tmp_path: Path, measured: list[tuple[str, int]]
):
    def run(out: str, **changed: Any) -> None:
        suite = Suite.parse({**PLAIN, "measures": {"decoding_speed": {}}, **changed}, "test")
        run_suite(suite, tmp_path / out, Runner([].append), record=ResultTable(tmp_path / "record.jsonl"))

    first, second = PLAIN["runs"]
    run("first", runs=[first])
    run("another-recipe", runs=[first], training={**PLAIN["training"], "batch_size": 1})
    run("another-suite", runs=[first], name="another")  # whose times serve as well
    assert measured == [("decoding", 1)]
    run("new-run", runs=[first, second])  # speeds are compared with each other
    run("another-model", runs=[first, {**second, "set": {"model.d_model": 16}}])
    assert measured == [("decoding", 1), ("decoding", 2), ("decoding", 2)]


def test_decoding_ends_with_the_context_of_learned_positions(tmp_path: Path):
    model = {**PLAIN["model"], "embedding": {"positions": "learned"}}
    compare({**PLAIN, "model": model, "measures": {"decoding_speed": {}}}, tmp_path / "out")
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    assert [row.values["decode_tokens_per_s"] > 0 for row in rows if row.measure == "decoding_speed"] == [True] * 2


def test_equal_time_keeps_the_steps_of_the_first_call(tmp_path: Path):
    timed = {**PLAIN, "equal_time_as": "one"}
    compare(timed, tmp_path / "out")
    steps = [row.values for row in read_rows(tmp_path / "out" / "results.jsonl") if row.measure == "training_speed"]
    logged: list[str] = []
    found = compare(timed, tmp_path / "out", logged.append)
    assert len(steps) == 2 and not any("measuring" in line for line in logged)
    assert [run.seeds for run in found.runs] == ["0", "1"]
