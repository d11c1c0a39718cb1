"""The contract tests on a device, for `gpu.py`: how many pass, and which do not."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TESTS = ("tests/contracts", "tests/golden/test_golden.py")
TINY_TESTS = ("tests/contracts/test_hooks.py",)
MAX_PROCESSES = 16
OUTCOMES = ("passed", "failed", "error", "skipped")
LAST_CHARACTERS = 3000


def contract_tests(device: str, tiny: bool, limit_s: float) -> dict[str, Any]:
    """The outcomes so far if the time ends before the tests (`complete`), and the end of pytest's report of
    failures.
    """
    processes = 0 if tiny else min(MAX_PROCESSES, os.cpu_count() or 1)
    # Without pytest-xdist, the project's own options, which name its `--dist`, would be refused.
    spread = (
        ["-n", str(processes)]
        if importlib.util.find_spec("xdist")
        else ["-o", "addopts=--import-mode=importlib -m 'not slow'"]
    )
    options = ["-vv", "--tb=short", "-rs", "--device", device, "-p", "no:cacheprovider", *spread]
    command = [sys.executable, "-m", "pytest", *options, *(TINY_TESTS if tiny else TESTS)]
    with tempfile.TemporaryFile("w+") as output:
        run = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},  # nothing lost, no line broken
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = run.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            code = None
        output.seek(0)
        text = output.read()
    return {"tests": " ".join(command[len(command) - len(TINY_TESTS if tiny else TESTS) :]), **outcomes(text, code)}


def outcomes(text: str, code: int | None) -> dict[str, Any]:
    """The output of `pytest -v` in numbers; `code`: its exit status, None if it was terminated."""
    names: dict[str, set[str]] = {outcome: set() for outcome in OUTCOMES}
    for line in text.splitlines():
        of_process = re.match(r"\[gw\d+\] \[ *\d+%\] ([A-Z]+) (\S+)", line)
        alone = re.match(r"(\S+::\S.*?) ([A-Z]+)(?: \(.*)? +\[ *\d+%\]$", line)
        found = of_process.groups() if of_process else alone.groups()[::-1] if alone else None
        if found is not None and found[0].lower() in names:
            names[found[0].lower()].add(found[1])
    counts: dict[str, Any] = {outcome: len(found) for outcome, found in names.items()}
    reasons: Counter[str] = Counter()
    for count, reason in re.findall(r"^SKIPPED \[(\d+)\] [^:]+(?::\d+)?: (.*)$", text, flags=re.MULTILINE):
        reasons[reason] += int(count)
    counted = {**counts, "complete": code in (0, 1), "skipped_because": dict(reasons)}
    if names["failed"] | names["error"] or code not in (0, None):
        counted |= {"not_passed": sorted(names["failed"] | names["error"]), "pytest_output": text[-LAST_CHARACTERS:]}
    return counted
