"""Beginnings of models that another makes needless: as good in all that counts, and at the same width.

Whatever follows both, the other's model is then as good and within every limit. That holds for scores that are never
negative and a penalty that falls with depth and rises with the width's term, whichever of its definitions.

Legend: `L` beginnings, `K` what is compared, smaller being better, `M` limited metrics.
"""

import numpy as np

from linnet.design.tables import Indices, Numbers

MOST_COMPARISONS = 30_000_000
"""For each width; beyond it beginnings are kept without a comparison."""


def margins(cost_tables: list[Numbers], limits: list[float], rounding: float) -> Numbers:
    """By how much less one must cost: 0 where sums are of whole numbers, hence exact, in any order. `[M]`."""
    whole = [bool((table == np.round(table)).all()) for table in cost_tables]
    return np.array([0.0 if exact else rounding * abs(limit) for exact, limit in zip(whole, limits, strict=True)])


def needed(width_L: Indices, compared_LK: Numbers, margin_K: Numbers) -> Indices:
    """Rows that no other row of the same width makes needless; of equal ones the first."""
    rows_of = [np.flatnonzero(width_L == width) for width in np.unique(width_L)]
    kept = [rows[_non_dominated(compared_LK[rows], margin_K)] for rows in rows_of]
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)


def _non_dominated(compared_LK: Numbers, margin_K: Numbers) -> Indices:
    order = np.lexsort(compared_LK.T[::-1])
    rest_LK, found, left = compared_LK[order], [], MOST_COMPARISONS
    while len(rest_LK) and left > 0:
        found.append(order[0])
        left -= len(rest_LK)
        apart = ~(rest_LK >= rest_LK[0] + margin_K).all(1)
        apart[0] = False
        rest_LK, order = rest_LK[apart], order[apart]
    return np.append(np.array(found, dtype=np.int64), order)
