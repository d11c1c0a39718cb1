"""Approach 1: the lower envelope of all training curves (Hoffmann et al., section 3.1).

Legend: `M` budgets, `R` runs, `T` points of a curve.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.scaling.counts import Counting
from linnet.scaling.frontier import Frontier, NotPossibleError
from linnet.scaling.points import Run

BUDGETS = 1500
"""As many as in the paper, evenly spaced in the logarithm."""

LEAST_SIZES = 3


def envelope(runs: Sequence[Run], counted: Counting, budgets: int = BUDGETS) -> Frontier:
    """At each budget the run with the lowest loss, read off its curve.

    A budget counts only where runs both smaller and larger than the best one were measured as well: else the best size
    may be one that nobody tried. `NotPossibleError` says what is missing.
    """
    curves = [run for run in runs if len(run.tokens_T) > 1]
    sizes = np.array([run.parameters[counted] for run in curves])
    if len(np.unique(sizes)) < LEAST_SIZES:
        raise NotPossibleError(
            f"needs the loss along the training of at least {LEAST_SIZES} sizes (folders of runs, or a column run in"
            f" the CSV file); there are curves of {len(np.unique(sizes))}"
        )
    ends = [run.flops_T[[0, -1]] for run in curves]
    flops_M = np.geomspace(min(end[0] for end in ends), max(end[1] for end in ends), budgets)
    loss_RM = np.stack([_along(run, run.loss_T, flops_M) for run in curves])
    best_M = loss_RM.argmin(axis=0)
    inner_M = _between(loss_RM, sizes, best_M)
    if len(np.unique(sizes[best_M[inner_M]])) < 2:
        raise NotPossibleError(
            "needs budgets at which the best of the sizes lies between a smaller and a larger one, for two best sizes"
        )
    tokens_RM = np.stack([_along(run, run.tokens_T, flops_M) for run in curves])
    at = best_M[inner_M], np.flatnonzero(inner_M)
    return Frontier(flops_M[inner_M], sizes[at[0]], tokens_RM[at], loss_RM[at])


def _along(run: Run, values_T: Numbers, flops_M: Numbers) -> Numbers:
    """Values along a run's curve, between its points in the logarithm of the FLOPs; infinite beyond its ends."""
    return np.interp(np.log(flops_M), np.log(run.flops_T), values_T, left=np.inf, right=np.inf)


def _between(loss_RM: Numbers, sizes: Numbers, best_M: NDArray[np.intp]) -> NDArray[np.bool_]:
    known_RM = np.isfinite(loss_RM)
    largest_M = np.where(known_RM, sizes[:, None], -np.inf).max(axis=0)
    smallest_M = np.where(known_RM, sizes[:, None], np.inf).min(axis=0)
    inner_M: NDArray[np.bool_] = (smallest_M < sizes[best_M]) & (sizes[best_M] < largest_M)
    return inner_M
