import json
from pathlib import Path

import pytest

from chat_models import TEMPLATE as SOUND
from linnet.cli.main import main
from linnet.data.chat_template import PLAIN
from linnet.data.template_doctor import CHECKS
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model without a chat template, and a file of two conversations."""
    folder = tmp_path_factory.mktemp("doctor")
    tokenizer = Tokenizer.train("bytes", [])
    block = {"repeat": 1, "mixer": {"kind": "attention", "heads": 1}, "feed_forward": {"kind": "glu", "hidden": 8}}
    description = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "context_length": 64, "blocks": [block]}
    write_model(folder / "model", Decoder(ModelSpec.parse(description, "test")), tokenizer, {})
    rows = [{"instruction": "Who sang?", "output": "The bird."}, {"instruction": "When?", "output": "Now."}]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def doctor(capsys, folder, *options):
    code = main(["tokenizer", "doctor", str(folder / "chat.jsonl"), "--model", str(folder / "model"), *options])
    captured = capsys.readouterr()
    return code, captured.out


def test_the_plain_template_fails_two_checks(capsys, folder):
    assert doctor(capsys, folder)[0] == 0  # linnet's, as the model has none
    (folder / "plain.jinja").write_text(PLAIN)
    plain = ("--chat-template", str(folder / "plain.jinja"))
    code, out = doctor(capsys, folder, *plain)
    assert code == 1 and all(check in out for check in CHECKS)
    assert f"{folder / 'chat.jsonl'}, line 1: answer 0 ends with" in out
    code, out = doctor(capsys, folder, *plain, "--json", "--limit", "1")
    found = {each["check"]: each["conversations"] for each in json.loads(out)["findings"]}
    assert code == 1
    expected = ["stop token trained after every answer", "generation prompt equals the training prefix"]
    assert found == dict.fromkeys(expected, 1)


def test_a_sound_template_passes(capsys, folder):
    template = folder / "model" / "chat_template.jinja"
    template.write_text(SOUND)
    try:
        code, out = doctor(capsys, folder, "--json")
    finally:
        template.unlink()
    assert code == 0 and json.loads(out)["findings"] == []


def test_a_missing_file_is_named(capsys, folder):
    assert main(["tokenizer", "doctor", "none.jsonl", "--model", str(folder / "model")]) == 2
    assert "none.jsonl: no such file; expected a .jsonl file of conversations" in capsys.readouterr().err


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the bird sang to the tree and the tree was glad. " * 60)
    return path


def test_train_inspect_and_compare(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small, large = (str(tmp_path / f"{size}.json") for size in (260, 300))
    assert main(["tokenizer", "train", str(text), "--vocab-size", "260", "--out", small]) == 0
    assert main(["tokenizer", "train", str(text), "--kind", "unigram", "--vocab-size", "300", "--out", large]) == 0
    assert Tokenizer.load(small).vocab_size == 260 and Tokenizer.load(large).kind == "unigram"
    capsys.readouterr()

    capsys.readouterr()
    digits = ["--split-digits", "three", "--out", str(tmp_path / "digits.json"), "--json"]
    assert main(["tokenizer", "train", str(text), *digits]) == 0
    assert json.loads(capsys.readouterr().out)["split_digits"] == Tokenizer.load(digits[3]).split_digits == "three"

    like_pldr = str(tmp_path / "pieces.json")
    assert main(["tokenizer", "train", str(text), "--kind", "sentencepiece", "--out", like_pldr]) == 0
    assert Tokenizer.load(like_pldr).token_name(Tokenizer.load(like_pldr).end_id) == "[END]"
    capsys.readouterr()

    assert main(["tokenizer", "inspect", small, "--text", str(text)]) == 0
    out = capsys.readouterr().out
    assert "bytes per token" in out and "100.00% of the text's" in out
    assert "all hard texts come back from their tokens" in out

    inspect = ["tokenizer", "inspect", small, "--text", str(text), "--against"]
    assert main([*inspect, small]) == 0
    assert "texts have the ids of tokenizers" in capsys.readouterr().out
    assert main([*inspect, large, "--json"]) == 1
    compared = json.loads(capsys.readouterr().out)["compared"]
    assert compared["differences"][0]["name"] == f"{text}, document 1" and compared["differing"] > 50

    assert main(["tokenizer", "compare", small, large, "--text", str(text), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tokenizers"]
    assert [row["vocab_size"] for row in found] == [260, Tokenizer.load(large).vocab_size]
    assert found[0]["parameters"] < found[1]["parameters"]
    more, fewer = sorted(found, key=lambda row: row["bytes_per_token"])
    assert more["flops_per_byte"] > fewer["flops_per_byte"] and more["context_bytes"] < fewer["context_bytes"]

    assert main(["tokenizer", "compare", small, large, "--text", str(text)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"fewest parameters: {small}" in printed and "bits per byte are not estimated" in printed
    budget = ["--width", "64", "--max-parameters", "100k"]
    assert main(["tokenizer", "compare", small, large, "--text", str(text), *budget, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["max_parameters"], found["tokenizers"][0]["budget_share"]) == (
        "a decoder 64 wide", 100_000, 260 * 64 / 100_000
    )  # fmt: skip


def test_import_is_held_to_the_original_library(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    from tokenizers import Tokenizer as Library

    source, out = tmp_path / "any", tmp_path / "tokenizer.json"
    trained = Tokenizer.train("bpe", ["the bird sang to the bird"])
    trained.save(source)
    assert main(["tokenizer", "import", str(source), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"tokenizer.json: {trained.vocab_size} tokens, end token <|end|>\n" in printed
    assert "texts have the ids of tokenizers" in printed and Tokenizer.load(out).hash == trained.hash

    assert main(["tokenizer", "import", str(source), "--out", str(out)]) == 2
    assert "exists already; --overwrite replaces it" in capsys.readouterr().err

    from_file = Library.from_file
    monkeypatch.setattr(
        "tokenizers.Tokenizer.from_file", lambda path: from_file(str(Path(path).with_name("other.json")))
    )
    Tokenizer.train("bytes", []).save(tmp_path / "other.json")
    assert main(["tokenizer", "import", str(source), "--out", str(out), "--overwrite", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["source"] == "tokenizer.json" and found["end"] == ["<|end|>"] and found["notes"] == []
    assert 0 < len(found["compared"]["differences"]) < found["compared"]["texts"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["import", "TEXT", "--out", "new.json"], "no tokenizer; expected a tokenizer.json"),
        (["import", "missing", "--out", "new.json"], "missing: no such file"),
        (["train", "TEXT", "--out", "TEXT"], "exists already; --overwrite replaces it"),
        (
            ["train", "TEXT", "--kind", "words", "--out", "new.json"],
            "--kind words: expected one of bytes, char, bpe",
        ),
        (["train", "TEXT", "--vocab-size", "3", "--out", "new.json"], "3"),
        (["train", "TEXT", "--kind", "char", "--split-digits", "one", "--out", "new.json"], "--split-digits one: the"),
        (["inspect", "missing.json", "--text", "TEXT"], "missing.json"),
        (["inspect", "TEXT", "--text", "TEXT", "--against", "missing.json"], "missing.json: no such file"),
        (["inspect", "TEXT", "--text", "TEXT", "--pattern", "gpt2"], "--pattern gpt2: expected --against beside it"),
        (["compare", "missing.json", "--text", "TEXT"], "expected two or more"),
        (
            ["compare", "a", "b", "--text", "TEXT", "--width", "64", "--model", "tiny-ted"],
            "--width 64: cannot be",
        ),
        (["compare", "a", "b", "--text", "TEXT", "--width", "9"], "--width 9: expected a multiple of 8"),
        (["compare", "a", "b", "--text", "TEXT", "--flops", "1e9"], "--flops 1e9: expected --out beside it"),
        (["compare", "a", "b", "--text", "TEXT", "--out", "runs"], "--out runs: expected --flops beside it"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], expected: str, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    assert main(["tokenizer", *(str(text) if each == "TEXT" else each for each in arguments)]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1
    assert not (tmp_path / "new.json").exists()
