"""A process that trains keeps the memory that it frees."""

import os
import platform
import subprocess
import sys

import pytest

from linnet.core.allocator import keep_freed_memory

PROGRAM = """
import resource, torch
from linnet.core.allocator import keep_freed_memory

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
def test_what_the_user_has_set_up_stays(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "2")
    assert not keep_freed_memory()
