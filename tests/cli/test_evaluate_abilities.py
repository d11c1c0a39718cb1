"""`linnet evaluate --suite abilities`."""

import json
import re
from pathlib import Path

import pytest
import torch

from linnet.cli.main import main
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities.suite import default_abilities
from linnet.evaluation.abilities.symbols import Recall
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import save_decoder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speaker") / "model"
    tokenizer = Tokenizer.train("char", [Recall().alphabet])
    torch.manual_seed(0)
    plain = {
        "vocab_size": tokenizer.vocab_size,
        "d_model": 8,
        "context_length": 32,
        "blocks": [{"mixer": {"kind": "ted"}}],
    }
    save_decoder(Decoder(ModelSpec.parse(plain, "test")), folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["evaluate", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_suite_reports_what_it_measured_and_what_it_did_not(capsys: pytest.CaptureFixture[str], model: Path):
    assert main(["evaluate", str(model), "--suite", "abilities", "--limit", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["abilities"]
    assert [one["ability"] for one in found] == [one.model_dump() for one in default_abilities()]
    by_sizes = {
        (one["ability"]["kind"], one["ability"].get("pairs"), one["ability"].get("distance")): one for one in found
    }
    recall = by_sizes["recall", 8, 0]
    assert recall["items"] == 20 and recall["symbols_chance"] == 0.125 and not recall["above_chance"]
    assert by_sizes["sorting", None, None]["missing"] is None, "letters are bytes, which this tokenizer knows"
    assert by_sizes["recall", 256, 0]["missing"] == "its symbols are not tokens of the model"


def test_a_file_has_its_own_abilities(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path):
    path = tmp_path / "own.yaml"
    path.write_text("abilities: [{kind: recall, pairs: 4}, {kind: copying, length: 99}]")
    assert main(["evaluate", str(model), "--suite", "abilities", "--files", str(path), "--limit", "9"]) == 0
    out = capsys.readouterr().out
    for word in ("recall", "pairs=4", "above", "copying", "length=99", "measured:", "199"):
        assert word in out.split(), word


def test_what_the_model_cannot_be_asked_comes_first(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "abilities: [{kind: copying, length: 8}, {kind: needle, words: 10000}, {kind: needle, words: 9000}]"
    )
    asked = ["evaluate", str(model), "--suite", "abilities", "--files", str(path), "--limit", "2"]
    assert main(asked) == 0
    line = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert re.match(r"2 of 3 abilities cannot be asked: .* \(2, such as .*\)", line)
    path.write_text("abilities: [{kind: copying, length: 8}]")
    assert main(asked) == 0
    assert "cannot be asked" not in capsys.readouterr().out


def test_items_are_drawn_from_the_seed(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path):
    path = tmp_path / "own.yaml"
    path.write_text("abilities: [{kind: copying, length: 8}]")
    printed = []
    for seed in (0, 0, 5):
        assert (
            main(["evaluate", str(model), "--suite", "abilities", "--files", str(path), "--seed", str(seed), "--json"])
            == 0
        )
        printed.append(json.loads(capsys.readouterr().out)["abilities"])
    assert printed[0] == printed[1] != printed[2]


def test_options_of_texts_and_tasks_are_refused(capsys: pytest.CaptureFixture[str], model: Path):
    own = "the suite of abilities makes its own questions"
    assert f"--data x: {own}" in fails(capsys, model, "--suite", "abilities", "--data", "x")
    assert f"--limit-tokens 5: {own}" in fails(capsys, model, "--suite", "abilities", "--limit-tokens", 5)
    assert f"--cache-policy bank: {own}" in fails(capsys, model, "--suite", "abilities", "--cache-policy", "bank")
    assert "2 models: the suite of abilities measures one" in fails(capsys, model, model, "--suite", "abilities")
    assert "--limit 5: goes with --suite" in fails(capsys, model, "--data", "x", "--limit", 5)
    assert "--files y: goes with --suite" in fails(capsys, model, "--data", "x", "--files", "y")
    assert "--files z: expected one" in fails(capsys, model, "--suite", "pldr", "--files", "y", "--files", "z")


def test_written_steps_have_a_final_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    tokenizer = Tokenizer.train("bytes", ["a"])
    plain = {
        "vocab_size": tokenizer.vocab_size,
        "d_model": 8,
        "context_length": 256,
        "blocks": [{"mixer": {"kind": "ted"}}],
    }
    save_decoder(Decoder(ModelSpec.parse(plain, "test")), tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    path = tmp_path / "own.yaml"
    path.write_text("abilities: [{kind: whereabouts, people: 2, moves: 0, steps: true}]")
    asked = ["evaluate", str(tmp_path / "model"), "--suite", "abilities", "--files", str(path), "--limit", "4"]
    assert main([*asked]) == 0
    assert "final answer 0.0 ± 0.0 %" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["abilities"]
    assert (found["final_right"], found["final_chance"], found["chance"]) == (0.0, 0.5, 0.25)


def test_accuracy_against_examples(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path):
    path = tmp_path / "own.yaml"
    path.write_text("abilities: [{kind: arithmetic, max_value: 3, shots: 4}, {kind: copying}]")
    asked = ["evaluate", str(model), "--suite", "abilities", "--files", str(path), "--shots", "1,0", "--limit", "9"]
    assert main([*asked, "--plot", str(tmp_path / "shots.png"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (task,) = found["in_context"]
    assert found["shots"] == [0, 1] and task["ability"]["shots"] == 0
    assert [(one["shots"], one["items"], one["chance"]) for one in task["plain"]] == [(0, 9, 0.25), (1, 9, 0.25)]
    assert task["instructed"][0]["missing"].startswith("takes"), "its instruction is longer than the context"
    assert (tmp_path / "shots.png").read_bytes().startswith(b"\x89PNG")
    assert main(asked) == 0
    assert "Accuracy against examples" in capsys.readouterr().out


def test_invalid_numbers_of_examples_are_refused(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path):
    own = [model, "--suite", "abilities"]
    for given in ("1,x", "65", "1,1", ""):
        assert f"--shots {given}: expected whole numbers from 0 to 64" in fails(capsys, *own, "--shots", given)
    assert "--plot a.png: goes with --shots here" in fails(capsys, *own, "--plot", "a.png")
    assert "expected a file that ends in .png" in fails(capsys, *own, "--shots", "0", "--plot", "a.jpg")
    assert "--shots 1,2: expected a whole number from 0 to 100" in fails(
        capsys, model, "--suite", "pldr", "--files", "y", "--shots", "1,2"
    )
    path = tmp_path / "own.yaml"
    path.write_text("abilities: [{kind: copying}]")
    assert "own.yaml: no ability with examples" in fails(capsys, *own, "--files", path, "--shots", "0")


def test_the_suite_of_instructions(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path):
    path, text = tmp_path / "prompts.jsonl", tmp_path / "base.txt"
    path.write_text('{"prompt": "a1", "answer": "7", "type": "sums"}\n' * 3)
    text.write_text("a1 b2 c3\n")
    arguments = ["evaluate", str(model), "--suite", "instructions"]
    assert main([*arguments, "--prompts", str(path), "--limit", "2", "--data", str(text), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompts"] == 2 and found["data"] == str(text)
    (one,) = found["models"]
    assert list(one["groups"]) == ["sums", "all"] and one["groups"]["sums"]["reference"] == 1
    assert one["bits_per_byte"]["value"] > 0 and len(one["calibration"]["bins"]) == 1
    assert main([*arguments, "--prompts", str(path)]) == 0
    assert "followed, %" in capsys.readouterr().out


def test_options_without_effect_on_instructions_are_refused(capsys: pytest.CaptureFixture[str], model: Path):
    suite = (model, "--suite", "instructions")
    assert "no effect on the suite of instructions" in fails(capsys, *suite, "--shots", "1")
    assert "no effect on the suite of instructions" in fails(capsys, *suite, "--limit-tokens", "9")
    assert "goes with --suite instructions" in fails(capsys, model, "--suite", "pldr", "--prompts", "a.jsonl")
    assert "--prompts" in fails(capsys, model, "--data", "a.txt", "--prompts", "a.jsonl")


def test_the_base_text_may_be_a_folder_of_another_tokenizer(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
):
    prompts, text, folder = tmp_path / "prompts.jsonl", tmp_path / "base.txt", tmp_path / "data"
    prompts.write_text('{"prompt": "a1", "answer": "7"}\n')
    text.write_text("<|endoftext|>".join(f"a{n % 10} b{n // 10 % 10}" for n in range(100)))
    assert main(["prepare", str(text), "--out", str(folder), "--tokenizer", "bytes"]) == 0
    capsys.readouterr()
    arguments = ["--suite", "instructions", "--prompts", str(prompts), "--data", str(folder), "--json"]
    assert main(["evaluate", str(model), *arguments]) == 0
    (one,) = json.loads(capsys.readouterr().out)["models"]
    assert main(["evaluate", str(model), str(model), *arguments]) == 0
    both = json.loads(capsys.readouterr().out)["models"]
    assert [each["bits_per_byte"]["value"] for each in both] == [one["bits_per_byte"]["value"]] * 2
