"""Atomic writes and locks: a file or folder is written under a temporary name beside its target and then renamed.

Leftovers of a killed process have names that only linnet gives (`SUFFIXES`). The next process that writes the same
target removes it, or moves it back if it was the only copy (`restore`), and logs a note. One process at a time writes a
folder (`folder_lock`). The system releases locks when a process ends, however it ends.

Where the system lacks something (an exchange of two names, `fsync` of folders, file locks), the next best is done: two
renames, no `fsync`, no lock.
"""

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from linnet.core.errors import UserError, note
from linnet.core.system import DeferredSignals

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None  # type: ignore[assignment]

PARTIAL, RETIRED, LOCK = SUFFIXES = ".linnet-partial", ".linnet-old", ".linnet-lock"

# Flags that Windows does not have are left out there.
NO_FOLLOW, NO_WAIT, CLOSE_ON_EXEC, BINARY = (
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
# An open file cannot be renamed or removed on Windows.
_CLOSE_FIRST = os.name == "nt"

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
_LONGEST_STEM_BYTES = 120
_RANDOM = r"\.[a-z0-9_]{8}"
"""What `tempfile` puts into a name."""
_LEFTOVER = re.compile(rf"\.(.+?)({_RANDOM}({re.escape(PARTIAL)}|{re.escape(RETIRED)})|{re.escape(LOCK)})", re.DOTALL)
_NOT_A_LOCK = "not a lock of linnet's; expected none: remove it"


class LockedError(UserError):
    """Another process holds the lock, or writes what it protects."""


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`, which is renamed to the target if the block ends without error.

    `UserError` if the target is a device, a pipe or a folder, or a link that leads to one (`/dev/stdout`).
    """
    target = Path(target)
    if target.exists() and not target.is_file():
        kind = "a folder" if target.is_dir() else "a device or pipe"
        way = "leads to" if target.is_symlink() else "is"
        raise UserError(f"{target}: {way} {kind}; expected a file, or a new name")
    with errors_naming(target), _in_folder(target.parent), DeferredSignals() as signals:
        _remove_leftovers_of(target)
        handle, temporary = _locked_temporary(target)
        try:
            if _CLOSE_FIRST:
                os.close(handle)
            with signals.handled():
                yield temporary
                _flush(temporary)
                temporary.replace(target)
                _flush(target.parent)
        finally:
            temporary.unlink(missing_ok=True)
            if not _CLOSE_FIRST:
                os.close(handle)


@contextmanager
def atomic_directory(target: str | Path, replaced: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a temporary folder beside `target`, which replaces the target if the block ends without error.

    replaced: is called once the target is the new folder, while no other process may write it. `UserError` if another
    process writes the same folder, or something that is not a folder has that name.
    """
    target = Path(target)
    if os.path.lexists(target) and not target.is_dir():
        raise UserError(f"{target}: is no folder; expected one, or a new name")
    if os.path.ismount(target):
        raise UserError(f"{target}: another disk begins there, which nothing can replace; expected a folder in it")
    with errors_naming(target), _in_folder(target.parent), folder_lock(target), DeferredSignals() as signals:
        temporary = _new_folder(target, PARTIAL)
        try:
            with signals.handled():
                yield temporary
                for path in (*temporary.rglob("*"), temporary):
                    _flush(path)
                # There is no moment without the old folder or the new one.
                if not os.path.lexists(target):
                    temporary.replace(target)
                elif not _exchanged(temporary, target):
                    _swap(temporary, target)
                replaced()
                _flush(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; remove them if the block fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with DeferredSignals() as signals:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with signals.handled():
                yield
            for path in missing:
                _flush(path.parent)
        except BaseException:
            for path in missing:
                with suppress(OSError):
                    path.rmdir()
            raise


@contextmanager
def folder_lock(target: Path) -> Iterator[None]:
    """Let only this process write a folder; first restore or remove what a killed process left."""
    with file_lock(_lock_of(target), f"{target}: another process (id {{}}) is writing it"):
        restore(target, held=True)
        _remove_leftovers_of(target)
        yield


def restore(target: Path, held: bool = False) -> None:
    """Move a folder back that a killed process had moved away and not replaced yet. held: its lock is held already."""
    if target.is_symlink() or target.exists():
        return
    for retired in _leftovers_of(target, RETIRED):
        old = retired / target.name
        if old.is_dir() and (held or not _is_locked(target)):
            with suppress(FileNotFoundError):  # another reader was faster
                old.replace(target)
                retired.rmdir()
            note(f"{target}: put back as it was before a writing that was broken off")
            return


@contextmanager
def not_replaced(folder: Path) -> Iterator[None]:
    """`UserError` if another process replaces the folder while the block reads it: its files might not fit together."""
    before = folder.stat()

    def check() -> None:
        with suppress(FileNotFoundError):
            if os.path.samestat(before, folder.stat()):
                return
        raise UserError(f"{folder}: was replaced while it was read; the same command reads the new one")

    try:
        yield
    except (UserError, OSError):
        check()
        raise
    check()


def clean_up(target: Path) -> None:
    """Restore or remove what a killed process left of a folder, unless another process writes it now."""
    with suppress(OSError, UserError):
        if _lock_of(target).is_file() or _leftovers_of(target, PARTIAL) or _leftovers_of(target, RETIRED):
            with folder_lock(target):
                pass


def remove_folder(path: Path) -> None:
    """Remove a folder; a half-removed folder never has its name."""
    retired = _new_folder(path, PARTIAL)
    path.replace(retired / path.name)
    shutil.rmtree(retired)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left of any file or folder in `folder`; what another process writes now stays."""
    for retired in folder.glob(f".*{RETIRED}"):
        for old in retired.iterdir():  # under its whole name
            clean_up(folder / old.name)
    found = [_LEFTOVER.fullmatch(path.name) for path in folder.glob(".*")]
    for name in sorted({leftover[1] for leftover in found if leftover}):
        clean_up(folder / name)


def is_leftover(path: Path) -> bool:
    """True for a name that only linnet gives: left by a killed process, or in use by a running one."""
    return path.name.startswith(".") and path.name.endswith(SUFFIXES)


def refuse_link(path: Path) -> None:
    """`UserError` for a link where linnet would write: its target may belong to something else."""
    if path.is_symlink():
        raise UserError(f"{path}: is a link; nothing is written through one, expected none or linnet's own")


def _locked_temporary(target: Path) -> tuple[int, Path]:
    """A new temporary file, locked while it is written, so that nobody mistakes it for a leftover."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW | CLOSE_ON_EXEC | BINARY
    while True:
        path = _random_name(target, PARTIAL)
        try:
            handle = os.open(path, flags, 0o666)  # less the umask, which a process cannot read without setting it
        except FileExistsError:
            continue
        if try_lock(handle) and still_named(handle, path):  # else it was removed before it was locked
            return handle, path
        os.close(handle)


def _new_folder(target: Path, suffix: str) -> Path:
    """A new empty folder beside `target`."""
    while True:
        path = _random_name(target, suffix)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


def _random_name(target: Path, suffix: str) -> Path:
    return target.parent / f"{_prefix(target)}{secrets.token_hex(4)}{suffix}"


def _is_locked(target: Path) -> bool:
    try:
        handle = os.open(_lock_of(target), os.O_RDONLY | NO_FOLLOW | NO_WAIT)
    except OSError:
        return False
    free = try_lock(handle)
    os.close(handle)
    return not free


def _lock_of(target: Path) -> Path:
    return target.parent / f"{_prefix(target)[:-1]}{LOCK}"


def _prefix(target: Path) -> str:
    """`.NAME.`, with a long name cut so that there is room for what follows it."""
    return f".{os.fsencode(target.name)[:_LONGEST_STEM_BYTES].decode(errors='surrogateescape')}."


def _leftovers_of(target: Path, suffix: str) -> list[Path]:
    if not target.parent.is_dir():
        return []
    name = re.compile(re.escape(_prefix(target)[:-1]) + _RANDOM + re.escape(suffix))
    return sorted(path for path in target.parent.iterdir() if name.fullmatch(path.name))


def _remove_leftovers_of(target: Path) -> None:
    for suffix in (PARTIAL, RETIRED):
        for path in _leftovers_of(target, suffix):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif not _remove_unlocked(path):
                continue
            note(f"{path}: left by a process that was broken off, removed")


def _remove_unlocked(path: Path) -> bool:
    """Remove a file unless a process that still writes it has it locked; return True if it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT)
    except OSError:
        return False
    try:
        if not try_lock(handle) or not still_named(handle, path):
            return False
        if not _CLOSE_FIRST:
            path.unlink()
    finally:
        os.close(handle)
    if _CLOSE_FIRST:
        with suppress(PermissionError):  # another process has it open
            path.unlink()
    return not path.exists()


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False if the system cannot."""
    exchange = _exchange_call()
    if exchange is None or other.is_symlink():
        return False
    return exchange(os.fsencode(one), os.fsencode(other)) == 0


def _exchange_call() -> Callable[[bytes, bytes], int] | None:
    """The C library's call that exchanges two names: that of Linux or of macOS; None if there is neither."""
    try:
        library: Any = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows
        return None
    at_working_folder, exchange, swap = -100, 2, 2
    if linux := getattr(library, "renameat2", None):
        return lambda one, other: int(linux(at_working_folder, one, at_working_folder, other, exchange))
    if macos := getattr(library, "renamex_np", None):
        return lambda one, other: int(macos(one, other, swap))
    return None


def _swap(temporary: Path, target: Path) -> None:
    """Replace a folder by two renames; the old one is removed only after the new one has its name."""
    retired = _new_folder(target, RETIRED)
    try:
        target.replace(retired / target.name)
        temporary.replace(target)
    except BaseException:  # also Ctrl-C between the two
        if not target.exists() and (retired / target.name).exists():
            (retired / target.name).replace(target)
        shutil.rmtree(retired, ignore_errors=True)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def _flush(path: Path) -> None:
    """Write a file's bytes, or a folder's names, to the disk: a power cut must not leave a name without its content."""
    is_folder = path.is_dir()
    if _CLOSE_FIRST and is_folder:
        return  # Windows cannot open folders
    # Windows flushes only what is open for writing.
    handle = os.open(path, (os.O_RDWR if _CLOSE_FIRST else os.O_RDONLY) | BINARY)
    try:
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:  # macOS: `fsync` leaves the bytes in the disk's cache
            with suppress(OSError):
                fcntl.fcntl(handle, full)
                return
        os.fsync(handle)
    except OSError as error:
        unsupported = is_folder and error.errno in (errno.EINVAL, errno.EACCES, errno.EBADF, errno.ENOTSUP)
        if not unsupported:  # some file systems cannot flush folders
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(handle)


@contextmanager
def errors_naming(target: Path) -> Iterator[None]:
    """Let an `OSError` about a temporary name, or about no name, name the target, which the user knows."""
    try:
        yield
    except OSError as error:
        name = None if error.filename is None else os.fsdecode(error.filename)
        if name is not None and os.sep + _prefix(target) not in name and name != str(target):
            raise
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            reason = f"{reason} ({free_space(target)})"
        raise OSError(error.errno, reason, str(target)) from error


def free_space(path: Path) -> str:
    """How much can still be written at a path, in words."""
    folder = _existing_folder(path)
    return f"{shutil.disk_usage(folder).free:,} bytes free in {folder}"


def check_free_space(path: Path, needed_bytes: int) -> None:
    """`OSError` if there is no room for a file of that size; call it before writing anything."""
    disk = shutil.disk_usage(_existing_folder(path))
    if disk.total and disk.free < needed_bytes:  # some file systems do not report it
        reason = f"{os.strerror(errno.ENOSPC)}: {needed_bytes:,} bytes needed, {free_space(path)}"
        raise OSError(errno.ENOSPC, reason, str(path))


def _existing_folder(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.is_dir())


@contextmanager
def file_lock(path: Path, taken: str) -> Iterator[None]:
    """Hold a lock file, which is made and removed here. `UserError` with `taken`, formatted with the holder's id.

    A link, or a file with any other content, is not written to but refused.
    """
    with DeferredSignals() as signals:
        handle = _lock(path, taken)
        try:
            with suppress(OSError):  # a full disk: the lock is still held, but does not name its holder
                os.ftruncate(handle, 0)
                os.lseek(handle, 0, os.SEEK_SET)
                os.write(handle, str(os.getpid()).encode())
            with signals.handled():
                yield
        finally:
            _remove_lock(handle, path)


def _remove_lock(handle: int, path: Path) -> None:
    try:
        if not _CLOSE_FIRST:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)
    if _CLOSE_FIRST:
        with suppress(PermissionError):  # another process has it open
            path.unlink(missing_ok=True)


def lock_holder(path: Path) -> int | None:
    """The id of the process of this machine that holds the lock file, or None.

    The lock is tried only if the process with that id is alive, so that a process about to take it is not disturbed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT | CLOSE_ON_EXEC)
    except OSError:
        return None
    try:
        found = _content(handle).strip()
        if not found.isdigit() or not psutil.pid_exists(int(found)):
            return None
        if fcntl is None:
            return None if try_lock(handle) else int(found)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(found)
        return None
    except (OSError, OverflowError):
        return None
    finally:
        os.close(handle)


def _lock(path: Path, taken: str) -> int:
    while True:
        handle = _open_lock(path)
        try:
            if not try_lock(handle):
                raise LockedError(taken.format(_content(handle).decode(errors="replace")))
            if still_named(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _open_lock(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW | NO_WAIT | CLOSE_ON_EXEC | BINARY, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO) or path.is_dir():
            raise UserError(f"{path}: {_NOT_A_LOCK}") from None
        raise
    held = os.fstat(handle)
    ours = stat.S_ISREG(held.st_mode) and held.st_nlink <= 1 and held.st_size <= 20 and not path.is_symlink()
    content = _content(handle) if ours else b""
    if not ours or not (content == b"" or content.strip().isdigit()):
        os.close(handle)
        raise UserError(f"{path}: {_NOT_A_LOCK}")
    return handle


def _content(handle: int) -> bytes:
    os.lseek(handle, 0, os.SEEK_SET)
    return os.read(handle, 20)


def try_lock(handle: int) -> bool:
    """Lock an open file; return True if it was free. Where there are no locks, every file is free."""
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            # Windows locks ranges, against reading too: one byte after everything that is ever read.
            os.lseek(handle, 1 << 30, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno in (errno.EDEADLK, errno.EACCES):
            return False
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            raise
    return True


def still_named(handle: int, path: Path) -> bool:
    """True if the open file still has its name: another process may have removed it before it was locked."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False
