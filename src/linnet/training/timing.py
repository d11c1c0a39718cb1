"""How long parts of a run take, and how long the rest will take."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

RECENT_STEPS = 50


class Stopwatch:
    """Adds up the seconds spent in `running()`, on a GPU those of the device, without making the processor wait."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        """Count what this device does in the block."""
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
        """The sum so far, without operations that the device has not finished."""
        while self._events and self._events[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._events.pop(0)
            self._seconds += start.elapsed_time(end) / 1000
        return self._seconds


class Pace:
    """Predicts the remaining time from the latest steps.

    Steps count by their tokens over the last `RECENT_STEPS`, so that a slow start (compilation, cold caches) is
    forgotten. What happens between steps (evaluation, saving) is rare and is averaged over all steps of the process. At
    first it is averaged over a twentieth of those that there will be, so that one evaluation soon after the start does
    not count as often as there are steps.
    """

    def __init__(self, earlier_token_s: float) -> None:
        """earlier_token_s: seconds per token of earlier processes; used until this process has made a step."""
        self._began_s = time.monotonic()
        self._earlier_token_s = earlier_token_s
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_STEPS)
        self._steps, self._in_steps_s = 0, 0.0

    def add(self, seconds: float, tokens: int) -> None:
        self._recent.append((seconds, tokens))
        self._steps += 1
        self._in_steps_s += seconds

    def remaining_s(self, steps: int, tokens: int) -> float:
        """The predicted seconds for `steps` more steps with `tokens` tokens in total."""
        if not self._recent:
            return tokens * self._earlier_token_s
        between_s = max(0.0, time.monotonic() - self._began_s - self._in_steps_s)
        seconds, recent = sum(each for each, _ in self._recent), sum(each for _, each in self._recent)
        averaged = max(self._steps, min(RECENT_STEPS, (self._steps + steps) // 20))
        return tokens * seconds / recent + steps * between_s / averaged
