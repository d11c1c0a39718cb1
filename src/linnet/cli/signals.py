"""Signals that end a command: as an exception, so that nothing half-written stays, and kept in mind besides.

A library may swallow the exception, or make another of it. (`train` and `demo` save first: `StopRequest`.)
"""

import signal
import sys
from typing import Any

AGAIN_S = 0.01

_heard: list[signal.Signals] = []


def listen() -> None:
    """From now on, for signals that are not ignored (`nohup`)."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
    sys.unraisablehook = _say_again


def heard() -> signal.Signals | None:
    """The first that came."""
    return _heard[0] if _heard else None


def exit_code(number: int | None) -> int:
    """What a shell says of a process that a signal ended: 130 for Ctrl-C, 143 for SIGTERM; 1 where there was none."""
    return 1 if number is None else 128 + number


def leave(number: int, frame: Any) -> None:
    """End the command: `KeyboardInterrupt` for Ctrl-C, `SystemExit` with the exit code of a shell for others."""
    if number != signal.SIGALRM:
        _heard.append(signal.Signals(number))
    if _heard[0] == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(exit_code(_heard[0]))


def _say_again(found: Any) -> None:
    """Where an exception goes nowhere, as in a destructor, the signal comes once more a moment later."""
    if isinstance(found.exc_value, KeyboardInterrupt | SystemExit) and _heard:
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(found)
