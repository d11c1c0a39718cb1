"""The learning rate of each step, a pure function."""

import math
from collections.abc import Callable

from linnet.training.sections import ScheduleSpec

CURVES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "cosine_squared": lambda progress: math.cos(math.pi / 2 * progress) ** 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda progress: 1.0,
    "one_minus_sqrt": lambda progress: 1 - math.sqrt(progress),
}
"""From 1 to 0 as the progress after the warm-up goes from 0 to 1.

`cosine` (Loshchilov and Hutter, arXiv 1608.03983) and `cosine_squared` (TED's name for it) are one curve:
`(1 + cos x) / 2 = cos(x / 2) ** 2`. `one_minus_sqrt`: Hägele et al., arXiv 2405.18392, equation 2.
"""

DECAY_SHARE = 0.2
"""Of all steps: the decay of `stable` where nothing else is said."""


def learning_rate(schedule: ScheduleSpec, peak: float, step: int, steps: int) -> float:
    """The learning rate of the update number `step` (1 to `steps`).

    Linear from `start_fraction * peak` (at 0) to the peak at `warmup_steps`, then along the curve to
    `final_fraction * peak` at the last step. `warmup_steps` must be resolved. `stable` (Hu et al., MiniCPM, arXiv
    2404.06395, section 4) stays at the peak until the last `decay_share` of all steps, or the end of the warm-up.
    """
    warmup = schedule.warmup_steps
    assert warmup is not None, "an unresolved schedule"
    if step < warmup:
        return peak * (schedule.start_fraction + (1 - schedule.start_fraction) * step / warmup)
    falls_after, kind = warmup, str(schedule.kind)
    if schedule.kind == "stable":
        share = DECAY_SHARE if schedule.decay_share is None else schedule.decay_share
        falling = max(1, round(share * steps)) if share else 0
        falls_after, kind = max(warmup, steps - falling), schedule.decay or "one_minus_sqrt"
    progress = max(0, step - falls_after) / (steps - falls_after) if steps > falls_after else 0.0
    remaining = CURVES[kind](progress)
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * remaining)
