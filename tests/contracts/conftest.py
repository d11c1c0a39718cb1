"""Run every contract test on every example of every mixer and feed-forward, unless a test selects some."""

import pytest
import torch
from examples import ALL, PLACE, name_of, policies_of, randomized

from linnet.layers.contract import Sublayer, SublayerSpec
from linnet.layers.registry import FEED_FORWARDS, MIXERS

KINDS = {*MIXERS, *FEED_FORWARDS}


def pytest_configure(config: pytest.Config) -> None:
    for kind in KINDS:
        config.addinivalue_line("markers", f"{kind}: contract tests of this kind of layer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of a kind with its name: `-m "ted and not slow"` (`-k ted` also finds "predicted")."""
    for item in items:
        for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
            for one in value if isinstance(value, tuple) else (value,):
                name = one.kind if isinstance(one, SublayerSpec) else one
                if isinstance(name, str) and (name := name.partition("-")[0]) in KINDS:
                    item.add_marker(name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `policy` runs with every cache policy of an example, too."""
    chosen = any("spec" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "policy" in metafunc.fixturenames:
        pairs = {name_of(spec) + suffix: (spec, policy) for spec in ALL for suffix, policy in policies_of(spec).items()}
        metafunc.parametrize(("spec", "policy"), pairs.values(), ids=pairs)
    elif "spec" in metafunc.fixturenames and not chosen:
        metafunc.parametrize("spec", ALL, ids=name_of)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def sublayer(spec: SublayerSpec) -> Sublayer:
    return randomized(spec.build(PLACE)).double()
