import json
from pathlib import Path

import pytest

from linnet.cli.main import main
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "pldr"
    tokenizer = Tokenizer.train("bytes", [])
    spec = ModelSpec.load("tiny-pldr").replace(vocab_size=tokenizer.vocab_size, d_model=16)
    write_model(path, Decoder(spec), tokenizer, {})
    return path


def test_a_frozen_model_is_smaller_and_generates(model: Path, tmp_path: Path, capsys):
    out = tmp_path / "frozen"
    assert main(["export", str(model), "--freeze", "--out", str(out), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["model"] == str(out)
    assert made["weights_bytes"] == (out / "model.safetensors").stat().st_size
    assert made["weights_bytes"] < (model / "model.safetensors").stat().st_size
    assert json.loads((out / "run.json").read_text())["frozen_from"] == str(model)
    assert main(["generate", str(out), "--prompt", "Once", "--max-tokens", "4"]) == 0


def test_without_a_form_nothing_is_written(model: Path, tmp_path: Path, capsys):
    assert main(["export", str(model), "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err == "error: export: no form is given; expected --to or --freeze\n"
    assert not (tmp_path / "x").exists()


def test_the_frozen_models_line(model: Path, tmp_path: Path, capsys):
    assert main(["export", str(model), "--freeze", "--out", str(tmp_path / "y"), "--prompt", "A time"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'y'}: tiny-pldr, ")


def attention(path: Path, **mixer: object) -> Path:
    tokenizer = Tokenizer.train("bytes", [])
    block = {"mixer": {"kind": "attention", "heads": 2, **mixer}, "feed_forward": {"kind": "glu", "hidden": 20}}
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 64, "blocks": [block]}
    spec = ModelSpec.parse({**plain, "name": "small", "head": {"norm": {}}}, "small")
    write_model(path, Decoder(spec), tokenizer, {})
    return path


def test_a_llama_of_transformers(tmp_path: Path, capsys):
    pytest.importorskip("transformers")
    source, out = attention(tmp_path / "model"), tmp_path / "hf"
    assert (
        main(["export", str(source), "--to", "transformers", "--out", str(out), "--precision", "bfloat16", "--json"])
        == 0
    )
    made = json.loads(capsys.readouterr().out)
    assert (made["model"], made["model_type"], made["dtype"]) == (str(out), "llama", "bfloat16")
    assert made["greedy_tokens"] == 200 and 0 <= made["logits_error"] < made["accepted_logits_error"] == 1e-4
    assert made["rounding_logits_error"] > 0
    assert main(["import", "transformers", str(out), "--out", str(tmp_path / "back")]) == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "back"), "--to", "transformers", "--out", str(tmp_path / "again")]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'again'}: hf, ") and second == "of the family llama"
    assert third.startswith("by Transformers: 200 of 200 greedy tokens the same, logits within ")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "again" / "model.safetensors").read_bytes()


def test_what_no_family_has_needs_an_import(tmp_path: Path, capsys):
    pytest.importorskip("transformers")
    source = attention(tmp_path / "model", gate="head")
    assert main(["export", str(source), "--to", "transformers", "--out", str(tmp_path / "hf")]) == 0
    _, why, needs, gate = capsys.readouterr().out.splitlines()
    assert why.startswith("small: blocks[0].mixer.gate: head: makes it a model of no family of Transformers (llama, ")
    assert why.endswith("); the nearest, llama, has none")
    assert needs == "so its readers need `import linnet.interop.transformers` before"
    assert gate.startswith("by Transformers: 200 of 200 greedy tokens the same")


def test_a_gguf_file(tmp_path: Path, capsys):
    pytest.importorskip("gguf")
    source, out = attention(tmp_path / "model"), tmp_path / "small.gguf"
    assert main(["export", str(source), "--to", "gguf", "--precision", "f16", "--out", str(out), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["architecture"], made["weights"], made["weights_bytes"]) == ("llama", "f16", out.stat().st_size)
    assert main(["export", str(source), "--to", "gguf", "--precision", "float16", "--out", str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err == "error: --precision float16: expected one of f32, f16, bf16, q8_0, q4_0\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "nowhere"], "--to nowhere: expected one of "),
        (
            ["--freeze", "--precision", "float16"],
            "--precision float16: expected --to transformers or gguf or onnx or web beside it",
        ),
        (
            ["--to", "transformers", "--precision", "int3"],
            "--precision int3: expected one of float32, bfloat16, float16",
        ),
        (["--to", "onnx", "--precision", "q8_0"], "--precision q8_0: expected one of float32, int8, int4"),
        (
            ["--to", "transformers", "--precision", "int8"],
            "--precision int8: expected one of float32, bfloat16, float16",
        ),
        (
            ["--to", "onnx", "--cache-policy", "bank"],
            "--cache-policy: the model's layers (attention) have one cache policy",
        ),
        (["--to", "onnx", "--cache-policy", "some"], "--cache-policy some: expected full, recalibrate, bank, or top_k"),
        (["--to", "onnx", "--beside", "a", "--beside", "b"], "--beside a, b: expected --to web beside it"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, capsys, words: list[str], said: str):
    source = attention(tmp_path / "model")
    assert main(["export", str(source), *words, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert not (tmp_path / "out").exists()


def test_an_unknown_form_is_told_with_all_of_them(capsys: pytest.CaptureFixture[str]):
    assert main(["export", "runs/none", "--to", "pickle", "--out", "out"]) == 2
    expected = "error: --to pickle: expected one of transformers, gguf, onnx, web, peft, datatrove\n"
    assert capsys.readouterr().err == expected
