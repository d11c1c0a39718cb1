"""The three standard streams, whatever they are: closed, full, a pipe without a reader, a terminal that is gone."""

import io
import os
import sys
from contextlib import suppress
from typing import Any


def guard() -> None:
    """Let nothing that becomes of the standard error end a command, and no file take the place of a closed stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process
    with suppress(OSError, ValueError, AttributeError):  # AttributeError: there is none
        sys.stderr.flush()
    sys.stdout = _text(_Named(1, "w", closefd=False), line_buffering=os.isatty(1))
    sys.stderr = _text(_Quiet(2, "w", closefd=False), line_buffering=True)


def close_output() -> None:
    """The standard output takes no more; let the interpreter's last flush go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _text(raw: io.FileIO, line_buffering: bool) -> io.TextIOWrapper:
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding, errors="backslashreplace", line_buffering=line_buffering)


class _Named(io.FileIO):
    """Says in an error which stream it was; that of a reader who has left is a `BrokenPipeError` as ever."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from error


class _Quiet(io.FileIO):
    """Loses what cannot be written."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except OSError:
            return len(memoryview(content))
