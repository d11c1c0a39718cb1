"""A sample of every campaign, always the same: nothing may be found. `make campaign` is all of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By campaign, in a process of its own: one without threads."""
    told = tmp_path_factory.mktemp("campaigns") / "findings.json"
    command = [sys.executable, str(HERE), "--sample", "--findings", str(told)]
    ended = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert told.exists(), ended.stderr
    found: dict[str, list[str]] = json.loads(told.read_text())
    return found


@pytest.mark.parametrize("campaign", ["kills", "corruption", "fuzz", "hostile", "faults"])
def test_a_sample_finds_nothing(campaign: str, findings: dict[str, list[str]]):
    assert findings[campaign] == []
