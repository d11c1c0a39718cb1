"""The figures of matrices and deductive outputs against their definitions."""

import json
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.layers.mixers.plga.matrices import (
    SquaredDifferences,
    largest,
    largest_eigenvalues,
    log10_abs_determinants,
    mean_row_sums,
    operator_figures,
    power_of_ten,
    ranks,
    singular_values,
    squared_differences,
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
def test_squared_differences_between_heads(heads: int, width: int, seed: int):
    x = _random(heads, width, width, seed=seed)
    assert squared_differences(x).rmse == pytest.approx(_rmse_of_heads(x.numpy()), rel=1e-12)


@given(heads=st.integers(1, 3), width=st.integers(2, 5), seed=st.integers(0, 1000))
def test_squared_differences_between_rows(heads: int, width: int, seed: int):
    x = _random(heads, width, width, seed=seed)
    assert squared_differences(x.transpose(0, 1)).rmse == pytest.approx(_rmse_of_rows(x.numpy()), rel=1e-12)


def test_small_differences_of_large_numbers_are_exact():
    x = 1e6 + torch.tensor([0.0, 1e-9, 3e-9], dtype=torch.float64)
    exact = [float(a - b) for a, b in combinations(x, 2)]
    assert squared_differences(x[:, None]).rmse == pytest.approx(math.sqrt(sum(d * d for d in exact) / 3), rel=1e-9)


@given(st.integers(2, 7), st.floats(-1e6, 1e6))
def test_equal_items_have_a_difference_of_exactly_zero(count: int, value: float):
    assert squared_differences(torch.full((count, 3), value, dtype=torch.float64)).rmse == 0.0


def test_differences_of_layers_can_be_added():
    first, second = _random(2, 3, 3, seed=1), _random(4, 2, 2, seed=2)
    squares = [
        float(difference)
        for x in (first, second)
        for i, j in combinations(range(len(x)), 2)
        for difference in ((x[i] - x[j]) ** 2).flatten()
    ]
    together = squared_differences(first) + squared_differences(second)
    assert together.count == len(squares) == 1 * 9 + 6 * 4
    assert together.rmse == pytest.approx(math.sqrt(sum(squares) / len(squares)), rel=1e-12)


def test_one_head_has_no_difference():
    assert squared_differences(_random(1, 3, 3)) == SquaredDifferences(0.0, 0)
    assert squared_differences(_random(1, 3, 3)).rmse is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_matrix_that_is_not_finite_makes_only_its_own_head_nan(value: float):
    x = _random(3, 4, 4)
    x[1, 2, 3] = value
    assert math.isnan(squared_differences(x).rmse)
    others = torch.tensor([0, 2])
    for function in (log10_abs_determinants, singular_values, largest_eigenvalues, mean_row_sums):
        found = function(x)
        assert torch.isnan(found[1]).all()
        torch.testing.assert_close(found[others], function(x[others]))
    assert [rank is None for rank in ranks(singular_values(x), 1e-9)] == [False, True, False]


def test_determinants_match_cofactor_expansion():
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


def test_ranks_count_singular_values_above_the_tolerance():
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
    assert squared_differences(x.transpose(0, 1)).rmse == 0


def test_the_eigenvalue_of_largest_magnitude_may_be_negative_or_complex():
    rotation = torch.tensor([[0.0, -3.0], [3.0, 0.0]])
    found = largest_eigenvalues(torch.stack([torch.diag(torch.tensor([1.0, -2.0])), rotation]))
    assert found[0].item() == -2
    assert (abs(found[1].item()), found[1].real.item()) == (pytest.approx(3), pytest.approx(0))


def test_singular_values_are_the_roots_of_the_eigenvalues_of_the_square():
    x = _random(2, 4, 4)
    squares = np.sort(np.linalg.eigvalsh(x.numpy().transpose(0, 2, 1) @ x.numpy()), axis=1)[:, ::-1]
    np.testing.assert_allclose(singular_values(x).numpy(), np.sqrt(squares), rtol=1e-9)


def test_figures_that_json_cannot_represent_are_null():
    assert [json_safe(value) for value in (1.5, None, math.nan, math.inf, -math.inf)] == [1.5, None, None, None, None]


def test_largest_is_nan_if_one_value_is_nan():
    assert largest([1.0, 3.0, 2.0]) == 3
    assert math.isnan(largest([1.0, math.nan])) and math.isnan(largest([math.nan, 1.0]))


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _layers(count: int = 2, heads: int = 3, width: int = 4) -> list[dict[str, torch.Tensor]]:
    names = ("A", "A_LM", "A_P", "G")
    return [
        {name: _random(heads, width, width, seed=10 * layer + place) for place, name in enumerate(names)}
        for layer in range(count)
    ]


def _figures(layers: list[dict[str, torch.Tensor]], **settings: float):
    """The figures after JSON; fails on numbers that JSON cannot represent."""
    return json.loads(json.dumps(operator_figures(layers, **settings).figures(), allow_nan=False))


def test_every_output_has_its_own_figures():
    layers = _layers()
    found = _figures(layers)
    for name in ("A", "A_LM", "A_P", "G"):
        x = [layer[name] for layer in layers]
        assert found[name]["rmse"] == (squared_differences(x[0]) + squared_differences(x[1])).rmse
        assert found[name]["max_abs_det"] == pytest.approx(10 ** max(map(float, log10_abs_determinants(torch.cat(x)))))
        for number, (layer, of_layer) in enumerate(zip(x, found[name]["per_layer"], strict=True)):
            assert of_layer["layer"] == number
            assert of_layer["rmse"] == squared_differences(layer).rmse
            assert of_layer["max_abs_det"] == pytest.approx(torch.linalg.det(layer).abs().max().item())
            assert of_layer["log10_max_abs_det"] == pytest.approx(math.log10(of_layer["max_abs_det"]))


def test_the_spectrum_of_a_and_the_singular_values_of_a_lm():
    layers = _layers()
    found = _figures(layers)
    for number, layer in enumerate(layers):
        a = found["A"]["per_layer"][number]
        values = torch.linalg.eigvals(layer["A"])
        assert a["spectral_radius"] == pytest.approx(values.abs().amax(dim=1).tolist())
        assert a["mean_row_sum"] == pytest.approx(layer["A"].sum(dim=(1, 2)).div(4).tolist())
        for real, imaginary, of_head in zip(
            a["largest_eigenvalue"], a["largest_eigenvalue_imaginary"], values.tolist(), strict=True
        ):
            assert any(abs(value - complex(real, imaginary)) < 1e-9 for value in of_head)
        a_lm = found["A_LM"]["per_layer"][number]
        assert torch.tensor(a_lm["singular_values"]).shape == (3, 4)
        for head, values in enumerate(a_lm["singular_values"]):
            assert values == pytest.approx(torch.linalg.svdvals(layer["A_LM"])[head].tolist())
            assert a_lm["condition_number"][head] == pytest.approx(values[0] / values[-1])
    assert found["A"]["spectral_radius"] == max(max(a["spectral_radius"]) for a in found["A"]["per_layer"])
    singular = [values for layer in found["A_LM"]["per_layer"] for values in layer["singular_values"]]
    assert found["A_LM"]["largest_singular_value"] == max(values[0] for values in singular)
    assert found["A_LM"]["smallest_singular_value"] == min(values[-1] for values in singular)
    assert found["A_LM"]["condition_number"] == pytest.approx(max(values[0] / values[-1] for values in singular))
    assert "singular_values" not in found["G"]["per_layer"][0] and "spectral_radius" not in found["G"]["per_layer"][0]


def test_a_file_with_only_g():
    found = _figures([{"G": layer["G"]} for layer in _layers()])
    assert found.keys() == {"rank_tolerance", "G"}


def test_layers_with_fixed_operators_keep_their_index():
    learned, fixed = _layers(2)
    found = _figures([{"G": fixed["G"]}, learned])
    assert [layer["layer"] for layer in found["A"]["per_layer"]] == [1]
    assert [layer["layer"] for layer in found["G"]["per_layer"]] == [0, 1]


def test_figures_of_one_head_are_null():
    found = _figures(_layers(heads=1))
    assert found["G"]["rmse"] is None and found["G"]["per_layer"][0]["rmse"] is None
    assert found["G"]["max_abs_det"] is not None


def test_an_overflowing_determinant_is_null_and_has_a_logarithm():
    found = _figures([{"G": torch.eye(64)[None] * 1e9}])["G"]
    assert (found["max_abs_det"], found["log10_max_abs_det"]) == (None, pytest.approx(576, rel=1e-6))


def test_singular_matrices():
    found = _figures([{"A_LM": torch.zeros(2, 3, 3), "G": torch.zeros(2, 3, 3)}])
    assert (found["G"]["max_abs_det"], found["G"]["log10_max_abs_det"]) == (0.0, None)
    assert found["G"]["rank"] == {"smallest": 0, "largest": 0}
    assert found["A_LM"]["condition_number"] is None and found["A_LM"]["smallest_singular_value"] == 0


def test_elements_that_are_not_finite_are_counted_and_figures_are_null():
    layers = _layers()
    for name in ("A", "A_LM", "A_P", "G"):
        layers[1][name][2, 0, :2] = torch.tensor([math.inf, math.nan])
    found = _figures(layers)
    for name in ("A", "A_LM", "A_P", "G"):
        good, bad = found[name]["per_layer"]
        assert (good["non_finite_elements"], bad["non_finite_elements"], found[name]["non_finite_elements"]) == (
            0,
            2,
            2,
        )
        assert good["rmse"] is not None and bad["rmse"] is None and found[name]["rmse"] is None
        assert bad["max_abs_det"] is bad["log10_max_abs_det"] is found[name]["max_abs_det"] is None
        assert bad["rank"] == [4, 4, None]
    assert found["A"]["per_layer"][1]["spectral_radius"][2] is None
    assert found["A_LM"]["per_layer"][1]["singular_values"][2] == [None] * 4


def test_the_tolerance_of_ranks_follows_the_precision():
    x = torch.diag(torch.tensor([1.0, 1e-9, 1e-9]))[None]
    assert _figures([{"G": x}])["G"]["rank"] == {"smallest": 1, "largest": 1}
    assert _figures([{"G": x}])["rank_tolerance"] == 3 * torch.finfo(torch.float32).eps
    assert _figures([{"G": x.double()}])["G"]["rank"] == {"smallest": 3, "largest": 3}
    assert _figures([{"G": x.double()}], rank_tolerance=1e-8)["G"]["rank"] == {"smallest": 1, "largest": 1}


@pytest.mark.parametrize("share", [math.inf, math.nan, -1.0, 2.0])
def test_the_rank_tolerance_is_between_0_and_1(share: float):
    with pytest.raises(UserError, match=r"rank_tolerance: \S+: expected a share, 0 to 1"):
        operator_figures(_layers(), share)
