"""A search under a limit of time: the winner is run, and the limit tightened where it takes longer than promised."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from linnet.design.budget import Budget
from linnet.design.search import Found, Task, search
from linnet.errors import UserError
from linnet.model.spec import ModelSpec

ATTEMPTS = 5
MARGIN = 0.97
"""A tightened limit is this much lower than what the last winner asks for: times vary from run to run."""


@dataclass(frozen=True)
class Checked:
    """A result that keeps within its limit when it is run. task: what was asked for, the limit with the others."""

    task: Task
    found: Found
    predicted_s: float
    measured_s: float
    attempts: int


def search_checked(task: Task, limit: Budget, run: Callable[[ModelSpec], float], name: str | None = None) -> Checked:
    """`search` with one budget more, of latency; `run` gives the seconds that a model takes.

    `UserError` where nothing is predicted to meet the limit, or no winner kept it.
    """
    tightened = limit
    for attempt in range(1, ATTEMPTS + 1):
        found = search(replace(task, budgets=[*task.budgets, tightened]), name)
        predicted_s, measured_s = found.values[-1], run(found.model)
        if measured_s <= limit.limit:
            whole = replace(task, budgets=[*task.budgets, limit])
            return Checked(whole, found, predicted_s, measured_s, attempt)
        lower = min(tightened.limit, predicted_s) * MARGIN * limit.limit / measured_s
        option = f"{limit.option} (lowered to {limit.metric.said(lower)}, as the best model so far took longer)"
        tightened = replace(limit, limit=lower, option=option)
    raise UserError(
        f"{limit.option}: the best models took longer when they were run, at last {limit.metric.said(measured_s)};"
        " expected a larger limit, or a machine that does nothing else meanwhile"
    )
