"""The optimum of MeRino's space, compared with SciPy's mixed-integer program (HiGHS), for a score without a penalty.

With a penalty for depth the score is a product, for which such a programme has no word. One core.
`python benchmarks/design_milp.py`
"""

import os
import statistics

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import numpy as np
import scipy
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from design import BUDGETS, tables_of
from harness import contest, gate, report, threads_from_command_line
from linnet.design.cost_tables import CostTables
from linnet.design.optimum import optimum
from linnet.design.space import load_space

SCORE = "entropy_beta_0"
LIMIT_S = 5


def flows(tables: CostTables) -> sparse.csr_matrix:
    """The unknowns that leave and reach each width between two blocks, `[(N + 1) * W * 2, N * B + (N + 1) * W * W]`.

    The unknowns: for each of N places a binary of each of B blocks, then for each of the N + 1 joins the W x W widths.
    """
    places, widths = tables.space.spec.blocks, len(tables.join_score_WW)
    of_width_WB = (np.arange(widths)[:, None] == tables.width_B).astype(float)
    from_WJ, to_WJ = np.kron(np.eye(widths), np.ones(widths)), np.kron(np.ones(widths), np.eye(widths))
    rows = []
    for join in range(places + 1):
        for place, of_join_WJ in ((join - 1, from_WJ), (join, to_WJ)):
            blocks = [-of_width_WB if at == place else np.zeros_like(of_width_WB) for at in range(places)]
            joins = [of_join_WJ if at == join else np.zeros_like(of_join_WJ) for at in range(places + 1)]
            rows.append(np.hstack([*blocks, *joins]))
    return sparse.csr_matrix(np.vstack(rows))


def by_milp(tables: CostTables, limits_M: np.ndarray) -> float:
    """The highest score within the limits."""
    places, widths = tables.space.spec.blocks, len(tables.join_score_WW)

    def of_all(of_block_B: np.ndarray, of_join_WW: np.ndarray) -> np.ndarray:
        return np.concatenate([np.tile(of_block_B, places), np.tile(of_join_WW.ravel(), places + 1)])

    outer_W = (np.arange(widths) == tables.outer).astype(float)
    ends = np.concatenate([outer_W, np.zeros(2 * places * widths), outer_W])
    constraints = [LinearConstraint(flows(tables), ends, ends)]
    for index, most in enumerate(limits_M):
        if most < np.inf:
            cost = of_all(tables.metrics_BM[:, index], tables.join_metrics_WWM[:, :, index])
            constraints.append(LinearConstraint(cost / (most - tables.fixed_metrics_M[index]), ub=1))
    score = of_all(tables.score_B, tables.join_score_WW)
    whole = np.arange(len(score)) < places * len(tables.width_B)
    found = milp(-score / score.max(), constraints=constraints, integrality=whole, bounds=Bounds(0, 1))
    return float(-found.fun * score.max() + tables.fixed_score)


def by_ours(tables: CostTables, limits_M: np.ndarray) -> float:
    found = optimum(tables, limits_M)
    assert found is not None
    return found.score


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__, runs=1)
    tables = tables_of(load_space("merino"), SCORE, with_state=True)
    results = {}
    for budgets in BUDGETS:
        most, name = np.array(budgets), " ".join(f"{limit:g}" for limit in budgets)
        ours, theirs = by_ours(tables, most), by_milp(tables, most)
        gate(name, abs(ours / theirs - 1) < 1e-3, f"{ours:,.1f}, milp {theirs:,.1f}")
        results[name] = contest(lambda m=most: by_ours(tables, m), lambda m=most: by_milp(tables, m), runs).summary()
    slowest = {side: max(one[f"{side}_median_s"] for one in results.values()) for side in ("ours", "other")}
    middle = {side: statistics.median(one[f"{side}_median_s"] for one in results.values()) for side in slowest}
    shape = f"space merino, {SCORE}; limits of FLOPs, parameters, bytes of state"
    against = f"SciPy {scipy.__version__}, milp, HiGHS to a relative gap of 1e-4"
    report(
        "design_milp",
        {"shape": shape, "against": against, "limit_s": LIMIT_S, "slowest_s": slowest, "median_s": middle, **results},
    )


if __name__ == "__main__":
    main()
