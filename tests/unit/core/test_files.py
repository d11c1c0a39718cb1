import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.core.files import atomic_directory, atomic_path, read_json, read_text, write_json, write_text


class MidwayError(Exception):
    """What goes wrong in the middle of writing."""


def write_then_crash(target: Path) -> None:
    with pytest.raises(MidwayError), atomic_path(target) as temporary:
        temporary.write_text("half of the n")
        raise MidwayError


def build_then_crash(target: Path) -> None:
    with pytest.raises(MidwayError), atomic_directory(target) as temporary:
        (temporary / "part").write_text("half of the n")
        raise MidwayError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_and_alone(tmp_path: Path):
    target = tmp_path / "new folder" / "file.txt"
    write_text(target, "new\r\nline\nünïcødé 🐦")
    assert target.read_bytes().decode() == "new\r\nline\nünïcødé 🐦"
    assert names(target.parent) == ["file.txt"]


def test_until_the_block_ends_the_old_file_stands(tmp_path: Path):
    target = tmp_path / "file.txt"
    target.write_text("old")
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == target.parent
    assert target.read_text() == "new"


@pytest.mark.skipif(os.name != "posix", reason="an open file cannot be replaced here")
def test_who_reads_the_old_file_reads_it_to_its_end(tmp_path: Path):
    target = tmp_path / "file.txt"
    target.write_text("old")
    with target.open() as reader:
        write_text(target, "new")
        assert reader.read() == "old"


def test_a_crash_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    target = tmp_path / "file.txt"
    target.write_text("old")
    write_then_crash(target)
    assert target.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_a_crash_leaves_no_file_where_there_was_none(tmp_path: Path):
    write_then_crash(tmp_path / "file.txt")
    assert names(tmp_path) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_process_leaves_the_old_file(tmp_path: Path):
    target = tmp_path / "file.txt"
    target.write_text("old")
    code = f"""
import os, signal
from linnet.core.files import atomic_path
with atomic_path({str(target)!r}) as temporary:
    temporary.write_text("half of the n")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert target.read_text() == "old"


def test_a_directory_appears_whole_and_replaces_the_old_one(tmp_path: Path):
    target = tmp_path / "data"
    for content in ("old", "new"):
        with atomic_directory(target) as temporary:
            (temporary / content).mkdir()
            (temporary / content / "part").write_text(content)
            assert not (target / content).exists()
    assert names(target) == ["new"]
    assert (target / "new" / "part").read_text() == "new"
    assert names(tmp_path) == ["data"]


def test_a_crash_leaves_the_old_directory_and_nothing_else(tmp_path: Path):
    target = tmp_path / "data"
    target.mkdir()
    (target / "part").write_text("old")
    build_then_crash(target)
    assert (target / "part").read_text() == "old"
    assert names(tmp_path) == ["data"]


def test_a_crash_leaves_no_directory_where_there_was_none(tmp_path: Path):
    build_then_crash(tmp_path / "data")
    assert names(tmp_path) == []


@pytest.mark.parametrize("crash", [OSError, KeyboardInterrupt])
def test_a_crash_between_the_two_renames_puts_the_old_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: type[BaseException]
):
    target = tmp_path / "data"
    target.mkdir()
    (target / "part").write_text("old")
    rename = Path.replace

    def crash_as_the_new_one_moves_in(self: Path, to: Path) -> Path:
        if self.suffix == ".partial":
            raise crash
        return rename(self, to)

    monkeypatch.setattr(Path, "replace", crash_as_the_new_one_moves_in)
    with pytest.raises(crash), atomic_directory(target) as temporary:
        (temporary / "part").write_text("new")
    assert (target / "part").read_text() == "old"
    assert names(tmp_path) == ["data"]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_permissions_are_those_of_any_new_file(tmp_path: Path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "file.txt", "x")
        with atomic_directory(tmp_path / "data"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o750


def test_json_goes_out_readable_and_comes_back(tmp_path: Path):
    path, value = tmp_path / "run.json", {"ä": [1, 2.5, None, True], "b": {"c": "🐦"}}
    write_json(path, value)
    assert read_json(path) == json.loads(path.read_text(encoding="utf-8")) == value
    assert '"ä"' in path.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8").endswith("}\n")


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        read_json(path)
    return str(refused.value)


def test_what_cannot_be_read_is_refused_in_one_line_that_names_the_file(tmp_path: Path):
    path = tmp_path / "file.json"
    assert refusal(path) == f"{path}: no such file"
    assert refusal(tmp_path) == f"{tmp_path}: is a directory, expected a file"
    path.write_bytes(b"abc\xff")
    assert refusal(path) == f"{path}: not UTF-8 text (byte 3)"
    path.write_text('{"a": 1,\n "b": }')
    assert refusal(path) == f"{path}, line 2: not valid JSON (Expecting value)"


def test_a_file_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Raised by hand: tests may run as root, whom nothing is forbidden."""

    def forbid(*_: object, **__: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", forbid)
    with pytest.raises(UserError, match="no permission to read it"):
        read_text(tmp_path / "file.txt")


@pytest.mark.parametrize("write", [atomic_path, atomic_directory])
def test_what_the_system_says_of_a_temporary_name_is_said_of_the_target(write, tmp_path: Path):
    target = tmp_path / "target"
    with pytest.raises(OSError) as failed, write(target) as temporary:
        (temporary / "missing" / "file").write_text("x")
    assert failed.value.filename == str(target)
    with pytest.raises(FileNotFoundError) as failed, write(target):
        (tmp_path / "elsewhere").read_text()
    assert failed.value.filename == str(tmp_path / "elsewhere")
