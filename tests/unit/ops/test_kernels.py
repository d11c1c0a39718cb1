import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from linnet.ops.kernels import block, kernels_run

HERE = Path(__file__).parent
CASES = ("decay", "decay_at_a_fixed_rate", "gated", "same_key", "rwkv", "layers", "flops")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton: pip install 'linnet[triton]'")


def in_a_process(script: str, *arguments: str) -> None:
    """Triton reads once, when it is imported, whether it interprets; it finds sources from files alone."""
    command = [sys.executable, HERE / script, *arguments]
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", CASES)
def test_kernels_give_what_the_definition_gives(case: str):
    in_a_process("kernel_cases.py", case)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", ["80", "89", "90", "120"])
def test_kernels_are_compiled_for_gpus_without_one(capability: str):
    """To machine code; what they want of shared memory is there."""
    in_a_process("kernel_builds.py", capability)


def test_on_a_processor_and_on_other_numbers_none_run():
    assert not kernels_run(torch.ones(3))
    assert not kernels_run(torch.ones(3, device="meta"), torch.ones(3, device="meta", dtype=torch.float64))


@pytest.mark.parametrize(("size", "expected"), [(1, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_a_block_is_a_power_of_two_with_room(size: int, expected: int):
    assert block(size) == expected
