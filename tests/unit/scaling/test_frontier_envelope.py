"""Approach 1: the envelope of known curves has the known exponent."""

import numpy as np
import pytest
from known_laws import TRUTH

from linnet.scaling.frontier import NotPossibleError, envelope
from linnet.scaling.points import Run

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
    assert found.parameters(1e15) == pytest.approx(TRUTH.of_flops(1e15).parameters, rel=0.1)
    assert found.tokens(1e15) == pytest.approx(TRUTH.of_flops(1e15).tokens, rel=0.1)


def test_the_loss_on_it_is_the_lowest_of_all_curves():
    runs = curves()
    found = envelope(runs, "total", budgets=50)
    assert (np.diff(found.loss_M) < 0).all()
    for flops, loss in zip(found.flops_M, found.loss_M, strict=True):
        best = min(float(np.interp(np.log(flops), np.log(r.flops_T), r.loss_T, right=9, left=9)) for r in runs)
        assert loss == pytest.approx(best)


def test_budgets_at_which_an_end_of_the_sizes_is_best_do_not_count():
    found = envelope(curves(), "total")
    assert found.parameters_M.min() > SIZES[0] and found.parameters_M.max() < SIZES[-1]


def test_runs_without_curves_are_no_envelope():
    ends = [Run(r.name, r.parameters, r.tokens_T[-1:], r.flops_T[-1:], r.loss_T[-1:]) for r in curves()]
    with pytest.raises(NotPossibleError, match=r"at least 3 sizes .* curves of 0"):
        envelope(ends, "total")


def test_sizes_of_which_one_is_always_best_are_no_envelope():
    with pytest.raises(NotPossibleError, match="between a smaller and a larger one, for two best sizes"):
        envelope(curves(SIZES[[0, 1, 2]]), "total")
