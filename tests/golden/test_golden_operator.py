"""The figures of the published implementation's deductive outputs, against plain numpy."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from linnet.layers.mixers.plga.matrices import operator_figures

PUBLISHED = {"A": "A", "A_LM": "A_LM", "A_P": "A_P", "G": "G_LM"}


@pytest.fixture(scope="module")
def layers():
    """The outputs that the first text of the batch gave, float64."""
    golden = load_file(Path(__file__).parent / "pldr_small.safetensors")
    count = sum(name.endswith(".G_LM") for name in golden)
    return [
        {name: golden[f"layer{layer}.{published}"][0] for name, published in PUBLISHED.items()}
        for layer in range(count)
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_differences_determinants_and_ranks(layers, name):
    x_LHKK = np.stack([layer[name].numpy() for layer in layers])
    found = operator_figures(layers).figures()[name]
    pairs = [(x[i] - x[j]) ** 2 for x in x_LHKK for i, j in combinations(range(len(x)), 2)]
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(pairs)), rel=1e-13)
    assert found["max_abs_det"] == pytest.approx(np.abs(np.linalg.det(x_LHKK)).max(), rel=1e-10)
    tolerance = x_LHKK.shape[-1] * np.finfo(np.float64).eps
    assert [layer["rank"] for layer in found["per_layer"]] == np.linalg.matrix_rank(x_LHKK, rtol=tolerance).tolist()


def test_the_spectrum_of_a_and_the_singular_values_of_a_lm(layers):
    found = operator_figures(layers).figures()
    a_LHKK, a_lm_LHKK = (np.stack([layer[name].numpy() for layer in layers]) for name in ("A", "A_LM"))
    radii_LH = np.abs(np.linalg.eigvals(a_LHKK)).max(axis=2)
    rows = [(x[i] - x[j]) ** 2 for of_layer in a_LHKK for x in of_layer for i, j in combinations(range(len(x)), 2)]
    assert found["A"]["spectral_radius"] == pytest.approx(radii_LH.max())
    assert found["A"]["rmse_between_rows"] == pytest.approx(np.sqrt(np.mean(rows)), rel=1e-12)
    for layer in range(len(layers)):
        a, a_lm = (found[name]["per_layer"][layer] for name in ("A", "A_LM"))
        assert a["spectral_radius"] == pytest.approx(radii_LH[layer])
        assert a["mean_row_sum"] == pytest.approx(a_LHKK[layer].sum(axis=2).mean(axis=1))
        for values, x_KK in zip(a_lm["singular_values"], a_lm_LHKK[layer], strict=True):
            assert values == pytest.approx(np.linalg.svd(x_KK, compute_uv=False))
