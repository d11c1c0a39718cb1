"""A process that trains keeps the memory that it frees."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from linnet.core.allocator import keep_freed_memory
print(int({call}))
for _ in range(20):  # glibc finds a place for aligned blocks that it can use again, in the end
    torch.ones(16_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(16_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(call: str, **environment: str) -> tuple[int, int]:
    """What the call returned, and how many pages five tensors of 64 MB then touched for the first time."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM.format(call=call)]
    done = subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, check=True)
    returned, faults = done.stdout.split()
    return int(returned), int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_pages_are_touched_once():
    assert run("False")[1] > 10_000
    returned, faults = run("keep_freed_memory()")
    assert returned == 1 and faults < 1_000


def test_what_the_user_has_set_up_stays():
    assert run("keep_freed_memory()", MALLOC_ARENA_MAX="2")[0] == 0
