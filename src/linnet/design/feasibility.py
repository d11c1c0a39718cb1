"""Cheapest models and feasibility of budgets, by dynamic programming over the blocks of a model; Pareto dominance.

The cost of a block depends on the width before it alone, so everything that can follow is determined by the width
reached so far.

Legend: `B` blocks of the space, `W` widths, `M` metrics, `N` blocks of a model, `L` labels (prefixes of models) or
rows, `K` compared columns, where smaller is better.
"""

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.core.errors import UserError
from linnet.design.cost_tables import CostTables
from linnet.design.metrics import Budget, Metric
from linnet.design.space import Candidate
from linnet.present import numbers

MAX_COMPARISONS = 30_000_000
"""Comparisons per width; beyond it prefixes are kept without a comparison."""


class UnmetError(UserError):
    """No model of the space is within all budgets."""


def limits(budgets: Sequence[Budget], tables: CostTables) -> Numbers:
    """Return the upper limit of each metric of the tables: `[M]`, infinite without a budget."""
    of_each = ([b.limit for b in budgets if b.metric.name == metric.name] for metric in tables.metrics)
    return np.array([min(most, default=np.inf) for most in of_each])


def find_within_budgets(budgets: Sequence[Budget], tables: CostTables) -> Candidate:
    """Return a model of the space within all budgets; `UnmetError` names the smallest value that could be met."""
    most_M = limits(budgets, tables)
    for index, metric in enumerate(tables.metrics):
        _, least = cheapest(tables, index)
        if least > most_M[index]:
            raise _unmet(budgets, metric, least, tables, "nothing")
    found = find_feasible(tables, most_M)
    if found is not None:
        return found
    # Each budget can be met alone, but not all together: the error states the smallest value for the first of them.
    first = int(np.isfinite(most_M).argmax())
    _, metrics_LM = cheapest_candidates(tables, np.where(np.arange(len(most_M)) == first, np.inf, most_M))
    if len(metrics_LM):
        least = metrics_LM[:, first].min()
        raise _unmet(budgets, tables.metrics[first], least, tables, "within the other budgets nothing")
    options = " ".join(budget.option for budget in budgets)
    raise UnmetError(
        f"{options}: nothing in the space {tables.space.spec.name} meets all of them; each alone can be met"
    )


def _unmet(budgets: Sequence[Budget], metric: Metric, least: float, tables: CostTables, what: str) -> UnmetError:
    option = min((b for b in budgets if b.metric.name == metric.name), key=lambda budget: budget.limit).option
    exact = ms_rounded_up(least) if metric.unit == "seconds" else f"{math.ceil(least):,} {metric.unit}".strip()
    return UnmetError(
        f"{option}: {what} in the space {tables.space.spec.name} meets it; the smallest that could be met is {exact}"
    )


def ms_rounded_up(seconds: float) -> str:
    """Format milliseconds with four digits, rounded up: a limit that a user copies from the message can be met."""
    rounded = Context(prec=4, rounding=ROUND_CEILING).plus(Decimal(seconds * 1e3 * (1 + 1e-12)))
    return f"{numbers.exact(float(rounded))} ms"


def minimum_remaining(tables: CostTables) -> list[Numbers]:
    """Return the least cost of the blocks still missing, by their number and the width reached: `[W, M]` each."""
    rest = [tables.join_metrics_WWM[:, tables.outer]]
    for _ in range(tables.space.spec.blocks):
        after_BM = tables.metrics_BM + rest[-1][tables.width_B]
        rest.append((tables.join_metrics_WWM[:, tables.width_B] + after_BM).min(1))
    return rest


def cheapest(tables: CostTables, metric: int) -> tuple[Candidate, float]:
    """Return a model with the smallest value of a metric, and that value."""
    rest, width, found = minimum_remaining(tables), tables.outer, []
    for missing in range(tables.space.spec.blocks - 1, -1, -1):
        to_come_B = tables.join_metrics_WWM[width, tables.width_B, metric] + tables.metrics_BM[:, metric]
        block = int((to_come_B + rest[missing][tables.width_B, metric]).argmin())
        found.append(block)
        width = int(tables.width_B[block])
    return tuple(found), float(tables.evaluate(np.array([found])).metrics_CM[0, metric])


def find_feasible(tables: CostTables, limits_M: Numbers) -> Candidate | None:
    """Return a model within all limits, or None if there is none."""
    found = [cheapest(tables, index)[0] for index in range(len(tables.metrics))]
    if not found:
        return (0,) * tables.space.spec.blocks
    within = (tables.evaluate(np.array(found)).metrics_CM <= limits_M).all(1)
    if within.any():
        return found[int(within.argmax())]
    models_LN, _ = cheapest_candidates(tables, limits_M)
    return tuple(int(block) for block in models_LN[0]) if len(models_LN) else None


def cheapest_candidates(tables: CostTables, limits_M: Numbers) -> tuple[Indices, Numbers]:
    """Return the models within the limits that no other undercuts in every metric: `[L, N]`, and metrics `[L, M]`."""
    rest = minimum_remaining(tables)
    models_LN = np.zeros((1, 0), dtype=np.int64)
    metrics_LM, width_L = tables.fixed_metrics_M[None], np.array([tables.outer])
    for missing in range(tables.space.spec.blocks - 1, -1, -1):
        longer = metrics_LM[:, None] + tables.join_metrics_WWM[width_L][:, tables.width_B] + tables.metrics_BM
        within = (longer + rest[missing][tables.width_B] <= limits_M).all(-1)
        label, block = within.nonzero()
        models_LN = np.hstack([models_LN[label], block[:, None]])
        metrics_LM, width_L = longer[label, block], tables.width_B[block]
        kept = non_dominated_by_width(width_L, metrics_LM)
        models_LN, metrics_LM, width_L = models_LN[kept], metrics_LM[kept], width_L[kept]
    metrics_LM = metrics_LM + tables.join_metrics_WWM[width_L, tables.outer]
    kept = non_dominated(metrics_LM)
    return models_LN[kept], metrics_LM[kept]


def margins(cost_tables: list[Numbers], limits: list[float], rounding: float) -> Numbers:
    """Return by how much one row must be cheaper to dominate: 0 for whole numbers, whose sums are exact. `[M]`."""
    whole = [bool((table == np.round(table)).all()) for table in cost_tables]
    return np.array([0.0 if exact else rounding * abs(limit) for exact, limit in zip(whole, limits, strict=True)])


def non_dominated_by_width(
    width_L: Indices, compared_LK: Numbers, margin_K: Numbers | float = 0.0, most: float = math.inf
) -> Indices:
    """Apply `non_dominated` among the rows of each width.

    Whatever follows two prefixes of equal width, the better prefix gives a model that is at least as good and within
    every limit: scores are never negative, and the penalty falls with depth and rises with the width term.
    """
    rows_of = [np.flatnonzero(width_L == width) for width in np.unique(width_L)]
    kept = [rows[non_dominated(compared_LK[rows], margin_K, most)] for rows in rows_of]
    return np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)


def non_dominated(compared_LK: Numbers, margin_K: Numbers | float = 0.0, most: float = math.inf) -> Indices:
    """Return the rows than which no other is as small in every column and smaller in one; of equal rows the first.

    margin_K: by how much smaller a row must be to count as small. After `most` comparisons the remaining rows stay.
    """
    # The sum of ranks orders rows so that a dominated row never comes before the row that dominates it.
    columns = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in compared_LK.T]
    order = np.argsort(np.stack(columns, axis=1).sum(1), kind="stable")
    rest_LK, found = compared_LK[order], []
    while len(rest_LK) and most > 0:
        found.append(order[0])
        most -= len(rest_LK)
        apart = ~(rest_LK >= rest_LK[0] + margin_K).all(1)
        apart[0] = False
        rest_LK, order = rest_LK[apart], order[apart]
    return np.append(np.array(found, dtype=np.int64), order)
