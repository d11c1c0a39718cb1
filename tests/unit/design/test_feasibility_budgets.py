"""Budgets: how they are parsed, and the errors if nothing meets them."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.core.units import read_quantity
from linnet.design.cost_tables import build_cost_tables
from linnet.design.feasibility import (
    cheapest,
    cheapest_candidates,
    find_within_budgets,
    limits,
    ms_rounded_up,
    non_dominated,
)
from linnet.design.metrics import Budget, CostCounts, read_state
from linnet.design.scores import SCORES, ScoreSettings


@pytest.mark.parametrize(
    ("text", "value"),
    [("2MB", 2e6), ("2 MiB", 2**21), (".5kB", 500), ("1KiB", 1024), ("7B", 7), ("1e3MB", 1e9), ("40,000B", 4e4)],
)
def test_bytes(text: str, value: float):
    assert read_quantity(text, "bytes", "--max") == value


@pytest.mark.parametrize(("text", "value"), [("20ms", 0.02), ("300us", 3e-4), ("1.5 s", 1.5)])
def test_times(text: str, value: float):
    assert read_quantity(text, "seconds", "--max") == pytest.approx(value)


@pytest.mark.parametrize("text", ["60X", "0B", "-1B", "", "2M", "B", "5ms", "1e400B", "1e308MB", ",5B", "٣B"])
def test_bytes_that_cannot_be_read(text: str):
    with pytest.raises(UserError, match=f"--max {text}: expected a number above 0 with one of the units B, kB, MB"):
        read_quantity(text, "bytes", "--max")


def test_state_has_a_length():
    assert read_state("2MB@4096", "--max-state") == (2e6, 4096)
    assert read_state("2MB@16k", "--max-state") == (2e6, 16_384)
    assert read_state("2MB@ 4,096 ", "--max-state") == (2e6, 4096)
    for text in ("2MB", "2MB@", "2MB@many", "2MB@4.5", "2MB@2G", "2MB@0", "2MB@²", "2MB@٣", "2MB@" + "9" * 400):
        with pytest.raises(UserError, match="expected bytes@tokens, as in 2MB@4096 or 2MB@16k, with"):
            read_state(text, "--max-state")


def test_a_state_goal_needs_a_number_of_tokens():
    assert CostCounts(8).metric("state@2k").name == "state@2048"
    assert [CostCounts(8).metric(f"state@{length}") for length in ("²", "٣", "0", "", "9" * 400)] == [None] * 5


@given(st.floats(1e-9, 1e6))
def test_the_smallest_time_of_the_message_can_be_met(least: float):
    formatted = ms_rounded_up(least)
    assert least <= read_quantity(formatted, "seconds", "--max") <= least * 1.0011


MIXERS = [{"kind": "attention"}, {"kind": "ted"}, {"kind": "attention", "window": 24}]


@pytest.fixture(scope="module")
def traded(small_space):
    """Tables and all models of a space with trade-offs between the metrics."""
    space = small_space(block={"mixer": MIXERS, "width": [8, 16], "repeat": [1, 2], "share_weights": [True, False]})
    chosen = [CostCounts(64).metric("flops"), CostCounts(1).metric("parameters"), CostCounts(1).metric("state@64")]
    tables = build_cost_tables(space, chosen, SCORES["entropy"], ScoreSettings())
    return tables, np.array(list(product(range(len(space.plain)), repeat=2)))


def test_the_cheapest_is_that_of_all_models(traded):
    tables, everything = traded
    values = tables.evaluate(everything).metrics_CM
    for index in range(3):
        candidate, value = cheapest(tables, index)
        found = tables.evaluate(np.array([candidate])).metrics_CM[0, index]
        assert found == value == values[:, index].min()


@given(st.data())
def test_the_cheapest_candidates_are_those_of_the_definition(traded, data):
    tables, everything = traded
    values = tables.evaluate(everything).metrics_CM
    limits_M = np.array(
        [data.draw(st.sampled_from([np.inf, *np.quantile(values[:, m], [0.1, 0.5])])) for m in range(3)]
    )
    _, found = cheapest_candidates(tables, limits_M)
    within = values[(values <= limits_M).all(1)]
    assert {tuple(row) for row in found} == {tuple(row) for row in within[non_dominated(within)]}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
def test_non_dominated_rows_are_those_of_the_definition(rows):
    points = np.array(rows, dtype=float)
    expected = {
        row for row in map(tuple, points) if not any((other <= row).all() and (other < row).any() for other in points)
    }
    found = [tuple(points[index]) for index in non_dominated(points)]
    assert set(found) == expected
    assert len(found) == len(expected)


def budgets(tables, *most: float) -> list[Budget]:
    return [Budget(m, limit, f"--max-{m.name} {limit:g}") for m, limit in zip(tables.metrics, most, strict=True)]


@given(st.data())
def test_a_model_within_budgets_is_found_if_there_is_one(traded, data):
    tables, everything = traded
    values = tables.evaluate(everything).metrics_CM
    most = [data.draw(st.sampled_from(sorted(set(values[:, metric])))) for metric in range(3)]
    exists = (values <= most).all(1).any()
    asked = budgets(tables, *most)
    if exists:
        found = find_within_budgets(asked, tables)
        assert (tables.evaluate(np.array([found])).metrics_CM[0] <= limits(asked, tables)).all()
    else:
        with pytest.raises(UserError):
            find_within_budgets(asked, tables)


def test_the_error_of_an_unmet_budget_states_the_smallest_that_could_be_met(traded):
    tables, everything = traded
    smallest = tables.evaluate(everything).metrics_CM.min(0)
    with pytest.raises(UserError) as error:
        find_within_budgets(budgets(tables, 1e12, smallest[1] - 1, 1e12), tables)
    option = f"--max-parameters {smallest[1] - 1:g}"
    assert str(error.value) == (
        f"{option}: nothing in the space small meets it; the smallest that could be met is {smallest[1]:,.0f}"
    )
    assert find_within_budgets(budgets(tables, 1e12, smallest[1], 1e12), tables)


def test_the_error_of_budgets_unmet_together_states_the_smallest_within_the_others(traded):
    tables, everything = traded
    values = tables.evaluate(everything).metrics_CM
    smallest = values.min(0)
    frugal_in_flops = values[values[:, 2] <= smallest[2], 0].min()
    assert frugal_in_flops > smallest[0], "a trade is what this is about"
    with pytest.raises(UserError) as error:
        find_within_budgets(budgets(tables, smallest[0], 1e12, smallest[2]), tables)
    assert str(error.value) == (
        f"--max-flops {smallest[0]:g}: within the other budgets nothing in the space small meets it; the smallest that"
        f" could be met is {frugal_in_flops:,.0f}"
    )
    met = find_within_budgets(budgets(tables, frugal_in_flops, 1e12, smallest[2]), tables)
    assert tables.evaluate(np.array([met])).metrics_CM[0, 0] == frugal_in_flops


def test_the_lower_of_two_budgets_on_one_metric_applies(traded):
    tables, _ = traded
    metric = tables.metrics[1]
    budgets = [Budget(metric, most, f"--max-parameters {most:g}") for most in (1e6, 1e2, 1e7)]
    assert limits(budgets, tables).tolist() == [np.inf, 1e2, np.inf]
    with pytest.raises(UserError, match="--max-parameters 100: nothing in the space"):
        find_within_budgets(budgets, tables)


@pytest.mark.parametrize(
    ("text", "limit", "formatted"), [("1MB", 1e6, "1 MB"), ("1500kB", 1.5e6, "1.50 MB"), ("1MiB", 2.0**20, "1 MiB")]
)
def test_a_budget_in_bytes_is_formatted_in_the_units_of_the_user(text: str, limit: float, formatted: str):
    budget = Budget(
        CostCounts(1, dtype="float32").metric("weights"),
        read_quantity(text, "bytes", "--max-weights"),
        f"--max-weights {text}",
    )
    assert budget.limit == limit and budget.format(limit) == formatted
    assert Budget(CostCounts(1).metric("parameters"), 2e6, "--max-parameters 2M").format(2e6) == "2 M"
