"""A search returns the better of evolution and the true optimum, within every budget, as a description to train."""

import pytest
import yaml

from linnet.core.errors import UserError
from linnet.design import search
from linnet.design.metrics import Budget, CostCounts
from linnet.design.optimum import TooLargeError
from linnet.design.search import DesignSettings, EvolutionSettings, SearchTask, write_description
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec

QUICK = DesignSettings(search=EvolutionSettings(population=24, parents=8, iterations=12))


def task(space, most_flops: float = 2e6, **changes) -> SearchTask:
    budget = Budget(CostCounts(64).metric("flops"), most_flops, f"--max-flops {most_flops:g}")
    return SearchTask(**{"space": space, "budgets": [budget], "score": "entropy_beta_2", "settings": QUICK, **changes})


@pytest.mark.parametrize("method", ["auto", "evolution", "exact"])
def test_the_result_is_within_its_budget_and_its_figures_are_right(small_space, method: str):
    found = search.search(task(small_space(), method=method), name="found")
    assert found.values == [model_cost(found.model).flops(64, with_head=False)]
    assert found.values[0] <= 2e6
    assert found.model.name == found.plain["name"] == "found"
    assert (found.evolution is None) == (method == "exact")
    assert (found.optimum is None) == (method == "evolution")
    assert (found.gap is None) == (method != "auto")


def test_the_better_of_both_methods_is_returned_with_the_gap(small_space):
    hasty = DesignSettings(search=EvolutionSettings(population=2, parents=1, iterations=1))
    found = search.search(task(small_space(blocks=3), settings=hasty))
    assert found.score == found.optimum.score > found.evolution.score
    assert found.gap == pytest.approx(1 - found.evolution.score / found.optimum.score)


def test_without_budgets_the_largest_is_found(small_space):
    space = small_space()
    found = search.search(task(space, budgets=[], score="parameters"))
    every = [
        model_cost(space.model([a, b])).parameters for a in range(len(space.plain)) for b in range(len(space.plain))
    ]
    assert found.score == max(every)


def test_a_space_too_large_for_its_optimum(small_space, monkeypatch):
    def too_large(*_):
        raise TooLargeError

    monkeypatch.setattr(search, "optimum", too_large)
    found = search.search(task(small_space()))
    assert found.too_large
    with pytest.raises(
        UserError, match=r"method: exact: of the 3.2e\+02 models .* the proof was abandoned; expected auto"
    ):
        search.search(task(small_space(), method="exact"))
    assert found.optimum is None
    assert found.score == pytest.approx(found.evolution.score)


def test_an_unmet_budget_is_an_error_before_any_search(small_space, monkeypatch):
    monkeypatch.setattr(search, "evolve", None)
    with pytest.raises(UserError, match="--max-flops 10: nothing in the space small meets it; the smallest"):
        search.search(task(small_space(), most_flops=10))


def test_a_written_description_is_read_as_the_same_model(small_space, tmp_path):
    found = search.search(task(small_space()), name="mine")
    write_description(found.plain, tmp_path / "best.yaml", ["one\nremark"])
    text = (tmp_path / "best.yaml").read_text()
    assert text.startswith("# one remark\nname: mine\n")
    assert "&" not in text
    assert yaml.safe_load(text) == found.plain
    assert ModelSpec.load(tmp_path / "best.yaml") == found.model
