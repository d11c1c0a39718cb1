"""Reading and writing text and JSON: limited in size when read, complete or not at all when written.

Also running Python files of the user's.
"""

import errno
import hashlib
import io
import json
import math
import os
import re
import select
import stat
import sys
from contextlib import suppress
from pathlib import Path
from runpy import run_path
from typing import Any, BinaryIO

from linnet.core.atomic import BINARY, CLOSE_ON_EXEC, NO_WAIT, atomic_path
from linnet.core.bounds import MAX_DEPTH, MAX_HASHED_BYTES, MAX_INTEGER_BITS, MAX_TEXT_BYTES, MAX_VALUES
from linnet.core.errors import UserError, one_line

PIPE_WAIT_S = 10.0

_BLOCK_BYTES = 1 << 20

SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
"""In JSON, half of a surrogate pair, or one of the two halves of a pair."""

_NOT_OF_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.EINTR)
"""Errors of the machine that say nothing about the file, which may be complete."""

_REASONS = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.EISDIR: "is a directory, expected a file",
    errno.EACCES: "no permission to read it",
    errno.ELOOP: "a link that leads to itself",
}


def check_file(path: Path, field: str, accepted: str) -> None:
    """`UserError` that names a field unless there is a file: nothing is there, or a folder."""
    if not path.is_file():
        raise UserError("is a folder" if path.is_dir() else "no such file", field=field, value=path, accepted=accepted)


def cache_folder() -> Path:
    """The user's folder for what linnet can compute or download again; `UserError` if the user has no home."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(cache or Path.home() / ".cache") / "linnet"
    except RuntimeError:  # of a container whose user has no entry
        raise UserError("the user has no home folder; XDG_CACHE_HOME=FOLDER names one for caches") from None


def write_text(target: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(target: str | Path, value: Any) -> None:
    """Write a value as indented JSON, atomically; file names that are not UTF-8 are written as escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    write_text(target, text + "\n")


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal; `UserError` for one of more than `MAX_HASHED_BYTES`."""
    with open_file(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        if size > MAX_HASHED_BYTES:
            raise UserError(f"{path}: {size:,} bytes; expected at most {MAX_HASHED_BYTES:,}")
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a missing or malformed one is a `UserError` that names the file (and the line)."""
    return parse_json(read_text(path), str(path))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            name = key if key.isidentifier() else ascii(key)
            raise UserError(f"{name}: given twice in one object; expected once")
        fields[key] = value
    return fields


def parse_json(text: str, origin: str, unique_keys: bool = False) -> Any:
    """Parse JSON; `UserError` begins with `origin`.

    unique_keys: an object with the same key twice is an error, of which JSON otherwise keeps the last value.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys if unique_keys else None)
    except UserError as error:
        raise UserError(f"{origin}: {error}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{origin}, line {error.lineno}: not valid JSON ({error.msg})") from error
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
        raise UserError(f"{origin}: not valid JSON (numbers or nesting beyond limits)") from None
    if SURROGATE_ESCAPE.search(text):
        check_unicode(value, origin)
    return value


def check_unicode(value: Any, origin: str, file_names: bool = True) -> None:
    """`UserError` for text within plain data that no file can hold.

    file_names: the data may hold names of files, whose bytes need not be text (PEP 383).
    """
    left = [value]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            left += [*node, *node.values()]
        elif isinstance(node, list):
            left += node
        elif isinstance(node, str):
            try:
                node.encode(errors="surrogateescape" if file_names else "strict")
            except UnicodeEncodeError as error:
                shown = node[max(0, error.start - 20) : error.end + 20]
                raise UserError(f"{origin}: {shown!r}: half of a surrogate pair, which is not Unicode text") from None


def read_text(path: str | Path, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a UTF-8 file or a pipe; `UserError` names a file that cannot be read or is larger."""
    try:
        return read_bytes(path, most_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error


def read_bytes(path: str | Path, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read a file or a pipe; `UserError` as in `read_text`."""
    with open_file(path, pipes=True) as handle:
        return read_whole(handle, str(path), most_bytes)


def read_whole(handle: BinaryIO, name: str, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read an open file to its end; `UserError` with `name` as soon as it is larger than `most_bytes`."""
    content = bytearray()
    while block := handle.read(_BLOCK_BYTES):
        content += block
        if len(content) > most_bytes:
            raise UserError(f"{name}: expected a file of at most {most_bytes:,} bytes")
    return bytes(content)


def standard_input() -> BinaryIO:
    """The standard input of the process; `UserError` if it is a device that has no end."""
    with suppress(io.UnsupportedOperation):  # replaced by a test
        found = os.fstat(sys.stdin.fileno())
        is_device = stat.S_ISCHR(found.st_mode) and not sys.stdin.isatty()
        null_device = None
        with suppress(OSError):  # Windows has no such file
            null_device = Path(os.devnull).stat().st_rdev
        if is_device and null_device not in (None, found.st_rdev):
            raise UserError("the standard input: a device, expected a file or a pipe")
    return sys.stdin.buffer


def open_file(path: str | Path, pipes: bool = False) -> io.BufferedReader:
    """Open a file for reading; `UserError` names one that is missing, a folder, a device, or a pipe without a writer.

    `OSError` for a failure of the machine. pipes: accept a pipe too (`<(command)`), if its writer begins within
    `PIPE_WAIT_S`.
    """
    try:
        handle = os.open(path, os.O_RDONLY | NO_WAIT | CLOSE_ON_EXEC | BINARY)
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        if getattr(error, "errno", None) in _NOT_OF_THE_FILE:
            raise
        reason = _REASONS.get(getattr(error, "errno", None) or 0, getattr(error, "strerror", None) or str(error))
        raise UserError(f"{path}: {reason}") from None
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path}: {_REASONS[errno.EISDIR]}")
        if not stat.S_ISREG(mode):
            if not pipes or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
                raise UserError(f"{path}: a device or pipe, expected a file")
            if hasattr(select, "poll"):  # on Windows a pipe is read as it comes
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                if not poll.poll(PIPE_WAIT_S * 1000):
                    waited = f"a pipe into which nobody wrote for {PIPE_WAIT_S:.0f} s"
                    raise UserError(f"{path}: {waited}, expected a file")
        if NO_WAIT:
            os.set_blocking(handle, True)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def check_extent(value: Any, origin: str) -> None:
    """`UserError` for data that is nested too deep, has too many values for a person to write, or is not Unicode."""
    left, seen = [(value, 0)], 0
    while left:
        node, depth = left.pop()
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        seen += len(children)
        if isinstance(node, int) and node.bit_length() > MAX_INTEGER_BITS:
            raise UserError(f"{origin}: a number of {node.bit_length()} bits; expected at most {MAX_INTEGER_BITS}")
        if depth > MAX_DEPTH or seen > MAX_VALUES:
            accepted = f"at most {MAX_DEPTH} levels and {MAX_VALUES:,} values"
            raise UserError(f"{origin}: nested too deep or too large; expected {accepted}")
        left.extend((child, depth + 1) for child in children)
    check_unicode(value, origin)


def json_safe(figures: Any) -> Any:
    """The values, with None (null) for numbers that JSON does not have (infinity, NaN)."""
    if isinstance(figures, dict):
        return {name: json_safe(figure) for name, figure in figures.items()}
    if isinstance(figures, list):
        return [json_safe(figure) for figure in figures]
    return None if isinstance(figures, float) and not math.isfinite(figures) else figures


def run_python_file(path: str | Path, field: str) -> dict[str, Any]:
    """Run a Python file of the user's, and return the names that it defines.

    It may import other files of its folder, now and when its functions are called. field: names what asked for the
    file. `UserError` where it fails; its own is raised as it is.
    """
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return run_path(str(path))
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # it may raise any
        raise UserError(f"{type(error).__name__}: {one_line(str(error))}", field=field, value=path) from error
