"""Approach 2: groups of equal FLOPs, parabolas, and the exponent of the law that made the points."""

import numpy as np
import pytest
from known_laws import TRUTH

from linnet.scaling.frontier import NotPossibleError, isoflop, isoflop_groups, parabola
from linnet.scaling.points import Points

BUDGETS = (1e14, 1e15, 1e16)


def points(budgets=BUDGETS, width: float = 3.0, sizes: int = 9, seed: int = 0) -> Points:
    """Sizes around each budget's best, and FLOPs that scatter by 4 %."""
    random = np.random.default_rng(seed)
    parameters, flops = [], []
    for budget in budgets:
        best = TRUTH.of_flops(budget).parameters
        parameters += list(best * np.geomspace(1 / width, width, sizes))
        flops += list(budget * random.uniform(0.98, 1.02, sizes))
    n, c = np.array(parameters), np.array(flops)
    return Points(n, c / (6 * n), c, TRUTH.loss(n, c / (6 * n)))


def test_groups_are_the_budgets_each_point_in_one():
    everything = points()
    order = np.random.default_rng(1).permutation(len(everything))
    groups = isoflop_groups(everything[order])
    assert [len(group) for group in groups] == [9, 9, 9]
    for group, budget in zip(groups, BUDGETS, strict=True):
        assert group.flops == pytest.approx(np.full(9, budget), rel=0.021)


def test_scattered_runs_between_two_groups_do_not_join_them():
    scattered = Points(*(np.array([3e6] * 3) for _ in range(2)), np.array([2e14, 3e14, 5e14]), np.full(3, 3.0))
    both = points((1e14, 1e15))
    joined = Points(*(np.concatenate((getattr(both, n), getattr(scattered, n))) for n in vars(both)))
    assert [len(group) for group in isoflop_groups(joined)] == [9, 9]


def test_a_group_of_too_few_sizes_is_none():
    assert isoflop_groups(points(sizes=3)) == []
    same = points()
    assert isoflop_groups(Points(np.full(27, 1e6), same.tokens, same.flops, same.loss)) == []


def test_the_tolerance_decides_what_is_equal():
    assert isoflop_groups(points(), tolerance=1e-6) == []
    assert len(isoflop_groups(points((1e14, 1.3e14)), tolerance=0.5)) == 1


def test_a_parabola_is_found_exactly():
    x = np.array([-1.0, -0.5, 0.2, 1.0, 1.7]) + np.log(1e7)
    n = np.exp(x)
    group = Points(n, 1e15 / 6 / n, np.full(5, 1e15), 2.5 + 0.03 * (x - np.log(2e7)) ** 2)
    found = parabola(group)
    assert found is not None
    assert (found.parameters, found.least, found.curvature) == pytest.approx((2e7, 2.5, 0.03))
    assert (found.tokens, found.flops) == pytest.approx((1e15 / 6 / 2e7, 1e15))
    assert found(n) == pytest.approx(group.loss)


@pytest.mark.parametrize("side", [0.2, 5.0])
def test_a_loss_that_is_lowest_beyond_the_sizes_is_no_minimum(side: float):
    best = TRUTH.of_flops(1e15).parameters
    n = side * best * np.geomspace(0.4, 2.5, 7)
    assert parabola(Points(n, 1e15 / 6 / n, np.full(7, 1e15), TRUTH.loss(n, 1e15 / 6 / n))) is None
    assert parabola(Points(n, n, n, -((np.log(n) - np.log(n).mean()) ** 2))) is None


def test_the_exponents_are_nearly_those_of_the_law():
    found = isoflop(isoflop_groups(points()))
    exponent = TRUTH.optimum[1]
    assert found.parameters.exponent == pytest.approx(exponent, abs=0.02)
    assert found.tokens.exponent == pytest.approx(1 - exponent, abs=0.02)
    assert found.loss_M == pytest.approx([TRUTH.loss_of_flops(flops) for flops in found.flops_M], rel=0.01)


def test_what_is_missing_is_said():
    with pytest.raises(NotPossibleError, match=r"at least 4 sizes each; found 1$"):
        isoflop(isoflop_groups(points((1e15,))))
    far = points((1e14, 1e15))
    far = Points(30 * far.parameters, far.tokens / 30, far.flops, TRUTH.loss(30 * far.parameters, far.tokens / 30))
    with pytest.raises(NotPossibleError, match=r"0 of 2 groups are so$"):
        isoflop(isoflop_groups(far))
