"""The entropy of a linear layer: the closed form against matrices that are drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.design.entropy import STEP, entropy, sampled_entropy

SAMPLED = {(64, 64): 217.4, (128, 512): 781.8, (512, 512): 2726, (512, 2048): 3834}
"""Sampled values for sigma = eps = 1, computed elsewhere."""

sides = st.integers(16, 128)


@pytest.mark.parametrize("shape", SAMPLED)
def test_known_values(shape: tuple[int, int]):
    assert entropy(*shape) == pytest.approx(SAMPLED[shape], rel=2e-3)
    assert sampled_entropy(*shape) == pytest.approx(SAMPLED[shape], rel=4e-3)


def by_singular_values(inputs: int, outputs: int, sigma: float, eps: float) -> float:
    """The definition, over 20 matrices."""
    draws = np.random.default_rng(1)
    values = [np.linalg.svd(sigma * draws.standard_normal((inputs, outputs)), compute_uv=False) for _ in range(20)]
    return float(np.mean([np.log1p(s**2 / eps**2).sum() for s in values]))


@given(sides, sides, st.floats(0.2, 3), st.floats(0.5, 2))
def test_both_forms_are_the_definition(inputs: int, outputs: int, sigma: float, eps: float):
    """The closed form is a limit: off by a number that does not grow, for small matrices and large ones alike."""
    expected = by_singular_values(inputs, outputs, sigma, eps)
    assert entropy(inputs, outputs, sigma, eps) == pytest.approx(expected, rel=0.01, abs=3)
    if max(inputs, outputs) % STEP == 0:
        assert sampled_entropy(inputs, outputs, sigma, eps, samples=20) == pytest.approx(expected, rel=0.01, abs=3)


@given(sides, sides)
def test_neither_depends_on_the_direction_of_a_map(inputs: int, outputs: int):
    assert entropy(inputs, outputs) == entropy(outputs, inputs)
    assert sampled_entropy(inputs, outputs, samples=1) == sampled_entropy(outputs, inputs, samples=1)


def test_between_multiples_of_32_the_sampled_form_interpolates():
    low, high = sampled_entropy(100, 128), sampled_entropy(100, 160)
    assert sampled_entropy(100, 136) == pytest.approx(low + (high - low) / 4)
    assert sampled_entropy(100, 136) == pytest.approx(entropy(100, 136), rel=0.01)


def test_a_seed_decides_the_draws():
    assert sampled_entropy(64, 64, samples=1, seed=3) == sampled_entropy(64, 64, samples=1, seed=3)
    assert sampled_entropy(64, 64, samples=1, seed=3) != sampled_entropy(64, 64, samples=1, seed=4)
