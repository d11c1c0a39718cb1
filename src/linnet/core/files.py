"""Writing files so that nobody ever sees half of one: a temporary name beside the target, then a rename."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; it takes the target's name only if the block ends without error."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _naming(target):
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())
            _flush(temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(target: str | Path) -> Iterator[Path]:
    """Yield a temporary directory beside `target`; it replaces the target only if the block ends without error."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _naming(target):
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            for path in temporary.rglob("*"):
                if path.is_file():
                    _flush(path)
            _swap(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    """What the system says of a temporary name, or of a file below one, is said of the target: nobody else knows it."""
    try:
        yield
    except OSError as error:
        if error.filename is None or f"/.{target.name}." not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


def write_text(target: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(target: str | Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a missing or malformed one is a `UserError` that names the file (and the line)."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from error


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file; a missing or undecodable one is a `UserError` that names the file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, expected a file") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error


def _swap(temporary: Path, target: Path) -> None:
    """Put `temporary` in the place of `target`; an older target is removed only after the new one stands."""
    if not target.exists():
        temporary.replace(target)
        return
    retired = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    try:
        target.replace(retired / target.name)
        temporary.replace(target)
    except BaseException:  # Ctrl-C between the two as well
        if not target.exists():
            (retired / target.name).replace(target)
        shutil.rmtree(retired, ignore_errors=True)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def _flush(path: Path) -> None:
    """Push a file's bytes to the disk, so that a power cut after the rename cannot leave an empty file."""
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
