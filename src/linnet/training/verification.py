"""Verifies on a run that killing and resuming it changes nothing.

Processes of their own train the first steps of the run in a folder beside it: once without interruption, once killed
(SIGKILL) at a random moment and resumed, and once more with the newest checkpoint truncated after the kill. The results
are compared bit for bit. The run's own folder is only read.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from torch import Tensor

from linnet.core.arrays import read_tensors
from linnet.core.atomic import PARTIAL
from linnet.core.errors import UserError, note
from linnet.core.files import read_text, write_text
from linnet.core.spec import parse_yaml
from linnet.model.folder import WEIGHTS
from linnet.present.progress import progress
from linnet.training.checkpoint import OPTIMIZER, checkpoint_path, checkpoint_steps, read_state
from linnet.training.metrics import PRECISION
from linnet.training.reporter import Progress, Reporter
from linnet.training.run import train_run
from linnet.training.run_folder import DivergedError, RunFolder
from linnet.training.spec import RunSpec

STEPS, MIN_STEPS = 20, 4
WAIT_S, POLL_S = 60.0, 0.05

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows has no SIGKILL; there SIGTERM ends a process at once, with this exit code."""

MEASURED = {
    "elapsed_s", "data_wait_s", "orthogonalizing_s", "tokens_per_s", "share_of_peak", "waiting_share", "memory_bytes",
    "eta_s", "orthogonalizing_share",
}  # fmt: skip
"""Figures of the machine in lines and states; they differ between processes."""

CHILD = "from linnet.training.verification import child; child()"


@dataclass(frozen=True)
class Compared:
    """One part of the results of two runs. count: its values or lines; differs: how many of them differ."""

    case: str
    what: str
    count: int
    differs: int


@dataclass(frozen=True)
class Verification:
    """killed_at: the last step that was logged. resumed_from: for each case the step from which it was resumed.

    refused: the message about the truncated checkpoint.
    """

    steps: int
    killed_at: int
    resumed_from: dict[str, int]
    refused: str
    compared: list[Compared]

    @property
    def same(self) -> bool:
        return all(each.count > 0 and each.differs == 0 for each in self.compared)

    def to_dict(self) -> dict[str, Any]:
        return {"same": self.same, **asdict(self)}


def verify_resume(run: RunSpec, beside: Path, steps: int = STEPS, seed: int | None = None) -> Verification:
    """Train the first `steps` of a run three times, as above. beside: the run's folder, next to which it happens.

    The schedule is that of the whole run. Lines are written after each step, checkpoints four times, evaluations twice
    (none of which changes the results). seed: of the moment of the kill; None: another one each time. Raises
    `UserError` if a process fails.
    """
    run = _in_one_process(run.resolved())
    steps = min(steps, run.steps)
    if steps < MIN_STEPS:
        raise UserError(f"training.steps: {run.steps}: expected at least {MIN_STEPS} for a kill between two of them")
    parent = next(place for place in beside.absolute().parents if place.is_dir())
    with TemporaryDirectory(prefix=".verify-resume.", suffix=PARTIAL, dir=parent) as temporary:
        folder = Path(temporary)
        requested = _with_precision(_with_frequent_saving(run, steps), beside)
        write_text(folder / "run.yaml", yaml.safe_dump(requested.to_dict()))
        straight, killed, damaged = (folder / name for name in ("straight", "killed", "truncated"))
        with progress("verify", 3 * steps) as advance:
            _run_child(straight, steps, advance)
            # A second measurement might choose another precision.
            write_text(folder / "run.yaml", yaml.safe_dump(_with_precision(requested, straight).to_dict()))
            # Kill it after a random step, a random share of a step's time later; two checkpoints exist then.
            drawn, first = random.Random(seed), 2 * max(1, steps // 4) + 1
            _run_child(killed, steps, advance, (drawn.randint(first, max(first, steps - 2)), drawn.random()))
            killed_at = RunFolder(killed).metrics.tail()[-1]["step"]
            shutil.copytree(killed, damaged)
            _truncate_newest(damaged)
            resumed = [_run_child(path, steps, lambda _: None) for path in (killed, damaged)]
            advance(steps)
        compared = [
            each
            for path, case in ((killed, "killed"), (damaged, "killed, checkpoint truncated"))
            for each in _compare(straight, path, case)
        ]
        message = next((line for line in resumed[1] if "damaged checkpoint skipped" in line), "")
        resumed_from = {}
        for case, printed in zip(("killed", "truncated"), resumed, strict=True):
            line = next((line for line in printed if line.startswith("resuming from step ")), None)
            resumed_from[case] = 0 if line is None else int(line.split()[3])
    refused = Compared("killed, checkpoint truncated", "refused, the one before it used", 1, int(not message))
    return Verification(steps, killed_at, resumed_from, message.replace(f"{folder}/", ""), [*compared, refused])


def _with_frequent_saving(run: RunSpec, steps: int) -> RunSpec:
    """The run with lines, checkpoints and evaluations often enough for a few steps."""
    training = run.training
    every = {
        "log": training.log.model_copy(update={"every": 1}),
        "checkpoint": training.checkpoint.model_copy(update={"every": max(1, steps // 4), "keep": 8}),
        "evaluate": training.evaluate.model_copy(update={"every": max(2, steps // 2)}),
    }
    return run.model_copy(update={"training": training.model_copy(update=every)})


def _in_one_process(run: RunSpec) -> RunSpec:
    """The run without shards: it is one process that is killed."""
    shard = run.training.parallel.shard
    if shard == 1:
        return run
    note(f"verified in one process, with training.parallel.shard 1 instead of {shard}: the result is the same")
    parallel = run.training.parallel.model_copy(update={"shard": 1})
    return run.model_copy(update={"training": run.training.model_copy(update={"parallel": parallel})})


def _with_precision(run: RunSpec, path: Path) -> RunSpec:
    """The run in the precision that was measured for it at `path`, if one was."""
    if run.training.precision != "auto" or not (path / PRECISION).is_file():
        return run
    known = RunFolder(path).precision()
    assert known is not None, "its file exists"
    return run.model_copy(update={"training": run.training.model_copy(update={"precision": known.name})})


class _ChildReporter(Reporter):
    """Prints notes, and requests a stop after a step; or kills the process some time after an earlier step."""

    def __init__(self, steps: int, killed_after: int | None, share: float) -> None:
        self._steps, self._killed_after, self._share = steps, killed_after, share
        self._began_s = time.monotonic()

    def note(self, text: str) -> None:
        print(text, flush=True)

    def begin(self, step: int, steps: int) -> None:
        self._began_s = time.monotonic()

    def step(self, progress: Progress) -> None:
        if progress.step == self._killed_after:
            mean_s = (time.monotonic() - self._began_s) / progress.step
            threading.Timer(self._share * mean_s, os.kill, (os.getpid(), KILL)).start()
        if progress.step == self._steps:
            if self._killed_after is not None:
                time.sleep(WAIT_S)  # its steps are so short that the kill is still to come
            os.kill(os.getpid(), signal.SIGTERM)


def child() -> None:
    """The process that trains: `CONFIG OUT STEPS [KILLED_AFTER SHARE]`; it prints its notes."""
    config, out, steps, *killed = sys.argv[1:]
    reporter = _ChildReporter(int(steps), int(killed[0]) if killed else None, float(killed[1]) if killed else 0.0)
    try:
        train_run(RunSpec.parse(parse_yaml(read_text(config), config), config), out, reporter)
    except (UserError, DivergedError) as error:
        print(error)
        sys.exit(2)


def _run_child(
    out: Path, steps: int, advance: Callable[[int], None], killed: tuple[int, float] | None = None
) -> list[str]:
    """Let a process train to its end, or until it is killed; returns what it printed."""
    command = [sys.executable, "-c", CHILD, *map(str, (out.parent / "run.yaml", out, steps, *(killed or ())))]
    notes, seen = out.parent / f"{out.name}.txt", 0
    with notes.open("w") as handle, subprocess.Popen(command, stdout=handle, stderr=subprocess.STDOUT) as process:
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                lines = RunFolder(out).metrics.tail()
                now = lines[-1]["step"] if lines else 0
                advance(max(0, now - seen))
                seen = max(seen, now)
        finally:
            process.kill()
    printed = notes.read_text(errors="replace").splitlines()
    if process.returncode != ((KILL if os.name == "nt" else -KILL) if killed else 0):
        last = (printed or [f"exit code {process.returncode}"])[-1]
        raise UserError(f"a process of the verification failed: {last}")
    return printed


def _newest_checkpoint(out: Path) -> Path:
    checkpoints = RunFolder(out).checkpoints
    steps = checkpoint_steps(checkpoints)
    if not steps:
        raise UserError(f"{out}: the verification left no checkpoint")
    return checkpoint_path(checkpoints, steps[-1])


def _truncate_newest(out: Path) -> None:
    weights = _newest_checkpoint(out) / WEIGHTS
    os.truncate(weights, weights.stat().st_size // 2)


def _compare(straight: Path, other: Path, case: str) -> Iterator[Compared]:
    ends = [_newest_checkpoint(path) for path in (straight, other)]
    for what, file in (("weights", WEIGHTS), ("moments", OPTIMIZER)):
        tensors = [read_tensors(end / file) for end in ends]
        count = sum(tensor.numel() for tensor in tensors[0].values())
        yield Compared(case, what, count, _differing(*tensors))
    states = [list(_without_measured(read_state(end).to_dict()).items()) for end in ends]
    lines = [[_without_measured(line) for line in RunFolder(path).metrics.read()] for path in (straight, other)]
    for what, (one, two) in (("state", states), ("lines of figures", lines)):
        differs = sum(bool(a != b) for a, b in zip(one, two, strict=False)) + abs(len(one) - len(two))
        yield Compared(case, what, len(one), differs)


def _differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> int:
    """Values whose bits differ; all values of a tensor that only one of the two has."""
    only_one = one.keys() ^ other.keys()
    count: int = sum((one | other)[name].numel() for name in only_one)
    for name in one.keys() & other.keys():
        if one[name].shape != other[name].shape or one[name].dtype != other[name].dtype:
            count += one[name].numel()
        else:
            bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one[name], other[name])]
            unequal = (bits[0] != bits[1]).reshape(-1, one[name].element_size())
            count += int(unequal.any(dim=1).sum().item())
    return count


def _without_measured(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _without_measured(value) for name, value in plain.items() if name not in MEASURED}
    return plain
