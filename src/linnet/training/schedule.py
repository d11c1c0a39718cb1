"""Functions of the step number (learning rate, sizes of windows and batches) and the number of steps of a run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, NonNegativeInt

from linnet.core.checksum import read_checked_json
from linnet.core.errors import UserError
from linnet.core.spec import Amount, Spec
from linnet.training.sections import GrowthSpec, ScheduleSpec

CURVES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "cosine_squared": lambda progress: math.cos(math.pi / 2 * progress) ** 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda progress: 1.0,
    "one_minus_sqrt": lambda progress: 1 - math.sqrt(progress),
}
"""From 1 to 0 as the progress after the warm-up goes from 0 to 1.

`cosine` (Loshchilov and Hutter, arXiv 1608.03983) and `cosine_squared` (another name for it) are one curve:
`(1 + cos x) / 2 = cos(x / 2) ** 2`. `one_minus_sqrt`: Hägele et al., arXiv 2405.18392, equation 2.
"""

DEFAULT_DECAY_SHARE = 0.2
"""Share of all steps in which the rate of `stable` falls."""

Ends = Sequence[tuple[float, int]]


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
        share = DEFAULT_DECAY_SHARE if schedule.decay_share is None else schedule.decay_share
        falling = max(1, round(share * steps)) if share else 0
        falls_after, kind = max(warmup, steps - falling), schedule.decay or "one_minus_sqrt"
    progress = max(0, step - falls_after) / (steps - falls_after) if steps > falls_after else 0.0
    remaining = CURVES[kind](progress)
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * remaining)


class GrowthStage(NamedTuple):
    """The steps after `begins`, up to `ends`, and the sizes of their batches."""

    begins: int
    ends: int
    batch_size: int
    context_length: int
    gradient_accumulation: int

    @property
    def step_tokens(self) -> int:
        return self.gradient_accumulation * self.batch_size * self.context_length


class Growth:
    """The stages of a run of `steps`, at least one; the last one, if it is reached, has the run's own sizes."""

    def __init__(
        self, spec: GrowthSpec, steps: int, batch_size: int, context_length: int, gradient_accumulation: int
    ) -> None:
        """`spec` may have shares of the steps, or numbers of steps."""
        lengths, batches = (_in_steps(ends, steps) for ends in (spec.context_length, spec.batch_size))
        bounds = sorted({0, steps, *(min(int(end), steps) for end, _ in (*lengths, *batches))})
        self.steps, self.stages = steps, list[GrowthStage]()
        for begins, ends in pairwise(bounds):
            rows, length = (
                next((value for end, value in listed if begins < end), last)
                for listed, last in ((batches, batch_size), (lengths, context_length))
            )
            rows *= context_length // length if spec.keep_tokens else 1
            self.stages.append(GrowthStage(begins, ends, rows, length, gradient_accumulation))

    def stage(self, step: int) -> GrowthStage:
        """The stage of the update number `step`, from 1; after the last step the last stage."""
        return next((stage for stage in self.stages if step <= stage.ends), self.stages[-1])

    def tokens(self, first: int, last: int) -> int:
        """Tokens of the steps after `first`, up to `last`."""
        return sum(steps * stage.step_tokens for stage, steps in self._between(first, last))

    def mean(self, of_length: Callable[[int], float], first: int, last: int) -> float:
        """The mean of a function of the window length over the tokens of the steps after `first`, up to `last`."""
        found = self._between(first, max(first + 1, last))
        if len(found) == 1:
            return of_length(found[0][0].context_length)
        parts = [(steps * stage.step_tokens, of_length(stage.context_length)) for stage, steps in found]
        return sum(tokens * value for tokens, value in parts) / sum(tokens for tokens, _ in parts)

    def _between(self, first: int, last: int) -> list[tuple[GrowthStage, int]]:
        found = [(stage, min(last, stage.ends) - max(first, stage.begins)) for stage in self.stages]
        return [(stage, steps) for stage, steps in found if steps > 0]


def steps_for(tokens: int, spec: GrowthSpec, batch_size: int, context_length: int, gradient_accumulation: int) -> int:
    """The smallest number of steps with at least `tokens` tokens."""

    def enough(steps: int) -> bool:
        return Growth(spec, steps, batch_size, context_length, gradient_accumulation).tokens(0, steps) >= tokens

    low, high = 0, 1
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def resolved_growth(spec: GrowthSpec, steps: int, batch_size: int, context_length: int) -> GrowthSpec:
    """The same with numbers of steps.

    `UserError` if a size is not below the run's, does not divide its length, or ends after the run.
    """
    for field, ends, size in (
        ("batch_size", spec.batch_size, batch_size),
        ("context_length", spec.context_length, context_length),
    ):
        divides = field == "context_length"
        for end, value in ends:
            if value >= size or (divides and size % value):
                raise UserError(
                    f"training.growth.{field}: {value}: must be below training.{field}, {size}"
                    f"{', and divide it' if divides else ''}: that is what the run grows to"
                )
            if end > steps:
                raise UserError(
                    f"training.growth.{field}: until step {end:,.0f}: must be at most {steps:,}, the steps of the run"
                )
    lengths, batches = (_in_steps(ends, steps) for ends in (spec.context_length, spec.batch_size))
    return spec.model_copy(update={"context_length": tuple(lengths), "batch_size": tuple(batches)})


def _in_steps(ends: Ends, steps: int) -> list[tuple[float, int]]:
    """The ends as numbers of steps; a share is relative to `steps`."""
    return [(end if end >= 1 else max(1, round(end * steps)), value) for end, value in ends]


class Extension(Spec):
    """After `step` of `before` steps a run was extended to `steps`.

    every: by section (`evaluate`, `log`), the interval in steps before the extension, if the extension changed it.
    """

    step: NonNegativeInt
    before: Amount
    steps: Amount
    every: dict[str, Amount] = Field(default_factory=dict)


@dataclass(frozen=True)
class StepBudget:
    """How many steps a run has, and had before each extension of its `history`.

    The learning rate depends on the number of all steps, so it changes when a run is extended: every step is taken with
    the number that held when it was first taken. The history is stored with the run, so that continuing from an older
    checkpoint ends the same.
    """

    steps: int
    history: tuple[Extension, ...] = ()

    def of(self, step: int) -> int:
        """The number of steps that the run had when update number `step` (from 1) was first made, or has now."""
        return next((each.before for each in self.history if step <= each.step), self.steps)

    def ends(self, step: int) -> bool:
        """True if the run ends, or once ended, with this step."""
        return step == self.of(step)

    def to_list(self) -> list[dict[str, Any]]:
        """The history as plain data."""
        return [each.model_dump(exclude_defaults=True) for each in self.history]

    def interval(self, section: str, step: int, every: int | None) -> int:
        """The `every` of a section when update number `step` was first made; `every`: what a resolved run has now."""
        assert every is not None, "an unresolved run"
        return next(
            (each.every[section] for each in self.history if step <= each.step and section in each.every), every
        )

    def due(self, section: str, step: int, every: int | None) -> set[int]:
        """The steps up to `step` that end an interval of a section; `every` as for `interval`."""
        ends, due = sorted({step, *(each.step for each in self.history if each.step < step)}), set[int]()
        for begin, end in pairwise([0, *ends]):
            interval = self.interval(section, end, every)
            due.update(range(begin - begin % interval + interval, end + 1, interval))
        return due


def read_budget(path: Path, steps: int) -> StepBudget:
    """The budget of the run whose `config.yaml` says `steps`, from its file of extensions, if there is one.

    A last entry that is missing in `config.yaml` was written by a process that was killed then, and is ignored.
    """
    if not path.is_file():
        return StepBudget(steps)
    plain, key = read_checked_json(path), path.stem  # `extensions`, or as linnet 0.1 named the file and its content
    listed = plain.get(key) if isinstance(plain, dict) else None
    if not isinstance(listed, list):
        raise UserError(f"{path}: expected a list under {key}")
    history = tuple(Extension.parse(each, f"{path}: {key}[{number}]") for number, each in enumerate(listed))
    if history and history[-1].steps != steps and history[-1].before == steps:
        history = history[:-1]
    ends = [each.steps for each in history]
    begins = [each.before for each in history]
    if history and [*begins, steps] != [begins[0], *ends]:
        raise UserError(f"{path}: extended to {ends} steps, and config.yaml says {steps}; expected the last of them")
    return StepBudget(steps, history)
