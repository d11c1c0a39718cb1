import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from linnet.core import memory
from linnet.core.memory import available_bytes

CPU = torch.device("cpu")


def test_no_more_is_there_than_the_machine_has():
    assert 0 < available_bytes(CPU) <= psutil.virtual_memory().total


def test_a_limited_address_space_is_less():
    code = (
        "import torch; from linnet.core.memory import available_bytes; import resource\n"
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
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    found = available_bytes(CPU)
    assert found == expected if expected is not None else found > 1_000_000


def test_without_limits_the_machine_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "none")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert available_bytes(CPU) > 1_000_000
