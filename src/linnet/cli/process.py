"""The process of a command: its standard streams, whatever their state, and the signals that end it."""

import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from linnet.core.system import ENDING_SIGNALS

RETRY_S = 0.01

_received: list[signal.Signals] = []


def guard_streams() -> None:
    """Keep failures of the standard error from ending a command, and files from taking the place of a closed stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process
    with suppress(OSError, ValueError, AttributeError):  # AttributeError: there is no standard error
        sys.stderr.flush()
    sys.stdout = _text_stream(_NamedStream(1, "w", closefd=False), line_buffering=os.isatty(1))
    sys.stderr = _text_stream(_LossyStream(2, "w", closefd=False), line_buffering=True)


def close_output() -> None:
    """Send what the interpreter flushes at its end nowhere, because the standard output accepts nothing more."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _text_stream(raw: io.FileIO, line_buffering: bool) -> io.TextIOWrapper:
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding, errors="backslashreplace", line_buffering=line_buffering)


class _NamedStream(io.FileIO):
    """Names the standard output in errors; a reader who has left stays a `BrokenPipeError`."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from error


class _LossyStream(io.FileIO):
    """Discards what cannot be written."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except OSError:
            return len(memoryview(content))


def listen() -> None:
    """Turn signals into exceptions, so that no half-written file stays; ignored signals (`nohup`) stay ignored.

    Signals are remembered, because a library may swallow the exception or turn it into another one. `train` and `demo`
    save first (`core.system.StopRequest`).
    """
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
    sys.unraisablehook = _raise_again


def received_signal() -> signal.Signals | None:
    """Return the first signal that was received, but Ctrl-C, behind which a command may go on, only without another."""
    others = (number for number in _received if number != signal.SIGINT)
    return next(others, _received[0] if _received else None)


def forget_interruption() -> None:
    """Let a command go on behind Ctrl-C; `SystemExit` if another signal came whose exception was swallowed."""
    _received[:] = [number for number in _received if number != signal.SIGINT]
    if _received:
        raise SystemExit(exit_code(_received[0]))


def exit_code(number: int | None) -> int:
    """Return a shell's exit code for a signal: 130 for Ctrl-C, 143 for SIGTERM; 1 for None."""
    return 1 if number is None else 128 + number


def leave(number: int, frame: Any) -> None:
    """End the command: `KeyboardInterrupt` for Ctrl-C, `SystemExit` with a shell's exit code for other signals."""
    if number != getattr(signal, "SIGALRM", None):
        _received.append(signal.Signals(number))
    reason = received_signal()
    if reason is None:  # a lost Ctrl-C is repeated that has been forgotten since
        return
    if reason == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(exit_code(reason))


def _raise_again(found: Any) -> None:
    """Repeat the signal a moment later if its exception was lost, as in a destructor."""
    if isinstance(found.exc_value, KeyboardInterrupt | SystemExit) and _received and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, RETRY_S)
    else:
        sys.__unraisablehook__(found)
