import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.ops.orthogonal import CUSHION, ERROR, MARGIN, covered, orthogonal, orthogonal_reference, polynomials

SHAPES = [(3, 5, 5), (1, 1, 4), (2, 7, 3), (2, 8, 12), (2, 8, 13), (4, 40, 9), (1, 6, 1)]
"""Squares, rows and columns, both sides of `GRAM_ASPECT`, tall and wide."""


def _random(shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _with_singular_values(rows, columns, values):
    left, _ = torch.linalg.qr(_random((rows, len(values)), 1, torch.float64))
    right, _ = torch.linalg.qr(_random((columns, len(values)), 2, torch.float64))
    return (left * torch.tensor(values, dtype=torch.float64)) @ right.T


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_the_orthogonal_factor(shape):
    made = orthogonal_reference(_random(shape, dtype=torch.float64))
    matrices = made if shape[1] <= shape[2] else made.mT
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(matrices.shape[1]).double().expand(shape[0], -1, -1))
    nearer = (made * _random(shape, dtype=torch.float64)).sum((1, 2))
    torch.testing.assert_close(nearer, torch.linalg.svdvals(_random(shape, dtype=torch.float64)).sum(-1))


@pytest.mark.parametrize("steps", [1, 2, 4, 6, 9])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_iteration_equals_the_reference_with_as_many_steps(shape, steps):
    matrices = _random(shape)
    expected = orthogonal_reference(matrices.double(), steps)
    torch.testing.assert_close(orthogonal(matrices, steps).double(), expected, rtol=0, atol=1e-5 * 2**steps)
    torch.testing.assert_close(orthogonal(matrices.double(), steps), expected, rtol=0, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6), st.integers(2, 24), st.integers(2, 24),
    st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(-15, 15),
)  # fmt: skip
def test_large_singular_values_become_one_and_no_value_exceeds_it(steps, rows, columns, below, exponent):
    values = [1.0, *below[: min(rows, columns) - 1]]
    matrix = _with_singular_values(rows, columns, values)
    bound = sum(value**8 for value in values) ** (1 / 8)
    left, _, right = torch.linalg.svd(matrix[None], full_matrices=False)
    made = orthogonal((matrix * 10**exponent)[None].float(), steps)
    found = (left.mT @ made.double() @ right.mT)[0].diagonal()[: len(values)].tolist()
    for value, became in zip(sorted(values, reverse=True), found, strict=True):
        assert became <= 1 + ERROR + 0.01
        if value > covered(steps) * bound * 1.01:
            assert became >= 1 - ERROR - 0.01


def test_a_zero_matrix_gives_zeros_and_does_not_affect_others():
    matrices = _random((3, 4, 6))
    matrices[1] = 0
    for form in (orthogonal, orthogonal_reference):
        made = form(matrices, 4)
        assert torch.equal(made[1], torch.zeros(4, 6))
        torch.testing.assert_close(made[[0, 2]], form(matrices[[0, 2]], 4))
    assert torch.equal(orthogonal_reference(matrices)[1], torch.zeros(4, 6))


@pytest.mark.parametrize("steps", [2, 4, 6])
@pytest.mark.parametrize("shape", [(2, 24, 24), (2, 16, 64), (2, 64, 16)])
def test_bfloat16_is_close_to_float32(shape, steps):
    """Small singular values are lost in rounding; none is amplified."""
    made = orthogonal(_random(shape).bfloat16(), steps)
    assert made.dtype == torch.bfloat16
    truth = orthogonal_reference(_random(shape))
    assert torch.nn.functional.cosine_similarity(made.float().flatten(1), truth.flatten(1)).min() > 0.93
    assert torch.linalg.svdvals(made.float()).max() < 1 + 1.5 * ERROR


def test_more_steps_cover_more():
    reach = [covered(steps) for steps in range(1, 7)]
    assert all(a > 3 * b for a, b in pairwise(reach))
    assert reach[3] == pytest.approx(0.00285, rel=0.01)


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_each_polynomial_is_the_best_on_its_interval(steps):
    """Chebyshev: the error of the best approximation alternates at one more point than it has coefficients."""
    low, high = covered(steps), MARGIN
    for a, b, c in polynomials(steps):
        x = np.geomspace(max(low, CUSHION * high), high, 200_001)
        off = a * x + b * x**3 + c * x**5 - 1
        inside = np.flatnonzero(np.diff(np.sign(np.diff(off)))) + 1
        turns = off[[0, *inside, -1]]
        assert np.abs(turns) == pytest.approx(np.abs(off).max(), rel=1e-3)
        assert np.sign(turns).tolist() in ([-1, 1, -1, 1], [1, -1, 1, -1])
        error = float(np.abs(off).max())
        low, high = min(a * low + b * low**3 + c * low**5, 1 - error), (1 + error) * MARGIN
    assert 1 - low == pytest.approx(ERROR, rel=1e-3)


def test_the_result_is_close_to_that_of_pytorchs_muon():
    """An independent implementation (bfloat16, Jordan's coefficients): both are close to the orthogonal factor."""
    from torch.optim._muon import _zeropower_via_newtonschulz as theirs

    matrices = _random((3, 32, 48))
    made = torch.stack([theirs(matrix, (3.4445, -4.775, 2.0315), 5, 1e-7) for matrix in matrices]).float()
    cosine = torch.nn.functional.cosine_similarity(made.flatten(1), orthogonal(matrices, 5).flatten(1))
    assert cosine.min() > 0.95 and math.isfinite(float(made.sum()))
