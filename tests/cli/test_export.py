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
    assert main(["export", str(model), "--freeze-operator", "--out", str(out), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["model"] == str(out)
    assert made["weights_bytes"] == (out / "model.safetensors").stat().st_size
    assert made["weights_bytes"] < (model / "model.safetensors").stat().st_size
    assert json.loads((out / "run.json").read_text())["frozen_from"] == str(model)
    assert main(["generate", str(out), "--prompt", "Once", "--max-tokens", "4"]) == 0


def test_without_a_form_nothing_is_written(model: Path, tmp_path: Path, capsys):
    assert main(["export", str(model), "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err == "error: export: no form was asked for; expected --to or --freeze-operator\n"
    assert not (tmp_path / "x").exists()


def test_the_frozen_models_line(model: Path, tmp_path: Path, capsys):
    assert main(["export", str(model), "--freeze-operator", "--out", str(tmp_path / "y"), "--prompt", "A time"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'y'}: tiny-pldr, ")
