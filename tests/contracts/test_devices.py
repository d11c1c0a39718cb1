"""Every layer, training, evaluation and decoding on a device other than the CPU, on machines without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pretended_device import MISTAKE

SCRIPT = Path(__file__).with_name("pretended_device.py")


@pytest.mark.usefixtures("warm_python")
@pytest.mark.cpu_only("nothing is computed")
@pytest.mark.parametrize("which", ["first", pytest.param("every", marks=pytest.mark.slow)])
def test_all_tensors_are_created_on_the_device(which: str):
    """Except a deliberate fault."""
    path = [part for part in sys.path if part]
    run = subprocess.run(
        [sys.executable, SCRIPT, which], capture_output=True, text=True, check=False, env={"PYTHONPATH": ":".join(path)}
    )
    assert run.returncode == 0, run.stderr
    problems = {name: problem for name, problem in json.loads(run.stdout).items() if problem is not None}
    assert "on the same device" in problems.pop(MISTAKE)
    assert problems == {}
