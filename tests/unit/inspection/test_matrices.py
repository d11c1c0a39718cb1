"""The figures of matrices against their definitions, written as loops."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.files import json_safe
from linnet.inspection.matrices import (
    SquaredDifferences,
    between_heads,
    between_rows,
    largest,
    largest_eigenvalues,
    log10_abs_determinants,
    mean_row_sums,
    pairwise,
    power_of_ten,
    ranks,
    singular_values,
)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _rmse_of_heads(x_HKK: np.ndarray) -> float:
    squares = []
    for i, j in combinations(range(len(x_HKK)), 2):
        for row in range(x_HKK.shape[1]):
            for column in range(x_HKK.shape[2]):
                squares.append((x_HKK[i, row, column] - x_HKK[j, row, column]) ** 2)
    return math.sqrt(sum(squares) / len(squares))


def _rmse_of_rows(x_HKK: np.ndarray) -> float:
    squares = []
    for x_KK in x_HKK:
        for i, j in combinations(range(len(x_KK)), 2):
            for column in range(x_KK.shape[1]):
                squares.append((x_KK[i, column] - x_KK[j, column]) ** 2)
    return math.sqrt(sum(squares) / len(squares))


@given(heads=st.integers(2, 5), width=st.integers(1, 4), seed=st.integers(0, 1000))
def test_differences_between_heads(heads: int, width: int, seed: int):
    x = _random(heads, width, width, seed=seed)
    assert between_heads(x).rmse == pytest.approx(_rmse_of_heads(x.numpy()), rel=1e-12)


@given(heads=st.integers(1, 3), width=st.integers(2, 5), seed=st.integers(0, 1000))
def test_differences_between_rows(heads: int, width: int, seed: int):
    x = _random(heads, width, width, seed=seed)
    assert between_rows(x).rmse == pytest.approx(_rmse_of_rows(x.numpy()), rel=1e-12)


def test_small_differences_of_large_numbers_are_not_lost():
    x = 1e6 + torch.tensor([0.0, 1e-9, 3e-9], dtype=torch.float64)
    exact = [float(a - b) for a, b in combinations(x, 2)]
    assert pairwise(x[:, None]).rmse == pytest.approx(math.sqrt(sum(d * d for d in exact) / 3), rel=1e-9)


@given(st.integers(2, 7), st.floats(-1e6, 1e6))
def test_equal_things_differ_by_exactly_nothing(count: int, value: float):
    assert pairwise(torch.full((count, 3), value, dtype=torch.float64)).rmse == 0.0


def test_layers_add_up_by_their_pairs_and_elements():
    first, second = _random(2, 3, 3, seed=1), _random(4, 2, 2, seed=2)
    squares = [
        float(difference)
        for x in (first, second)
        for i, j in combinations(range(len(x)), 2)
        for difference in ((x[i] - x[j]) ** 2).flatten()
    ]
    together = between_heads(first) + between_heads(second)
    assert together.count == len(squares) == 1 * 9 + 6 * 4
    assert together.rmse == pytest.approx(math.sqrt(sum(squares) / len(squares)), rel=1e-12)


def test_one_head_has_no_difference():
    assert between_heads(_random(1, 3, 3)) == SquaredDifferences(0.0, 0)
    assert between_heads(_random(1, 3, 3)).rmse is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_own_head_nan_and_no_other(value: float):
    x = _random(3, 4, 4)
    x[1, 2, 3] = value
    assert math.isnan(between_heads(x).rmse)
    others = torch.tensor([0, 2])
    for function in (log10_abs_determinants, singular_values, largest_eigenvalues, mean_row_sums):
        found = function(x)
        assert torch.isnan(found[1]).all()
        torch.testing.assert_close(found[others], function(x[others]))
    assert [rank is None for rank in ranks(singular_values(x), 1e-9)] == [False, True, False]


def test_determinants_are_those_of_cofactors():
    x = _random(3, 3, 3)
    for matrix, found in zip(x.tolist(), log10_abs_determinants(x).tolist(), strict=True):
        (a, b, c), (d, e, f), (g, h, i) = matrix
        assert 10**found == pytest.approx(abs(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)))


def test_a_determinant_that_overflows_keeps_its_logarithm():
    large, small = (torch.eye(64, dtype=torch.float64)[None] * value for value in (1e9, 1e-9))
    assert log10_abs_determinants(large).item() == pytest.approx(576)
    assert log10_abs_determinants(small).item() == pytest.approx(-576)
    assert log10_abs_determinants(torch.zeros(1, 2, 2)).item() == -math.inf
    assert (power_of_ten(576.0), power_of_ten(-576.0), power_of_ten(-math.inf)) == (None, 0.0, 0.0)
    assert power_of_ten(308.25) == pytest.approx(10**308.25)


def test_float32_is_computed_in_float64():
    x = torch.full((1, 64, 64), 1e-3) + torch.eye(64) * 1e-4
    exact = np.linalg.slogdet(x.double().numpy())[1][0] / math.log(10)
    assert log10_abs_determinants(x).item() == pytest.approx(exact, rel=1e-14)


def test_ranks_count_what_is_above_the_tolerance():
    x = torch.diag_embed(torch.tensor([[4.0, 2.0, 1e-3], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    assert ranks(singular_values(x), 1e-6) == [3, 1, 0]
    assert ranks(singular_values(x), 1e-3) == [2, 1, 0]
    assert ranks(singular_values(x), 0.4999) == [2, 1, 0]
    assert ranks(singular_values(x), 0.5) == [1, 1, 0]


@given(st.integers(0, 1000))
def test_a_matrix_of_equal_rows_has_its_row_sum_as_its_only_eigenvalue(seed: int):
    row = _random(5, seed=seed).abs()
    x = row.expand(1, 5, 5)
    assert largest_eigenvalues(x).item() == pytest.approx(row.sum().item())
    assert mean_row_sums(x).item() == pytest.approx(row.sum().item())
    assert ranks(singular_values(x), 1e-12) == [1]
    assert between_rows(x).rmse == 0


def test_the_eigenvalue_of_largest_magnitude_may_be_negative_or_complex():
    rotation = torch.tensor([[0.0, -3.0], [3.0, 0.0]])
    found = largest_eigenvalues(torch.stack([torch.diag(torch.tensor([1.0, -2.0])), rotation]))
    assert found[0].item() == -2
    assert (abs(found[1].item()), found[1].real.item()) == (pytest.approx(3), pytest.approx(0))


def test_singular_values_are_the_roots_of_the_eigenvalues_of_the_square():
    x = _random(2, 4, 4)
    squares = np.sort(np.linalg.eigvalsh(x.numpy().transpose(0, 2, 1) @ x.numpy()), axis=1)[:, ::-1]
    np.testing.assert_allclose(singular_values(x).numpy(), np.sqrt(squares), rtol=1e-9)


def test_no_figure_is_one_that_json_does_not_know():
    assert [json_safe(value) for value in (1.5, None, math.nan, math.inf, -math.inf)] == [1.5, None, None, None, None]


def test_the_largest_is_not_known_where_one_is_not():
    assert largest([1.0, 3.0, 2.0]) == 3
    assert math.isnan(largest([1.0, math.nan])) and math.isnan(largest([math.nan, 1.0]))
