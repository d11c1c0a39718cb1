"""Locks: one process at a time. The system frees them when a process ends, however it ends."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from linnet.core.errors import UserError


@contextmanager
def file_lock(path: Path, taken: str) -> Iterator[None]:
    """Hold a lock file, made and removed here. `UserError` says `taken` with the process that holds it.

    A name that stands for something else, a link or a file with other content, is not written to but refused.
    """
    handle = _lock(path, taken)
    try:
        with suppress(OSError):  # a full disk: it is held all the same, and nobody is told by whom
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def lock_holder(path: Path) -> int | None:
    """The id of the process of this machine that holds the lock file, or None.

    A process that is about to take it is never in the way of this one's look: only an id that lives is tried.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.pread(handle, 20, 0).strip()
        if not found.isdigit() or not _lives(int(found)):
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(found)
        return None
    except OSError:
        return None
    finally:
        os.close(handle)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _lock(path: Path, taken: str) -> int:
    while True:
        handle = _open_lock(path)
        try:
            if not try_lock(handle):
                holder = os.pread(handle, 20, 0).decode(errors="replace")
                raise UserError(taken.format(holder))
            if still_named(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _open_lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise UserError(f"{path}: not a lock of linnet's; expected none: remove it") from None
        raise
    held = os.fstat(handle)
    ours = stat.S_ISREG(held.st_mode) and held.st_nlink <= 1 and held.st_size <= 20
    content = os.pread(handle, 20, 0) if ours else b""
    if not ours or not (content == b"" or content.strip().isdigit()):
        os.close(handle)
        raise UserError(f"{path}: not a lock of linnet's; expected none: remove it")
    return handle


def try_lock(handle: int) -> bool:
    """Lock an open file; whether it was free. Where the file system has no locks, all are."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            raise
    return True


def still_named(handle: int, path: Path) -> bool:
    """Whether the open file still has its name: another process may have removed it before it was locked."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False
