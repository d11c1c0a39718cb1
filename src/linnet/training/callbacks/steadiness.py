"""Notes about steps: growing windows and batches, a busy machine, and data that arrives late."""

from collections.abc import Iterator

from linnet.core.system import SCATTER_LIMIT, OtherPrograms, busy_advice, is_overloaded, scatter
from linnet.present import numbers
from linnet.training.callbacks import Callback
from linnet.training.step import StepResult

WARMUP_STEPS = 5
"""The first steps, which warm up or compile, are not judged."""

MIN_STEPS, MIN_S = 20, 10.0
"""How many steps, and how much time, are judged at once."""

WAIT_SHARE, MIN_WAIT_S = 0.1, 2e-3
"""A longer wait for data, as a share of a step and in seconds, is reported."""


class Steadiness:
    """Judges the steps of this process, stretch by stretch; each problem is reported once."""

    def __init__(self, threads: int, on_processors: bool = True) -> None:
        """threads: that compute. on_processors: they take the steps, not a GPU."""
        self._threads, self._on_processors, self._warmup = threads, on_processors, WARMUP_STEPS
        self._reported: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._steps_s, self._waits_s, self._others = list[float](), list[float](), OtherPrograms()

    def restart(self) -> None:
        """Forget the steps so far: the following ones are of another size."""
        self._warmup = WARMUP_STEPS

    def add(self, seconds: float, data_wait_s: float) -> list[str]:
        """Count a step and the wait for its data, which is part of it; returns what is to be reported."""
        if self._warmup:
            self._warmup -= 1
            if not self._warmup:
                self._begin()
            return []
        self._steps_s.append(seconds)
        self._waits_s.append(data_wait_s)
        if len(self._steps_s) < MIN_STEPS or sum(self._steps_s) < MIN_S:
            return []
        found = dict(self._problems())
        notes = [text for kind, text in found.items() if kind not in self._reported]
        self._reported |= found.keys()
        self._begin()
        return notes

    def _problems(self) -> Iterator[tuple[str, str]]:
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
        if share > WAIT_SHARE and wait_s > MIN_WAIT_S:
            yield (
                "data",
                f"note: steps wait for their data: {share:.0%} of their time, {numbers.duration(wait_s)} each; a data"
                " folder on a faster disk, or one that fits into memory, helps",
            )


class StepNotes(Callback):
    """Reports a change of the sizes of a step, and what makes steps slower than they could be."""

    def __init__(self, steadiness: Steadiness) -> None:
        self._steadiness = steadiness

    def before_step(self) -> None:
        step = self.context.state.step
        stage = self.context.run.growth.stage(step + 1)
        if stage.begins == step > 0:
            self.context.reporter.note(f"step {step + 1}: {stage.sizes} from here on")
            self._steadiness.restart()

    def after_update(self, result: StepResult) -> None:
        for note in self._steadiness.add(result.elapsed_s, result.data_wait_s):
            self.context.reporter.note(note)
