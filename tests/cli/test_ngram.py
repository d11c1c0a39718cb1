import json

import pytest

from linnet.cli.main import main
from linnet.data.prepare import prepare_texts

TRAIN = [f"the bird {n % 7} sang to the tree and the tree was glad. " * 2 for n in range(20)]
VALIDATION = [f"tree {n} was glad of the bird. " for n in range(9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngram")
    prepare_texts(TRAIN, VALIDATION, folder / "data", tokenizer="bytes")
    assert main(["ngram", "train", "--data", str(folder / "data"), "--out", str(folder / "model"), "--order", "4"]) == 0
    return folder


def run_ngram(capsys, *arguments):
    assert main(["ngram", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def fails(capsys, *arguments):
    assert main(["ngram", *map(str, arguments)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_training_reports_every_order(capsys, folder, tmp_path):
    table = run_ngram(capsys, "train", "--data", folder / "data", "--out", tmp_path / "one", "--order", 3)
    assert "possible" in table and "1.70e7" in table and f"written to {tmp_path / 'one'}" in table
    found = json.loads(run_ngram(capsys, "train", "--data", folder / "data", "--out", tmp_path / "two", "--json"))
    assert [one["order"] for one in found["orders"]] == [1, 2, 3, 4, 5]
    assert found["orders"][1]["possible"] == 257**2 and len(found["orders"][4]["discounts"]) == 3


def test_evaluating_prints_a_table_or_json_and_draws(capsys, folder, tmp_path):
    found = json.loads(run_ngram(capsys, "evaluate", folder / "model", "--data", folder / "data", "--json"))
    assert {"bits_per_byte", "perplexity", "accuracy", "tokens", "bytes", "split"} <= found.keys()
    assert [one["order"] for one in found["orders"]] == [1, 2, 3, 4]
    table = run_ngram(capsys, "evaluate", folder / "model", "--data", folder / "data", "--out", tmp_path / "report")
    assert f"{found['bits_per_byte']:.4f}" in table and f"{found['orders'][3]['share_never_seen']:.1%}" in table
    assert "never seen" in table
    assert {"report.html", "never_seen.png"} <= {path.name for path in (tmp_path / "report").iterdir()}
    assert found["interval"][0] < found["bits_per_byte"] < found["interval"][1]
    assert f"{found['bits_per_byte']:.4f} ± {found['standard_error']:.4f}" in table
    assert found["documents"] == len(VALIDATION) == 9 and "standard error over 9 documents" in table


def test_other_verbs_name_the_right_one(capsys, folder):
    for verb in (["evaluate", folder / "model", "--data", folder / "data"], ["generate", folder / "model"]):
        assert main([*map(str, verb)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{folder / 'model'}: an n-gram model" in line and "`linnet ngram evaluate " in line


def test_generating_prints_the_prompt_and_what_follows(capsys, folder):
    command = ("generate", folder / "model", "--prompt", "the", "--seed", 1, "--max-tokens", 40)
    text = run_ngram(capsys, *command)
    found = json.loads(run_ngram(capsys, *command, "--json"))
    assert text == f"the{found['text']}\n" and found["seed"] == 1 and 0 < found["tokens"] <= 40
    assert found["tokens_per_second"] > 0
    greedy = [run_ngram(capsys, *command[:4], "--temperature", 0) for _ in range(2)]
    assert greedy[0] == greedy[1] != text


def test_mistakes_are_one_line(capsys, folder, tmp_path):
    assert "not an n-gram model (no ngram.json)" in fails(capsys, "evaluate", tmp_path, "--data", folder / "data")
    assert "not a data folder" in fails(capsys, "train", "--data", tmp_path, "--out", tmp_path / "model")
    assert "exists already" in fails(capsys, "train", "--data", folder / "data", "--out", folder / "model")
    assert "--order" in fails(capsys, "train", "--data", folder / "data", "--out", tmp_path / "model", "--order", 0)
    assert "--temperature -1" in fails(capsys, "generate", folder / "model", "--temperature", -1)
    assert "--max-tokens 0: expected at least 1" in fails(capsys, "generate", folder / "model", "--max-tokens", 0)
