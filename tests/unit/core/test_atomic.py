import ctypes
import errno
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from linnet.core import atomic
from linnet.core.atomic import (
    LOCK,
    PARTIAL,
    RETIRED,
    atomic_directory,
    atomic_path,
    check_free_space,
    clean_up,
    file_lock,
    folder_lock,
    is_leftover,
    lock_holder,
    not_replaced,
    refuse_link,
    remove_folder,
    remove_leftovers,
    restore,
    still_named,
    try_lock,
)
from linnet.core.errors import UserError
from linnet.core.files import write_text

pytestmark = pytest.mark.usefixtures("warm_python")

Told = Callable[[], list[str]]


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


def build(target: Path, content: str) -> None:
    with atomic_directory(target) as temporary:
        (temporary / "part").write_text(content)


def killed(code: str) -> None:
    """Run Python in which a process kills itself by `die()`."""
    start = "import os, signal\ndef die(*_):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    start += "from pathlib import Path\nfrom linnet.core import atomic\n"
    assert subprocess.run([sys.executable, "-c", start + code], check=False).returncode == -signal.SIGKILL


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def removed(path: Path) -> str:
    return f"{path}: left by a process that was broken off, removed"


def test_a_file_appears_whole_and_alone(tmp_path: Path):
    target = tmp_path / "new folder" / "file.txt"
    write_text(target, "new\r\nline\nünïcødé 🐦")
    assert target.read_bytes().decode() == "new\r\nline\nünïcødé 🐦"
    assert names(target.parent) == ["file.txt"]


def test_the_old_file_remains_until_the_block_ends(tmp_path: Path):
    target = tmp_path / "file.txt"
    target.write_text("old")
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == target.parent
    assert target.read_text() == "new"


def test_readers_of_the_old_file_read_it_to_its_end(tmp_path: Path):
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


@pytest.mark.parametrize("crash", [write_then_crash, build_then_crash])
def test_a_crash_leaves_nothing_where_there_was_nothing(crash: Callable[[Path], None], tmp_path: Path):
    crash(tmp_path / "target")
    assert names(tmp_path) == []
    crash(tmp_path / "new" / "deep" / "target")
    assert names(tmp_path) == []


def test_leftovers_of_a_file_are_removed_by_the_next_writer(tmp_path: Path, told: Told):
    target = tmp_path / "file.txt"
    target.write_text("old")
    killed(f"with atomic.atomic_path({str(target)!r}) as path:\n    path.write_text('half')\n    die()")
    (left,) = (path for path in tmp_path.iterdir() if path != target)
    assert target.read_text() == "old" and left.read_text() == "half" and is_leftover(left)
    write_text(target, "new")
    assert names(tmp_path) == ["file.txt"] and told() == [removed(left)]


def test_leftovers_of_a_folder_are_removed_by_the_next_writer(tmp_path: Path, told: Told):
    target = tmp_path / "data"
    build(target, "old")
    killed(f"with atomic.atomic_directory({str(target)!r}) as path:\n    (path / 'part').write_text('half')\n    die()")
    left = [path for path in tmp_path.iterdir() if path != target]
    assert sorted(path.suffix for path in left) == [LOCK, PARTIAL] and all(map(is_leftover, left))
    build(target, "new")
    assert names(tmp_path) == ["data"] and (target / "part").read_text() == "new"
    assert told() == [removed(path) for path in left if path.suffix == PARTIAL]


def test_files_that_another_process_writes_are_left_alone(tmp_path: Path, told: Told):
    target = tmp_path / "file.txt"
    with atomic_path(target) as first:
        first.write_text("first")
        write_text(target, "second")
        remove_leftovers(tmp_path)
        assert target.read_text() == "second"
    assert target.read_text() == "first" and names(tmp_path) == ["file.txt"] and told() == []


FOREIGN = [
    "file.txt.partial",
    f"file.txt.abcdefgh{PARTIAL}",
    f".file.txt.abc{PARTIAL}",
    f".file.txt.old.abcdefgh{PARTIAL}",
    f".other.txt.abcdefgh{PARTIAL}",
    ".file.txt.abcdefgh.partial",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_leftovers_of_other_targets_are_left_alone(name: str, tmp_path: Path, told: Told):
    (tmp_path / name).write_text("mine")
    write_text(tmp_path / "file.txt", "x")
    assert (tmp_path / name).read_text() == "mine" and told() == []


def test_a_link_with_the_name_of_a_leftover_is_not_followed(tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    (tmp_path / f".file.txt.abcdefgh{PARTIAL}").symlink_to(mine)
    write_text(tmp_path / "file.txt", "x")
    remove_leftovers(tmp_path)
    assert (mine / "thesis.txt").read_text() == "x"


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


def test_while_a_directory_is_replaced_there_is_always_one(tmp_path: Path):
    target, missing, done = tmp_path / "data", [], threading.Event()
    build(target, "old")

    def look() -> None:
        while not done.is_set():
            if not target.exists():
                missing.append(True)

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(50):
        build(target, str(number))
    done.set()
    looking.join()
    assert missing == []


def test_a_crash_leaves_the_old_directory_and_nothing_else(tmp_path: Path):
    target = tmp_path / "data"
    build(target, "old")
    build_then_crash(target)
    assert (target / "part").read_text() == "old"
    assert names(tmp_path) == ["data"]


@pytest.fixture(params=["none", "refused"])
def no_exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system in which two names cannot change places at once."""
    library = SimpleNamespace() if request.param == "none" else SimpleNamespace(renameat2=lambda *_: -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)


@pytest.mark.usefixtures("no_exchange")
def test_where_names_cannot_be_exchanged_two_renames_replace_a_directory(tmp_path: Path):
    for content in ("old", "new"):
        build(tmp_path / "data", content)
    assert (tmp_path / "data" / "part").read_text() == "new" and names(tmp_path) == ["data"]


@pytest.mark.usefixtures("no_exchange")
@pytest.mark.parametrize("crash", [OSError, KeyboardInterrupt])
def test_a_crash_between_the_two_renames_puts_the_old_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: type[BaseException]
):
    target = tmp_path / "data"
    build(target, "old")
    rename = Path.replace

    def crash_as_the_new_one_moves_in(self: Path, to: Path) -> Path:
        if self.suffix == PARTIAL:
            raise crash
        return rename(self, to)

    monkeypatch.setattr(Path, "replace", crash_as_the_new_one_moves_in)
    with pytest.raises(crash):
        build(target, "new")
    assert (target / "part").read_text() == "old"
    assert names(tmp_path) == ["data"]


def kill_between_the_two_renames(target: Path) -> None:
    killed(f"""
rename = Path.replace
Path.replace = lambda self, to: die() if self.suffix == atomic.PARTIAL else rename(self, to)
atomic._exchanged = lambda one, other: False
with atomic.atomic_directory({str(target)!r}) as path:
    (path / "part").write_text("new")
""")
    assert not target.exists()


def test_a_folder_moved_away_by_a_killed_process_is_restored_with_a_note(tmp_path: Path, told: Told):
    target = tmp_path / "data"
    build(target, "old")
    kill_between_the_two_renames(target)
    restore(target)
    assert (target / "part").read_text() == "old"
    assert told() == [f"{target}: put back as it was before a writing that was broken off"]
    build(target, "new")
    assert (target / "part").read_text() == "new" and names(tmp_path) == ["data"]


def test_the_next_writer_replaces_the_restored_directory(tmp_path: Path):
    target = tmp_path / "data"
    build(target, "old")
    kill_between_the_two_renames(target)
    build_then_crash(target)
    assert (target / "part").read_text() == "old" and names(tmp_path) == ["data"]


def test_nothing_is_restored_while_another_process_writes(tmp_path: Path, told: Told):
    target = tmp_path / "data"
    with folder_lock(target):
        retired = tmp_path / f".data.abcdefgh{RETIRED}"
        (retired / "data").mkdir(parents=True)
        restore(target)
        assert not target.exists() and told() == []
    restore(target)
    assert target.is_dir() and not retired.exists()


def test_a_replaced_folder_is_removed(tmp_path: Path, told: Told):
    target, retired = tmp_path / "data", tmp_path / f".data.abcdefgh{RETIRED}"
    build(target, "new")
    build(retired / "data", "old")
    restore(target)
    assert (target / "part").read_text() == "new" and retired.is_dir()
    build(target, "newer")
    assert names(tmp_path) == ["data"] and told() == [removed(retired)]


def test_leftovers_are_removed_without_writing(tmp_path: Path, told: Told):
    target, left = tmp_path / "data", tmp_path / f".data.abcdefgh{PARTIAL}"
    build(target, "old")
    left.mkdir()
    (tmp_path / f".data{LOCK}").write_text("4711")
    with folder_lock(target):
        left.mkdir()
        clean_up(target)
        assert left.is_dir() and (tmp_path / f".data{LOCK}").is_file()
    (tmp_path / f".data{LOCK}").write_text("4711")
    clean_up(target)
    assert names(tmp_path) == ["data"] and told() == [removed(left)]


def test_clearing_a_folder_keeps_what_another_process_writes(tmp_path: Path, told: Told):
    (tmp_path / f".gone{LOCK}").write_text("4711")
    with atomic_directory(tmp_path / "exported") as other:
        (other / "part").write_text("x")
        remove_leftovers(tmp_path)
    assert (tmp_path / "exported" / "part").read_text() == "x" and names(tmp_path) == ["exported"] and told() == []


def test_a_folder_with_a_long_name_that_was_moved_away_is_put_back(tmp_path: Path):
    name = "d" * 200
    (tmp_path / f".{name[:120]}.abcdefgh{RETIRED}" / name).mkdir(parents=True)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [name]


def test_the_second_of_two_writers_gets_an_error(tmp_path: Path):
    target = tmp_path / "data"
    with atomic_directory(target) as first:
        (first / "part").write_text("first")
        message = rf"^{target}: another process \(id {os.getpid()}\) is writing it$"
        with pytest.raises(UserError, match=message), atomic_directory(target):
            pytest.fail("held by two")
    assert (target / "part").read_text() == "first" and names(tmp_path) == ["data"]


def test_a_link_in_the_place_of_a_directory_is_replaced_not_followed(tmp_path: Path):
    build(tmp_path / "mine", "mine")
    (tmp_path / "data").symlink_to(tmp_path / "mine")
    build(tmp_path / "data", "new")
    assert (tmp_path / "mine" / "part").read_text() == "mine"
    assert (tmp_path / "data" / "part").read_text() == "new" and not (tmp_path / "data").is_symlink()
    assert names(tmp_path) == ["data", "mine"]


def test_a_half_removed_folder_does_not_keep_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told):
    build(tmp_path / "data", "x")
    with monkeypatch.context() as patched:

        def break_off(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(shutil, "rmtree", break_off)
        with pytest.raises(KeyboardInterrupt):
            remove_folder(tmp_path / "data")
    (left,) = tmp_path.iterdir()
    assert is_leftover(left)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [] and told() == [removed(left)]


@pytest.mark.parametrize("name", ["ü" * 120, "x" * 255, os.fsdecode(b"caf\xe9.txt"), "a\nb", "[x]*?"])
def test_a_file_may_have_any_name(name: str, tmp_path: Path):
    for content in ("old", "new"):
        write_text(tmp_path / name, content)
    assert (tmp_path / name).read_text() == "new" and names(tmp_path) == [name]


@pytest.mark.parametrize("name", ["ü" * 120, "x" * 255, os.fsdecode(b"caf\xe9"), "a\nb", "[x]*?"])
def test_a_folder_may_have_any_name(name: str, tmp_path: Path):
    for content in ("old", "new"):
        build(tmp_path / name, content)
    assert (tmp_path / name / "part").read_text() == "new" and names(tmp_path) == [name]


def test_permissions_are_those_of_any_new_file(tmp_path: Path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "file.txt", "x")
        build(tmp_path / "data", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o750


def test_writing_never_sets_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another thread that makes a file at that moment would make it for everybody."""
    monkeypatch.setattr(os, "umask", None)
    write_text(tmp_path / "file.txt", "x")
    build(tmp_path / "data", "x")


@pytest.mark.parametrize("write", [atomic_path, atomic_directory])
def test_errors_about_a_temporary_name_name_the_target(write: Any, tmp_path: Path):
    target = tmp_path / "target"
    with pytest.raises(OSError) as failed, write(target) as temporary:
        (temporary / "missing" / "file").write_text("x")
    assert failed.value.filename == str(target)
    with pytest.raises(FileNotFoundError) as failed, write(target):
        (tmp_path / "elsewhere").read_text()
    assert failed.value.filename == str(tmp_path / "elsewhere")


@pytest.mark.parametrize("write", [atomic_path, atomic_directory])
def test_a_full_disk_is_reported_with_its_free_space(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=4096))
    with pytest.raises(OSError) as full, write(tmp_path / "target"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.errno == errno.ENOSPC and full.value.filename == str(tmp_path / "target")
    assert full.value.strerror == f"No space left on device (4,096 bytes free in {tmp_path})"
    assert names(tmp_path) == []


def test_files_without_room_are_refused_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=4096))
    target = tmp_path / "new" / "file"
    check_free_space(target, 4096)
    with pytest.raises(OSError) as full:
        check_free_space(target, 4097)
    assert full.value.errno == errno.ENOSPC and full.value.filename == str(target)
    assert "4,097 bytes needed, 4,096 bytes free in " in full.value.strerror


def test_a_link_is_refused_where_nothing_is_to_be_written_through_one(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    refuse_link(tmp_path / "file")
    refuse_link(tmp_path / "missing")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    with pytest.raises(UserError, match=r"link: is a link; nothing is written through one"):
        refuse_link(tmp_path / "link")


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_a_link_to_something_that_no_file_can_replace_stays(kind: str, tmp_path: Path):
    target, link = tmp_path / "there", tmp_path / "link"
    match kind:
        case "device":
            target = Path(os.devnull)
        case "pipe":
            os.mkfifo(target)
        case "folder":
            target.mkdir()
    link.symlink_to(target)
    with pytest.raises(UserError, match="link: leads to a"):
        write_text(link, "text")
    assert link.is_symlink() and sorted(tmp_path.iterdir()) == sorted({link, target} - {Path(os.devnull)})


def test_where_another_disk_begins_a_folder_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    with pytest.raises(UserError, match=r"disk: another disk begins there"), atomic_directory(tmp_path / "disk"):
        pytest.fail("begun")


def test_a_temporary_file_that_another_looks_at_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = iter([False, True])
    monkeypatch.setattr(atomic, "try_lock", lambda _: next(free, True))
    with atomic_path(tmp_path / "file") as temporary:
        temporary.write_text("text")
    assert next(free, None) is None and (tmp_path / "file").read_text() == "text"


def test_two_readers_may_restore_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    retired = tmp_path / f".data.abcdefgh{RETIRED}"
    (retired / "data").mkdir(parents=True)

    def faster(_: Path) -> bool:
        (retired / "data").rename(tmp_path / "data")
        retired.rmdir()
        return False

    monkeypatch.setattr(atomic, "_is_locked", faster)
    restore(tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_disk_of_unknown_size_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=0, used=0, free=0))
    check_free_space(tmp_path / "file", 1000)


@pytest.mark.parametrize("error", [None, UserError("of the new one"), FileNotFoundError("of the old one")])
def test_reading_a_replaced_folder_is_an_error(error: Exception | None, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="folder: was replaced while it was read"), not_replaced(tmp_path / "folder"):
        with atomic_directory(tmp_path / "folder") as new:
            (new / "file").touch()
        if error:
            raise error


def test_errors_in_an_unchanged_folder_are_unchanged(tmp_path: Path):
    with pytest.raises(UserError, match=r"^wrong$"), not_replaced(tmp_path):
        raise UserError("wrong")
    with not_replaced(tmp_path):
        (tmp_path / "file").touch()


def hold(path: Path) -> None:
    with file_lock(path, "held by {}"):
        assert path.read_text() == str(os.getpid())


@pytest.mark.parametrize("before", [None, "", "12345", "12345\n"])
def test_a_lock_is_made_or_taken_from_a_dead_process_and_removed(before: str | None, tmp_path: Path):
    path = tmp_path / ".lock"
    if before is not None:
        path.write_text(before)
    hold(path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_removed_when_the_work_fails(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt), file_lock(tmp_path / ".lock", "held by {}"):
        raise KeyboardInterrupt
    hold(tmp_path / ".lock")


def test_the_second_process_is_told_the_id_of_the_first(tmp_path: Path):
    path = tmp_path / ".lock"
    with file_lock(path, "held by {}"):
        with pytest.raises(UserError, match=f"^held by {os.getpid()}$"):
            hold(path)
        assert path.read_text() == str(os.getpid())


def test_another_process_holds_the_lock_until_it_is_killed(tmp_path: Path):
    path = tmp_path / ".lock"
    script = (
        "import sys; from pathlib import Path; from linnet.core.atomic import file_lock\n"
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


NOT_LOCKS: dict[str, Callable[[Path], object]] = {
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


@pytest.mark.parametrize("make", NOT_LOCKS.values(), ids=NOT_LOCKS)
def test_a_file_that_is_not_a_lock_is_refused_and_unchanged(make: Callable[[Path], object], tmp_path: Path):
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


def test_other_errors_of_locks_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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

    monkeypatch.setattr("linnet.core.atomic.try_lock", remove_then_take)
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
        patch.setattr(os, "write", full)
        patch.setattr(Path, "unlink", full)
        with pytest.raises(OSError, match="No space"), file_lock(path, "taken by {}"):
            with pytest.raises(UserError) as refused:
                hold(path)
            assert str(refused.value) == "held by"
    hold(path)
    assert list(tmp_path.iterdir()) == []


def test_the_holder_of_a_lock_is_known_without_taking_it(tmp_path: Path):
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    with file_lock(path, "{}"):
        assert lock_holder(path) == os.getpid()
    for left in ("", "999999999", "not a number", str(os.getpid())):
        path.write_text(left)
        assert lock_holder(path) is None


class OneByteLocks:
    """`msvcrt`, as far as it is used: a byte of a file that one process, or one open file, holds."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}

    def locking(self, handle: int, mode: int, count: int) -> None:
        assert (mode, count, os.lseek(handle, 0, os.SEEK_CUR)) == (self.LK_NBLCK, 1, 1 << 30)
        found = os.fstat(handle)
        holder = self.held.setdefault((found.st_dev, found.st_ino), handle)
        if holder != handle:
            raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize("closes_first", [False, True])
def test_windows_locks_refuse_the_second_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes_first: bool
) -> None:
    monkeypatch.setattr(atomic, "fcntl", None)
    monkeypatch.setattr(atomic, "msvcrt", OneByteLocks())
    monkeypatch.setattr(atomic, "_CLOSE_FIRST", closes_first)
    with file_lock(tmp_path / ".lock", "held by {}"):
        assert lock_holder(tmp_path / ".lock") == os.getpid()
        with pytest.raises(UserError, match=f"^held by {os.getpid()}$"):
            hold(tmp_path / ".lock")
    assert names(tmp_path) == []


def test_without_any_locks_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "fcntl", None)
    monkeypatch.setattr(atomic, "msvcrt", None)
    monkeypatch.setattr(atomic, "_CLOSE_FIRST", True)
    for content in ("old", "new"):
        write_text(tmp_path / "file", content)
        build(tmp_path / "data", content)
    assert (tmp_path / "file").read_text() == (tmp_path / "data" / "part").read_text() == "new"
    left = tmp_path / f".file.abcdefgh{PARTIAL}"
    left.write_text("half")
    write_text(tmp_path / "file", "newer")
    assert names(tmp_path) == ["data", "file"]


def test_folders_that_cannot_be_flushed_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = os.fsync

    def refuse_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EACCES, "Permission denied")
        flush(handle)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    build(tmp_path / "data", "new")
    assert (tmp_path / "data" / "part").read_text() == "new"


def test_names_are_exchanged_by_the_call_of_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def exchange(one: bytes, other: bytes, flags: int) -> int:
        calls.append(flags)
        first, second = (Path(os.fsdecode(name)) for name in (one, other))
        first.rename(tmp_path / "third")
        second.rename(first)
        (tmp_path / "third").rename(second)
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(renamex_np=exchange))
    for content in ("old", "new"):
        build(tmp_path / "data", content)
    assert (tmp_path / "data" / "part").read_text() == "new" and calls == [2] and names(tmp_path) == ["data"]


def test_a_system_without_a_c_library_exchanges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise TypeError("bad argument type for built-in operation")  # `CDLL(None)` on Windows

    monkeypatch.setattr(ctypes, "CDLL", missing)
    for content in ("old", "new"):
        build(tmp_path / "data", content)
    assert (tmp_path / "data" / "part").read_text() == "new" and names(tmp_path) == ["data"]


def write_folder(target: Path) -> None:
    with atomic_directory(target) as folder:
        write_text(folder / "file", "text")


def interrupt_after_calls(number: int, write: Callable[[], None]) -> bool:
    """Write, with Ctrl-C when the module `atomic` has had the results of `number` calls; False if it had fewer."""
    seen = 0

    def count(frame: Any, event: str, called: Any) -> None:
        nonlocal seen
        if frame.f_code.co_filename == atomic.__file__ and event in ("call", "c_return"):
            seen += 1
            if seen == number:
                signal.raise_signal(signal.SIGINT)

    try:
        sys.setprofile(count)
        write()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return seen >= number


@pytest.mark.parametrize("write", [write_folder, lambda target: write_text(target, "text")], ids=["folder", "file"])
def test_a_signal_after_any_call_leaves_a_whole_target_or_nothing(tmp_path: Path, write: Callable[[Path], None]):
    number, interrupted = 0, True
    while interrupted:
        number += 1
        folder = tmp_path / str(number)
        interrupted = interrupt_after_calls(number, partial(write, folder / "new" / "target"))
        assert [path for path in folder.rglob("*") if path.name not in ("new", "target", "file")] == []
        assert not folder.exists() or (folder / "new" / "target").exists()
    assert number > 30
