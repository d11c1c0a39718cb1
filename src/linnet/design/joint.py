"""Limits of several metrics taken together: a weighted sum of metrics keeps within the same sum of their limits.

Such a surrogate constraint (Glover, 1968) says what no metric says for itself. Its weights are the multipliers of the
Lagrangian dual, by subgradient steps (Held, Wolfe and Crowder, 1974). Any weights are allowed: they decide how much is
left out, not what is found.

Legend: `B` blocks of the space, `W` widths, `M` limited metrics.
"""

from typing import NamedTuple

import numpy as np

from linnet.core.arrays import Numbers
from linnet.design.cost_tables import CostTables

STEPS = 200
FIRST_STEP, SHRINKS = 0.3, 0.97
"""Of the steps: the first, as a share of the highest score without limits, and each as a share of the one before."""


class Single(NamedTuple):
    """One metric, taken for itself: `cost_B` of the blocks, `join_WW` between widths, and the limit, fixed part off."""

    cost_B: Numbers
    join_WW: Numbers
    limit: float


def joint_metric(tables: CostTables, singles: list[Single]) -> list[Single]:
    """The weighted sum of the metrics; nothing where it is no more than one of them, or one can never be met."""
    if any(single.limit <= 0 for single in singles):
        return []
    weights_M = multipliers(tables, singles)
    if (weights_M > 0).sum() < 2:
        return []
    shares = [weight / single.limit for weight, single in zip(weights_M, singles, strict=True)]
    cost_B = sum(share * single.cost_B for share, single in zip(shares, singles, strict=True))
    join_WW = sum(share * single.join_WW for share, single in zip(shares, singles, strict=True))
    return [Single(np.asarray(cost_B), np.asarray(join_WW), float(weights_M.sum()))]


def multipliers(tables: CostTables, singles: list[Single]) -> Numbers:
    """What each limit costs the score, each metric counted as its share of its limit: `[M]`."""
    cost_BM = np.stack([single.cost_B / single.limit for single in singles], axis=1)
    join_WWM = np.stack([single.join_WW / single.limit for single in singles], axis=2)
    weights_M = np.zeros(len(singles))
    value, _ = _relaxed(tables, cost_BM, join_WWM, weights_M)
    step, best, found_M = FIRST_STEP * value, np.inf, weights_M
    for _ in range(STEPS):
        value, used_M = _relaxed(tables, cost_BM, join_WWM, weights_M)
        if value < best:
            best, found_M = value, weights_M
        slope_M = 1 - used_M
        weights_M = np.maximum(0.0, weights_M - step * slope_M / max(float(np.linalg.norm(slope_M)), 1e-30))
        step *= SHRINKS
    return found_M


def _relaxed(tables: CostTables, cost_BM: Numbers, join_WWM: Numbers, weights_M: Numbers) -> tuple[float, Numbers]:
    """The highest score where metrics are not limited but paid for, and the metrics of the model that has it."""
    gain_B, gain_WW = tables.score_B - cost_BM @ weights_M, tables.join_score_WW - join_WWM @ weights_M
    value_W, used_WM = gain_WW[:, tables.outer], join_WWM[:, tables.outer]
    widths = np.arange(len(value_W))
    of_width = [np.flatnonzero(tables.width_B == width) for width in widths]
    for _ in range(tables.space.spec.blocks):
        best_B = np.array([blocks[gain_B[blocks].argmax()] if len(blocks) else -1 for blocks in of_width])
        ahead_W = np.where(best_B >= 0, gain_B[best_B] + value_W, -np.inf)
        next_W = (gain_WW + ahead_W).argmax(1)
        value_W = gain_WW[widths, next_W] + ahead_W[next_W]
        used_WM = join_WWM[widths, next_W] + cost_BM[best_B[next_W]] + used_WM[next_W]
    return float(value_W[tables.outer] + weights_M.sum()), used_WM[tables.outer]
