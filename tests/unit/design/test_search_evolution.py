"""MeRino's search: local mutations, budgets, reproducibility."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.design.cost_tables import build_cost_tables
from linnet.design.feasibility import find_within_budgets, limits
from linnet.design.metrics import Budget, CostCounts
from linnet.design.scores import SCORES, ScoreSettings
from linnet.design.search import EvolutionResult, EvolutionSettings, Mutation, evolve
from linnet.design.space import load_space

QUICK = EvolutionSettings(population=24, parents=8, iterations=12)
METRICS = [CostCounts(64).metric("flops"), CostCounts(1).metric("parameters")]


@pytest.fixture(scope="module")
def tables(small_space):
    return build_cost_tables(small_space(), METRICS, SCORES["entropy_beta_2"], ScoreSettings())


@pytest.fixture(scope="module")
def everything(tables):
    return np.array(list(product(range(len(tables.width_B)), repeat=2)))


def test_a_mutation_changes_one_block_by_a_few_steps_of_each_number():
    space = load_space("merino")
    mutate = Mutation(space, 2, np.random.default_rng(0))
    parent = (100, 30, 200, 7)
    children = mutate(np.array([parent] * 2000)).tolist()
    seen = set()
    for child in children:
        changed = [place for place in range(4) if child[place] != parent[place]]
        assert len(changed) <= 1
        for place in changed:
            seen.add(place)
            before, after = space.coordinates[parent[place]], space.coordinates[child[place]]
            assert all(abs(a - b) <= 2 for a, b in zip(before, after, strict=True))
    assert seen == {0, 1, 2, 3}
    reached = {space.coordinates[child[0]] for child in children}
    assert len(reached) > 20


def test_unordered_fields_take_any_of_their_choices(small_space):
    mixers = [{"kind": "attention"}, {"kind": "ted"}, {"kind": "plga", "metric_hidden": 4, "residual_units": 1}]
    space = small_space(block={"mixer": mixers})
    mutate = Mutation(space, 1, np.random.default_rng(0))
    kinds = {space.described[block].mixer.kind for block in mutate(np.zeros((200, 2), dtype=int)).ravel()}
    assert kinds == {"attention", "ted", "plga"}


@given(st.floats(0.05, 1), st.floats(0.05, 1), st.integers(0, 5))
def test_no_result_breaks_a_budget(tables, everything, share: float, other: float, seed: int):
    values = tables.evaluate(everything).metrics_CM
    most = [float(np.quantile(values[:, 0], share)), float(np.quantile(values[:, 1], other))]
    asked = [Budget(metric, limit, metric.name) for metric, limit in zip(METRICS, most, strict=True)]
    try:
        start = find_within_budgets(asked, tables)
    except UserError:
        assert not (values <= most).all(1).any()
        return
    found = evolve(
        tables, limits(asked, tables), start, EvolutionSettings(**{**QUICK.model_dump(), "seed": seed}), _quiet
    )
    evaluation = tables.evaluate(np.array([found.candidate]))
    assert (evaluation.metrics_CM[0] <= most).all()
    assert evaluation.score_C[0] == pytest.approx(found.score)
    assert found.score <= tables.evaluate(everything).score_C[(values <= most).all(1)].max() * (1 + 1e-12)


def _quiet(amount: float, note: str = "") -> None:
    pass


def run(tables, seed: int = 0, iterations: int = 12) -> EvolutionResult:
    settings = EvolutionSettings(population=24, parents=8, iterations=iterations, seed=seed)
    return evolve(tables, np.array([np.inf, np.inf]), (0, 0), settings, _quiet)


def test_a_seed_determines_the_result(tables):
    assert run(tables, seed=1) == run(tables, seed=1)
    assert run(tables, seed=1).drawn == 24 - 1 + 11 * 16
    assert len({run(tables, seed, iterations=1).candidate for seed in range(8)}) > 1


def test_a_small_space_is_searched_to_its_optimum(tables, everything):
    assert run(tables, iterations=40).score == pytest.approx(tables.evaluate(everything).score_C.max())


def test_coordinates_that_make_no_block_are_drawn_again(small_space):
    space = small_space(block={"width": [8, 10, 16], "repeat": [1, 2], "ratio": 1})
    children = Mutation(space, 2, np.random.default_rng(0))(np.zeros((300, 2), dtype=int))
    assert children.min() >= 0
    assert {space.described[block].width for block in children.ravel()} == {8, 16}


def test_progress_advances_with_each_iteration(tables):
    heard = []
    evolve(tables, np.array([np.inf, np.inf]), (0, 0), QUICK, lambda amount, note="": heard.append((amount, note)))
    assert [amount for amount, _ in heard] == [1] * 12


def test_parents_are_fewer_than_the_population():
    with pytest.raises(UserError, match="--set: parents: 9: must be fewer than population, which is 9"):
        EvolutionSettings.parse({"population": 9, "parents": 9}, "--set")
