"""How long the rest of a run takes, by how fast it went of late."""

import time
from collections import deque

RECENT_STEPS = 50


class Pace:
    """The speed of this process's steps.

    The mean over the latest steps counts, so that a slow start (compilation, cold caches) or a busy hour is forgotten.
    What happens between steps (evaluation, saving) comes seldom, and its mean is over all of the process's steps.
    """

    def __init__(self, earlier_step_s: float) -> None:
        """earlier_step_s: the mean of the steps that earlier processes made, for as long as this one has made none."""
        self._began_s = time.monotonic()
        self._earlier_step_s = earlier_step_s
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._steps, self._in_steps_s = 0, 0.0

    def add(self, seconds: float) -> None:
        """Count a step."""
        self._recent.append(seconds)
        self._steps += 1
        self._in_steps_s += seconds

    def remaining_s(self, steps: int) -> float:
        """Seconds that so many steps will take, with what is done between them."""
        if not self._recent:
            return steps * self._earlier_step_s
        between_s = max(0.0, time.monotonic() - self._began_s - self._in_steps_s)
        return steps * (sum(self._recent) / len(self._recent) + between_s / self._steps)
