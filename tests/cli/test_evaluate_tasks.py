import json
import re
import sys
from pathlib import Path

import pytest
import torch
from examples import randomized
from set_rows import ROWS

from linnet.cli.main import main
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import save_decoder

MIXERS = {
    "attention": {"kind": "attention", "heads": 2},
    "plga": {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, mixer in MIXERS.items():
        torch.manual_seed(0)
        plain = {"vocab_size": 257, "d_model": 16, "context_length": 512, "blocks": [{"mixer": mixer}]}
        save_decoder(randomized(Decoder(ModelSpec.parse(plain, "test"))), folder / name)
        Tokenizer.train("bytes", []).save(folder / name / "tokenizer.json")
    return {name: folder / name for name in MIXERS}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = [{"context": f"{n} and {n} is", "choices": [f"{2 * n}", f"{n}", "no"], "gold": 0} for n in range(12)]
    questions[3]["context"] = "One more than two and two is not five but rather what is it"
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    (folder / "train.txt").write_text(f"He said: {questions[3]['context']}, no?")
    pairs = [{"sentence_good": f"Birds sing {n}.", "sentence_bad": f"Birds sings {n}."} for n in range(4)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return folder


def _figures(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _fails(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_two_models_and_a_suite(capsys, models, files):
    arguments = (*models.values(), "--suite", "pldr", "--files", files)
    found = _figures(capsys, *arguments)
    first, second = (each["tasks"] for each in found["models"])
    assert [task["items"] for task in first.values()] == [2, 2, 2, 1, 1, 1, 1, 1]
    assert first["hellaswag"]["chance"] == 0.25 and first["truthfulqa_mc2"]["chance"] == pytest.approx(2 / 3)
    assert 0 < first["truthfulqa_mc2"]["mc2"] < 1 and set(first["piqa"]["other_scores"]) == {"acc", "acc_norm"}
    (difference,) = found["differences"]
    for name, task in difference["tasks"].items():
        if name in first:
            score = first[name]["score"]
            assert task["difference"] == pytest.approx(second[name][score] - first[name][score])
    assert set(difference["tasks"]) == {*first, "Avg-1", "Avg-2"}
    mean = sum(task["acc_bytes"] for name, task in first.items() if name != "truthfulqa_mc2") / 7
    assert found["models"][0]["averages"]["Avg-1"]["mean"] == pytest.approx(mean)
    assert main(["evaluate", *map(str, arguments)]) == 0
    table = capsys.readouterr().out
    assert table.count("distinguishable") == 16 and f"{100 * mean:.1f}" in table
    assert f"{models['plga']} against {models['attention']}" in " ".join(table.split())


def test_tasks_with_missing_files_are_named(capsys, models, tmp_path):
    for name in ("boolq", "wsc"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    (tmp_path / "wsc_train.jsonl").write_text(json.dumps(ROWS["wsc"][0]) + "\n")
    arguments = (models["attention"], "--suite", "merino", "--files", tmp_path)
    found = _figures(capsys, *arguments)["models"][0]
    assert {name: task["shots_from"] for name, task in found["tasks"].items()} == {
        "boolq": "boolq.jsonl",
        "wsc": "wsc_train.jsonl",
    }
    assert len(found["missing"]) == 10 and "cb.jsonl" in found["missing"] and found["averages"] == {}
    assert main(["evaluate", *map(str, arguments)]) == 0
    printed_text = " ".join(capsys.readouterr().out.split())
    assert "no cb.jsonl" in printed_text and "boolq, which have none, use other items" in printed_text


def test_a_task_file_with_its_overlap(capsys, models, files):
    arguments = (models["attention"], "--task-file", files / "mine.jsonl", "--train-text", files / "train.txt")
    found = _figures(capsys, *arguments)
    task = found["models"][0]["tasks"]["mine"]
    overlap = task["overlap"]
    assert (overlap["shared"], overlap["too_short"]) == (1, 11)
    assert task["acc_bytes"] * 12 == pytest.approx(overlap["of_shared"] + 11 * overlap["of_others"])
    assert main(["evaluate", *map(str, arguments)]) == 0
    assert "overlap with" in capsys.readouterr().out
    assert "overlap" not in _figures(capsys, *arguments[:3])["models"][0]["tasks"]["mine"]


def test_a_limit_takes_the_first(capsys, models, files):
    few = _figures(capsys, models["attention"], "--task-file", files / "mine.jsonl", "--limit", 2)
    assert few["models"][0]["tasks"]["mine"]["items"] == 2


def test_a_choice_that_is_longer_than_the_context_is_read_in_windows(capsys, models, files, tmp_path):
    rows = [json.loads(line) for line in (files / "mine.jsonl").read_text().splitlines()[:3]]
    rows[1]["choices"][2] = "no " * 200
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = (models["attention"], "--task-file", tmp_path / "long.jsonl")
    task = _figures(capsys, *arguments)["models"][0]["tasks"]["long"]
    assert (task["items"], task["in_windows"]) == (3, 1) and task["value"] is not None
    assert main(["evaluate", *map(str, arguments)]) == 0
    assert "read in windows: long 1 of 3 items" in " ".join(capsys.readouterr().out.split())


def test_minimal_pairs(capsys, models, files):
    found = _figures(capsys, models["attention"], "--suite", "minimal-pairs", "--files", files / "pairs.jsonl")
    assert found["models"][0]["tasks"]["pairs"]["items"] == 4
    assert _figures(capsys, models["attention"], "--suite", "minimal-pairs", files / "pairs.jsonl") == found
    for others in ([], [models["attention"], files / "mine.jsonl"]):
        line = _fails(capsys, *others, "--suite", "minimal-pairs", files / "pairs.jsonl")
        assert f"{files / 'pairs.jsonl'}: a file; expected folders of models" in line
        assert f"linnet evaluate MODEL --suite minimal-pairs --files {files / 'pairs.jsonl'}" in line


def test_other_operators(capsys, models, files):
    arguments = (models["plga"], "--suite", "pldr", "--files", files)
    own, other = (
        _figures(capsys, *arguments, *more)["models"][0]["tasks"]["truthfulqa_mc2"]["mc2"]
        for more in ([], ["--calibration", "random", "--seed", 1])
    )
    assert own != other
    assert _figures(capsys, *arguments, "--calibrate-on", "empty")["models"][0]["tasks"]["truthfulqa_mc2"]["mc2"] == own


def test_other_operators_in_weights_of_few_bits(capsys, models, files):
    arguments = (models["plga"], "--task-file", files / "mine.jsonl", "--calibration", "identity")
    plain, packed = (
        _figures(capsys, *arguments, *more)["models"][0]["tasks"] for more in ([], ["--precision", "int8"])
    )
    assert packed["mine"]["items"] == plain["mine"]["items"] == 12


def test_options_that_do_not_go_together_are_refused(capsys, models, files):
    model, mine = models["attention"], files / "mine.jsonl"
    for arguments, message in (
        ([], "nothing to measure on; expected one of --data, --suite, --task-file and --tasks"),
        (
            ["--suite", "pldr"],
            "--suite pldr: --files is missing; expected a folder with a file NAME.jsonl for each task",
        ),
        (["--suite", "pldr", "--task-file", mine], "expected one of --suite, with --files, and --task-file"),
        (["--suite", "nosuch"], "expected one of merino, pldr, minimal-pairs, abilities"),
        (["--suite", "abilitis"], "did you mean abilities?"),
        (["--suite", "instruction", "--data", files], "--suite instruction: did you mean instructions?"),
        (["--suite", "plrd", "--files", files], "--suite plrd: did you mean pldr?"),
        (["--task-file", mine, "--files", files], "--files .*: goes with a suite; the rows are in --task-file"),
        (["--task-file", mine, "--data", files], "--data .*: says how a text is measured; leave it out for tasks"),
        (["--task-file", mine, "--split", "train"], "--split train: says how a text is measured"),
        (["--task-file", mine, "--calibrate-on", "train"], "--calibrate-on train: tasks have no training split"),
        (["--data", files, "--limit", 2], "--limit 2: goes with --suite, --task-file or --tasks"),
        (["--suite", "minimal-pairs", "--files", files / "pairs.jsonl", "--shots", 1], "--shots 1: minimal pairs"),
        (["--suite", "pldr", "--files", files / "none"], "--files .*none: no arc_challenge.jsonl, "),
    ):
        assert re.search(message, _fails(capsys, model, *arguments)), message


def test_the_extra_is_named_where_the_harness_is_not_installed(capsys, models, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    message = _fails(capsys, models["attention"], "--tasks", "arc_easy")
    assert "the harness's tasks need lm_eval: pip install 'linnet[tasks]'" in message
    assert "--suite and --task-file do not" in message
    message = _fails(capsys, models["attention"], "--tasks", "arc_easy", "--train-text", "x")
    assert "--train-text x: does not go with --tasks" in message
