"""Runs every contract test on every example of every mixer and feed-forward."""

import pytest
import torch
from examples import ALL, PLACE, name_of, randomised

from linnet.layers.contract import Sublayer, SublayerSpec


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "spec" in metafunc.fixturenames:
        metafunc.parametrize("spec", ALL, ids=name_of)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def sublayer(spec: SublayerSpec) -> Sublayer:
    return randomised(spec.build(PLACE)).double()
