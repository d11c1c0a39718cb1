"""The figures of deductive outputs: which matrix they come from, what is null, and that they are JSON."""

import json
import math

import pytest
import torch

from linnet.core.errors import UserError
from linnet.inspection.matrices import between_heads, log10_abs_determinants
from linnet.inspection.operator_figures import operator_figures


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _layers(count: int = 2, heads: int = 3, width: int = 4) -> list[dict[str, torch.Tensor]]:
    names = ("A", "A_LM", "A_P", "G")
    return [
        {name: _random(heads, width, width, seed=10 * layer + place) for place, name in enumerate(names)}
        for layer in range(count)
    ]


def _figures(layers: list[dict[str, torch.Tensor]], **settings: float):
    """As JSON has them; fails on what JSON does not know."""
    return json.loads(json.dumps(operator_figures(layers, **settings).figures(), allow_nan=False))


def test_every_output_has_its_own_figures():
    layers = _layers()
    found = _figures(layers)
    for name in ("A", "A_LM", "A_P", "G"):
        x = [layer[name] for layer in layers]
        assert found[name]["rmse"] == (between_heads(x[0]) + between_heads(x[1])).rmse
        assert found[name]["max_abs_det"] == pytest.approx(10 ** max(map(float, log10_abs_determinants(torch.cat(x)))))
        for number, (layer, of_layer) in enumerate(zip(x, found[name]["per_layer"], strict=True)):
            assert of_layer["layer"] == number
            assert of_layer["rmse"] == between_heads(layer).rmse
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


def test_layers_without_a_net_keep_their_numbers():
    learned, fixed = _layers(2)
    found = _figures([{"G": fixed["G"]}, learned])
    assert [layer["layer"] for layer in found["A"]["per_layer"]] == [1]
    assert [layer["layer"] for layer in found["G"]["per_layer"]] == [0, 1]


def test_one_head_is_null():
    found = _figures(_layers(heads=1))
    assert found["G"]["rmse"] is None and found["G"]["per_layer"][0]["rmse"] is None
    assert found["G"]["max_abs_det"] is not None


def test_an_overflow_is_null_beside_its_logarithm():
    found = _figures([{"G": torch.eye(64)[None] * 1e9}])["G"]
    assert (found["max_abs_det"], found["log10_max_abs_det"]) == (None, pytest.approx(576, rel=1e-6))


def test_singular_matrices():
    found = _figures([{"A_LM": torch.zeros(2, 3, 3), "G": torch.zeros(2, 3, 3)}])
    assert (found["G"]["max_abs_det"], found["G"]["log10_max_abs_det"]) == (0.0, None)
    assert found["G"]["rank"] == {"smallest": 0, "largest": 0}
    assert found["A_LM"]["condition_number"] is None and found["A_LM"]["smallest_singular_value"] == 0


def test_what_is_not_finite_is_counted_and_null():
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
def test_a_tolerance_is_a_share(share: float):
    with pytest.raises(UserError, match=r"rank_tolerance: \S+: expected a share, 0 to 1"):
        operator_figures(_layers(), share)
