"""What there is to spend, and how a law divides it between size and tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from linnet.core.errors import UserError
from linnet.present import numbers
from linnet.scaling.law import FLOPS_FACTOR, Allocation, Law

ROUNDS, CLOSE = 20, 1e-3
"""For a budget in exact FLOPs: their ratio to `6 N D` hardly changes from one size to the next."""

ONE = 1 - 1e-9
"""One parameter or one token, but for rounding."""

OPTIONS = "`flops`, `hours`, `parameters`, `tokens`"


@dataclass(frozen=True)
class TrainingBudget:
    """One of the four, or two that fix size and tokens: then no law divides anything."""

    flops: float | None = None
    hours: float | None = None
    parameters: float | None = None
    tokens: float | None = None

    def __post_init__(self) -> None:
        given = [f"`{name}`" for name, value in vars(self).items() if value is not None]
        if not given:
            raise UserError(f"nothing to plan with; give one of {OPTIONS}")
        if len(given) > 2 or (self.flops and self.hours):
            raise UserError(f"{', '.join(given)}: too many; expected one of {OPTIONS}, or two that fix size and tokens")

    def check(self, bought: Allocation) -> None:
        """`UserError` where the budget does not buy one parameter and one token: less is no model and no run."""
        self.check_size(bought)
        if bought.tokens < ONE:
            raise UserError(
                f"{self._said()}: comes to {_short(bought.tokens)} tokens; expected {self._enough(bought.tokens)}"
            )

    def check_size(self, bought: Allocation) -> None:
        """The same of the parameters alone, which a shape can be asked for then."""
        if bought.parameters < ONE:
            bounded = self.flops is not None or self.hours is not None
            other = "more `tokens`" if not bounded else "a larger budget" + ", or fewer `tokens`" * bool(self.tokens)
            raise UserError(f"{self._said()}: comes to {_short(bought.parameters)} parameters; expected {other}")

    def _said(self) -> str:
        given = {name: value for name, value in vars(self).items() if value is not None}
        return " ".join(f"`{name}` {_short(value)}" for name, value in given.items())

    def _enough(self, tokens: float) -> str:
        """What buys one token where this buys so few: in proportion where the size is fixed."""
        for name, value in (("flops", self.flops), ("hours", self.hours)):
            if value is not None and self.parameters is not None:
                return f"at least `{name}` {_rounded_up(value / tokens)}"
        return "a larger budget"


def _rounded_up(value: float) -> str:
    """Three digits, of a number that is hardly smaller than the value."""
    text = _short(value)
    return text if float(text) >= ONE * value else _short(1.01 * value)


def _short(value: float) -> str:
    """Three digits, with a power of ten where they are far from 1."""
    return f"{value:.3g}" if 1e-3 <= value < 1e3 else numbers.scientific(value)


def allocate(budget: TrainingBudget, law: Law) -> Allocation:
    """Size and tokens of a budget without `hours`: those given, and where they leave a choice the law's best."""
    flops, parameters, tokens = budget.flops, budget.parameters, budget.tokens
    if parameters is not None and tokens is not None:
        return Allocation(parameters, tokens)
    if flops is not None and parameters is not None:
        return Allocation(parameters, flops / (FLOPS_FACTOR * parameters))
    if flops is not None and tokens is not None:
        return Allocation(flops / (FLOPS_FACTOR * tokens), tokens)
    if parameters is not None:
        return law.of_parameters(parameters)
    if tokens is not None:
        return law.of_tokens(tokens)
    assert flops is not None, "a budget of hours"
    return law.of_flops(flops)


def allocate_exact(
    budget: TrainingBudget, law: Law, exact_flops: float, flops_of: Callable[[Allocation], float]
) -> Allocation:
    """Size and tokens for which the model's own FLOPs, not `6 N D`, come to `exact_flops`.

    `flops_of` counts them. `budget` may fix the size or the tokens; its hours do not matter here. Where the tokens are
    fixed, it is the largest size that does not need more: models come in steps of size.
    """
    flops, tokens = exact_flops, budget.tokens
    if tokens is not None:
        near = exact_flops / (FLOPS_FACTOR * tokens)
        return Allocation(_largest(near, lambda size: flops_of(Allocation(size, tokens)) <= exact_flops), tokens)
    for _ in range(ROUNDS):
        found = allocate(replace(budget, hours=None, flops=flops), law)
        ratio = exact_flops / flops_of(found)
        if abs(ratio - 1) < CLOSE:
            break
        flops *= ratio
    return Allocation(found.parameters, found.tokens * ratio)


def _largest(near: float, fits: Callable[[float], bool]) -> float:
    """A size that fits, of which hardly a larger one does."""
    low = high = near
    while not fits(low):
        low /= 1.5
    while fits(high):
        high *= 1.5
    while high / low > 1 + CLOSE:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
