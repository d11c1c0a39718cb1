"""The one reader of safetensors files, through which models, states, operators and checkpoints come."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.errors import UserError
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


def test_unreadable_files_are_one_line(tmp_path: Path):
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


def test_an_unreadable_file_is_refused_by_every_reader(
    tmp_path: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
):
    """Raised by hand: tests may run as root, whom nothing is forbidden."""

    def forbid(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(safetensors.torch, "load_file", forbid)
    path = tmp_path / "model.safetensors"
    for read in (read_tensors, read_operators, lambda p: load_decoder(p.parent), lambda p: load_state(decoder, p)):
        assert refusal(read, path) == "cannot be read (Permission denied)"


TENSORS = {
    "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "b": torch.tensor(3),
    "empty": torch.empty(0, 4),
    "turned": torch.arange(12.0).reshape(3, 4).T[1:],
}


def contiguous(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


@pytest.mark.parametrize("checksum", [False, True])
def test_written_tensors_are_read_back(checksum: bool, tmp_path: Path):
    path = tmp_path / "new" / "x.safetensors"
    write_tensors(path, TENSORS, {"made": "here"}, checksum=checksum)
    read = read_tensors(path)
    assert read.keys() == TENSORS.keys() and all(torch.equal(read[name], TENSORS[name]) for name in TENSORS)
    with safe_open(path, "pt") as file:
        assert file.metadata().items() >= {"made": "here"}.items() and len(file.metadata()) == 1 + checksum


@pytest.fixture(scope="module")
def sealed_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("with_checksum") / "x.safetensors"
    write_tensors(path, TENSORS, {"made": "here"}, checksum=True)
    return path.read_bytes()


@given(data=st.data())
def test_every_flipped_bit_of_a_checked_file_is_found(
    tmp_path_factory: pytest.TempPathFactory, sealed_file: bytes, data: st.DataObject
):
    content = bytearray(sealed_file)
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("flipped") / "x.safetensors"
    path.write_bytes(content)
    try:
        read = read_tensors(path)
    except UserError:
        return
    assert b'"checksum"' not in content  # its name was changed, and nothing else
    assert all(torch.equal(read[name], TENSORS[name]) for name in TENSORS)


def test_other_tensors_with_the_same_checksum_are_refused(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, checksum=True)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    for changed in ({"b": torch.tensor(4)}, {"b": torch.tensor([3])}, {"c": torch.zeros(0)}):
        save_file(contiguous({**TENSORS, **changed}), path, metadata)
        assert refusal(read_tensors, path) == "is not what linnet wrote: its hash differs; expected it unchanged"


def test_without_room_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=1000))
    with pytest.raises(OSError, match=r"4,000,000 bytes needed, 1,000 bytes free in "):
        write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1_000_000)})
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError) as failed:
        write_tensors(tmp_path / "x.safetensors", TENSORS)
    assert failed.value.errno == errno.ENOSPC and failed.value.filename == str(tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_pipes_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "x.safetensors")
    assert refusal(read_tensors, tmp_path / "x.safetensors") == "a device or pipe, expected a file"


def test_failures_of_the_machine_are_not_blamed_on_the_file(tmp_path, monkeypatch):
    write_tensors(tmp_path / "file", {"a": torch.ones(2)})

    def fail(*_, **__):
        raise FileNotFoundError("No such file or directory")  # what the library says when there are no handles left

    monkeypatch.setattr(safetensors, "safe_open", fail)
    with pytest.raises(OSError, match="cannot be read") as caught:
        read_tensors(tmp_path / "file")
    assert caught.value.errno == errno.EIO and caught.value.filename == str(tmp_path / "file")


@pytest.mark.parametrize("call", ["safe_open", "load_file"])
def test_missing_handles_are_not_blamed_on_the_file(call, tmp_path, monkeypatch):
    write_tensors(tmp_path / "file", {"a": torch.ones(2)})

    def fail(*_, **__):
        raise RuntimeError("unable to open file <file> in read-only mode: Too many open files (24)")

    monkeypatch.setattr(safetensors if call == "safe_open" else safetensors.torch, call, fail)
    with pytest.raises(OSError, match="Too many open files") as caught:
        read_tensors(tmp_path / "file")
    assert caught.value.errno == errno.EMFILE and caught.value.filename == str(tmp_path / "file")
