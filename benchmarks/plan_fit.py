"""Approach 3 of `linnet plan fit` from the paper's 4,500 starts against SciPy's L-BFGS-B, one start after another.

240 points: `scaling/chinchilla_points.csv` in `$LINNET_DATA` without its five highest losses, else 240 synthetic ones.
`python benchmarks/plan_fit.py`
"""

import os
from pathlib import Path

import numpy as np
import scipy
from scipy.optimize import minimize

from harness import contest, gate, report, threads_from_command_line
from linnet.scaling.law import read_law
from linnet.scaling.parametric import HuberSum, fit, grid
from linnet.scaling.runs import Points, read_run_table, without_highest

SYNTHETIC = 240
LIMIT_S = 60


def points() -> tuple[str, Points]:
    """Return the origin of the points, and the points."""
    path = Path(os.environ.get("LINNET_DATA", ".")) / "scaling" / "chinchilla_points.csv"
    if path.is_file():
        return path.name, Points.of(without_highest(read_run_table(path), 5), "total")
    random = np.random.default_rng(0)
    parameters = np.exp(random.uniform(np.log(6e7), np.log(2e10), SYNTHETIC))
    tokens = parameters * np.exp(random.uniform(np.log(2), np.log(200), SYNTHETIC))
    loss = read_law("replication").loss(parameters, tokens) * np.exp(0.005 * random.standard_t(3, SYNTHETIC))
    return "synthetic, by the replication's law", Points(parameters, tokens, 6 * parameters * tokens, loss)


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__, runs=1)
    origin, some = points()
    objective, row = HuberSum.of(some), np.array([0])
    starts = objective.center(grid())
    tight = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 10_000, "maxfun": 20_000}

    def one(x_5: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(x_5[None], row)
        return value[0], gradient[0]

    def theirs() -> list[float]:
        return [minimize(one, start, jac=True, method="L-BFGS-B", options=tight).fun for start in starts]

    mine, lowest = fit(some).objective, min(theirs())
    gate("global optimum", mine <= lowest * (1 + 1e-9), f"{mine:.12g}; SciPy's best of all starts {lowest:.12g}")
    result = contest(lambda: fit(some), theirs, runs, warm_up=0).summary()
    shape = f"{len(some)} points, {len(starts):,} starts, {origin}"
    against = f"SciPy {scipy.__version__}, L-BFGS-B, tight, each start by itself, the same objective and gradient"
    within = {"limit_s": LIMIT_S, "within_limit": result["ours_median_s"] < LIMIT_S}
    report("plan_fit", {"shape": shape, "against": against, **within, **result})


if __name__ == "__main__":
    main()
