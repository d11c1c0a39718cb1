import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from linnet.ops import gated_delta, kernels
from linnet.ops.decay import sums
from linnet.ops.kernels import KernelTrial, block, use_kernels

HERE = Path(__file__).parent
CASES = ("decay", "decay_at_a_fixed_rate", "gated", "same_key", "rwkv", "layers", "flops")
TRIALS = (sums._TRIAL, gated_delta.TRIAL)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton: pip install 'linnet[triton]'")


def in_a_process(script: str, *arguments: str) -> None:
    """Triton decides at import whether it interprets, and finds sources only in files."""
    command = [sys.executable, HERE / script, *arguments]
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_the_definition(case: str):
    in_a_process("kernel_cases.py", case)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", ["80", "89", "90", "120"])
def test_kernels_compile_without_a_gpu(capability: str):
    """Compile to machine code and check the shared memory."""
    in_a_process("kernel_builds.py", capability)


def test_no_kernel_runs_on_a_cpu_or_in_float64():
    assert not use_kernels(TRIALS[0], torch.ones(3))
    assert not use_kernels(TRIALS[0], torch.ones(3, device="meta"), torch.ones(3, device="meta", dtype=torch.float64))


@pytest.fixture
def passes() -> Callable[[Callable[[Tensor], Tensor]], bool]:
    """`passes(kernel)`: True if a kernel passes the trial of an operation that doubles its input."""

    def trial_of(kernel: Callable[[Tensor], Tensor]) -> bool:
        def double(x: Tensor) -> tuple[Tensor]:
            return (kernel(x) if kernels._forced else 2 * x,)

        return kernels._passes(KernelTrial("double", double, lambda: [torch.randn(5)]), torch.device("cpu"))

    return trial_of


def test_kernels_are_used_where_they_equal_plain_pytorch(passes, told):
    assert passes(lambda x: x + x)
    assert told() == [] and kernels._forced is None


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda x: 2.1 * x, "double is off by"),
        (lambda x: 2 * x.detach() + 0 * x, "double is off by 1.0e+00"),
        (lambda x: x * math.nan, "double is off by nan"),
        (lambda x: torch.linalg.cholesky(-torch.eye(2)) + x, "LinAlgError"),
    ],
)
def test_wrong_kernels_are_reported_and_not_used(passes, told, kernel, message):
    assert not passes(kernel)
    assert message in told()[0] and "plain PyTorch is" in told()[0]
    assert kernels._forced is None


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_a_trial_compares_both_passes_of_an_operation(trial: KernelTrial):
    """Plain PyTorch twice here, also without recorded gradients and under autocast."""
    with torch.inference_mode():
        assert trial.problem(torch.device("cpu")) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert trial.problem(torch.device("cpu")) is None


@pytest.mark.parametrize(("size", "expected"), [(1, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_a_block_is_a_power_of_two_of_at_least_16(size: int, expected: int):
    assert block(size) == expected
