"""A run whose windows grow longer and whose batches grow larger: which step has which, and what that comes to.

Everything follows from the resolved description and the step's number.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from linnet.core.errors import UserError
from linnet.training.sections import GrowthSpec

Ends = Sequence[tuple[float, int]]


class GrowthStage(NamedTuple):
    """The steps after `begins`, to `ends`: each of `gradient_accumulation` batches of so many windows of so many
    tokens.
    """

    begins: int
    ends: int
    batch_size: int
    context_length: int
    gradient_accumulation: int

    @property
    def sizes(self) -> str:
        """What a step has, in words."""
        return f"{self.gradient_accumulation * self.batch_size:,} sequences of {self.context_length:,} tokens"

    @property
    def step_tokens(self) -> int:
        """Tokens predicted in a step."""
        return self.gradient_accumulation * self.batch_size * self.context_length


class Growth:
    """The stages of a run of `steps`, at least one; the last one has the sizes of the run itself, if it is reached."""

    def __init__(
        self, spec: GrowthSpec, steps: int, batch_size: int, context_length: int, gradient_accumulation: int
    ) -> None:
        """`spec` may have shares of the steps, or numbers of steps."""
        lengths, batches = (_in_steps(ends, steps) for ends in (spec.context_length, spec.batch_size))
        bounds = sorted({0, steps, *(min(int(end), steps) for end, _ in (*lengths, *batches))})
        self.steps, self.stages = steps, list[GrowthStage]()
        for begins, ends in pairwise(bounds):
            sizes = _at(batches, begins, batch_size), _at(lengths, begins, context_length)
            self.stages.append(GrowthStage(begins, ends, *sizes, gradient_accumulation))

    def stage(self, step: int) -> GrowthStage:
        """That of the update number `step`, from 1; behind the last step that of the last."""
        return next((stage for stage in self.stages if step <= stage.ends), self.stages[-1])

    def tokens(self, first: int, last: int) -> int:
        """Tokens of the steps after `first`, to `last`."""
        return sum(steps * stage.step_tokens for stage, steps in self._between(first, last))

    def mean(self, of_length: Callable[[int], float], first: int, last: int) -> float:
        """The mean over the tokens of the steps after `first`, to `last`, of what depends on the length of a window."""
        found = self._between(first, max(first + 1, last))
        if len(found) == 1:
            return of_length(found[0][0].context_length)
        parts = [(steps * stage.step_tokens, of_length(stage.context_length)) for stage, steps in found]
        return sum(tokens * value for tokens, value in parts) / sum(tokens for tokens, _ in parts)

    def _between(self, first: int, last: int) -> list[tuple[GrowthStage, int]]:
        found = [(stage, min(last, stage.ends) - max(first, stage.begins)) for stage in self.stages]
        return [(stage, steps) for stage, steps in found if steps > 0]


def steps_for(tokens: int, spec: GrowthSpec, batch_size: int, context_length: int, gradient_accumulation: int) -> int:
    """The fewest steps that have so many tokens. Sizes only grow, so each step more is more tokens."""

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

    `UserError` where a size is not below the run's, or no divisor of its length, or stays beyond the run's end.
    """
    for field, ends, size in (
        ("batch_size", spec.batch_size, batch_size),
        ("context_length", spec.context_length, context_length),
    ):
        for end, value in ends:
            _check_stage(f"training.growth.{field}", end, value, size, steps)
    lengths, batches = (_in_steps(ends, steps) for ends in (spec.context_length, spec.batch_size))
    return GrowthSpec(context_length=tuple(lengths), batch_size=tuple(batches))


def _check_stage(field: str, end: float, value: int, size: int, steps: int) -> None:
    divides = field.endswith("context_length")
    if value >= size or (divides and size % value):
        whole = field.replace("growth.", "")
        raise UserError(
            f"{field}: {value}: must be below {whole}, {size}{', and divide it' if divides else ''}: that is what the"
            " run grows to"
        )
    if end > steps:
        raise UserError(f"{field}: until step {end:,.0f}: must be at most {steps:,}, the steps of the run")


def _in_steps(ends: Ends, steps: int) -> list[tuple[float, int]]:
    """The ends as numbers of steps; a share is of `steps`."""
    return [(end if end >= 1 else max(1, round(end * steps)), value) for end, value in ends]


def _at(ends: Ends, step: int, last: int) -> int:
    """The size after `step` steps."""
    return next((value for end, value in ends if step < end), last)
