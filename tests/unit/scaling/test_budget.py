"""How a budget is divided."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.scaling.budget import TrainingBudget, allocate, allocate_exact
from linnet.scaling.law import Allocation, read_law

LAW = read_law("replication")


def test_the_law_divides_one_amount():
    for budget in (TrainingBudget(flops=1e18), TrainingBudget(parameters=3e7), TrainingBudget(tokens=1e9)):
        found = allocate(budget, LAW)
        assert found.parameters == pytest.approx(LAW.best(flops=found.flops).parameters)
    assert allocate(TrainingBudget(flops=1e18), LAW).flops == pytest.approx(1e18)
    assert allocate(TrainingBudget(parameters=3e7), LAW).parameters == 3e7
    assert allocate(TrainingBudget(tokens=1e9), LAW).tokens == 1e9


def test_two_amounts_determine_size_and_tokens():
    assert allocate(TrainingBudget(parameters=10, tokens=20), LAW) == Allocation(10, 20)
    assert allocate(TrainingBudget(flops=1200, parameters=10), LAW) == Allocation(10, 20)
    assert allocate(TrainingBudget(flops=1200, tokens=20), LAW) == Allocation(10, 20)


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ({}, "nothing to plan with; give one of `flops`, `hours`, `parameters`, `tokens`"),
        ({"flops": 1, "hours": 1}, "`flops`, `hours`: too many; expected one of"),
        ({"flops": 1, "parameters": 1, "tokens": 1}, "`flops`, `parameters`, `tokens`: too many"),
    ],
)
def test_too_little_and_too_much_is_refused(amounts, message: str):
    with pytest.raises(UserError, match=message):
        TrainingBudget(**amounts)


def flops_of(found: Allocation) -> float:
    """A model whose own FLOPs are not `6 N D`: a part of it does not grow with its size."""
    return found.tokens * (6 * found.parameters + 4e6)


@given(st.floats(1e13, 1e20))
def test_the_model_takes_exactly_the_given_flops(exact: float):
    found = allocate_exact(TrainingBudget(hours=1), LAW, exact, flops_of)
    assert flops_of(found) == pytest.approx(exact, rel=1e-9)
    best = LAW.best(flops=found.flops)
    assert found.parameters == pytest.approx(best.parameters, rel=0.01)


def test_exact_flops_with_a_fixed_size_or_fixed_tokens():
    found = allocate_exact(TrainingBudget(hours=1, parameters=2e6), LAW, 1e16, flops_of)
    assert found.parameters == 2e6 and flops_of(found) == pytest.approx(1e16)
    found = allocate_exact(TrainingBudget(hours=1, tokens=1e8), LAW, 1e16, flops_of)
    assert found.tokens == 1e8 and flops_of(found) == pytest.approx(1e16, rel=2e-3)


@given(st.floats(1e13, 1e18), st.floats(1.05, 3))
def test_the_largest_size_that_fits_is_chosen_if_sizes_come_in_steps(exact_flops: float, step: float):
    def in_steps(allocation: Allocation) -> float:
        return 6 * allocation.tokens * step ** math.ceil(math.log(allocation.parameters, step))

    found = allocate_exact(TrainingBudget(hours=1, tokens=1e8), LAW, exact_flops, in_steps)
    assert found.tokens == 1e8
    assert exact_flops / step / 1.01 < in_steps(found) <= exact_flops
