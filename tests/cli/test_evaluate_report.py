"""`linnet evaluate --report`: the page of several finished models."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from examples import randomized

from linnet.cli.main import main
from linnet.data.prepare import prepare_texts
from linnet.model.calibration import with_calibration_from
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, save_decoder

MIXERS: dict[str, dict[str, int]] = {
    "attention": {"heads": 2},
    "ted": {},
    "plga": {"heads": 2, "metric_hidden": 8, "residual_units": 1},
}
Capture = pytest.CaptureFixture[str]
ASKED = """
tasks: {task_file: questions.jsonl}
abilities: {items: 3, files: [abilities.yaml]}
samples: {prompts: ["the bird"], tokens: 4, temperature: 0}
speed: {tokens: 4}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    prepare_texts(["the bird sang. " * 8] * 8, ["the tree was glad. "] * 9, folder / "data", tokenizer="bytes")
    for kind in MIXERS:
        mixer = {"kind": kind, **MIXERS[kind]}
        plain = {"vocab_size": 257, "d_model": 8, "context_length": 64, "blocks": [{"mixer": mixer}]}
        torch.manual_seed(0)
        decoder = Decoder(ModelSpec.parse(plain, "test"))
        save_decoder(randomized(decoder) if kind == "plga" else decoder, folder / kind)
        shutil.copy(folder / "data" / "tokenizer.json", folder / kind)
    rows = [{"context": "The bird", "choices": ["sang", "glad"], "gold": number % 2} for number in range(4)]
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "abilities.yaml").write_text("abilities: [{kind: arithmetic, shots: 0}]")
    (folder / "also.yaml").write_text(ASKED)
    return folder


def rows_of(report: Path) -> dict[str, list[str]]:
    lines = [line for line in (report / "report.md").read_text().splitlines() if line.startswith("| ")]
    return {
        cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in (line[2:-2].split(" | ") for line in lines)
    }


def test_a_report_with_all_other_measurements(workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    monkeypatch.chdir(workspace)
    arguments = ["--data", "data", "--limit-tokens", "60", "--report", "page", "--also", "also.yaml"]
    assert main(["evaluate", "attention", "ted", *arguments]) == 0
    assert "report: page/report.html\n" in capsys.readouterr().err
    rows = rows_of(workspace / "page")
    assert rows["task questions (chance 50.0 %)"][0].startswith("50.0 ± ")
    assert "±" in rows["bits per byte"][1] and any(name.startswith("ability arithmetic") for name in rows)
    assert [float(cell.replace(",", "")) > 0 for cell in rows["decoding, tokens/s"]] == [True, True]
    assert len(rows["continuation of “the bird”"]) == 2 and "memory at 1M" in rows
    page = (workspace / "page" / "report.html").read_text()
    assert "Differences" in page and "Loss by position" in page and "<script" not in page


def test_the_precision_of_the_weights_is_that_of_all_on_the_page(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.chdir(workspace)
    (workspace / "speed.yaml").write_text("speed: {tokens: 4}")
    arguments = ["--task-file", "questions.jsonl", "--precision", "int8", "--report", "small", "--also", "speed.yaml"]
    assert main(["evaluate", "attention", "ted", *arguments]) == 0
    report = (workspace / "small" / "report.md").read_text()
    assert "- precision: weights converted to int8\n" in report and "precision int8" in report


def test_other_operators_apply_to_all_of_the_report(workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    """The text, questions, abilities, samples and memory: as of models whose own operators they are."""
    monkeypatch.chdir(workspace)
    save_decoder(with_calibration_from(load_decoder(Path("plga")), "random", 3), Path("fixed"))
    shutil.copy("plga/tokenizer.json", "fixed")
    (workspace / "rest.yaml").write_text(ASKED.replace("speed: {tokens: 4}", ""))
    shutil.copy("questions.jsonl", "mine.jsonl")
    operator = ["--calibration", "random", "--seed", "3"]
    for question in (["--data", "data", "--limit-tokens", "60"], ["--task-file", "mine.jsonl"]):
        asked = [*question, "--also", "rest.yaml", "--report"]
        assert main(["evaluate", "plga", "plga/../plga", *asked, "replaced", *operator]) == 0
        assert main(["evaluate", "fixed", "fixed/../fixed", *asked, "expected"]) == 0
        assert main(["evaluate", "plga", "plga/../plga", *asked, "own"]) == 0
        replaced, expected, own = (_without_names(workspace / name) for name in ("replaced", "expected", "own"))
        assert replaced == expected
        for row in ("continuation of “the bird”", "memory weights alone"):
            assert replaced[row] != own[row], row
        said = "- calibration: random, in place of the models' own, drawn from seed 3"
        assert said in (workspace / "replaced" / "report.md").read_text()


def _without_names(report: Path) -> dict[str, list[str]]:
    beginnings = ("task", "ability", "bits", "continuation", "memory")
    return {name: cells for name, cells in rows_of(report).items() if name.startswith(beginnings)}


def test_a_task_that_is_measured_in_two_ways_has_two_rows(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.chdir(workspace)
    (workspace / "again.yaml").write_text("tasks: {task_file: questions.jsonl, limit: 2}")
    asked = ["--task-file", "questions.jsonl", "--report", "twice", "--also", "again.yaml"]
    assert main(["evaluate", "attention", "ted", *asked]) == 0
    rows = [name for name in rows_of(workspace / "twice") if name.startswith("task ")]
    assert rows == ["task questions (chance 50.0 %)", "task questions (also) (chance 50.0 %)"]


def test_tasks_alone(workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    monkeypatch.chdir(workspace)
    assert main(["evaluate", "attention", "ted", "--task-file", "questions.jsonl", "--report", "asked"]) == 0
    rows = rows_of(workspace / "asked")
    assert "task questions (chance 50.0 %)" in rows and "memory at 1k" in rows and "bits per byte" not in rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ted", "--data", "data", "--report", "x"], "--report x: goes with several models"),
        (["ted", "attention", "--data", "data", "--also", "also.yaml"], "--also also.yaml: goes with --report"),
        (["ted", "attention", "--data", "data", "--report", "also.yaml"], "--report also.yaml: also.yaml is a file"),
        (
            ["ted", "attention", "--data", "data", "--report", "x", "--also", "bad.yaml"],
            "none.jsonl is looked for in the working folder, /",
        ),
        (["ted", "attention", "--data", "data", "--report", "x", "--also", "odd.yaml"], "odd.yaml: taks: "),
        (
            ["ted", "attention", "--data", "data", "--report", "x", "--also", "called.yaml"],
            "called.yaml: tasks: accuracy: is the name of a figure that is not a task",
        ),
        (
            ["ted", "plga", "--data", "data", "--report", "x", "--calibration", "identity"],
            "ted: --calibration: identity: the model has no plga layer",
        ),
        (["ted", "attention", "--tasks", "arc", "--report", "x"], "--report: has no place for tasks of the harness"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], message: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.chdir(workspace)
    (workspace / "bad.yaml").write_text("tasks: {task_file: none.jsonl}")
    (workspace / "called.yaml").write_text("tasks: {task_file: accuracy.jsonl}")
    shutil.copy("questions.jsonl", "accuracy.jsonl")
    (workspace / "odd.yaml").write_text("taks: {}")
    assert main(["evaluate", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and not (workspace / "x").exists()
