"""Training budgets, and how a law divides them between the size of a model and its training tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from linnet.core.errors import UserError
from linnet.present import numbers
from linnet.scaling.law import FLOPS_FACTOR, Allocation, Law

ROUNDS, RELATIVE_TOLERANCE = 20, 1e-3
"""Of the search for exact FLOPs, whose ratio to `6 N D` hardly changes from one size to the next."""

ONE = 1 - 1e-9
"""One parameter or one token, up to rounding."""

OPTIONS = "`flops`, `hours`, `parameters`, `tokens`"


@dataclass(frozen=True)
class TrainingBudget:
    """One amount, or two that fix size and tokens, so that no law divides anything."""

    flops: float | None = None
    hours: float | None = None
    parameters: float | None = None
    tokens: float | None = None

    def __post_init__(self) -> None:
        names = [f"`{name}`" for name, value in vars(self).items() if value is not None]
        if not names:
            raise UserError(f"nothing to plan with; give one of {OPTIONS}")
        if len(names) > 2 or (self.flops and self.hours):
            raise UserError(f"{', '.join(names)}: too many; expected one of {OPTIONS}, or two that fix size and tokens")

    def check(self, bought: Allocation, check_tokens: bool = True) -> None:
        """Raise `UserError` if the budget does not buy one parameter and, if they are checked, one token."""
        amounts = {name: value for name, value in vars(self).items() if value is not None}
        text = " ".join(f"`{name}` {_three_digits(value)}" for name, value in amounts.items())
        compute = next((name for name in ("flops", "hours") if name in amounts), None)
        if bought.parameters < ONE:
            accepted = (
                "more `tokens`" if compute is None else "a larger budget" + ", or fewer `tokens`" * bool(self.tokens)
            )
            raise UserError(f"{text}: comes to {_three_digits(bought.parameters)} parameters; expected {accepted}")
        if check_tokens and bought.tokens < ONE:
            accepted = "a larger budget"
            if compute is not None and self.parameters is not None:
                needed = amounts[compute] / bought.tokens  # at a fixed size tokens are proportional to the budget
                digits = _three_digits(needed)
                enough = digits if float(digits) >= ONE * needed else _three_digits(1.01 * needed)
                accepted = f"at least `{compute}` {enough}"
            raise UserError(f"{text}: comes to {_three_digits(bought.tokens)} tokens; expected {accepted}")


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if 1e-3 <= value < 1e3 else numbers.scientific(value)


def allocate(budget: TrainingBudget, law: Law) -> Allocation:
    """Return size and tokens of a budget without `hours`; the law chooses what the budget leaves open."""
    flops, parameters, tokens = budget.flops, budget.parameters, budget.tokens
    if parameters is not None and tokens is not None:
        return Allocation(parameters, tokens)
    if flops is not None and parameters is not None:
        return Allocation(parameters, flops / (FLOPS_FACTOR * parameters))
    if flops is not None and tokens is not None:
        return Allocation(flops / (FLOPS_FACTOR * tokens), tokens)
    return law.best(flops=flops, parameters=parameters, tokens=tokens)


def allocate_exact(
    budget: TrainingBudget, law: Law, exact_flops: float, flops_of: Callable[[Allocation], float]
) -> Allocation:
    """Return size and tokens for which the model's own FLOPs, not `6 N D`, equal `exact_flops`.

    flops_of: counts them. budget: may fix the size or the tokens; its hours are ignored. If it fixes the tokens, the
    result is the largest size that does not need more, since the sizes of models come in steps.
    """
    flops, tokens = exact_flops, budget.tokens
    if tokens is None:
        for _ in range(ROUNDS):
            found = allocate(replace(budget, hours=None, flops=flops), law)
            ratio = exact_flops / flops_of(found)
            if abs(ratio - 1) < RELATIVE_TOLERANCE:
                break
            flops *= ratio
        return Allocation(found.parameters, found.tokens * ratio)

    # Bisection in the logarithm of the size: `low` fits, `high` does not.
    low = high = exact_flops / (FLOPS_FACTOR * tokens)
    while flops_of(Allocation(low, tokens)) > exact_flops:
        low /= 1.5
    while flops_of(Allocation(high, tokens)) <= exact_flops:
        high *= 1.5
    while high / low > 1 + RELATIVE_TOLERANCE:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if flops_of(Allocation(middle, tokens)) <= exact_flops else (low, middle)
    return Allocation(low, tokens)
