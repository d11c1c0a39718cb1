import base64
import json
from pathlib import Path

import pytest
import torch
from small_originals import write

from linnet.cli.console import invocation
from linnet.cli.main import main
from linnet.interop.ted import CONTEXT_LENGTH, END
from linnet.interop.tensor_names import TED
from linnet.model.spec import ModelSpec

CHARACTERS = [*sorted(set("Once upon a time\n")), END]
SIZES = {"num_layers": 8, "dim": 256, "hidden_dim": 512, "norm_eps": 1e-6, "vocab_size": len(CHARACTERS)}


@pytest.fixture
def published_ted(tmp_path: Path) -> Path:
    """A model in the published layout, of the published sizes but for its characters, with weights of no sense."""
    folder = tmp_path / "tiny_stories"
    folder.mkdir()
    spec = ModelSpec.load("ted-tinystories").replace(vocab_size=len(CHARACTERS))
    weights = {}
    for name, size in TED.shapes(spec).items():
        data = (torch.randn(size) / 16).numpy().tobytes()
        weights[name] = {"size": size, "data": base64.b64encode(data).decode()}
    vocabulary = {"int_to_char": CHARACTERS, "char_to_int": {c: n for n, c in enumerate(CHARACTERS)}}
    for name, content in (("model", SIZES), ("vocab", vocabulary), ("weights", weights)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_help_tells_what_can_be_imported(capsys):
    assert main(["import", "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "pldr" in help_text and "ted" in help_text
    assert main(["import", "pldr", "--help"]) == 0
    assert "Example: linnet import pldr checkpoint.pth" in capsys.readouterr().out
    assert main(["import", "ted", "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "Example: linnet import ted tiny_stories --out models/ted" in help_text
    assert END in help_text and str(CONTEXT_LENGTH) in help_text


def test_an_imported_ted_is_a_model_folder_like_any_other(published_ted: Path, tmp_path: Path, capsys):
    model, text, data = str(tmp_path / "model"), tmp_path / "stories.txt", str(tmp_path / "data")
    assert main(["import", "ted", str(published_ted), "--out", model, "--context-length", "64", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["model"], made["name"]) == (model, "tiny_stories")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["context_length"] == 64
    assert json.loads((tmp_path / "model" / "run.json").read_text())["command"] == invocation()
    assert made["parameters"] == 4_748_032 - (90 - len(CHARACTERS)) * 256
    assert main(["generate", model, "--prompt", "Once", "--max-tokens", "5", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("Once")
    text.write_text(END.join(["Once upon a time", "Une époque", "Time on time"] * 4))
    tokenizer = ["--tokenizer", f"{model}/tokenizer.json", "--document-separator", END]
    assert main(["prepare", str(text), "--out", data, *tokenizer]) == 0
    capsys.readouterr()
    assert main(["evaluate", model, "--data", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] > 10


def test_a_mistake_in_a_published_ted_is_one_line(published_ted: Path, tmp_path: Path, capsys):
    assert main(["import", "ted", str(published_ted), "--end", "Z", "--out", str(tmp_path / "model")]) == 2
    assert capsys.readouterr().err.startswith("error: --end 'Z': expected one of the characters in ")
    (published_ted / "weights.json").unlink()
    assert main(["import", "ted", str(published_ted), "--out", str(tmp_path / "model")]) == 2
    assert capsys.readouterr().err == (
        f"error: {published_ted}: has no weights.json and no weights.pth; "
        "expected model.json, vocab.json, and weights.json or weights.pth\n"
    )


def test_a_missing_tokenizer_is_one_line(tmp_path: Path, capsys):
    arguments = ["--spec", "pldr-v51-110m-1", "--out", str(tmp_path / "out")]
    assert main(["import", "pldr", str(tmp_path / "none.pth"), *arguments]) == 2
    assert capsys.readouterr().err == (
        "error: --tokenizer: missing; expected the SentencePiece .model that the checkpoint was trained with\n"
    )


def test_a_model_of_transformers_is_a_model_folder_like_any_other(tmp_path: Path, capsys):
    pytest.importorskip("transformers")
    write(tmp_path / "theirs", "qwen2")
    model = str(tmp_path / "model")
    assert main(["import", "transformers", str(tmp_path / "theirs"), "--check", "--out", model, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["name"] == "theirs"
    assert "checked: by Transformers: 200 of 200 greedy tokens the same, logits within " in printed.err
    assert main(["generate", model, "--prompt", "Once", "--max-tokens", "5", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("Once")
    again = ["import", "transformers", str(tmp_path / "theirs"), "--out", str(tmp_path / "x")]
    assert main([*again, "--end", "<eos>"]) == 2
    assert capsys.readouterr().err.startswith("error: --end <eos>: ")
    assert main(["import", "transformers", str(tmp_path / "none"), "--out", str(tmp_path / "x")]) == 2
    said = f"error: {tmp_path / 'none'}: no such folder; expected a model folder of Transformers\n"
    assert capsys.readouterr().err == said
