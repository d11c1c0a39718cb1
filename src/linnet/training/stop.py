"""Ctrl-C, SIGTERM and a closed terminal ask a run to stop; they never break it off."""

import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Self, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Item = TypeVar("Item")


class Stopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """Raised between two items of work that need not be finished now."""


class StopRequest:
    """A context in which the signals only set `requested`, however often they come; `signal` is the first of them.

    So a second Ctrl-C cannot break off the saving that the first one started. Outside the main thread, where Python
    cannot handle signals, nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # `nohup`
            self._before = {number: signal.signal(number, self._ask) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.signal = self.signal or number

    def until_requested(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; `Stopped` before the next one once a stop is requested."""
        for item in items:
            if self.requested:
                raise Stopped
            yield item
