"""A search under a limit of time: the winner is run, and the limit tightened where it takes longer than promised.

PartTimes scatter. The winner is run in several rounds, and between them its parts are timed again, so that both see the
same machine. Other programs can only make something slower: the fastest round counts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from linnet.core.errors import UserError
from linnet.design.budget import Budget, UnmetError
from linnet.design.search import SearchResult, SearchTask, search
from linnet.model.spec import ModelSpec

ATTEMPTS = 8
ROUNDS = 5
MARGIN = 0.97
"""A tightened limit is this much lower than what the last winner asks for: times vary from run to run."""


@dataclass(frozen=True)
class LatencyResult:
    """A result that keeps within its limit when it is run.

    task: what was asked for, the limit with the others. found: with the measured time as its latency. predicted_s: by
    all timings of its parts. rounds_s: the median of each round.
    """

    task: SearchTask
    found: SearchResult
    predicted_s: float
    rounds_s: list[float]
    attempts: int

    @property
    def measured_s(self) -> float:
        """Of the fastest round."""
        return min(self.rounds_s)


def search_with_latency(
    task: SearchTask,
    limit: Budget,
    run: Callable[[ModelSpec], float],
    again: Callable[[ModelSpec], None],
    name: str | None = None,
) -> LatencyResult:
    """`search` with one budget more, of latency; `run` gives the seconds that a model takes, `again` times its parts
    once more, which changes what the budget's metric says.

    `UserError` where nothing is predicted to meet the limit, or no winner kept it.
    """
    tightened, last = limit, None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            found = search(replace(task, budgets=[*task.budgets, tightened]), name)
        except UnmetError:
            if last is None:
                raise
            break  # nothing else is predicted to be as fast as would be needed
        last = _checked(task, limit, found, run, again, attempt)
        if last.measured_s <= limit.limit:
            return last
        late = max(1.0, last.measured_s / last.predicted_s / MARGIN)
        tightened = replace(limit, limit=min(tightened.limit, limit.limit / late))
    assert last is not None
    said = limit.metric.format
    raise UserError(
        f"{limit.option}: no model kept it when it was run; the last of {last.attempts} was predicted to take"
        f" {said(last.predicted_s)} and took {said(last.measured_s)} to {said(max(last.rounds_s))} in"
        f" {len(last.rounds_s)} rounds; expected a larger limit, or a machine that does nothing else meanwhile"
    )


def _checked(
    task: SearchTask,
    limit: Budget,
    found: SearchResult,
    run: Callable[[ModelSpec], float],
    again: Callable[[ModelSpec], None],
    attempt: int,
) -> LatencyResult:
    rounds_s = []
    for _ in range(ROUNDS):
        rounds_s.append(run(found.model))
        again(found.model)
    of_model = replace(found, values=[*found.values[:-1], min(rounds_s)])
    whole = replace(task, budgets=[*task.budgets, limit])
    return LatencyResult(whole, of_model, limit.metric.of_model(found.model), rounds_s, attempt)
