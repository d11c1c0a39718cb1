import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.core.locks import file_lock, lock_holder, still_named, try_lock


def hold(path: Path) -> None:
    with file_lock(path, "held by {}"):
        assert path.read_text() == str(os.getpid())


@pytest.mark.parametrize("before", [None, "", "12345", "12345\n"])
def test_a_lock_is_made_or_taken_from_the_dead_and_removed(before: str | None, tmp_path: Path):
    path = tmp_path / ".lock"
    if before is not None:
        path.write_text(before)
    hold(path)
    assert list(tmp_path.iterdir()) == []


def test_it_is_removed_where_the_work_fails(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt), file_lock(tmp_path / ".lock", "held by {}"):
        raise KeyboardInterrupt
    hold(tmp_path / ".lock")


def test_who_comes_second_is_told_who_was_first(tmp_path: Path):
    path = tmp_path / ".lock"
    with file_lock(path, "held by {}"):
        with pytest.raises(UserError, match=f"^held by {os.getpid()}$"):
            hold(path)
        assert path.read_text() == str(os.getpid())


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path):
    path = tmp_path / ".lock"
    script = (
        "import sys; from pathlib import Path; from linnet.core.locks import file_lock\n"
        f"with file_lock(Path({str(path)!r}), ''):\n    print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=f"^held by {other.pid}$"):
            hold(path)
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert path.exists()
    hold(path)


def make_link(path: Path) -> None:
    path.symlink_to(path.with_name("mine"))


def make_hard_link(path: Path) -> None:
    os.link(path.with_name("mine"), path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


FOREIGN: dict[str, Callable[[Path], object]] = {
    "link": make_link,
    "dangling link": lambda path: path.symlink_to(path.with_name("missing")),
    "hard link": make_hard_link,
    "text": lambda path: path.write_text("my thesis"),
    "long number": lambda path: path.write_text("1" * 21),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_what_is_not_a_lock_is_refused_and_left_as_it_is(make: Callable[[Path], object], tmp_path: Path):
    mine, path = tmp_path / "mine", tmp_path / ".lock"
    mine.write_text("12345")  # as a lock of linnet's has it
    make(path)
    before, content = path.lstat(), path.read_bytes() if path.is_file() else None
    with pytest.raises(UserError, match=r"\.lock: not a lock of linnet's; expected none: remove it"):
        hold(path)
    assert os.path.samestat(path.lstat(), before) and path.lstat().st_mtime_ns == before.st_mtime_ns
    assert (path.read_bytes() if path.is_file() else None) == content
    assert mine.read_text() == "12345" and not (tmp_path / "missing").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_the_file_system_has_no_locks_all_are_free(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    hold(tmp_path / ".lock")


def test_what_else_the_system_says_of_a_lock_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        hold(tmp_path / ".lock")


def test_a_lock_whose_holder_removed_it_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Opened just before the other removed it: it is locked, and stands for nothing."""
    path, calls = tmp_path / ".lock", []

    def remove_then_take(handle: int) -> bool:
        calls.append(handle)
        if len(calls) == 1:
            path.unlink()
        return try_lock(handle)

    monkeypatch.setattr("linnet.core.locks.try_lock", remove_then_take)
    hold(path)
    assert len(calls) == 2


def test_an_open_file_has_its_name_until_another_takes_it(tmp_path: Path):
    path = tmp_path / "file"
    with path.open("w") as handle:
        assert still_named(handle.fileno(), path)
        (tmp_path / "other").write_text("x")
        (tmp_path / "other").replace(path)
        assert not still_named(handle.fileno(), path)
        path.unlink()
        assert not still_named(handle.fileno(), path)


def test_a_lock_is_held_on_a_full_disk_and_free_after_a_failure_to_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / ".lock"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        patch.setattr(Path, "unlink", full)
        with pytest.raises(OSError, match="No space"), file_lock(path, "taken by {}"):
            with pytest.raises(UserError) as refused:
                hold(path)
            assert str(refused.value) == "held by"
    hold(path)
    assert list(tmp_path.iterdir()) == []


def test_who_holds_a_lock_is_known_without_taking_it(tmp_path: Path):
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    with file_lock(path, "{}"):
        assert lock_holder(path) == os.getpid()
    for left in ("", "999999999", "not a number", str(os.getpid())):
        path.write_text(left)
        assert lock_holder(path) is None
