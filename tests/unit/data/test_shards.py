import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.data.shards import (
    ShardWriter,
    TokenData,
    TokenSequence,
    holds_only_data,
    read_manifest,
    token_dtype,
    write_manifest,
)


def sequence(folder: Path, blocks: list[list[int]], vocab_size: int, shard_tokens: int) -> TokenSequence:
    """What was written in blocks, read back through memory maps."""
    with ShardWriter(folder, "train", vocab_size, shard_tokens) as writer:
        for block in blocks:
            writer.write(np.array(block, dtype=np.int64))
    info = writer.info(documents=0, text_bytes=0)
    dtype = np.dtype(token_dtype(vocab_size)).newbyteorder("<")
    maps = [np.memmap(folder / shard.file, dtype=dtype, mode="r") for shard in info.shards]
    assert [len(shard) for shard in maps] == [shard.tokens for shard in info.shards]
    assert all(shard.tokens == shard_tokens for shard in info.shards[:-1])
    return TokenSequence("train", list(maps))


@given(
    blocks=st.lists(st.lists(st.integers(0, 65_535), max_size=9), min_size=1, max_size=8),
    shard_tokens=st.integers(1, 10),
    data=st.data(),
)
def test_what_is_written_in_any_blocks_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[list[int]], shard_tokens: int, data: st.DataObject
) -> None:
    tokens = [token for block in blocks for token in block]
    found = sequence(tmp_path_factory.mktemp("shards"), blocks, 65_536, shard_tokens)
    assert len(found) == len(tokens)
    start = data.draw(st.integers(0, len(tokens)))
    count = data.draw(st.integers(0, len(tokens) - start))
    part = found.read(start, count)
    assert part.dtype == np.int64 and part.tolist() == tokens[start : start + count]


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, 4), (3, 1)])
def test_reading_past_the_ends_is_a_bug(tmp_path: Path, start: int, count: int) -> None:
    with pytest.raises(AssertionError):
        sequence(tmp_path, [[1, 2, 3]], 10, 2).read(start, count)


def test_ids_take_two_bytes_up_to_65536_of_them(tmp_path: Path) -> None:
    assert (token_dtype(65_536), token_dtype(65_537)) == ("uint16", "uint32")
    assert sequence(tmp_path, [[65_536, 1]], 65_537, 2).read(0, 2).tolist() == [65_536, 1]
    assert (tmp_path / "train-00000.bin").read_bytes() == b"\0\0\1\0\1\0\0\0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare_texts(["one", "two é"], ["three"], tmp_path / "data", tokenizer="bytes", name="three texts")
    return tmp_path / "data"


def test_folder_reads_back(folder: Path) -> None:
    data = TokenData.open(folder)
    end = data.tokenizer.end_id
    assert tokens(data.split("train")).tolist() == [end, *b"one", end, *"two é".encode(), end]
    assert tokens(data.split("validation")).tolist() == [end, *b"three", end]
    train = data.manifest.splits["train"]
    assert (train.documents, train.bytes, train.tokens) == (2, 9, 12)
    assert data.manifest.model_dump()["sources"] == [{"file": "three texts", "documents": 3, "bytes": 14}]
    assert data.manifest.dtype == "uint16"
    assert data.split("train").name == f"{folder}: train"


def tokens(found: TokenSequence) -> NDArray[np.int64]:
    return found.read(0, len(found))


def test_tokens_are_mapped_not_loaded(folder: Path) -> None:
    assert all(isinstance(shard, np.memmap) for shard in TokenData.open(folder).split("train")._shards)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        TokenData.open(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder))


def test_folder_without_manifest(tmp_path: Path) -> None:
    assert refusal(tmp_path) == ": not a data folder (no manifest.json); make one with `linnet prepare`"


@pytest.mark.parametrize("version", [2, "1", None])
def test_unknown_version(folder: Path, version: Any) -> None:
    edit(folder, version=version)
    assert refusal(folder) == f"/manifest.json: version: {version!r}: expected 1; prepare the text again"


def test_manifest_that_is_no_mapping(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")
    assert refusal(folder) == "/manifest.json: version: None: expected 1; prepare the text again"


def test_unknown_key_and_missing_side(folder: Path) -> None:
    edit(folder, colour="red")
    assert refusal(folder).startswith("/manifest.json: colour: unknown key (value 'red'); accepted: ")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["colour"], manifest["splits"]["validation"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert refusal(folder).endswith("expected both train and validation")


def test_shard_cannot_point_out_of_the_folder(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0]["file"] = "../train-00000.bin"
    edit(folder, splits=manifest["splits"])
    assert refusal(folder).startswith("/manifest.json: splits.train.shards[0].file: '../train-00000.bin'")


def test_missing_and_truncated_shards(folder: Path) -> None:
    shard = folder / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    assert refusal(folder) == "/train-00000.bin: 22 bytes, manifest.json says 24"
    shard.unlink()
    assert refusal(folder) == "/train-00000.bin: missing, manifest.json lists it"


def test_tokenizer_of_other_data(folder: Path, tmp_path: Path) -> None:
    prepare_texts(["one"], ["two"], tmp_path / "other", tokenizer="char")
    (tmp_path / "other" / "tokenizer.json").replace(folder / "tokenizer.json")
    assert refusal(folder).startswith("/tokenizer.json: not the tokenizer that the tokens were made with (hash ")
    (folder / "tokenizer.json").unlink()
    assert refusal(folder) == "/tokenizer.json: no such file"


def test_manifest_survives_a_round_trip(folder: Path, tmp_path: Path) -> None:
    manifest = read_manifest(folder)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest


def test_folder_with_anything_else_is_not_only_data(folder: Path) -> None:
    assert holds_only_data(folder)
    (folder / "notes.txt").write_text("mine")
    assert not holds_only_data(folder)
    assert not holds_only_data(folder.parent)
