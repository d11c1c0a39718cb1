"""A process that trains keeps the memory that it frees."""

import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.core import system
from linnet.core.system import (
    DeferredSignals,
    NotDistributedError,
    OtherPrograms,
    available_bytes,
    busy_advice,
    exit_process,
    is_distributed,
    is_rank0,
    keep_freed_memory,
    quiet_torch_distributed,
    refuse_distributed,
    scatter,
)

CPU = torch.device("cpu")


def test_available_memory_is_at_most_that_of_the_machine():
    assert 0 < available_bytes(CPU) <= psutil.virtual_memory().total


def test_a_limited_address_space_is_less():
    code = (
        "import torch; from linnet.core.system import available_bytes; import resource\n"
        "import psutil; used = psutil.Process().memory_info().vms\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 10_000_000, resource.getrlimit(resource.RLIMIT_AS)[1]))\n"
        "print(available_bytes(torch.device('cpu')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert 0 <= int(found.stdout) <= 10_000_000


@pytest.mark.parametrize(
    ("limit", "expected"), [("1000000\n", 450_000), ("600000\n", 50_000), ("500000\n", 0), ("max\n", None)]
)
def test_a_container_has_its_share(limit: str, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("600000\n")
    at_hand = "file 90000\ninactive_file 30000\nactive_file 20000\n"  # what was read: the system gives it up
    (tmp_path / "memory.stat").write_text(f"anon 400000\n{at_hand}")
    monkeypatch.setattr(system, "_CGROUP", tmp_path)
    found = available_bytes(CPU)
    assert found == expected if expected is not None else found > 1_000_000


def test_without_limits_the_machine_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(system, "_CGROUP", tmp_path / "none")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert available_bytes(CPU) > 1_000_000


PROGRAM = """
import resource, torch
from linnet.core.system import keep_freed_memory

def touched():
    for _ in range(20):  # glibc finds a place for aligned blocks that it can use again, in the end
        torch.ones(16_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(16_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(touched(), int(keep_freed_memory()), touched())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_pages_are_touched_once():
    """Those that five tensors of 64 MB touch for the first time, before and after."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, returned, after = map(int, done.stdout.split())
    assert before > 10_000
    assert returned == 1 and after < 1_000


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_configuration_by_the_user_is_kept(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "2")
    assert not keep_freed_memory()


TORCHRUN_VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture
def told(monkeypatch):
    """`told(**changes)`: what torchrun says; None: it does not say it."""

    def tell(**changes):
        for name, value in {**TORCHRUN_VARIABLES, **changes}.items():
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)

    return tell


def test_a_distributed_process_has_all_variables(told):
    told()
    assert is_distributed() and not is_rank0()
    told(RANK="0")
    assert is_distributed() and is_rank0()


@pytest.mark.parametrize("changes", [{"WORLD_SIZE": "1"}, {"WORLD_SIZE": "two"}, {"WORLD_SIZE": ""}, {"RANK": None}])
def test_otherwise_the_process_is_single(told, changes):
    """As on a cluster that sets some of them for its own ends."""
    told(**changes)
    assert not is_distributed() and is_rank0()
    refuse_distributed("demo")
    quiet_torch_distributed()
    assert "TORCH_CPP_LOG_LEVEL" not in os.environ
    exit_process(3)


def test_single_process_verbs_refuse_several(told):
    told()
    with pytest.raises(NotDistributedError, match=r"^demo: runs in one process, not in 2; leave torchrun out$"):
        refuse_distributed("demo")


def test_pytorch_is_quiet_unless_configured(told, monkeypatch):
    told()
    quiet_torch_distributed()
    assert os.environ["TORCH_CPP_LOG_LEVEL"] == "ERROR"
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    quiet_torch_distributed()
    assert os.environ["TORCH_CPP_LOG_LEVEL"] == "INFO"


def test_a_distributed_process_ends_at_once_after_flushing():
    """A thread that waits would keep the process."""
    program = (
        "import threading; from linnet.core.system import exit_process;"
        "threading.Thread(target=threading.Event().wait).start(); print('said', end=''); exit_process(7)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **TORCHRUN_VARIABLES},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (7, "said")


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50))
def test_scatter_is_the_slowest_tenth_over_the_median(times):
    assert scatter(times) == pytest.approx(np.quantile(times, 0.9) / np.quantile(times, 0.5))


def test_one_slow_time_in_twenty_is_ignored():
    assert scatter([1.0] * 19 + [50.0]) == 1.0 and scatter([1.0] * 17 + [3.0] * 3) == 3.0


def test_the_load_of_other_processes_is_measured():
    others = OtherPrograms()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.6)
        found = others.processors()
    finally:
        child.kill()
        child.wait()
    assert found > 0.3
    assert "other programs use 1.5 of " in busy_advice(1.5, "or wait") and busy_advice(1.5, "or wait").endswith(
        "or wait"
    )
    assert busy_advice(0.1, "or wait").startswith("other programs use hardly any")


def test_memory_is_known_without_limits_of_processes_and_containers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(system, "resource", None)  # Windows
    monkeypatch.setattr(system, "_CGROUP", tmp_path / "none")
    assert 0 < available_bytes(CPU) <= psutil.virtual_memory().total


def test_a_signal_waits_until_the_block_has_ended():
    done = []
    with pytest.raises(KeyboardInterrupt), DeferredSignals(), DeferredSignals():
        signal.raise_signal(signal.SIGINT)
        done.append("whole")
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
