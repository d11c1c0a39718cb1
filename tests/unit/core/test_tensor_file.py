"""The one reader of safetensors files, through which models, states, operators and checkpoints come."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from linnet.core import tensor_file
from linnet.core.errors import UserError
from linnet.core.tensor_file import read_tensors
from linnet.inference.state import load_state
from linnet.layers.mixers.plga.files import read_operators
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, save_decoder


def refusal(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(UserError) as refused:
        read(path)
    line = str(refused.value)
    assert line.startswith(f"{path}: ") and "\n" not in line
    return line.removeprefix(f"{path}: ")


def test_tensors_are_read_by_name(tmp_path: Path):
    written = {"a": torch.randn(2, 3), "b": torch.arange(4)}
    save_file(written, tmp_path / "x.safetensors")
    read = read_tensors(tmp_path / "x.safetensors")
    assert read.keys() == written.keys() and all(torch.equal(read[name], written[name]) for name in written)


def test_what_cannot_be_read_is_one_line(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    assert refusal(read_tensors, path) == "no such file"
    assert refusal(read_tensors, tmp_path) == "is a directory, expected a file"
    path.write_bytes(b"half a fil")
    assert refusal(read_tensors, path).startswith("not a safetensors file (")
    assert refusal(lambda p: read_tensors(p, otherwise="no numbers"), path).startswith("no numbers (")


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    plain = {"vocab_size": 9, "d_model": 8, "context_length": 16, "blocks": [{"mixer": {"kind": "ted"}}]}
    decoder = Decoder(ModelSpec.parse(plain, "test"))
    save_decoder(decoder, tmp_path)
    return decoder


def test_a_file_of_others_is_refused_by_every_reader(tmp_path: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch):
    """Raised by hand: tests may run as root, whom nothing is forbidden."""

    def forbid(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tensor_file, "load_file", forbid)
    path = tmp_path / "model.safetensors"
    for read in (read_tensors, read_operators, lambda p: load_decoder(p.parent), lambda p: load_state(decoder, p)):
        assert refusal(read, path) == "cannot be read (Permission denied)"
