"""Loss spikes: told by a running statistic, and kept from the weights.

A batch is judged before its update, by its loss and by its gradient's norm, against the median of the steps before, in
robust deviations (1.4826 times the median absolute deviation: that of a normal distribution). OLMo 2 (arXiv 2501.00656)
leaves updates out in this way, by mean and standard deviation, which the spike itself moves.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import ConfigDict

from linnet.training.sections import GuardSpec

NORMAL = 1.4826
LEAST_DEVIATION = 0.01
"""Of the median: where the steps are almost alike, what is hardly more is no spike."""

KEPT = 100
"""Spikes that are remembered one by one."""


class SpikeError(ArithmeticError):
    """A batch whose update is not made."""


@dataclass
class GuardState:
    """Where a guard stands; part of `TrainState`, so that a resumed run judges as an uninterrupted one.

    skipped: batches of the data that were left out, counted in steps. checkpoint: the latest that was due, which one
    that a stop left is not: an uninterrupted run has none there. returned_to, returns: the one that was gone back to
    last, and how often. spikes: the latest, in words.
    """

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    in_a_row: int = 0
    skipped: int = 0
    checkpoint: int | None = None
    returned_to: int | None = None
    returns: int = 0
    count: int = 0
    spikes: list[dict[str, Any]] = field(default_factory=list)
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    def add_spike(self, step: int, reason: str, action: str) -> None:
        """Remember a spike."""
        self.count += 1
        self.spikes = [*self.spikes, {"step": step, "reason": reason, "action": action}][-KEPT:]

    def accept(self, loss: float, gradient_norm: float, window: int) -> None:
        """Count a batch whose update is made."""
        self.losses = [*self.losses, loss][-window:]
        self.gradient_norms = [*self.gradient_norms, gradient_norm][-window:]
        self.in_a_row = 0


def judge(spec: GuardSpec, seen: GuardState, loss: float, gradient_norm: float) -> SpikeError | None:
    """The spike that a batch is, or None; `seen` counts it.

    After `in_a_row` spikes the next batch is taken, whatever it is: the level has changed, and the statistic begins
    anew. (One that is not finite ends the run then, as it does without a guard.)
    """
    judged = {"loss": (loss, seen.losses), "gradient_norm": (gradient_norm, seen.gradient_norms)}
    wanted = judged if spec.of == "either" else [spec.of]
    problems = (_problem(name, *judged[name], spec) for name in wanted)
    problem = next(filter(None, problems), None)
    if problem is None:
        seen.accept(loss, gradient_norm, spec.window)
        return None
    seen.in_a_row += 1
    if seen.in_a_row <= spec.in_a_row:
        return SpikeError(problem)
    if math.isfinite(loss) and math.isfinite(gradient_norm):
        seen.losses, seen.gradient_norms = [], []
        seen.accept(loss, gradient_norm, spec.window)
    return None


def _problem(name: str, value: float, before: Sequence[float], spec: GuardSpec) -> str | None:
    """What makes a value a spike among those before, in words."""
    words = name.replace("_", " ")
    if not math.isfinite(value):
        return f"{words} {value:g}"
    if len(before) < max(2, spec.window // 2):
        return None
    median = statistics.median(before)
    spread = NORMAL * statistics.median(abs(each - median) for each in before)
    beyond = (value - median) / max(spread, LEAST_DEVIATION * abs(median), 1e-30)
    if beyond <= spec.limit:
        return None
    return f"{words} {value:.4g}, {beyond:.3g} deviations above the median {median:.4g} of the last {len(before)} steps"


def skip(seen: GuardState, step: int, spike: SpikeError) -> str:
    """Leave out the batch that step `step` would have taken; what is said of it."""
    seen.skipped += 1
    seen.add_spike(step, str(spike), "skip")
    return f"spike at step {step}: {spike}; its batch is left out"


def goes_back(spec: GuardSpec, seen: GuardState) -> bool:
    """Whether the run goes back to its checkpoint; not without one, and not to the same one without end."""
    if spec.action != "back" or seen.checkpoint is None:
        return False
    return seen.returned_to != seen.checkpoint or seen.returns < spec.in_a_row


def back(seen: GuardState, loaded: GuardState, step: int, spike: SpikeError) -> str:
    """Let the standing `loaded` at a checkpoint go on behind the data that was taken from there to the spike."""
    checkpoint = seen.checkpoint
    assert checkpoint is not None, "nothing to go back to"
    loaded.skipped = step + seen.skipped - checkpoint
    loaded.returns = seen.returns + 1 if seen.returned_to == checkpoint else 1
    loaded.returned_to, loaded.count, loaded.spikes = checkpoint, seen.count, seen.spikes
    loaded.add_spike(step, str(spike), "back")
    return f"spike at step {step}: {spike}; back to step {checkpoint}, its data since then is left out"
