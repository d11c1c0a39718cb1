import gc
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from _pytest import logging as pytest_logging
from _pytest import runner
from torch.utils import collect_env

import on_device
import sbatch_stub
from linnet.core.errors import LOG, note
from linnet.inference.step_packages import BUILDS
from linnet.present import page, style
from linnet.training import machine, metrics, trainer
from warm_python import WarmPython

torch.set_num_threads(1)
hypothesis.settings.register_profile("any machine", deadline=None, max_examples=40)  # others in every run
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=100)
hypothesis.settings.load_profile("any machine")
os.environ["COLUMNS"] = "100"  # of the terminal that commands print for, unless a test has another


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where contract and golden tests compute: cpu, cuda, cuda:1")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script: what is stopped would not be
        signal.signal(signal.SIGINT, signal.default_int_handler)
    name = config.getoption("--device")
    if name == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the tests of verbs, which take a GPU where there is one
        for absent in (torch.cuda, torch.xpu, torch.mtia):  # each keeps a seed for later, with the stack of its caller
            absent.manual_seed_all = lambda seed: None
    try:
        on_device.choose(name)
    except (ValueError, RuntimeError) as error:
        raise pytest.UsageError(str(error)) from None


class _LogsOfRoot(pytest_logging.catching_logs[Any]):
    """Without the loggers that do not propagate, but ours: PyTorch has eighty, and to attach to each, six times for
    each test, takes longer than many a test.
    """

    def __enter__(self) -> Any:
        if self.level is not None:
            return super().__enter__()
        self.attached_loggers += [logging.root] if LOG.propagate else [logging.root, LOG]
        for logger in self.attached_loggers:
            logger.addHandler(self.handler)
        return self.handler


if hasattr(pytest_logging.catching_logs, "attached_loggers"):  # in newer versions alone
    pytest_logging.catching_logs = _LogsOfRoot  # type: ignore[misc]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """A million objects are made here that last to the end: the collector would look through them again and again.

    The tests make more, in imports and caches, and little that it finds: it looks every 10,000 objects instead of 700.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("cpu_only")
        if marker is not None and on_device.DEVICE.type != "cpu":
            item.add_marker(pytest.mark.skip(reason=f"of processors alone: {marker.args[0]}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker of pytest-xdist tells of a test that passed once, not five times, which takes longer than many a test.
    What took as long as `--durations` shows is told, too.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runner.runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration >= 0.005:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def hangups_are_heard() -> Iterator[None]:
    """Also where the tests themselves are to survive them (`nohup`)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def warm_python() -> Iterator[None]:
    """Python processes of the tests, and of what they call, start with the imports done."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", WarmPython)
        yield


@pytest.fixture(scope="session", autouse=True)
def _asked_once() -> Iterator[None]:
    """What this machine is: runs measure its peak, and the harness asks a dozen programs. It keeps its power."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer, "kept_peak", lambda device, dtype: machine.Peak(1e12, "2026-11-26"))
        patched.setattr(collect_env, "get_pretty_env_info", cache(collect_env.get_pretty_env_info))
        patched.setattr(BUILDS, "enabled", False)  # nothing is compiled beside the tests
        patched.setattr(os, "fsync", lambda handle: None)  # which no test can see; a short run waits for it 90 times
        yield


@pytest.fixture(scope="session", autouse=True)
def _drawn_once() -> Iterator[None]:
    """Of the runs that tests make in their own process, of which most would go to their pictures, the first draws its
    own, of each kind; the others have that one. So do the pictures beside pages, which hold them as SVG, too.
    """
    draw, drawn = metrics.draw_curves, dict[bool, bytes]()
    png_of, beside = page.png_of, list[bytes]()

    def draw_once(lines: list[dict[str, Any]], path: Path, title: str, causal: bool) -> None:
        if causal in drawn:
            path.write_bytes(drawn[causal])
            return
        draw(lines, path, title, causal)
        drawn[causal] = path.read_bytes()

    def png_once(figure: Any) -> bytes:
        if not beside:
            beside.append(png_of(figure))
        return beside[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(metrics, "draw_curves", draw_once)
        patched.setattr(page, "png_of", png_once)
        yield


@pytest.fixture(scope="module", autouse=True)
def _without_layout(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pictures are drawn, but no room is made for their texts, which takes most of the time: the tests of `present` and
    of reports look at that.
    """
    with pytest.MonkeyPatch.context() as patched:
        if request.path.parent.name != "present" and "report" not in request.path.name:
            patched.setitem(style.STYLE, "figure.constrained_layout.use", False)
        yield


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


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stub of sbatch on the PATH; the file where it logs."""
    return sbatch_stub.install(tmp_path, monkeypatch)
