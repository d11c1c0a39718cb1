"""How much times of the same work scatter: on a quiet machine hardly, on one that others use a lot."""

import os
import time
from collections.abc import Sequence

import psutil

LIMIT = 1.4
"""Of the slowest tenth over the median. Measured in experiments/LOG.md."""

NOTICED = 0.25
"""Processors that others use, from which on they are named."""


def scatter(times_s: Sequence[float]) -> float:
    """The time that a tenth of them exceed (the 90th percentile, between two of them interpolated) over the median."""
    ordered = sorted(times_s)
    return _quantile(ordered, 0.9) / _quantile(ordered, 0.5)


def _quantile(ordered: Sequence[float], share: float) -> float:
    below, rest = divmod(share * (len(ordered) - 1), 1)
    first = ordered[int(below)]
    return first if rest == 0 else first + rest * (ordered[int(below) + 1] - first)


class OtherPrograms:
    """What other programs use of the processors, from its making on."""

    def __init__(self) -> None:
        self._begun = self._now()

    def processors(self) -> float:
        """So many were busy with something else than this process, on average; 0 where the system does not tell."""
        now = self._now()
        wall, all_s, own_s = (end - start for end, start in zip(now, self._begun, strict=True))
        return max(0.0, (all_s - own_s) / wall) if wall > 0 else 0.0

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds: of the clock, of all processors at work, of this process."""
        try:
            found = psutil.cpu_times()
        except (OSError, RuntimeError):
            return time.monotonic(), 0.0, 0.0
        idle = found.idle + getattr(found, "iowait", 0.0)
        guests = getattr(found, "guest", 0.0) + getattr(found, "guest_nice", 0.0)  # counted among the users' as well
        return time.monotonic(), sum(found) - idle - guests, time.process_time()


def is_overloaded(others: float, threads: int) -> bool:
    """Whether there are fewer processors than others use and so many threads want: then all times are longer alike."""
    return others >= NOTICED and others + threads > (os.cpu_count() or 1) + NOTICED


def busy_advice(others: float, remedies: str) -> str:
    """What other programs have to do with it, and what helps: `remedies`, where they have."""
    if others < NOTICED:
        return "other programs use hardly any processor: heat, saving of power, or a shared virtual machine may be why"
    return f"other programs use {others:.1f} of {os.cpu_count()} processors: end them, {remedies}"
