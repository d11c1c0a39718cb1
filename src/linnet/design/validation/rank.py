"""Rank correlations from the signs of all differences, with bootstrap intervals.

With `S_ij = sign(x_i - x_j)`: Kendall's tau-b is the cosine between two such matrices; a row's sum is twice its rank
but for a constant, equal values having the mean of their ranks, so Spearman's rho is the correlation of row sums.

Legend: `N` models.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linnet.core.arrays import Indices, Numbers

INTERVAL = (2.5, 97.5)
"""Percentiles of the resampled values."""


class Correlations(NamedTuple):
    """Spearman's rho and Kendall's tau-b; 0 where all values of one side are equal."""

    spearman: float
    kendall: float


def signs(x_N: Numbers) -> Numbers:
    """The sign of every difference, `[N, N]`."""
    return np.sign(x_N[:, None] - x_N)


def correlations(x_NN: Numbers, y_NN: Numbers) -> Correlations:
    """From the signs of both."""
    return Correlations(_cosine(x_NN.sum(1), y_NN.sum(1)), _cosine(x_NN.ravel(), y_NN.ravel()))


def _cosine(x: Numbers, y: Numbers) -> float:
    length = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / length if length else 0.0


def windows(order_by_N: Numbers, size: int) -> list[Indices]:
    """Neighbours in `order_by`: `size` at a time, each window sharing half of its models with the next."""
    order, count = np.argsort(order_by_N, kind="stable"), len(order_by_N)
    if count <= size:
        return [order]
    starts = list(range(0, count - size + 1, max(1, size // 2)))
    if starts[-1] + size < count:
        starts.append(count - size)
    return [order[start : start + size] for start in starts]


def regret(score_N: Numbers, loss_N: Numbers) -> float:
    """How much the model that the score likes best lost against the best one; the mean over its equals."""
    return max(0.0, float(loss_N[score_N == score_N.max()].mean() - loss_N.min()))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)
