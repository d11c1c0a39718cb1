import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.data import shards
from linnet.data.manifest import Manifest, token_dtype, write_manifest
from linnet.data.prepare import prepare_texts
from linnet.data.shards import BlockHashes, Shard, ShardWriter, TokenData, TokenSequence
from linnet.data.split import Split


def sequence(folder: Path, blocks: list[list[int]], vocab_size: int, shard_tokens: int) -> TokenSequence:
    """What was written in blocks, read back through memory maps."""
    with ShardWriter(folder, "train", vocab_size, shard_tokens) as writer:
        for block in blocks:
            writer.write(np.array(block, dtype=np.int64))
    info = writer.info(documents=0, text_bytes=0)
    dtype = np.dtype(token_dtype(vocab_size)).newbyteorder("<")
    maps = [Shard(np.memmap(folder / shard.file, dtype, "r"), blocks=shard.blocks) for shard in info.shards]
    assert [len(shard) for shard in maps] == [shard.tokens for shard in info.shards]
    assert all(shard.tokens == shard_tokens for shard in info.shards[:-1])
    return TokenSequence("train", maps)


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
    assert all(isinstance(shard._tokens, np.memmap) for shard in TokenData.open(folder).split("train")._shards)


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        TokenData.open(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder))


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "data"
    prepare_texts(["one", "two é"], ["three"], folder, tokenizer="bytes")
    return folder


@given(split=st.sampled_from(["train", "validation"]), data=st.data())
def test_one_flipped_bit_is_found(
    tmp_path_factory: pytest.TempPathFactory, whole: Path, split: Split, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("flipped") / "data"
    shutil.copytree(whole, folder)
    shard = folder / f"{split}-00000.bin"
    content = bytearray(shard.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    shard.write_bytes(content)
    with pytest.raises(UserError, match=r"-00000\.bin, tokens 0 to \d+: is not what linnet wrote"):
        tokens(TokenData.open(folder).split(split))


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "BLOCK_BYTES", 8)  # 4 tokens of two bytes


@pytest.mark.usefixtures("short_blocks")
@given(cuts=st.lists(st.integers(0, 30), max_size=4), start=st.integers(0, 30), count=st.integers(1, 31))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_the_blocks_that_are_read_are_checked(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], start: int, count: int
) -> None:
    """One token of 31 is wrong; the hashes do not depend on how the tokens came."""
    written = np.arange(31)
    with ShardWriter(tmp_path_factory.mktemp("shards"), "train", 100) as writer:
        for part in np.split(written, sorted(cuts)):
            writer.write(part)
    changed = written.astype("<u2")
    changed[17] ^= 1
    shard = Shard(changed, "train-00000.bin", blocks=writer.info(0, 0).shards[0].blocks)
    stop = min(start + count, 31)
    if start < 20 and stop > 16:
        with pytest.raises(UserError, match=r"^train-00000\.bin, tokens 16 to 20: is not what linnet wrote"):
            shard.read(start, stop)
    else:
        assert shard.read(start, stop).tolist() == list(range(start, stop))


@pytest.mark.usefixtures("short_blocks")
def test_a_block_is_checked_once() -> None:
    hashes = BlockHashes()
    content = np.arange(8, dtype="<u2")
    hashes.add(content.tobytes())
    shard = Shard(content, "x", blocks=hashes.all())
    shard.read(0, 1)
    content[:] = 0
    assert shard.read(0, 4).tolist() == [0, 0, 0, 0]
    with pytest.raises(UserError, match="x, tokens 4 to 8: "):
        shard.read(3, 5)


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    shard = Shard(np.array([1, 99, 100]), "train-00000.bin", vocab_size=100)
    with pytest.raises(UserError, match=r"^train-00000\.bin: token 100: expected one below 100, the size of the voc"):
        shard.read(0, 1)


def with_blocks(folder: Path, blocks: list[str] | None) -> None:
    plain = TokenData.open(folder).manifest.model_dump()
    plain["splits"]["train"]["shards"][0]["blocks"] = blocks
    write_manifest(folder, Manifest.parse(plain, "test"))


def test_a_folder_of_an_earlier_linnet_is_read_with_a_note(folder: Path, told: Callable[[], list[str]]) -> None:
    with_blocks(folder, None)
    for _ in range(2):
        assert len(TokenData.open(folder).split("train")) == 12
    assert told() == [f"{folder}: made by an earlier linnet: its shards have no hashes, and are taken as they are"]
    (folder / "train-00000.bin").write_bytes(b"\xff\xff" * 12)
    with pytest.raises(UserError, match=r"train-00000\.bin: token 65535: expected one below 257"):
        tokens(TokenData.open(folder).split("train"))


def test_a_shard_with_too_few_hashes_is_refused(folder: Path) -> None:
    with_blocks(folder, [])
    assert refusal(folder) == "/manifest.json: 0 blocks of train-00000.bin; prepare it again"
