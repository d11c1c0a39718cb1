"""A GGUF file is read as the `gguf` package reads it, but for arrays of numbers: those in one piece."""

from pathlib import Path

import numpy as np
import pytest
import torch

from linnet.interop.gguf import file as gguf_file
from linnet.interop.gguf.file import Stored, read_gguf, write_gguf

gguf = pytest.importorskip("gguf")
SAID = {
    "general.name": "Möwe",
    "a.rules": bytes(range(256)) * 300,
    "a.kinds": [1, 3, 6, 2],
    "a.scores": [0.0, -1.5, 3e-5],
    "a.flags": [True, False, True],
    "a.names": ["", "▁a", "ü"],
    "llama.block_count": 3,
    "llama.rope.freq_base": 1e4,
    "a.last": False,
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_gguf(tmp_path / "any.gguf", "llama", "f32", SAID, [("a.weight", Stored(matrix, "F32"))])
    return tmp_path / "any.gguf"


def test_the_package_reads_what_was_written(written: Path):
    found = read_gguf(written)
    package = {name: field.contents() for name, field in gguf.GGUFReader(written).fields.items()}
    assert found.metadata == package
    for name, value in SAID.items():
        expected = list(value) if isinstance(value, bytes) else value
        assert found.metadata[name] == (pytest.approx(expected) if name == "a.scores" else expected), name
    assert torch.equal(found.tensors["a.weight"], torch.arange(6.0).reshape(2, 3))
    assert (found.architecture, found.of_model("block_count"), found.of_model("none", 7)) == ("llama", 3, 7)


def test_an_array_of_numbers_is_one_part(written: Path):
    """A part for each takes seconds for the rules of a tokenizer."""
    fields = gguf_file._reader(written).fields
    package = gguf.GGUFReader(written).fields
    assert len(package["a.rules"].parts) > len(SAID["a.rules"]) > 100 > len(fields["a.rules"].parts)
    for name, field in fields.items():
        assert field.types == package[name].types
