"""Shared by all benchmarks: two contestants timed in turn, median ratio, machine and commit."""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from linnet.core.atomic import atomic_path
from linnet.core.system import SCATTER_LIMIT, OtherPrograms, busy_advice, processor_name, scatter
from linnet.inference.step_packages import BUILDS
from linnet.ops.blocked_attention import HAS_TILES

RESULTS = Path(__file__).parent / "results"
BUILDS.enabled = False  # a compiler beside a measurement would disturb it


@dataclass(frozen=True)
class Contest:
    """Seconds of each run of ours and of the other contestant."""

    ours_s: list[float]
    other_s: list[float]

    @property
    def ratio(self) -> float:
        """The speed of ours relative to the other: the median over runs of other / ours."""
        return statistics.median(o / s for s, o in zip(self.ours_s, self.other_s, strict=True))

    def summary(self) -> dict[str, Any]:
        ratios = [o / s for s, o in zip(self.ours_s, self.other_s, strict=True)]
        return {
            "times_as_fast": round(self.ratio, 3),
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
            "ours_median_s": round(statistics.median(self.ours_s), 5),
            "other_median_s": round(statistics.median(self.other_s), 5),
            "scatter": round(self.scatter, 3),
        }

    @property
    def scatter(self) -> float:
        """The scatter: how far slow runs of either exceed its median (`linnet.core.system`)."""
        return max(scatter(self.ours_s), scatter(self.other_s))


def contest(ours: Callable[[], object], other: Callable[[], object], runs: int = 5, warm_up: int = 1) -> Contest:
    """Time the two in turn, so that a slow moment of the machine affects both."""
    for _ in range(warm_up):
        ours(), other()
    others, times = OtherPrograms(), tuple[list[float], list[float]](([], []))
    for _ in range(runs):
        for of_one, run in zip(times, (ours, other), strict=True):
            of_one.append(elapsed_s(run))
    found = Contest(*times)
    if found.scatter > SCATTER_LIMIT:
        helps = "or measure again with fewer threads (--threads)"
        message = (
            f"the slow runs take over {found.scatter:.1f} times the median; {busy_advice(others.processors(), helps)}"
        )
        print(f"note: the machine is busy: {message}", file=sys.stderr)
    return found


def elapsed_s(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def gate(name: str, holds: bool, detail: str) -> None:
    """Stop unless the results are equal."""
    if not holds:
        raise SystemExit(f"{name}: not correct, so not timed: {detail}")
    print(f"{name}: correct ({detail})")


def machine() -> dict[str, Any]:
    """The machine and the commit of a measurement."""
    commit = _git("describe", "--always")
    if _git("status", "--porcelain", "--", ".", ":!benchmarks/results"):  # what earlier benchmarks wrote is no code
        commit += "-dirty"
    return {
        "processor": processor_name(),
        "amx": HAS_TILES,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
    }


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False
    ).stdout.strip()


def report(name: str, results: dict[str, Any]) -> None:
    """Print the results and write them with machine and commit to `results/NAME.json`."""
    print(json.dumps(write_record(name, results), indent=2))


def write_record(name: str, results: dict[str, Any]) -> dict[str, Any]:
    """Write results with machine and commit to `results/NAME.json`; returns what was written."""
    record = {"benchmark": name, "machine": machine(), "results": results}
    RESULTS.mkdir(exist_ok=True)
    with atomic_path(RESULTS / f"{name}.json") as path:
        path.write_text(json.dumps(record, indent=2) + "\n")
    return record


def record_of(name: str) -> dict[str, Any]:
    """The cells of a record that several calls write, each with its commit; none if it is of another machine."""
    path = RESULTS / f"{name}.json"
    record = json.loads(path.read_text()) if path.is_file() else {}
    names = "processor", "threads", "torch"
    here = machine()
    if not record or any(record["machine"][key] != here[key] for key in names):
        return {}
    cells: dict[str, Any] = record["results"].get("cells", {})
    return cells


def threads_from_command_line(description: str | None, runs: int = 5) -> int:
    """Parse `--threads` and `--runs` (default `runs`); sets the threads and returns the runs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default 2)")
    help_text = f"runs of each contestant; the median counts (default {runs})"
    parser.add_argument("--runs", type=int, default=runs, help=help_text)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    chosen_runs: int = arguments.runs
    return chosen_runs
