"""Approaches 1 and 2 find the exponents of the law that made the points."""

import numpy as np
import pytest
from known_laws import TRUTH

from linnet.scaling.frontier import NotPossibleError, envelope, isoflop, isoflop_groups, parabola
from linnet.scaling.runs import Points, Run

SIZES = np.geomspace(1e5, 1e9, 25)


def curves(sizes=SIZES, points: int = 200) -> list[Run]:
    """Each size from a tenth to a hundred tokens for each parameter, by the law."""
    runs = []
    for size in sizes:
        tokens = size * np.geomspace(0.3, 300, points)
        runs.append(Run(f"{size:.0f}", {"total": size}, tokens, 6 * size * tokens, TRUTH.loss(size, tokens)))
    return runs


def test_the_exponents_are_those_of_the_law():
    found = envelope(curves(), "total")
    exponent = TRUTH.optimum[1]
    assert found.parameters.exponent == pytest.approx(exponent, abs=0.01)
    assert found.tokens.exponent == pytest.approx(1 - exponent, abs=0.01)
    assert found.parameters(1e15) == pytest.approx(TRUTH.best(flops=1e15).parameters, rel=0.1)
    assert found.tokens(1e15) == pytest.approx(TRUTH.best(flops=1e15).tokens, rel=0.1)


def test_the_loss_on_it_is_the_lowest_of_all_curves():
    runs = curves()
    found = envelope(runs, "total", budgets=50)
    assert (np.diff(found.loss_M) < 0).all()
    for flops, loss in zip(found.flops_M, found.loss_M, strict=True):
        best = min(float(np.interp(np.log(flops), np.log(r.flops_T), r.loss_T, right=9, left=9)) for r in runs)
        assert loss == pytest.approx(best)


def test_budgets_whose_best_size_is_the_smallest_or_largest_do_not_count():
    found = envelope(curves(), "total")
    assert found.parameters_M.min() > SIZES[0] and found.parameters_M.max() < SIZES[-1]


def test_an_envelope_needs_curves():
    ends = [Run(r.name, r.parameters, r.tokens_T[-1:], r.flops_T[-1:], r.loss_T[-1:]) for r in curves()]
    with pytest.raises(NotPossibleError, match=r"at least 3 sizes .* have it for none"):
        envelope(ends, "total")


def test_an_envelope_needs_two_best_sizes():
    with pytest.raises(NotPossibleError, match="between a smaller and a larger one, for two best sizes"):
        envelope(curves(SIZES[[0, 1, 2]]), "total")


BUDGETS = (1e14, 1e15, 1e16)


def points(budgets=BUDGETS, width: float = 3.0, sizes: int = 9, seed: int = 0) -> Points:
    """Sizes around each budget's best, and FLOPs that scatter by 4 %."""
    random = np.random.default_rng(seed)
    parameters, flops = [], []
    for budget in budgets:
        best = TRUTH.best(flops=budget).parameters
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


def test_too_few_sizes_are_not_a_group():
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
    best = TRUTH.best(flops=1e15).parameters
    n = side * best * np.geomspace(0.4, 2.5, 7)
    assert parabola(Points(n, 1e15 / 6 / n, np.full(7, 1e15), TRUTH.loss(n, 1e15 / 6 / n))) is None
    assert parabola(Points(n, n, n, -((np.log(n) - np.log(n).mean()) ** 2))) is None


def test_the_exponents_are_nearly_those_of_the_law():
    found = isoflop(isoflop_groups(points()))
    exponent = TRUTH.optimum[1]
    assert found.parameters.exponent == pytest.approx(exponent, abs=0.02)
    assert found.tokens.exponent == pytest.approx(1 - exponent, abs=0.02)
    assert found.loss_M == pytest.approx([TRUTH.lowest_loss(flops=flops) for flops in found.flops_M], rel=0.01)


def test_the_error_states_what_is_missing():
    with pytest.raises(NotPossibleError, match=r"at least 4 sizes each; found 1$"):
        isoflop(isoflop_groups(points((1e15,))))
    far = points((1e14, 1e15))
    far = Points(30 * far.parameters, far.tokens / 30, far.flops, TRUTH.loss(30 * far.parameters, far.tokens / 30))
    with pytest.raises(NotPossibleError, match=r"this holds for 0 of 2 groups$"):
        isoflop(isoflop_groups(far))
