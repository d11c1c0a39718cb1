"""Writing so that nobody ever sees half of it: a temporary name beside the target, then a rename.

What a killed process leaves behind has names that only linnet gives (`SUFFIXES`). Who writes the same target next
removes it, or puts it back where it was the only copy (`restore`), and says so. One process at a time writes a folder
(`folder_lock`).
"""

import ctypes
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from linnet.core.errors import UserError, note

PARTIAL, RETIRED, LOCK = SUFFIXES = ".linnet-partial", ".linnet-old", ".linnet-lock"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LONGEST_STEM_BYTES = 120
_DRAWN = r"\.[a-z0-9_]{8}"
"""What `tempfile` puts into a name."""
_LEFT = re.compile(rf"\.(.+?)({_DRAWN}({re.escape(PARTIAL)}|{re.escape(RETIRED)})|{re.escape(LOCK)})", re.DOTALL)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; it takes the target's name only if the block ends without error.

    `UserError` where a device, a pipe or a folder has that name, or a link leads to one (`/dev/stdout`).
    """
    target = Path(target)
    _refuse_other_kinds(target)
    with errors_naming(target), _in_folder(target.parent):
        _remove_left(target)
        handle, temporary = _held_file(target)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())
            _flush(temporary)
            temporary.replace(target)
            _flush(target.parent)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(handle)


@contextmanager
def atomic_directory(target: str | Path) -> Iterator[Path]:
    """Yield a temporary directory beside `target`; it replaces the target only if the block ends without error.

    `UserError` where another process writes the same one, or something else than a folder has that name.
    """
    target = Path(target)
    if os.path.lexists(target) and not target.is_dir():
        raise UserError(f"{target}: is no folder; expected one, or a new name")
    if os.path.ismount(target):
        raise UserError(f"{target}: another disk begins there, which nothing can replace; expected a folder in it")
    with errors_naming(target), _in_folder(target.parent), folder_lock(target):
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(target), suffix=PARTIAL, dir=target.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            for path in (*temporary.rglob("*"), temporary):
                _flush(path)
            _put(temporary, target)
            _flush(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _refuse_other_kinds(target: Path) -> None:
    if target.exists() and not target.is_file():
        kind = "a folder" if target.is_dir() else "a device or pipe"
        way = "leads to" if target.is_symlink() else "is"
        raise UserError(f"{target}: {way} {kind}; expected a file, or a new name")


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; what was made for nothing goes again."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
        for path in missing:
            _flush(path.parent)
    except BaseException:
        with suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


@contextmanager
def folder_lock(target: Path) -> Iterator[None]:
    """Hold the writing of a folder for this process alone, and begin with what a killed one left put in order."""
    with file_lock(_lock_of(target), f"{target}: another process (id {{}}) is writing it"):
        restore(target, held=True)
        _remove_left(target)
        yield


def restore(target: Path, held: bool = False) -> None:
    """Put a folder back that a killed process had moved away and not replaced yet. `held`: it is claimed already."""
    if target.is_symlink() or target.exists():
        return
    for retired in _left(target, RETIRED):
        kept = retired / target.name
        if kept.is_dir() and (held or not _is_claimed(target)):
            with suppress(FileNotFoundError):  # another reader was faster
                kept.replace(target)
                retired.rmdir()
            note(f"{target}: put back as it was before a writing that was broken off")
            return


@contextmanager
def not_replaced(folder: Path) -> Iterator[None]:
    """`UserError` where another process replaced the folder while the block read it: each file may be of another."""
    before = folder.stat()
    try:
        yield
    except (UserError, OSError):
        _refuse_replaced(folder, before)
        raise
    _refuse_replaced(folder, before)


def _refuse_replaced(folder: Path, before: os.stat_result) -> None:
    with suppress(FileNotFoundError):
        if os.path.samestat(before, folder.stat()):
            return
    raise UserError(f"{folder}: was replaced while it was read; the same command reads the new one")


def clean_up(target: Path) -> None:
    """Put in order what a killed process left of a folder that is not written now; what another writes stays."""
    with suppress(OSError, UserError):
        if _lock_of(target).is_file() or _left(target, PARTIAL) or _left(target, RETIRED):
            with folder_lock(target):
                pass


def remove_folder(path: Path) -> None:
    """Remove a folder; half-removed it never keeps its name."""
    retired = Path(tempfile.mkdtemp(prefix=_prefix(path), suffix=PARTIAL, dir=path.parent))
    path.replace(retired / path.name)
    shutil.rmtree(retired)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left of any file or folder in `folder`; what another process writes stays."""
    for retired in folder.glob(f".*{RETIRED}"):
        for kept in retired.iterdir():  # under its whole name
            clean_up(folder / kept.name)
    found = [_LEFT.fullmatch(path.name) for path in folder.glob(".*")]
    for name in sorted({left[1] for left in found if left}):
        clean_up(folder / name)


def is_leftover(path: Path) -> bool:
    """Whether a killed process left this, or a running one works there."""
    return path.name.startswith(".") and path.name.endswith(SUFFIXES)


def refuse_link(path: Path) -> None:
    """`UserError` for a link where linnet writes: what it leads to may be somebody else's."""
    if path.is_symlink():
        raise UserError(f"{path}: is a link; nothing is written through one, expected none or linnet's own")


def _held_file(target: Path) -> tuple[int, Path]:
    """A new temporary file, locked while it is written: so nobody takes it for a killed process's."""
    while True:
        handle, name = tempfile.mkstemp(prefix=_prefix(target), suffix=PARTIAL, dir=target.parent)
        if try_lock(handle) and still_named(handle, Path(name)):  # else another process found it before it was locked
            return handle, Path(name)
        os.close(handle)


def _is_claimed(target: Path) -> bool:
    try:
        handle = os.open(_lock_of(target), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    free = try_lock(handle)
    os.close(handle)
    return not free


def _lock_of(target: Path) -> Path:
    return target.parent / f"{_prefix(target)[:-1]}{LOCK}"


def _prefix(target: Path) -> str:
    """`.NAME.`, the name cut where no room is left for what stands behind it."""
    return f".{os.fsdecode(os.fsencode(target.name)[:_LONGEST_STEM_BYTES])}."


def _left(target: Path, suffix: str) -> list[Path]:
    prefix = _prefix(target)
    if not target.parent.is_dir():
        return []
    drawn = re.compile(re.escape(prefix[:-1]) + _DRAWN + re.escape(suffix))
    return sorted(path for path in target.parent.iterdir() if drawn.fullmatch(path.name))


def _remove_left(target: Path) -> None:
    for suffix in (PARTIAL, RETIRED):
        for path in _left(target, suffix):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove what a killed process left; a file that is being written is locked, and stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif not _removed_unlocked(path):
        return
    note(f"{path}: left by a process that was broken off, removed")


def _removed_unlocked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if not try_lock(handle) or not still_named(handle, path):
            return False
        path.unlink()
        return True
    finally:
        os.close(handle)


def _put(temporary: Path, target: Path) -> None:
    """Put `temporary` in the place of `target`; there is no moment without one or the other."""
    if not os.path.lexists(target):
        temporary.replace(target)
    elif not _exchanged(temporary, target):
        _swap(temporary, target)


def _exchanged(one: Path, other: Path) -> bool:
    """Let two names change places at once; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None or other.is_symlink():
        return False
    code = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return bool(code == 0)


def _swap(temporary: Path, target: Path) -> None:
    """Two renames; an older target is removed only after the new one stands."""
    retired = Path(tempfile.mkdtemp(prefix=_prefix(target), suffix=RETIRED, dir=target.parent))
    try:
        target.replace(retired / target.name)
        temporary.replace(target)
    except BaseException:  # Ctrl-C between the two as well
        if not target.exists() and (retired / target.name).exists():
            (retired / target.name).replace(target)
        shutil.rmtree(retired, ignore_errors=True)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def _flush(path: Path) -> None:
    """Push a file's bytes, or a folder's names, to the disk: a power cut must not leave a name without its content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # folders of some file systems
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def errors_naming(target: Path) -> Iterator[None]:
    """What goes wrong with a temporary name, or without one, is said of the target: nobody else knows it."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and (error.filename is None or _is_within(error.filename, target)):
            raise OSError(error.errno, f"{error.strerror} ({free_space(target)})", str(target)) from error
        if error.filename is None or not _is_within(error.filename, target):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


def _is_within(name: str | bytes, target: Path) -> bool:
    return f"/{_prefix(target)}" in os.fsdecode(name) or os.fsdecode(name) == str(target)


def free_space(path: Path) -> str:
    """How much can still be written there, in words."""
    folder = _folder_of(path)
    return f"{shutil.disk_usage(folder).free:,} bytes free in {folder}"


def _folder_of(path: Path) -> Path:
    """The nearest folder that is there: what it lies on is what a file of that name would lie on."""
    return next(parent for parent in (path, *path.absolute().parents) if parent.is_dir())


def check_free_space(path: Path, needed_bytes: int) -> None:
    """`OSError` where a file of that size has no room, before anything of it is written."""
    disk = shutil.disk_usage(_folder_of(path))
    if disk.total and disk.free < needed_bytes:  # some file systems do not tell
        reason = f"{os.strerror(errno.ENOSPC)}: {needed_bytes:,} bytes needed, {free_space(path)}"
        raise OSError(errno.ENOSPC, reason, str(path))


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
