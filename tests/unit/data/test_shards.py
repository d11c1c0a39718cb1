import json
import shutil
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from linnet.core.checksum import CHECKSUM, read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.data import shards
from linnet.data.prepare import prepare, prepare_texts
from linnet.data.shards import (
    BlockHashes,
    CheckedArray,
    Manifest,
    ShardWriter,
    TokenSequence,
    describe_runs,
    holds_only_data,
    parse_runs,
    read_starts,
    token_dtype,
    write_manifest,
)
from linnet.data.split import Split
from linnet.data.token_data import TokenData, read_manifest


def sequence(folder: Path, blocks: list[list[int]], vocab_size: int, shard_tokens: int) -> TokenSequence:
    """What was written in blocks, each of which begins a document, read back through memory maps."""
    with ShardWriter(folder, "train", vocab_size, shard_tokens) as writer:
        for block in blocks:
            writer.write(np.array(block, dtype=np.int64), begins=True)
        info = writer.info(text_bytes=0)
    dtype = token_dtype(vocab_size)
    maps = [CheckedArray.open(folder, shard, "tokens", dtype, vocab_size) for shard in info.shards]
    assert [len(shard) for shard in maps] == [shard.tokens for shard in info.shards]
    assert all(shard.tokens == shard_tokens for shard in info.shards[:-1])
    assert sum(shard.documents for shard in info.shards) == info.documents
    return TokenSequence("train", 0, maps, lambda: read_starts(folder, info.shards, dtype, vocab_size))


@given(
    blocks=st.lists(st.lists(st.integers(0, 65_535), max_size=9), min_size=1, max_size=8),
    shard_tokens=st.integers(1, 10),
    data=st.data(),
)
def test_shards_written_in_any_blocks_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[list[int]], shard_tokens: int, data: st.DataObject
) -> None:
    tokens = [token for block in blocks for token in block]
    found = sequence(tmp_path_factory.mktemp("shards"), blocks, 65_536, shard_tokens)
    assert len(found) == len(tokens)
    start = data.draw(st.integers(0, len(tokens)))
    count = data.draw(st.integers(0, len(tokens) - start))
    part = found.read(start, count)
    assert part.dtype == np.int64 and part.tolist() == tokens[start : start + count]
    begun = np.cumsum([0, *(len(block) for block in blocks)])[:-1][[len(block) > 0 for block in blocks]]
    assert found.document_starts.tolist() == begun.tolist()


@given(blocks=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=5), max_size=6), room=st.integers(1, 7))
def test_documents_written_at_once_are_those_written_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[list[int]], room: int
) -> None:
    one_by_one = sequence(tmp_path_factory.mktemp("each"), [[7, 7], *blocks], 100, room)
    folder, starts = tmp_path_factory.mktemp("all"), np.cumsum([0, *map(len, blocks)])[:-1].tolist()
    with ShardWriter(folder, "train", 100, room) as writer:
        writer.write(np.array([7, 7]), begins=True)
        writer.write(
            np.array([token for block in blocks for token in block], dtype=np.int64), begins=starts[: len(blocks)]
        )
        info = writer.info(0)
    assert read_starts(folder, info.shards, "uint16", 100).tolist() == one_by_one.document_starts.tolist()
    assert info.documents == 1 + len(blocks)


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
    arrays = TokenData.open(folder).split("train")._tokens._arrays
    assert all(isinstance(array._values, np.memmap) for array in arrays)


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
    with pytest.raises(UserError, match=r"-00000\.bin, numbers 0 to \d+: is not what linnet wrote"):
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
        info = writer.info(0)
    changed = written.astype("<u2")
    changed[17] ^= 1
    shard = CheckedArray(changed, "train-00000.bin", blocks=info.shards[0].blocks["tokens"])
    stop = min(start + count, 31)
    if start < 20 and stop > 16:
        with pytest.raises(UserError, match=r"^train-00000\.bin, numbers 16 to 20: is not what linnet wrote"):
            shard.read(start, stop)
    else:
        assert shard.read(start, stop).tolist() == list(range(start, stop))


@pytest.mark.usefixtures("short_blocks")
def test_a_block_is_checked_once() -> None:
    hashes = BlockHashes()
    content = np.arange(8, dtype="<u2")
    hashes.add(content.tobytes())
    shard = CheckedArray(content, "x", blocks=hashes.all())
    shard.read(0, 1)
    content[:] = 0
    assert shard.read(0, 4).tolist() == [0, 0, 0, 0]
    with pytest.raises(UserError, match="x, numbers 4 to 8: "):
        shard.read(3, 5)


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    shard = CheckedArray(np.array([1, 99, 100]), "train-00000.bin", limit=100)
    with pytest.raises(UserError, match=r"^train-00000\.bin: number 100: expected one below 100"):
        shard.read(0, 1)


def with_blocks(folder: Path, blocks: list[str] | None) -> None:
    plain = TokenData.open(folder).manifest.model_dump()
    plain["splits"]["train"]["shards"][0]["blocks"]["tokens"] = blocks
    write_manifest(folder, Manifest.parse(plain, "test"))


def test_a_folder_of_an_earlier_linnet_is_read_with_a_note(folder: Path, told: Callable[[], list[str]]) -> None:
    with_blocks(folder, None)
    for _ in range(2):
        assert len(TokenData.open(folder).split("train")) == 12
    assert told() == [f"{folder}: made by an earlier linnet: its shards have no checksums and are read unchecked"]
    (folder / "train-00000.bin").write_bytes(b"\xff\xff" * 12)
    with pytest.raises(UserError, match=r"train-00000\.bin: number 65535: expected one below 257"):
        tokens(TokenData.open(folder).split("train"))


def test_a_shard_with_too_few_hashes_is_refused(folder: Path) -> None:
    with_blocks(folder, [])
    assert refusal(folder) == "/manifest.json: 0 blocks of train-00000.bin; prepare it again"


def test_the_document_index_is_written_and_read_without_the_tokens(folder: Path) -> None:
    found = TokenData.open(folder).split("train")
    assert found.document_starts.tolist() == [0, 4] and found.document_bounds.tolist() == [0, 4, 11]
    assert (folder / "train-00000.starts.bin").read_bytes() == b"\0\0\0\0\4\0\0\0"
    assert not found._tokens._arrays[0]._checked, "tokens were read"
    (folder / "train-00000.starts.bin").write_bytes(b"\1\0\0\0\4\0\0\0")
    with pytest.raises(UserError, match=r"train-00000\.starts\.bin, numbers 0 to 2: is not what linnet wrote"):
        _ = TokenData.open(folder).split("train").document_starts


@given(mask=st.lists(st.booleans(), min_size=1, max_size=20), shard_tokens=st.integers(1, 7))
def test_masks_and_targets_accompany_their_tokens(
    tmp_path_factory: pytest.TempPathFactory, mask: list[bool], shard_tokens: int
) -> None:
    folder, numbers = tmp_path_factory.mktemp("shards"), np.arange(len(mask))
    with ShardWriter(folder, "train", 100, shard_tokens, ("mask", "targets")) as writer:
        writer.write(numbers, {"mask": np.array(mask), "targets": numbers + 1}, begins=True)
        info = writer.info(0)
    assert info.targets == sum(mask) and info.documents == 1
    for part, expected in (("mask", mask), ("targets", (numbers + 1).tolist())):
        read = [CheckedArray.open(folder, shard, part, "uint16", 100) for shard in info.shards]
        assert [value for array in read for value in array.read(0, len(array)).tolist()] == expected
    bounds = [shard.documents for shard in info.shards]
    assert bounds == [1, *[0] * (len(bounds) - 1)], "a shard in which no document begins"


def edit(folder: Path, **changes: Any) -> None:
    """The manifest as somebody writes it by hand: without a checksum."""
    plain = json.loads((folder / "manifest.json").read_text()) | changes
    plain.pop(CHECKSUM, None)
    (folder / "manifest.json").write_text(json.dumps(plain))


def manifest_refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_manifest(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder))


def test_folder_without_manifest(tmp_path: Path) -> None:
    assert manifest_refusal(tmp_path) == ": not a data folder (no manifest.json); make one with `linnet prepare`"


@pytest.mark.parametrize("version", [3, "1", None])
def test_unknown_version(folder: Path, version: Any) -> None:
    edit(folder, version=version)
    assert manifest_refusal(folder) == f"/manifest.json: version: {version!r}: expected 2; prepare the text again"


def test_manifest_that_is_no_mapping(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")
    assert manifest_refusal(folder) == "/manifest.json: version: None: expected 2; prepare the text again"


def test_unknown_key_and_missing_side(folder: Path) -> None:
    train = json.loads((folder / "manifest.json").read_text())["splits"]["train"]
    edit(folder, splits={"train": train})
    assert manifest_refusal(folder).endswith("expected both train and validation")
    edit(folder, color="red")
    assert manifest_refusal(folder).startswith("/manifest.json: color: unknown key (value 'red'); accepted: ")


def test_shard_cannot_point_out_of_the_folder(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0]["file"] = "../train-00000.bin"
    edit(folder, splits=manifest["splits"])
    assert manifest_refusal(folder).startswith("/manifest.json: splits.train.shards[0].file: '../train-00000.bin'")


def test_manifest_survives_a_round_trip(folder: Path, tmp_path: Path) -> None:
    manifest = read_manifest(folder)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest


def test_folder_with_anything_else_is_not_only_data(folder: Path) -> None:
    assert holds_only_data(folder)
    (folder / "notes.txt").write_text("mine")
    assert not holds_only_data(folder)
    assert not holds_only_data(folder.parent)


@pytest.fixture(scope="module")
def sealed_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data") / "data"
    prepare_texts(["one"], ["two"], folder, tokenizer="bytes")
    return (folder / "manifest.json").read_text()


@given(data=st.data())
def test_a_changed_digit_is_found(
    tmp_path_factory: pytest.TempPathFactory, sealed_text: str, data: st.DataObject
) -> None:
    digits = [place for place, character in enumerate(sealed_text) if character.isdigit()]
    place = data.draw(st.sampled_from(digits))
    digit = data.draw(st.sampled_from([other for other in "123456789" if other != sealed_text[place]]))
    folder = tmp_path_factory.mktemp("changed")
    (folder / "manifest.json").write_text(f"{sealed_text[:place]}{digit}{sealed_text[place + 1 :]}")
    with pytest.raises(UserError, match=r"manifest\.json: "):
        read_manifest(folder)


def test_a_folder_that_a_killed_process_had_moved_away_is_put_back(folder: Path, told: Callable[[], list[str]]) -> None:
    retired = folder.parent / ".data.abcdefgh.linnet-old"
    retired.mkdir()
    folder.rename(retired / "data")
    assert read_manifest(folder).splits["train"].documents == 2
    assert told() == [f"{folder}: put back as it was before a writing that was broken off"]


SIDES = ("train", "validation")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_packing_and_unpacking_give_the_same_numbers(numbers):
    runs = [(number, len(list(same))) for number, same in groupby(numbers)]
    assert parse_runs(describe_runs(runs), len(numbers), 4).tolist() == numbers


def test_packed_by_hand():
    assert parse_runs("0x3 2 1x2", 6, 3).tolist() == [0, 0, 0, 2, 1, 1]


@pytest.mark.parametrize("runs", ["0x5", "0x7", "0x3 3x3", "", "0x3  1x3", "0x-1 1x7", "0x3 1x3 a", "0x0 0x6"])
def test_unfitting_sources_are_refused(runs):
    with pytest.raises(ValueError, match="expected the sources of 6 documents, each a number below 3"):
        parse_runs(runs, 6, 3)


@pytest.fixture
def mixture(tmp_path):
    """A data folder of two files: documents say themselves which they are from."""
    for name in ("cats", "dogs"):
        lines = [json.dumps({"text": f"{name} number {n} sleep"}) for n in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    paths = [str(tmp_path / f"{name}.jsonl") for name in ("cats", "dogs")]
    prepare(paths, tmp_path / "data", "bytes", validation=0.3)
    return tmp_path / "data"


def test_a_data_folder_of_two_files_knows_the_source_of_each_document(mixture):
    data = TokenData.open(mixture)
    for side in SIDES:
        sequence, found = data.split(side), data.sources(side)
        ends = sequence.document_bounds
        texts = [data.tokenizer.decode(sequence.read(a, b - a)) for a, b in pairwise(ends)]
        said = ["cats" if text.startswith("cats") else "dogs" for text in texts]
        assert [("cats", "dogs")[number] for number in found] == said
        assert set(said) == {"cats", "dogs"}
    assert data.manifest.splits["train"].sources.count("x") == 2, "the training side is one run for each source"


def test_one_source_needs_no_record_and_an_earlier_folder_does_not_know(mixture, tmp_path):
    plain = read_checked_json(mixture / "manifest.json")
    for side in SIDES:
        del plain["splits"][side]["sources"]
    write_checked_json(mixture / "manifest.json", plain)
    assert TokenData.open(mixture).sources("train") is None
    manifest = prepare([str(tmp_path / "cats.jsonl")], tmp_path / "one", "bytes")
    assert manifest.splits["train"].sources is None
    assert np.array_equal(
        TokenData.open(tmp_path / "one").sources("validation"), np.zeros(manifest.splits["validation"].documents)
    )


def test_a_manifest_whose_sources_do_not_fit_is_named(mixture):
    plain = read_checked_json(mixture / "manifest.json")
    plain["splits"]["train"]["sources"] = "0x5 1x7"
    write_checked_json(mixture / "manifest.json", plain)
    with pytest.raises(UserError, match=r"manifest.json: splits.train.sources: expected the sources of \d+ documents"):
        TokenData.open(mixture).sources("train")
