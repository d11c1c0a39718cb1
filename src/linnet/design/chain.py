"""What is cheapest, and whether budgets can be met together: dynamic programmes over the blocks of a model.

The cost of a block depends on the width before it alone, so what comes next is decided by the width reached so far.

Legend: `B` blocks of the space, `W` widths, `M` metrics, `N` blocks of a model, `L` labels (beginnings of models).
"""

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.design.cost_tables import CostTables
from linnet.design.dominance import non_dominated, non_dominated_by_width
from linnet.design.space import Candidate


def minimum_remaining(tables: CostTables) -> list[Numbers]:
    """What is still to come at least, by the number of blocks that are missing and the width reached: `[W, M]` each."""
    rest = [tables.join_metrics_WWM[:, tables.outer]]
    for _ in range(tables.space.spec.blocks):
        after_BM = tables.metrics_BM + rest[-1][tables.width_B]
        rest.append((tables.join_metrics_WWM[:, tables.width_B] + after_BM).min(1))
    return rest


def cheapest(tables: CostTables, metric: int) -> Candidate:
    """A model of which a metric is smallest."""
    rest, width, found = minimum_remaining(tables), tables.outer, []
    for missing in range(tables.space.spec.blocks - 1, -1, -1):
        to_come_B = tables.join_metrics_WWM[width, tables.width_B, metric] + tables.metrics_BM[:, metric]
        block = int((to_come_B + rest[missing][tables.width_B, metric]).argmin())
        found.append(block)
        width = int(tables.width_B[block])
    return tuple(found)


def find_feasible(tables: CostTables, limits_M: Numbers) -> Candidate | None:
    """A model within all limits; None where there is none."""
    found = [cheapest(tables, index) for index in range(len(tables.metrics))]
    if not found:
        return (0,) * tables.space.spec.blocks
    within = (tables.evaluate(np.array(found)).metrics_CM <= limits_M).all(1)
    if within.any():
        return found[int(within.argmax())]
    models_LN, _ = cheapest_candidates(tables, limits_M)
    return tuple(int(block) for block in models_LN[0]) if len(models_LN) else None


def smallest(tables: CostTables, metric: int) -> float:
    """The least that a metric can be."""
    return float(tables.evaluate(np.array([cheapest(tables, metric)])).metrics_CM[0, metric])


def cheapest_candidates(tables: CostTables, limits_M: Numbers) -> tuple[Indices, Numbers]:
    """Models within the limits that no other undercuts in every metric: `[L, N]`, and their metrics `[L, M]`."""
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
