"""The learning rate of each step, a pure function."""

import math
from collections.abc import Callable

from linnet.training.sections import ScheduleSpec

CURVES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "cosine_squared": lambda progress: math.cos(math.pi / 2 * progress) ** 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda progress: 1.0,
}
"""From 1 to 0 as the progress after the warm-up goes from 0 to 1.

`cosine` (Loshchilov and Hutter, arXiv 1608.03983) and `cosine_squared` (TED's name for it) are one curve:
`(1 + cos x) / 2 = cos(x / 2) ** 2`.
"""


def learning_rate(schedule: ScheduleSpec, peak: float, step: int, steps: int) -> float:
    """The learning rate of the update number `step` (1 to `steps`).

    Linear from `start_fraction * peak` (at 0) to the peak at `warmup_steps`, then along the curve to
    `final_fraction * peak` at the last step. `warmup_steps` must be resolved.
    """
    warmup = schedule.warmup_steps
    assert warmup is not None, "an unresolved schedule"
    if step < warmup:
        return peak * (schedule.start_fraction + (1 - schedule.start_fraction) * step / warmup)
    progress = (step - warmup) / (steps - warmup) if steps > warmup else 0.0
    remaining = CURVES[schedule.kind](progress)
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * remaining)
