import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.checksum import (
    CHECKSUM,
    MANIFEST,
    VERSION,
    LaterVersionError,
    check_files,
    digest,
    file_digest,
    read_checked_json,
    text_with_checksum,
    text_without_checksum,
    with_checksum,
    without_checksum,
    write_checked_json,
    write_file_checksums,
)
from linnet.core.errors import UserError
from linnet.core.files import read_json, write_json

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
records = st.dictionaries(st.text(max_size=5).filter(lambda name: name != CHECKSUM), values, max_size=4)


def refusal(read: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as refused:
        read()
    return str(refused.value)


@given(plain=records)
def test_checked_data_is_read_back_in_any_order(plain: dict[str, Any]):
    read = json.loads(json.dumps(with_checksum(plain), indent=2))
    assert without_checksum(dict(reversed(read.items())), "x") == plain


@given(plain=records, data=st.data())
def test_every_changed_character_of_a_checked_record_is_found(plain: dict[str, Any], data: st.DataObject):
    text = json.dumps(with_checksum(plain))
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda character: character != text[place]))
    try:
        read = without_checksum(json.loads(text[:place] + other + text[place + 1 :]), "x")
    except ValueError:  # UserError is one
        return
    assert {name: read[name] for name in plain} == plain  # the name of the checksum, or a space


@given(lines=st.lists(st.text("ab: #1", max_size=9), min_size=1), data=st.data())
def test_every_changed_character_of_a_checked_text_is_found(lines: list[str], data: st.DataObject):
    body = "".join(f"{line}\n" for line in lines)
    text = text_with_checksum(body)
    assert text_without_checksum(text, "x") == body
    place = data.draw(st.integers(0, len(text) - 2))
    other = data.draw(st.characters(codec="ascii").filter(lambda character: character != text[place]))
    try:
        read = text_without_checksum(text[:place] + other + text[place + 1 :], "x")
    except UserError:
        return
    assert read == body or (place >= len(body) and read.startswith(body))  # the mark before the hash


@pytest.mark.parametrize("after", ["steps: 13\n", "# a remark\n", "\0"])
def test_text_added_after_the_checksum_is_found(after: str):
    assert "is not what linnet wrote" in refusal(
        lambda: text_without_checksum(text_with_checksum("steps: 12\n") + after, "x")
    )


@pytest.mark.parametrize("value", [{"a": 1}, [], None, "text", 3])
def test_data_without_a_checksum_is_accepted(value: Any, tmp_path: Path):
    write_json(tmp_path / "mine.json", value)
    assert read_checked_json(tmp_path / "mine.json") == value
    assert text_without_checksum("a: 1\n", "x") == "a: 1\n"


def test_a_changed_file_is_reported_with_a_remedy(tmp_path: Path):
    path = tmp_path / "law.json"
    write_checked_json(path, {"name": "law", "alpha": 0.5})
    assert read_checked_json(path) == {"name": "law", "alpha": 0.5}
    path.write_text(path.read_text().replace("0.5", "0.6"))
    assert refusal(lambda: read_checked_json(path)) == (
        f"{path}: is not what linnet wrote: its hash differs; expected it unchanged, or without the field 'checksum' if"
        " it is yours"
    )


def test_a_new_checksum_replaces_the_old_one():
    assert with_checksum({**with_checksum({"a": 1}), "a": 2}) == with_checksum({"a": 2})


FILES = {"one.bin": b"\x00\x01\x02", "two.txt": b"some text", "empty": b""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path)


def made(folder: Path) -> Path:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    write_file_checksums(folder, FILES)
    return folder


def test_a_manifest_holds_sizes_and_hashes(folder: Path):
    listed = read_checked_json(folder / MANIFEST)["files"]
    assert listed == {name: {"bytes": len(content), "blake3": digest(content)} for name, content in FILES.items()}
    assert file_digest(folder / "two.txt") == digest(b"some text") and len(digest(b"")) == 32
    check_files(folder, FILES)


@given(data=st.data())
def test_one_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = made(tmp_path_factory.mktemp("folder"))
    name = data.draw(st.sampled_from(["one.bin", "two.txt"]))
    content = bytearray(FILES[name])
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / name).write_bytes(content)
    assert refusal(lambda: check_files(folder, FILES)).startswith(f"{folder / name}: is not what linnet wrote")
    check_files(folder, [other for other in FILES if other != name])


def test_a_file_of_another_size_or_none_is_named(folder: Path):
    (folder / "one.bin").write_bytes(b"\x00\x01")
    assert refusal(lambda: check_files(folder, FILES)) == (
        f"{folder / 'one.bin'}: 2 bytes, manifest.json says 3 (without manifest.json they are taken as they are)"
    )
    (folder / "one.bin").unlink()
    assert refusal(lambda: check_files(folder, FILES)) == f"{folder / 'one.bin'}: missing, manifest.json lists it"


def test_a_later_file_is_refused_when_it_is_read(folder: Path):
    check_files(folder, ["later"])
    (folder / "later").write_text("x")
    check_files(folder, FILES)
    assert refusal(lambda: check_files(folder, ["later"])).startswith(f"{folder / 'later'}: not in {folder / MANIFEST}")


def test_a_folder_without_a_manifest_is_accepted_with_a_note(folder: Path, told: Callable[[], list[str]]):
    check_files(folder, FILES)
    assert told() == []
    (folder / MANIFEST).unlink()
    (folder / "one.bin").write_bytes(b"changed")
    check_files(folder, FILES)
    check_files(folder, FILES)
    assert told() == [f"{folder}: has no manifest.json: its files are taken as they are"]


@pytest.mark.parametrize("changes", [{"version": 0}, {"files": None}, {"files": {"one.bin": 3}}])
def test_a_manifest_of_something_else_is_refused(changes: dict[str, Any], folder: Path):
    write_checked_json(folder / MANIFEST, {**read_json(folder / MANIFEST), **changes})
    assert refusal(lambda: check_files(folder, FILES)).endswith(
        "expected version 1 and files, each with bytes and blake3"
    )


def test_number_keys_have_the_checksum_of_their_text(tmp_path: Path):
    write_checked_json(tmp_path / "file", {"counts": {2: 1, 10: 2}})
    assert read_checked_json(tmp_path / "file") == {"counts": {"2": 1, "10": 2}}


def test_a_manifest_of_a_later_version_is_not_damaged(folder: Path):
    write_checked_json(folder / MANIFEST, {"version": VERSION + 1, "anything": []})
    with pytest.raises(LaterVersionError, match=rf"manifest\.json: version {VERSION + 1}: of a later linnet"):
        check_files(folder, ())
