"""How long the rest of a run takes, by how fast it went of late."""

import time
from collections import deque

RECENT_STEPS = 50


class Pace:
    """The speed of this process's steps.

    The mean over the latest steps counts, by their tokens, so that a slow start (compilation, cold caches) or a busy
    hour is forgotten. What happens between steps (evaluation, saving) comes seldom, and its mean is over all of the
    process's steps.
    """

    def __init__(self, earlier_token_s: float) -> None:
        """earlier_token_s: of a token, the mean of the steps that earlier processes made, until this one makes some."""
        self._began_s = time.monotonic()
        self._earlier_token_s = earlier_token_s
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_STEPS)
        self._steps, self._in_steps_s = 0, 0.0

    def add(self, seconds: float, tokens: int) -> None:
        """Count a step."""
        self._recent.append((seconds, tokens))
        self._steps += 1
        self._in_steps_s += seconds

    def remaining_s(self, steps: int, tokens: int) -> float:
        """Seconds that so many steps of so many tokens together will take, with what is done between them."""
        if not self._recent:
            return tokens * self._earlier_token_s
        between_s = max(0.0, time.monotonic() - self._began_s - self._in_steps_s)
        seconds, recent = sum(each for each, _ in self._recent), sum(each for _, each in self._recent)
        return tokens * seconds / recent + steps * between_s / self._steps
