"""What makes steps slower than they need be, noticed while they are taken: a busy machine, and data that comes late."""

from collections.abc import Iterator

from linnet.core.system import SCATTER_LIMIT, OtherPrograms, busy_advice, is_overloaded, scatter
from linnet.present import numbers

FIRST_STEPS = 5
"""Steps that are not counted: the first ones warm up, or compile."""

LEAST_STEPS, LEAST_S = 20, 10.0
"""Of what is judged at once: so many steps, and so long."""

WAIT_SHARE, LEAST_WAIT_S = 0.1, 2e-3
"""Of a step, and as such: a longer wait for its data is said."""


class Steadiness:
    """Judges the steps of this process, stretch by stretch; each thing is said once."""

    def __init__(self, threads: int, on_processors: bool = True) -> None:
        """threads: that compute. on_processors: they take the steps, not a GPU."""
        self._threads, self._on_processors, self._before = threads, on_processors, FIRST_STEPS
        self._said: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._steps_s, self._waits_s, self._others = list[float](), list[float](), OtherPrograms()

    def add(self, seconds: float, waited_s: float) -> list[str]:
        """Count a step and the wait for its data, which is a part of it; what there is to say."""
        if self._before:
            self._before -= 1
            if not self._before:
                self._begin()
            return []
        self._steps_s.append(seconds)
        self._waits_s.append(waited_s)
        if len(self._steps_s) < LEAST_STEPS or sum(self._steps_s) < LEAST_S:
            return []
        found = [text for kind, text in self._found() if kind not in self._said]
        self._said |= {kind for kind, _ in self._found()}
        self._begin()
        return found

    def begin_anew(self) -> None:
        """After a change of what a step does: the steps before are no measure for those that come."""
        self._before = FIRST_STEPS

    def _found(self) -> Iterator[tuple[str, str]]:
        computed_s = [step - wait for step, wait in zip(self._steps_s, self._waits_s, strict=True)]
        scattered = scatter(computed_s)
        others = self._others.processors()
        if scattered > SCATTER_LIMIT or (self._on_processors and is_overloaded(others, self._threads)):
            median = numbers.duration(sorted(computed_s)[len(computed_s) // 2])
            steps = f"a tenth of {len(computed_s)} steps took over {scattered:.1f} times the median of {median}"
            helps = f"or train with fewer threads than {self._threads} (training.threads)"
            helps = "or wait for their end" if self._threads == 1 else helps
            yield "busy", f"note: the machine is busy: {steps}; {busy_advice(others, helps)}"
        share, wait_s = sum(self._waits_s) / sum(self._steps_s), sum(self._waits_s) / len(self._waits_s)
        if share > WAIT_SHARE and wait_s > LEAST_WAIT_S:
            yield (
                "data",
                f"note: steps wait for their data: {share:.0%} of their time, {numbers.duration(wait_s)} each; a data"
                " folder on a faster disk, or one that fits into memory, helps",
            )
