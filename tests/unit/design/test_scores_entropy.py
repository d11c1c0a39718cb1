"""The entropy of a linear layer: the closed form against drawn matrices."""

from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.design.scores import STEP, ScoreSettings, entropy, sampled_entropy

SAMPLED = {(64, 64): 217.4, (128, 512): 781.8, (512, 512): 2726, (512, 2048): 3834}
"""Sampled values for sigma = eps = 1, computed elsewhere."""

sides = st.integers(16, 128)
scales = st.floats(-30, 30).map(lambda power: min(max(10.0**power, 1e-30), 1e30))
"""The range that settings accept."""


@pytest.mark.parametrize("shape", SAMPLED)
def test_known_values(shape: tuple[int, int]):
    assert entropy(*shape) == pytest.approx(SAMPLED[shape], rel=2e-3)
    assert sampled_entropy(*shape) == pytest.approx(SAMPLED[shape], rel=4e-3)


def by_singular_values(inputs: int, outputs: int, sigma: float, eps: float) -> float:
    """The definition, over 20 matrices."""
    draws = np.random.default_rng(1)
    values = [np.linalg.svd(sigma * draws.standard_normal((inputs, outputs)), compute_uv=False) for _ in range(20)]
    return float(np.mean([np.log1p(s**2 / eps**2).sum() for s in values]))


@settings(max_examples=30)
@given(sides, sides, st.floats(0.2, 3), st.floats(0.5, 2))
def test_both_forms_agree_with_the_definition(inputs: int, outputs: int, sigma: float, eps: float):
    """The closed form is a limit with a bounded absolute error for small and large matrices."""
    expected = by_singular_values(inputs, outputs, sigma, eps)
    assert entropy(inputs, outputs, sigma, eps) == pytest.approx(expected, rel=0.01, abs=3)
    if max(inputs, outputs) % STEP == 0:
        assert sampled_entropy(inputs, outputs, sigma, eps, samples=20) == pytest.approx(expected, rel=0.01, abs=3)


@given(sides, sides)
def test_both_forms_are_symmetric_in_inputs_and_outputs(inputs: int, outputs: int):
    assert entropy(inputs, outputs) == entropy(outputs, inputs)
    assert sampled_entropy(inputs, outputs, samples=1) == sampled_entropy(outputs, inputs, samples=1)


def test_between_multiples_of_32_the_sampled_form_interpolates():
    low, high = sampled_entropy(100, 128), sampled_entropy(100, 160)
    assert sampled_entropy(100, 136) == pytest.approx(low + (high - low) / 4)
    assert sampled_entropy(100, 136) == pytest.approx(entropy(100, 136), rel=0.01)


def test_a_seed_determines_the_draws():
    assert sampled_entropy(64, 64, samples=1, seed=3) == sampled_entropy(64, 64, samples=1, seed=3)
    assert sampled_entropy(64, 64, samples=1, seed=3) != sampled_entropy(64, 64, samples=1, seed=4)


def as_published(inputs: int, outputs: int, sigma: float, eps: float) -> Decimal:
    """The closed form with 500 digits: in the form of the papers it loses up to 250 of them."""
    with localcontext(Context(prec=500)):
        k, n = sorted((Decimal(inputs), Decimal(outputs)))
        b, g = k / n, n * (Decimal(sigma) / Decimal(eps)) ** 2
        f = ((g * (1 + b.sqrt()) ** 2 + 1).sqrt() - (g * (1 - b.sqrt()) ** 2 + 1).sqrt()) ** 2
        return n * (b * (1 + g - f / 4).ln() + (1 + g * b - f / 4).ln() - f / (4 * g))


@settings(max_examples=60)
@given(st.integers(1, 200_000), st.integers(1, 200_000), scales, scales)
@example(512, 2048, 1.0, 1e-8)
@example(512, 2048, 1e-9, 1.0)
@example(512, 512, 1e30, 1e-30)
@example(1, 200_000, 1e-30, 1e30)
def test_the_closed_form_is_right_for_all_settings(inputs: int, outputs: int, sigma: float, eps: float):
    assert entropy(inputs, outputs, sigma, eps) == pytest.approx(
        float(as_published(inputs, outputs, sigma, eps)), rel=1e-12, abs=0
    )


@given(st.integers(1, 31), st.integers(1, 31), scales, scales)
@example(31, 31, 1.0, 1e-4)
def test_the_sampled_form_is_right_for_all_settings(inputs: int, outputs: int, sigma: float, eps: float):
    k, n = sorted((inputs, outputs))
    matrix = np.random.default_rng((0, k, n)).standard_normal((k, n), dtype=np.float32).astype(np.float64)
    singular = np.linalg.svd(matrix, compute_uv=False)
    with localcontext(Context(prec=200)):
        scale = Decimal(sigma) / Decimal(eps)
        expected = float(sum((1 + (scale * Decimal(float(s))) ** 2).ln() for s in singular))
    assert sampled_entropy(inputs, outputs, sigma, eps, samples=1) == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize("field", ["sigma", "eps"])
@pytest.mark.parametrize("value", [-1.0, 0.0, 1e-31, 1e-200, 1e31, 1e200])
def test_other_settings_are_refused_in_one_line(field: str, value: float):
    with pytest.raises(UserError) as error:
        ScoreSettings.parse({field: value}, "score")
    assert str(error.value) == f"score: {field}: {value}: must lie between 1e-30 and 1e30"
