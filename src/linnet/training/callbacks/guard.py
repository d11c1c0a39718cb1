"""The guard against loss spikes, which checks a batch before its update and refuses the update of a spike.

Loss and gradient norm are compared with their medians over the steps before, in robust deviations (1.4826 times the
median absolute deviation, which is that of a normal distribution). OLMo 2 (arXiv 2501.00656) skips updates in the same
way, by mean and standard deviation, which the spike itself moves.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import ConfigDict

from linnet.training.callbacks import Callback, SkipStepError
from linnet.training.sections import GuardSpec

NORMAL = 1.4826
SMALLEST_DEVIATION = 0.01
"""Of the median: where all steps are almost alike, a slightly higher value is no spike."""

REMEMBERED_SPIKES = 100


@dataclass
class GuardState:
    """losses, gradient_norms: of the last accepted steps. consecutive: spikes since the last accepted step.

    checkpoint: step of the latest scheduled checkpoint; one that a stop made does not count, as an uninterrupted run
    does not have it. rewound_to, rewinds: the checkpoint that the run last went back to, and how often. count: all
    spikes; spikes: the latest ones.
    """

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    consecutive: int = 0
    checkpoint: int | None = None
    rewound_to: int | None = None
    rewinds: int = 0
    count: int = 0
    spikes: list[dict[str, Any]] = field(default_factory=list)
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


class Guard(Callback):
    """Refuses the update of a spike; then its batch, or all data since the last scheduled checkpoint, is skipped."""

    name = "guard"

    def __init__(self, spec: GuardSpec) -> None:
        self.spec = spec
        self.state: GuardState = GuardState()

    def check_update(self, loss: float, gradient_norm: float) -> SkipStepError | None:
        """An error if the batch is a spike.

        After `max_consecutive` spikes the level has changed: the next batch is accepted, and the statistics start
        again. (A batch that is not finite then ends the run, as it does without a guard.)
        """
        spec, state = self.spec, self.state
        metrics = {"loss": (loss, state.losses), "gradient_norm": (gradient_norm, state.gradient_norms)}
        chosen = metrics if spec.metric == "either" else [spec.metric]
        problem = next(filter(None, (_problem(name, *metrics[name], spec) for name in chosen)), None)
        if problem is not None:
            state.consecutive += 1
            if state.consecutive <= spec.max_consecutive:
                # Go back only to a checkpoint that exists, and not to the same one endlessly.
                rewinds = spec.action == "rewind" and state.checkpoint is not None
                rewinds = rewinds and (state.rewound_to != state.checkpoint or state.rewinds < spec.max_consecutive)
                return SkipStepError(problem, state.checkpoint if rewinds else None)
            if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
                return None
            state.losses, state.gradient_norms = [], []
        state.losses = [*state.losses, loss][-spec.window :]
        state.gradient_norms = [*state.gradient_norms, gradient_norm][-spec.window :]
        state.consecutive = 0
        return None

    def on_skip(self, skipped: SkipStepError, step: int, before: dict[str, Any]) -> None:
        """Count the spike; after a rewind in the state that was loaded, which continues the counts of before."""
        state, target, consequence = self.state, skipped.rewind_to, "its batch is skipped"
        if target is not None:
            seen = GuardState(**before)
            state.rewinds = seen.rewinds + 1 if seen.rewound_to == target else 1
            state.rewound_to, state.count, state.spikes = target, seen.count, seen.spikes
            consequence = f"back to step {target}, the data since then is skipped"
        spike = {"step": step, "reason": str(skipped), "action": "skip" if target is None else "rewind"}
        state.count += 1
        state.spikes = [*state.spikes, spike][-REMEMBERED_SPIKES:]
        self.context.reporter.note(f"spike at step {step}: {skipped}; {consequence}")

    def line_fields(self) -> dict[str, Any]:
        return {"spikes": self.state.count}

    def before_save(self, scheduled: bool) -> None:
        if scheduled:
            self.state.checkpoint = self.context.state.step

    def summary(self) -> dict[str, Any]:
        return {"spikes": {"count": self.state.count, "latest": self.state.spikes}}


def _problem(name: str, value: float, before: Sequence[float], spec: GuardSpec) -> str | None:
    """What makes a value a spike compared with those before, in words."""
    words = name.replace("_", " ")
    if not math.isfinite(value):
        return f"{words} {value:g}"
    if len(before) < max(2, spec.window // 2):
        return None
    median = statistics.median(before)
    spread = NORMAL * statistics.median(abs(each - median) for each in before)
    deviations = (value - median) / max(spread, SMALLEST_DEVIATION * abs(median), 1e-30)
    if deviations <= spec.limit:
        return None
    return (
        f"{words} {value:.4g}, {deviations:.3g} deviations above the median {median:.4g} of the last {len(before)}"
        " steps"
    )
