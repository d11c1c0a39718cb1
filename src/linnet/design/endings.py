"""What a beginning of a model can still become: the most that the blocks still missing can gain, for what they cost.

Each limited metric is taken for itself, and all together: a weighted sum of metrics keeps within the same sum of their
limits. Such a surrogate constraint (Glover, 1968) says what no metric says for itself. Its weights are the multipliers
of the Lagrangian dual, by subgradient steps (Held, Wolfe and Crowder, 1974). Any weights are allowed: they decide how
much is left out, not what is found.

Legend: `B` blocks of the space, `W` widths, `M` limited metrics, `L` beginnings of models, `J` steps of a table.
"""

from typing import NamedTuple

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.design.cost_tables import CostTables

STEPS = 200
FIRST_STEP, SHRINKS = 0.3, 0.97
"""Of the steps: the first, as a share of the highest score without limits, and each as a share of the one before."""


class Limit(NamedTuple):
    """One metric, taken for itself: `cost_B` of the blocks, `join_WW` between widths, and the limit, fixed part off."""

    cost_B: Numbers
    join_WW: Numbers
    limit: float


def joint_metric(tables: CostTables, singles: list[Limit]) -> list[Limit]:
    """The weighted sum of the metrics; nothing where it is no more than one of them, or one can never be met."""
    if any(single.limit <= 0 for single in singles):
        return []
    weights_M = multipliers(tables, singles)
    if (weights_M > 0).sum() < 2:
        return []
    shares = [weight / single.limit for weight, single in zip(weights_M, singles, strict=True)]
    cost_B = sum(share * single.cost_B for share, single in zip(shares, singles, strict=True))
    join_WW = sum(share * single.join_WW for share, single in zip(shares, singles, strict=True))
    return [Limit(np.asarray(cost_B), np.asarray(join_WW), float(weights_M.sum()))]


def multipliers(tables: CostTables, singles: list[Limit]) -> Numbers:
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


MOST_STEPS = 4096
"""Of a table; a finer one is made coarser, so that it promises more than there is, never less."""

TINY = 1e-300

ROUNDING = 1e-12
"""Relative; sums of measured times differ in the last digits with their order."""


class Steps(NamedTuple):
    """The most that an ending can gain, of score or of width, for at most so much: both `[J]`, ascending."""

    cost_J: Numbers
    gain_J: Numbers

    def best(self, room: Numbers) -> Numbers:
        """For each room the most; minus infinity where nothing fits."""
        place = np.searchsorted(self.cost_J, room, side="right")
        return np.where(place > 0, self.gain_J[np.maximum(place - 1, 0)], -np.inf)


def limited_metrics(tables: CostTables, limits_M: Numbers) -> list[Limit]:
    """The metrics that have a limit; where none has, one that costs nothing."""
    singles = [
        Limit(tables.metrics_BM[:, index], tables.join_metrics_WWM[:, :, index], limit - tables.fixed_metrics_M[index])
        for index, limit in enumerate(limits_M)
        if limit < np.inf
    ]
    return singles or [Limit(np.zeros(len(tables.width_B)), np.zeros_like(tables.join_score_WW), 0.0)]


def best_completions(tables: CostTables, metric: Limit, gain_B: Numbers, join_gain_WW: Numbers) -> list[list[Steps]]:
    """The most that endings can gain, by the number of blocks that are missing and the width reached."""
    widths, outer = range(len(join_gain_WW)), [tables.outer]
    found = [[_steps(metric.join_WW[w, outer], join_gain_WW[w, outer]) for w in widths]]
    for _ in range(tables.space.spec.blocks):
        from_width = []
        for width in widths:
            blocks, rest = np.flatnonzero(tables.width_B == width), found[-1][width]
            costs, gains = metric.cost_B[blocks, None] + rest.cost_J, gain_B[blocks, None] + rest.gain_J
            from_width.append(_steps(costs.ravel(), gains.ravel()))
        found.append([_behind_joins(metric.join_WW[width], join_gain_WW[width], from_width) for width in widths])
    return found


def _behind_joins(cost_W: Numbers, gain_W: Numbers, from_width: list[Steps]) -> Steps:
    """From one width to any, then on from there."""
    costs = [cost + steps.cost_J for cost, steps in zip(cost_W, from_width, strict=True)]
    gains = [gain + steps.gain_J for gain, steps in zip(gain_W, from_width, strict=True)]
    return _steps(np.concatenate(costs), np.concatenate(gains))


def _steps(cost: Numbers, gain: Numbers) -> Steps:
    """What nothing cheaper beats."""
    order = np.lexsort((-gain, cost))
    cost, gain = cost[order], gain[order]
    better = np.append(True, gain[1:] > np.maximum.accumulate(gain)[:-1])[: len(gain)]
    cost, gain = cost[better], gain[better]
    if len(cost) <= MOST_STEPS:
        return Steps(cost, gain)
    first = np.linspace(0, len(cost), MOST_STEPS, endpoint=False).astype(int)
    last = np.append(first[1:], len(cost)) - 1
    return Steps(cost[first], gain[last])


class CompletionBound:
    """What a beginning of a model can still become, at best; exact for one that is complete.

    metrics: the `limited` ones, and behind them what joins them.
    """

    def __init__(self, tables: CostTables, limits_M: Numbers) -> None:
        singles = limited_metrics(tables, limits_M)
        self.tables, self.limited, self.metrics = tables, len(singles), singles + joint_metric(tables, singles)
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
        """The highest score for `missing` blocks more; minus infinity where no ending keeps within every limit."""
        promised_L = np.full(len(width_L), -np.inf)
        for width in np.unique(width_L):
            rows = np.flatnonzero(width_L == width)
            rooms = [m.limit * (1 + ROUNDING) - costs_LM[rows, index] for index, m in enumerate(self.metrics)]
            total = score_L[rows] + _most(self.scores, missing, width, rooms)
            if self.tables.beta:
                term = _most(self.terms, missing, width, rooms)
                penalty = self._penalty(missing, depth_L[rows], term_L[rows], term)
                total = np.where(total > -np.inf, total, 0.0) * penalty + np.where(total > -np.inf, 0.0, -np.inf)
            promised_L[rows] = total
        return promised_L

    def _penalty(self, missing: int, depth_L: Numbers, term_L: Numbers, more_L: Numbers) -> Numbers:
        """The weakest that any number of layers to come allows: as wide as can be, and as the limits allow in all."""
        fewest, most = missing * self.fewest, missing * self.most
        if self.smallest_counts:
            return self.tables.penalty(depth_L + fewest, np.minimum(term_L, self.widest_layer))
        more_L = np.maximum(more_L, 0.0)
        used_up_L = more_L / max(self.widest_layer, TINY)
        layers_L = np.clip(np.minimum(self._best_layers(depth_L, term_L), used_up_L), fewest, most)
        return self.tables.penalty(depth_L + layers_L, term_L + np.minimum(more_L, layers_L * self.widest_layer))

    def _best_layers(self, depth_L: Numbers, term_L: Numbers) -> Numbers:
        """How many of the widest layers weaken the penalty most; parts of a layer are allowed, as this is a promise.

        Depth over width, `d^2 / (t + w n)` of the mean and `d exp(-(t + w n) / d)` of the geometric mean, with
        `d = depth + n`, falls up to one n and rises from there on.
        """
        if self.tables.settings.width == "mean":
            return depth_L - 2 * term_L / self.widest_layer
        return (self.widest_layer - 1) * depth_L - term_L


def _most(endings: list[list[list[Steps]]], missing: int, width: int, rooms: list[Numbers]) -> Numbers:
    """What every metric, taken for itself, allows."""
    each = [steps[missing][width].best(room) for steps, room in zip(endings, rooms, strict=True)]
    most: Numbers = np.min(each, axis=0)
    return most
