"""Runs every contract test on every example of every mixer."""

import pytest
import torch
from examples import EXAMPLES, WIDTH, randomised

from linnet.layers.contract import Mixer, MixerSpec


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mixer_spec" in metafunc.fixturenames:
        metafunc.parametrize("mixer_spec", EXAMPLES, ids=lambda spec: f"{spec.kind}-{EXAMPLES.index(spec)}")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def mixer(mixer_spec: MixerSpec) -> Mixer:
    return randomised(mixer_spec.build(WIDTH, context_length=128)).double()
