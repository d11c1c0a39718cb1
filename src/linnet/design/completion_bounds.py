"""Upper bounds on the score of a partial model: the most that the missing blocks can gain within the limits.

Each limited metric is taken alone, and all together: a weighted sum of metrics is within the same sum of their limits.
Such a surrogate constraint (Glover, 1968) is tighter than the single limits. Its weights are the multipliers of the
Lagrangian dual, found by subgradient steps (Held, Wolfe and Crowder, 1974). Any weights are valid: they affect how much
is pruned, not what is found.

Legend: `B` blocks of the space, `W` widths, `M` limited metrics, `L` partial models, `J` steps of a step function.
"""

from typing import NamedTuple

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.design.cost_tables import CostTables

STEPS = 200
FIRST_STEP, SHRINKS = 0.3, 0.97
"""Subgradient steps: the first as a share of the highest score without limits, each as a share of the one before."""

MAX_STEPS = 4096
"""Steps of a step function; a finer one is coarsened so that it overstates what can be gained, never understates."""

TINY = 1e-300
ROUNDING = 1e-12
"""Relative; sums of measured times differ in the last digits with their order."""


class Limit(NamedTuple):
    """One limited metric: cost of the blocks, of the joins between widths, and the limit without the fixed part."""

    cost_B: Numbers
    join_WW: Numbers
    limit: float


class StepFunction(NamedTuple):
    """The most that a completion can gain, in score or width, for at most a given cost: both `[J]`, ascending."""

    cost_J: Numbers
    gain_J: Numbers

    def best(self, room: Numbers) -> Numbers:
        """Return the largest gain for each room; minus infinity where nothing fits."""
        place = np.searchsorted(self.cost_J, room, side="right")
        return np.where(place > 0, self.gain_J[np.maximum(place - 1, 0)], -np.inf)

    @classmethod
    def of(cls, cost: Numbers, gain: Numbers) -> "StepFunction":
        """Keep the points that nothing cheaper beats."""
        order = np.lexsort((-gain, cost))
        cost, gain = cost[order], gain[order]
        better = np.append(True, gain[1:] > np.maximum.accumulate(gain)[:-1])[: len(gain)]
        cost, gain = cost[better], gain[better]
        if len(cost) <= MAX_STEPS:
            return cls(cost, gain)
        first = np.linspace(0, len(cost), MAX_STEPS, endpoint=False).astype(int)
        last = np.append(first[1:], len(cost)) - 1
        return cls(cost[first], gain[last])


def limited_metrics(tables: CostTables, limits_M: Numbers) -> list[Limit]:
    """Return the metrics that have a limit; if none has, one that costs nothing."""
    found = [
        Limit(tables.metrics_BM[:, index], tables.join_metrics_WWM[:, :, index], limit - tables.fixed_metrics_M[index])
        for index, limit in enumerate(limits_M)
        if limit < np.inf
    ]
    return found or [Limit(np.zeros(len(tables.width_B)), np.zeros_like(tables.join_score_WW), 0.0)]


def joint_metric(tables: CostTables, metrics: list[Limit]) -> list[Limit]:
    """Return the weighted sum of the metrics; nothing if it equals one of them, or one limit can never be met."""
    if any(metric.limit <= 0 for metric in metrics):
        return []
    weights_M = multipliers(tables, metrics)
    if (weights_M > 0).sum() < 2:
        return []
    shares = [weight / metric.limit for weight, metric in zip(weights_M, metrics, strict=True)]
    cost_B = sum(share * metric.cost_B for share, metric in zip(shares, metrics, strict=True))
    join_WW = sum(share * metric.join_WW for share, metric in zip(shares, metrics, strict=True))
    return [Limit(np.asarray(cost_B), np.asarray(join_WW), float(weights_M.sum()))]


def multipliers(tables: CostTables, metrics: list[Limit]) -> Numbers:
    """Return the price of each limit in score, each metric measured as a share of its limit: `[M]`."""
    cost_BM = np.stack([metric.cost_B / metric.limit for metric in metrics], axis=1)
    join_WWM = np.stack([metric.join_WW / metric.limit for metric in metrics], axis=2)
    weights_M = np.zeros(len(metrics))
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
    """Return the highest score where metrics are paid for instead of limited, and the metrics of that model."""
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


def best_completions(
    tables: CostTables, metric: Limit, gain_B: Numbers, join_gain_WW: Numbers
) -> list[list[StepFunction]]:
    """Return the most that completions can gain, by the number of missing blocks and the width reached."""
    widths, outer = range(len(join_gain_WW)), [tables.outer]
    found = [[StepFunction.of(metric.join_WW[w, outer], join_gain_WW[w, outer]) for w in widths]]
    for _ in range(tables.space.spec.blocks):
        # First the blocks of each width with the best continuation behind them, then the joins that lead to that width.
        from_width = []
        for width in widths:
            blocks, rest = np.flatnonzero(tables.width_B == width), found[-1][width]
            costs, gains = metric.cost_B[blocks, None] + rest.cost_J, gain_B[blocks, None] + rest.gain_J
            from_width.append(StepFunction.of(costs.ravel(), gains.ravel()))
        joined = []
        for width in widths:
            cost_J = [cost + steps.cost_J for cost, steps in zip(metric.join_WW[width], from_width, strict=True)]
            gain_J = [gain + steps.gain_J for gain, steps in zip(join_gain_WW[width], from_width, strict=True)]
            joined.append(StepFunction.of(np.concatenate(cost_J), np.concatenate(gain_J)))
        found.append(joined)
    return found


class CompletionBound:
    """Upper bound on the score of any completion of a partial model; exact for a complete model.

    metrics: the `limited` ones, followed by their weighted sum, if any.
    """

    def __init__(self, tables: CostTables, limits_M: Numbers) -> None:
        limited = limited_metrics(tables, limits_M)
        self.tables, self.limited, self.metrics = tables, len(limited), limited + joint_metric(tables, limited)
        no_join = np.zeros_like(tables.join_score_WW)
        self.scores = [best_completions(tables, m, tables.score_B, tables.join_score_WW) for m in self.metrics]
        self.terms = [best_completions(tables, m, tables.term_B, no_join) for m in self.metrics]
        self.fewest, self.most = int(tables.depth_B.min()), int(tables.depth_B.max())
        self.smallest_counts = tables.settings.width == "minimum"
        layers = 1.0 if self.smallest_counts else tables.depth_B
        self.widest_layer = float((tables.term_B / layers).max())

    def of(
        self, missing: int, width_L: Indices, costs_LM: Numbers, score_L: Numbers, depth_L: Numbers, term_L: Numbers
    ) -> Numbers:
        """Return the highest score with `missing` more blocks; minus infinity if no completion meets every limit."""
        bound_L = np.full(len(width_L), -np.inf)
        for width in np.unique(width_L):
            rows = np.flatnonzero(width_L == width)
            rooms = [m.limit * (1 + ROUNDING) - costs_LM[rows, index] for index, m in enumerate(self.metrics)]
            total = score_L[rows] + _most(self.scores, missing, width, rooms)
            if self.tables.beta:
                term = _most(self.terms, missing, width, rooms)
                penalty = self._penalty(missing, depth_L[rows], term_L[rows], term)
                total = np.where(total > -np.inf, total, 0.0) * penalty + np.where(total > -np.inf, 0.0, -np.inf)
            bound_L[rows] = total
        return bound_L

    def _penalty(self, missing: int, depth_L: Numbers, term_L: Numbers, more_L: Numbers) -> Numbers:
        """Return the weakest penalty over the number of layers to come, all as wide as the limits allow in total."""
        fewest, most = missing * self.fewest, missing * self.most
        if self.smallest_counts:
            return self.tables.penalty(depth_L + fewest, np.minimum(term_L, self.widest_layer))
        more_L = np.maximum(more_L, 0.0)
        used_up_L = more_L / max(self.widest_layer, TINY)
        # The number n of widest layers that weakens the penalty most; fractions are allowed in a bound. Depth over
        # width, d^2 / (t + w n) for the mean and d exp(-(t + w n) / d) for the geometric mean, with d = depth + n,
        # falls up to one n and rises from there.
        if self.tables.settings.width == "mean":
            best_L = depth_L - 2 * term_L / self.widest_layer
        else:
            best_L = (self.widest_layer - 1) * depth_L - term_L
        layers_L = np.clip(np.minimum(best_L, used_up_L), fewest, most)
        return self.tables.penalty(depth_L + layers_L, term_L + np.minimum(more_L, layers_L * self.widest_layer))


def _most(completions: list[list[list[StepFunction]]], missing: int, width: int, rooms: list[Numbers]) -> Numbers:
    """Return the minimum over the metrics of what each alone allows."""
    each = [steps[missing][width].best(room) for steps, room in zip(completions, rooms, strict=True)]
    most: Numbers = np.min(each, axis=0)
    return most
