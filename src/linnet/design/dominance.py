"""What another makes needless: a row that is smaller nowhere; a beginning of a model, at the same width.

Whatever follows two beginnings, the better one's model is then as good and within every limit. That holds for scores
that are never negative and a penalty that falls with depth and rises with the width's term, whichever its definition.

Legend: `L` rows or beginnings, `K` what is compared, smaller being better, `M` limited metrics.
"""

import math

import numpy as np

from linnet.core.arrays import Indices, Numbers

MOST_COMPARISONS = 30_000_000
"""For each width; beyond it beginnings are kept without a comparison."""


def margins(cost_tables: list[Numbers], limits: list[float], rounding: float) -> Numbers:
    """By how much less one must cost: 0 where sums are of whole numbers, hence exact, in any order. `[M]`."""
    whole = [bool((table == np.round(table)).all()) for table in cost_tables]
    return np.array([0.0 if exact else rounding * abs(limit) for exact, limit in zip(whole, limits, strict=True)])


def needed(width_L: Indices, compared_LK: Numbers, margin_K: Numbers) -> Indices:
    """Rows that no other row of the same width makes needless; of equal ones the first."""
    return np.sort(non_dominated_by_width(width_L, compared_LK, margin_K, MOST_COMPARISONS))


def non_dominated_by_width(
    width_L: Indices, compared_LK: Numbers, margin_K: Numbers | float = 0.0, most: float = math.inf
) -> Indices:
    """`non_dominated` among the rows of each width."""
    rows_of = [np.flatnonzero(width_L == width) for width in np.unique(width_L)]
    kept = [rows[non_dominated(compared_LK[rows], margin_K, most)] for rows in rows_of]
    return np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)


def non_dominated(compared_LK: Numbers, margin_K: Numbers | float = 0.0, most: float = math.inf) -> Indices:
    """Rows than which no other is as small in every column and smaller in one; of equal rows the first.

    margin_K: by how much smaller a row must be at least to count as small. After `most` comparisons the rest stays.
    """
    order = np.argsort(_ranks(compared_LK).sum(1), kind="stable")
    rest_LK, found = compared_LK[order], []
    while len(rest_LK) and most > 0:
        found.append(order[0])
        most -= len(rest_LK)
        apart = ~(rest_LK >= rest_LK[0] + margin_K).all(1)
        apart[0] = False
        rest_LK, order = rest_LK[apart], order[apart]
    return np.append(np.array(found, dtype=np.int64), order)


def _ranks(points: Numbers) -> Indices:
    """The place of each value in its column, the same for equal ones: sums that dominance never turns around."""
    columns = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in points.T]
    return np.stack(columns, axis=1)
