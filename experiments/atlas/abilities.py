"""The atlas's second part: every mixer trained on recall, copying and state tracking, and what became of it.

A comparison for each task and seed in a folder of its own, two at a time with a thread each: the same call goes on.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import linnet
from harness import machine
from linnet.core.errors import UserError
from linnet.core.spec import read_yaml

HERE = Path(__file__).parent.parent
TASKS = {"recall": "recall", "copying": "copying", "tracking": "following S3"}
"""Descriptions `experiments/NAME.yaml`, and what they are called in a table."""

AT_ONCE = 2
KEPT = ("symbols_right", "symbols_chance", "right", "chance", "items", "above_chance")

Job = tuple[str, int, Path]
"""A task, a seed, and the folder of the comparison."""


def described(task: str) -> dict[str, Any]:
    """The task's comparison, with one thread for each training."""
    plain = dict(read_yaml(HERE / f"{task}.yaml"))
    return {**plain, "training": {**plain["training"], "threads": 1}}


def jobs(work: Path) -> list[Job]:
    """Whole seeds first: what is stopped early has every task once."""
    seeds = {task: described(task)["seeds"] for task in TASKS}
    most = max(map(len, seeds.values()))
    return [(task, seeds[task][n], folder(work, task, seeds[task][n])) for n in range(most) for task in TASKS
            if n < len(seeds[task])]  # fmt: skip


def folder(work: Path, task: str, seed: int) -> Path:
    """Where the comparison of one task and seed lies."""
    return work / f"{task}-{seed}"


def carry_out(job: Job) -> str:
    """One comparison, from where it stopped."""
    task, seed, out = job
    linnet.compare({**described(task), "seeds": [seed]}, out, print)
    return f"{task}, seed {seed}: done"


def train_abilities(work: Path) -> None:
    """All comparisons, two processes at a time; the first error ends it."""
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
        for said in pool.map(carry_out, jobs(work)):
            print(said, flush=True)


def gather_abilities(work: Path) -> dict[str, Any]:
    """Every figure of every seed, as `experiments/atlas-abilities.json` has them. `UserError` where one is missing."""
    tasks = {task: of_task([out for name, _, out in jobs(work) if name == task], task) for task in TASKS}
    known = machine()
    commit, threads = known.pop("commit"), {"threads": f"1 of each training, {AT_ONCE} at a time"}
    return {"commit": commit, "machine": known | threads, "tasks": tasks}


def of_task(folders: Sequence[Path], task: str) -> dict[str, Any]:
    """The task's description in short, and its mixers in their order; one that diverged has fewer seeds."""
    plain = described(task)
    found: dict[str, dict[str, Any]] = {run["name"]: {"name": run["name"], "seeds": []} for run in plain["runs"]}
    for out in folders:
        for run in finished(out)["runs"]:
            for seed in run["seeds"]:
                found[run["name"]]["state_bytes"] = seed["state_bytes"]
                found[run["name"]]["parameters"] = run["parameters"]
                measured: Mapping[str, Any] = seed["ability"]
                found[run["name"]]["seeds"].append({name: measured[name] for name in KEPT})
    return {"name": plain["name"], "steps": plain["training"]["steps"], "mixers": list(found.values())}


def finished(out: Path) -> dict[str, Any]:
    """What a comparison found."""
    path = out / "comparison.json"
    if not path.is_file():
        raise UserError(f"{path}: the comparison is not finished; the same command goes on with it")
    plain: dict[str, Any] = json.loads(path.read_text())
    return plain
