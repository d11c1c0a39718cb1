import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from linnet.core.errors import UserError
from linnet.layers.mixers.plga import files
from linnet.layers.mixers.plga.files import OUTPUTS, read_operators, save_operators

LAYERS = [{name: torch.randn(2, 3, 3, dtype=torch.float64) for name in OUTPUTS} for _ in range(3)]


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        read_operators(path)
    line = str(refused.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    return line


def test_saved_operators_can_be_read(tmp_path: Path):
    save_operators(LAYERS, tmp_path / "G.safetensors")
    read = read_operators(tmp_path / "G.safetensors")
    assert [list(layer) == sorted(OUTPUTS) or set(layer) == set(OUTPUTS) for layer in read] == [True] * 3
    for layer, expected in zip(read, LAYERS, strict=True):
        for name in OUTPUTS:
            assert torch.equal(layer[name], expected[name])


@pytest.mark.parametrize("name", ["{i}", "layer{i}.G"])
@pytest.mark.parametrize("batch", [(), (1,)])
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_arrays_of_operators_alone_are_read_in_the_order_of_the_layers(tmp_path: Path, name: str, batch, suffix: str):
    """Twelve layers: 10 comes after 9, not after 1."""
    arrays = {name.format(i=i): np.full((*batch, 2, 3, 3), float(i)) for i in reversed(range(12))}
    path = tmp_path / f"G.{suffix}"
    if suffix == "npz":
        np.savez(path, **arrays)
    else:
        save_file({key: torch.from_numpy(array) for key, array in arrays.items()}, path)
    read = read_operators(path)
    assert [float(layer["G"].mean()) for layer in read] == list(range(12))
    assert all(layer["G"].shape == (2, 3, 3) for layer in read)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "holds no operator; expected layer{i}.G"),
        ({"layer0.H": np.eye(3)[None]}, "array 'layer0.H': expected layer{i}.G"),
        ({"1": np.eye(3)[None]}, "layer0.G is missing"),
        ({"0": np.eye(3)[None], "2": np.eye(3)[None]}, "layer1.G is missing"),
        ({"layer0.A": np.eye(3)[None]}, "layer0.G is missing"),
        ({"0": np.eye(3)}, "0: shape [3, 3]: expected [H, K, K] or [1, H, K, K]"),
        ({"0": np.zeros((2, 2, 3, 3))}, "0: shape [2, 2, 3, 3]: expected [H, K, K] or [1, H, K, K]"),
        ({"0": np.zeros((2, 3, 4))}, "0: shape [2, 3, 4]: expected"),
        ({"0": np.zeros((2, 0, 0))}, "0: shape [2, 0, 0]: expected"),
        ({"0": np.zeros((2, 3, 3), dtype=np.int64)}, "0: of int64: expected floating point"),
        (
            {"layer0.G": np.zeros((2, 3, 3)), "layer0.A": np.zeros((1, 3, 3))},
            "layer0.A: shape [1, 3, 3]: expected that",
        ),
        ({"0": np.array([object()])}, "not a .npz file of numbers"),
        ({5000 * "9": np.zeros((2, 3, 3))}, "expected layer{i}.G"),
        ({f"layer{5000 * '9'}.G": np.zeros((2, 3, 3))}, "expected layer{i}.G"),
    ],
)
def test_an_invalid_file_is_refused_with_the_name_of_the_array(tmp_path: Path, arrays, message: str):
    np.savez(tmp_path / "G.npz", **arrays)
    assert message in refusal(tmp_path / "G.npz")


@pytest.mark.parametrize("name", ["G.npz", "G.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a file of arrays", b"PK\x03\x04 cut off"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, name: str, content: bytes):
    assert "no such file" in refusal(tmp_path / name)
    (tmp_path / name).write_bytes(content)
    refusal(tmp_path / name)


def npz_with_header(path: Path, header: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("0.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64))
    return path


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'a\n",
        b"(" * 5000,
        b"-" * 9000 + b"1",
        b"{'descr': '''",
        b"{1: 2, 'descr': '<f4'}",
        b"{'descr': ',', 'fortran_order': False, 'shape': (1, 2, 2), }\n",
    ],
)
def test_a_header_that_is_none_is_refused(header: bytes, tmp_path: Path):
    assert "not a .npz file of numbers (" in refusal(npz_with_header(tmp_path / "G.npz", header))


def test_an_encrypted_archive_is_refused(tmp_path: Path):
    path = npz_with_header(tmp_path / "G.npz", b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 2), }\n")
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.rfind(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    assert "is encrypted" in refusal(path)


def test_an_archive_larger_than_the_available_memory_is_refused(tmp_path: Path, monkeypatch):
    np.savez_compressed(tmp_path / "G.npz", **{str(i): np.zeros((2, 64, 64)) for i in range(3)})
    monkeypatch.setattr(files, "available_bytes", lambda _: 100_000)
    assert "more than the available memory" in refusal(tmp_path / "G.npz")
