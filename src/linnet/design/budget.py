"""Budgets: what they limit, how they are written (`60G`, `2MB@4096`, `20ms`), and whether a space can meet them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

import numpy as np

from linnet.core import amounts
from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.design.chain import cheapest_candidates, find_feasible, smallest
from linnet.design.cost_tables import CostTables
from linnet.design.metrics import MOST_TOKENS, Metric, read_tokens
from linnet.design.space import Candidate
from linnet.present import numbers

BYTES = {"B": 1.0} | {
    f"{prefix}{unit}": base**power
    for unit, base, first in (("B", 1000.0, "k"), ("iB", 1024.0, "K"))
    for power, prefix in enumerate((first, "M", "G", "T"), start=1)
}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class UnmetError(UserError):
    """Nothing in a space is within all budgets."""


@dataclass(frozen=True)
class Budget:
    """A metric and the most that it may be; `option` is how the user said it."""

    metric: Metric
    limit: float
    option: str

    def format(self, value: float) -> str:
        """A value of the metric, in the units in which the limit was given: 1 MB stays 1 MB."""
        return (
            numbers.decimal(value)
            if self.metric.unit == "bytes" and "iB" not in self.option
            else self.metric.format(value)
        )


def read_bytes(text: str, option: str) -> float:
    """`2MB`, `1.5GiB`: bytes; `UserError` names the option and what would be accepted."""
    return _read(text, BYTES, option, "2MB")


def read_seconds(text: str, option: str) -> float:
    """`20ms`: seconds; `UserError` names the option and what would be accepted."""
    return _read(text, SECONDS, option, "20ms")


def read_state(text: str, option: str) -> tuple[float, int]:
    """`2MB@4096`, `2MB@16k`: bytes, and the tokens of a stream that they are for."""
    size, at, tokens = text.partition("@")
    length = read_tokens(tokens)
    if not at or length is None:
        raise UserError(
            f"{option} {text}: expected bytes@tokens, as in 2MB@4096 or 2MB@16k, with at most {MOST_TOKENS:,} tokens"
        )
    return read_bytes(size, option), length


def _read(text: str, units: Mapping[str, float], option: str, example: str) -> float:
    value = amounts.parse_units(text, units)
    if value is None:
        raise UserError(
            f"{option} {text}: expected a number above 0 with {', '.join(units)} behind it, as in {example}"
        )
    return value


def limits(budgets: Sequence[Budget], tables: CostTables) -> Numbers:
    """The most that each metric of the tables may be: `[M]`, infinite where no budget limits it."""
    of_each = ([b.limit for b in budgets if b.metric.name == metric.name] for metric in tables.metrics)
    return np.array([min(most, default=np.inf) for most in of_each])


def find_within_budgets(budgets: Sequence[Budget], tables: CostTables) -> Candidate:
    """A model of the space within all budgets; `UnmetError` with what could be met where there is none."""
    most_M = limits(budgets, tables)
    for index, metric in enumerate(tables.metrics):
        least = smallest(tables, index)
        if least > most_M[index]:
            raise _unmet(budgets, metric, least, tables, "nothing")
    found = find_feasible(tables, most_M)
    if found is None:
        raise _unmet_together(budgets, tables, most_M)
    return found


def _unmet_together(budgets: Sequence[Budget], tables: CostTables, most_M: Numbers) -> UnmetError:
    """The error for budgets of which each can be met, but not all at once: the first gives way."""
    first = int(np.isfinite(most_M).argmax())
    _, metrics_LM = cheapest_candidates(tables, np.where(np.arange(len(most_M)) == first, np.inf, most_M))
    metric = tables.metrics[first]
    if len(metrics_LM):
        return _unmet(budgets, metric, metrics_LM[:, first].min(), tables, "within the other budgets nothing")
    said = " ".join(budget.option for budget in budgets)
    return UnmetError(f"{said}: nothing in the space {tables.space.spec.name} meets all of them; each alone can be met")


def _unmet(budgets: Sequence[Budget], metric: Metric, least: float, tables: CostTables, who: str) -> UnmetError:
    option = min((b for b in budgets if b.metric.name == metric.name), key=lambda budget: budget.limit).option
    exact = ms_rounded_up(least) if metric.unit == "seconds" else f"{math.ceil(least):,} {metric.unit}".strip()
    return UnmetError(
        f"{option}: {who} in the space {tables.space.spec.name} meets it; the smallest that could be met is {exact}"
    )


def ms_rounded_up(seconds: float) -> str:
    """Four digits, rounded up: who follows the message must get what it promises. A float's own error too."""
    rounded = Context(prec=4, rounding=ROUND_CEILING).plus(Decimal(seconds * 1e3 * (1 + 1e-12)))
    return f"{numbers.exact(float(rounded))} ms"
