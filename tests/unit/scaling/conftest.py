"""Runs whose law is known."""

from collections.abc import Callable

import numpy as np
import pytest

from linnet.scaling import fit as fit_module
from linnet.scaling import parametric
from linnet.scaling.law import ParametricLaw
from linnet.scaling.points import Points, Run

TRUTH = ParametricLaw(E=1.6, A=150.0, B=400.0, alpha=0.32, beta=0.36)
SIZES = np.geomspace(2e5, 2e7, 7)
TOKENS_PER_PARAMETER = np.array([4.0, 10.0, 25.0, 60.0])
CURVE = 12


def known_runs(noise: float = 0.0, seed: int = 0) -> list[Run]:
    """Seven sizes, four lengths each, with curves; the loss scatters by the share `noise`."""
    random = np.random.default_rng(seed)
    runs = []
    for size in SIZES:
        for ratio in TOKENS_PER_PARAMETER:
            tokens = size * ratio * np.geomspace(0.1, 1, CURVE)
            loss = TRUTH.loss(size, tokens) * np.exp(noise * random.standard_normal(CURVE))
            # Ways of counting that change the small models most, as embeddings do.
            parameters = {"total": size, "without_embedding": size - 1.5e5, "matrices_and_head": 0.99 * size}
            runs.append(Run(f"{size:.0f} x {ratio:.0f}", parameters, tokens, 6 * size * tokens, loss))
    return runs


@pytest.fixture(scope="session")
def runs() -> list[Run]:
    return known_runs()


@pytest.fixture(scope="session")
def noisy_runs() -> list[Run]:
    return known_runs(noise=0.005)


@pytest.fixture(scope="session")
def points(noisy_runs) -> Points:
    return Points.of(noisy_runs, "total")


@pytest.fixture
def few_starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], np.ndarray]:
    """Every 30th start of the grid, for tests of what stands around the fit."""
    whole = parametric.grid()[::30]
    for module in (parametric, fit_module):
        monkeypatch.setattr(module, "grid", lambda: whole)
    return lambda: whole
