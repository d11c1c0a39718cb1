"""Dynamic programming finds the best of all models."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.design import completion_bounds, optimum
from linnet.design.cost_tables import CostTables, build_cost_tables
from linnet.design.feasibility import find_within_budgets, limits
from linnet.design.metrics import Budget, CostCounts, Metric
from linnet.design.optimum import TooLargeError
from linnet.design.scores import SCORES, ScoreSettings, penalty, width_term
from linnet.design.search import EvolutionSettings, evolve
from linnet.design.space import load_space

METRICS = [CostCounts(64).metric("flops"), CostCounts(1).metric("parameters"), CostCounts(1).metric("state@64")]
MIXERS = [{"kind": "attention"}, {"kind": "ted"}, {"kind": "attention", "window": 4}]


def best_of_all(tables: CostTables, limits_M: np.ndarray) -> float | None:
    """Return the best score by evaluating every model."""
    everything = np.array(list(product(range(len(tables.width_B)), repeat=tables.space.spec.blocks)))
    evaluation = tables.evaluate(everything)
    within = (evaluation.metrics_CM <= limits_M).all(1)
    return float(evaluation.score_C[within].max()) if within.any() else None


@settings(max_examples=60)
@given(
    blocks=st.integers(1, 3),
    widths=st.lists(st.sampled_from([4, 8, 16, 32]), min_size=1, max_size=3, unique=True),
    repeats=st.lists(st.integers(1, 5), min_size=1, max_size=2, unique=True),
    mixers=st.lists(st.sampled_from(MIXERS), min_size=1, max_size=2),
    shared=st.booleans(),
    score=st.sampled_from(["entropy", "entropy_beta_2", "penalized_parameters", "parameters"]),
    definition=st.sampled_from(["mean", "geometric", "minimum"]),
    beta=st.sampled_from([None, 0.0, 0.5, 3.0]),
    shares=st.tuples(*(st.sampled_from([0.02, 0.2, 0.6, None]) for _ in METRICS)),
)
def test_the_optimum_is_the_best_of_all_models(
    small_space, blocks, widths, repeats, mixers, shared, score, definition, beta, shares
):
    block = {"width": widths, "repeat": repeats, "mixer": mixers, "share_weights": shared}
    space = small_space(blocks=blocks, block=block)
    tables = build_cost_tables(space, METRICS, SCORES[score], ScoreSettings(width=definition, beta=beta))
    everything = np.array(list(product(range(len(space.plain)), repeat=blocks)))
    values = tables.evaluate(everything).metrics_CM
    limits_M = np.array(
        [np.inf if share is None else np.quantile(values[:, m], share) for m, share in enumerate(shares)]
    )
    expected, found = best_of_all(tables, limits_M), optimum.optimum(tables, limits_M)
    if expected is None:
        assert found is None
    else:
        assert found.score == pytest.approx(expected, rel=1e-9)
        assert (tables.evaluate(np.array([found.candidate])).metrics_CM[0] <= limits_M).all()


def seconds() -> Metric:
    """A metric whose sums differ in the last digits with their order."""

    def of_block(block, model) -> float:
        return 1e-3 / 3 * block.repeat + 1e-7 * (block.width or 16) ** 1.5

    return Metric("latency", "seconds", of_block, lambda a, b: 1e-4 / 7 * (a != b), lambda model: 0.1)


@settings(max_examples=40)
@given(
    model=st.lists(st.integers(0, 17), min_size=3, max_size=3),
    limited=st.lists(st.booleans(), min_size=4, max_size=4),
    score=st.sampled_from(["entropy", "entropy_beta_2", "penalized_parameters"]),
    definition=st.sampled_from(["mean", "geometric", "minimum"]),
    most=st.sampled_from([10, 30_000_000]),
)
def test_limits_that_one_model_just_meets(small_space, model, limited, score, definition, most):
    """With state and latency: a label is dropped only for one that also meets the limits."""
    chosen = [*METRICS, seconds()]
    tables = build_cost_tables(small_space(blocks=3), chosen, SCORES[score], ScoreSettings(width=definition))
    limits_M = np.where(limited, tables.evaluate(np.array([model])).metrics_CM[0], np.inf)
    before, optimum.MAX_COMPARISONS = optimum.MAX_COMPARISONS, most
    found = optimum.optimum(tables, limits_M)
    optimum.MAX_COMPARISONS = before
    assert found.score == pytest.approx(best_of_all(tables, limits_M), rel=1e-9)
    assert (tables.evaluate(np.array([found.candidate])).metrics_CM[0] <= limits_M).all()


@pytest.mark.parametrize(
    ("limits_M", "score"), [([86.2e9, np.inf, 163e6], 95_415.78), ([33.8e9, 46e6, 84e6], 46_095.76)]
)
def test_flops_and_state_together_in_merinos_space(limits_M: list[float], score: float):
    """With separate limits at least 147 million partial models are examined; the scores are from such runs."""
    chosen = [CostCounts(1024).metric("flops"), CostCounts(1).metric("parameters"), CostCounts(1).metric("state@4096")]
    tables = build_cost_tables(load_space("merino"), chosen, SCORES["entropy"], ScoreSettings())
    found = optimum.optimum(tables, np.array(limits_M))
    assert found.score == pytest.approx(score, abs=0.01)
    assert found.examined < 4_000_000


@settings(max_examples=60)
@given(
    definition=st.sampled_from(["mean", "geometric", "minimum"]),
    beta=st.floats(0.01, 1),
    missing=st.integers(0, 2),
    so_far=st.lists(st.sampled_from([(1, 8), (1, 24), (2, 16), (9, 8), (15, 8), (40, 24)]), min_size=1, max_size=3),
    more=st.one_of(st.floats(0, 3000), st.just(-np.inf)),
)
def test_the_penalty_of_a_bound_is_the_weakest_of_any_number_of_layers(
    small_space, definition, beta, missing, so_far, more
):
    """The closed form equals a loop over all numbers of layers; fractions of a layer allow a little more."""
    settings = ScoreSettings(width=definition, beta=beta)
    tables = build_cost_tables(small_space(blocks=3, block={"repeat": [1, 30]}), METRICS, SCORES["entropy"], settings)
    promise = completion_bounds.CompletionBound(tables, np.array([np.inf] * len(METRICS)))
    terms = [width_term(depth, width, definition) for depth, width in so_far]
    depth, term = float(sum(depth for depth, _ in so_far)), min(terms) if definition == "minimum" else sum(terms)

    def with_layers(layers: int) -> float:
        added = 0.0 if definition == "minimum" else min(max(more, 0.0), layers * promise.widest_layer)
        reached = min(term, promise.widest_layer) if definition == "minimum" else term + added
        return penalty(depth + layers, reached, beta, definition)

    weakest = max(with_layers(layers) for layers in range(missing, 30 * missing + 1))
    (found,) = promise._penalty(missing, np.array([depth]), np.array([term]), np.array([more]))
    assert weakest - 1e-9 <= found <= weakest + 0.05 * beta


@pytest.mark.parametrize("steps", [4096, 5])
def test_coarse_bounds_are_never_too_low(small_space, steps: int, monkeypatch):
    monkeypatch.setattr(completion_bounds, "MAX_STEPS", steps)
    monkeypatch.setattr(optimum, "BEAM", 2)
    tables = build_cost_tables(small_space(blocks=3), METRICS, SCORES["entropy_beta_2"], ScoreSettings())
    limits_M = np.array([3e6, 2e4, np.inf])
    assert optimum.optimum(tables, limits_M).score == pytest.approx(best_of_all(tables, limits_M))


@pytest.mark.parametrize("score", ["entropy", "entropy_beta_2"])
def test_the_optimum_is_no_worse_than_evolution_in_merinos_space(score: str):
    chosen = METRICS[:2]
    tables = build_cost_tables(load_space("merino"), chosen, SCORES[score], ScoreSettings())
    asked = [Budget(metric, limit, "") for metric, limit in zip(chosen, (6e8, 46e6), strict=True)]
    limits_M = limits(asked, tables)
    settings_ = EvolutionSettings(population=64, parents=16, iterations=20)
    evolution = evolve(tables, limits_M, find_within_budgets(asked, tables), settings_, lambda *_: None)
    found = optimum.optimum(tables, limits_M)
    assert found.score >= evolution.score
    assert (tables.evaluate(np.array([found.candidate])).metrics_CM[0] <= limits_M).all()
    again = optimum.optimum(tables, limits_M, known=found.score)
    assert again.score == found.score


def test_too_many_partial_models_for_memory(small_space, monkeypatch):
    monkeypatch.setattr(optimum, "MAX_LABELS", 3)
    tables = build_cost_tables(small_space(blocks=3), METRICS, SCORES["entropy"], ScoreSettings())
    with pytest.raises(TooLargeError):
        optimum.optimum(tables, np.array([1e6, np.inf, np.inf]))


def test_too_many_partial_models_for_the_time(small_space, monkeypatch):
    tables = build_cost_tables(small_space(blocks=3), METRICS, SCORES["entropy"], ScoreSettings())
    limits_M = np.array([1e6, np.inf, np.inf])
    looked_at = optimum.optimum(tables, limits_M).examined
    monkeypatch.setattr(optimum, "MAX_PREFIXES", looked_at // 8)
    with pytest.raises(TooLargeError):
        optimum.optimum(tables, limits_M)


def test_a_known_score_that_nothing_reaches_finds_nothing(small_space):
    tables = build_cost_tables(small_space(), METRICS, SCORES["entropy"], ScoreSettings())
    assert optimum.optimum(tables, np.full(3, np.inf), known=1e12) is None
