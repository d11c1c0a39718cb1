"""How long a part of each step takes, without making the processor wait for the device."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the seconds spent in `running()`; on a GPU those of the device."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        """Count what is done within, on this device."""
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            yield
            end.record()
            self._events.append((start, end))
        else:
            start_s = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start_s

    @property
    def seconds(self) -> float:
        """The sum so far, without what a device is still at."""
        while self._events and self._events[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._events.pop(0)
            self._seconds += start.elapsed_time(end) / 1000
        return self._seconds
