import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.checksum import CHECKSUM
from linnet.core.errors import UserError
from linnet.data.manifest import holds_only_data, read_manifest, token_dtype, write_manifest
from linnet.data.prepare import prepare_texts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare_texts(["one", "two é"], ["three"], tmp_path / "data", tokenizer="bytes", name="three texts")
    return tmp_path / "data"


def edit(folder: Path, **changes: Any) -> None:
    """The manifest as somebody writes it by hand: without a checksum."""
    plain = json.loads((folder / "manifest.json").read_text()) | changes
    plain.pop(CHECKSUM, None)
    (folder / "manifest.json").write_text(json.dumps(plain))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_manifest(folder)
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
    train = json.loads((folder / "manifest.json").read_text())["splits"]["train"]
    edit(folder, splits={"train": train})
    assert refusal(folder).endswith("expected both train and validation")
    edit(folder, color="red")
    assert refusal(folder).startswith("/manifest.json: color: unknown key (value 'red'); accepted: ")


def test_shard_cannot_point_out_of_the_folder(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0]["file"] = "../train-00000.bin"
    edit(folder, splits=manifest["splits"])
    assert refusal(folder).startswith("/manifest.json: splits.train.shards[0].file: '../train-00000.bin'")


def test_manifest_survives_a_round_trip(folder: Path, tmp_path: Path) -> None:
    manifest = read_manifest(folder)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest


def test_folder_with_anything_else_is_not_only_data(folder: Path) -> None:
    assert holds_only_data(folder)
    (folder / "notes.txt").write_text("mine")
    assert not holds_only_data(folder)
    assert not holds_only_data(folder.parent)


def test_ids_take_two_bytes_up_to_65536_of_them() -> None:
    assert (token_dtype(65_536), token_dtype(65_537)) == ("uint16", "uint32")


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
