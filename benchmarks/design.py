"""Evaluating 100,000 shapes by tables, compared with one description after another; the optimum of MeRino's space.

One core. What is timed includes making the tables. `python benchmarks/design.py`
"""

import os
import statistics
from collections.abc import Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import numpy as np
import torch

from harness import contest, elapsed_s, gate, report, threads_from_command_line
from linnet.design.cost_tables import CostTables, build_cost_tables
from linnet.design.feasibility import find_feasible
from linnet.design.metrics import CostCounts
from linnet.design.optimum import optimum
from linnet.design.scores import SCORES, ScoreSettings, parts_of, score
from linnet.design.search import EvolutionSettings, evolve
from linnet.design.space import Space, load_space
from linnet.model.cost import model_cost

CANDIDATES, COMPARED, TOKENS = 100_000, 300, 1024
SCORE = "entropy_beta_2"
BUDGETS = [
    (60e9, 60e6, np.inf),
    (160e9, 64e6, np.inf),
    (10e9, 45e6, np.inf),
    (1e12, np.inf, np.inf),
    (np.inf, 46e6, np.inf),
    (86.2e9, np.inf, 163e6),
    (33.8e9, 46e6, 84e6),
    (np.inf, 46e6, 84e6),
    (np.inf, np.inf, 100e6),
]
"""FLOPs, parameters, and bytes of decode state of a stream of 4,096 tokens."""


def tables_of(space: Space, name: str = SCORE, with_state: bool = False) -> CostTables:
    chosen = [
        CostCounts(TOKENS).metric("flops"),
        CostCounts(1).metric("parameters"),
        CostCounts(1).metric("state@4096"),
    ]
    return build_cost_tables(space, chosen if with_state else chosen[:2], SCORES[name], ScoreSettings())


def by_description(space: Space, candidates: Sequence[Sequence[int]]) -> np.ndarray:
    """Score, FLOPs and parameters of each model, from its description."""
    rows = []
    for candidate in candidates:
        model = space.model(candidate)
        cost = model_cost(model)
        rows.append([score(parts_of(model), SCORE), cost.flops(TOKENS, False), cost.parameters])
    return np.array(rows)


def by_tables(tables: CostTables, candidates: np.ndarray) -> np.ndarray:
    evaluation = tables.evaluate(candidates)
    return np.column_stack([evaluation.score_C, evaluation.metrics_CM])


def optimum_times(space: Space) -> dict[str, float]:
    """The dynamic program for several scores and budgets, with new tables each time."""
    times = {}
    for name in ("entropy", "entropy_beta_2", "penalized_parameters"):
        for budgets in BUDGETS:
            times[" ".join([name, *(f"{limit:g}" for limit in budgets)])] = elapsed_s(
                lambda n=name, most=budgets: optimum(tables_of(space, n, with_state=True), np.array(most))
            )
    return times


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__)
    torch.set_num_threads(1)
    space = load_space("merino")
    tables = tables_of(space)
    draws = np.random.default_rng(0).integers(0, len(space.plain), (CANDIDATES, space.spec.blocks))
    exact = by_description(space, draws[:COMPARED])
    same = np.allclose(by_tables(tables, draws[:COMPARED]), exact, rtol=1e-12)
    gate("tables", bool(same), f"score, FLOPs and parameters of {COMPARED} models are those of their descriptions")

    limits = np.array([60e9, 60e6])
    start = find_feasible(tables, limits)
    assert start is not None
    evolution = evolve(tables, limits, start, EvolutionSettings(), lambda *_: None)
    best = optimum(tables, limits)
    assert best is not None
    gate("optimum", best.score >= evolution.score, f"{best.score:,.1f}, evolution {evolution.score:,.1f}")

    against = contest(
        lambda: by_tables(tables, draws[:COMPARED]), lambda: by_description(space, draws[:COMPARED]), runs
    )
    whole = [elapsed_s(lambda: by_tables(tables_of(space), draws)) for _ in range(runs)]
    searched = [
        elapsed_s(lambda: evolve(tables, limits, start, EvolutionSettings(), lambda *_: None)) for _ in range(runs)
    ]
    optima = [optimum_times(space) for _ in range(runs)]
    medians = {name: statistics.median(one[name] for one in optima) for name in optima[0]}
    report(
        "design",
        {
            "shape": "space merino; FLOPs, parameters and state limited; one core",
            f"{COMPARED}_candidates_by_tables_against_descriptions": against.summary(),
            f"{CANDIDATES}_candidates_at_once_s": round(statistics.median(whole), 3),
            "evolution_s": round(statistics.median(searched), 3),
            "evolution_candidates": evolution.drawn,
            "optimum_median_s": round(statistics.median(medians.values()), 3),
            "optimum_slowest_s": round(max(medians.values()), 3),
            "optimum_slowest": max(medians, key=lambda name: medians[name]),
        },
    )


if __name__ == "__main__":
    main()
