import gc
import logging
import os
from collections.abc import Callable, Generator
from pathlib import Path

import hypothesis
import pytest
import torch

import on_device
from linnet.core.notes import LOG, note

torch.set_num_threads(1)
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
os.environ["COLUMNS"] = "100"  # of the terminal that commands print for, unless a test has another


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where contract and golden tests compute: cpu, cuda, cuda:1")


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--device")
    if name == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the tests of verbs, which take a GPU where there is one
    try:
        on_device.choose(name)
    except (ValueError, RuntimeError) as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """A million objects are made here that last to the end: the collector would look through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("cpu_only")
        if marker is not None and on_device.DEVICE.type != "cpu":
            item.add_marker(pytest.mark.skip(reason=f"of processors alone: {marker.args[0]}"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real texts: `$LINNET_DATA`, else `../shared/data` beside the project; skips where there is none."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("LINNET_DATA", root.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder} (set LINNET_DATA)")
    return folder


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """`told()`: the notes of this test so far."""
    note.cache_clear()  # each is told once per process
    caplog.set_level(logging.INFO, LOG.name)
    return lambda: [record.getMessage().removeprefix("note: ") for record in caplog.records if record.name == LOG.name]
