"""Whether a run that is killed and resumed ends as if it had not been: shown on a run, not taken on trust.

The first steps of the run are trained by processes of their own in a folder beside it: once without interruption, once
killed (SIGKILL) at a random moment and resumed, and once more with the newest checkpoint truncated after the kill. What
they end with is compared bit for bit. The run's own folder is only read.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from linnet.core.atomic import PARTIAL, remove_folder
from linnet.core.errors import UserError, note
from linnet.core.files import read_text, write_text
from linnet.core.spec import parse_yaml
from linnet.model.store import WEIGHTS
from linnet.present.progress import progress
from linnet.training.checkpoint import Checkpoint, checkpoint_path, checkpoint_steps, load_newest
from linnet.training.divergence import DivergedError
from linnet.training.parallel import with_shard
from linnet.training.reporter import Progress, Reporter
from linnet.training.run import train
from linnet.training.run_folder import PRECISION, RunFolder
from linnet.training.spec import RunSpec

STEPS, LEAST_STEPS = 20, 4
LONGEST_S, LOOK_S = 60.0, 0.05

MEASURED = {
    "seconds", "waited_s", "orthogonalizing_s", "tokens_per_s", "share_of_peak", "waiting_share", "memory_bytes",
    "eta_s", "orthogonalizing_share",
}  # fmt: skip
"""Figures of the machine in lines and standings: no two processes have the same."""

CHILD = "from linnet.training.verification import child; child()"


@dataclass(frozen=True)
class Compared:
    """One of the things that two runs end with. `differs`: how many of its values, or lines, are other ones."""

    case: str
    what: str
    count: int
    differs: int


@dataclass(frozen=True)
class Verification:
    """What was compared. `killed_at`: the last step that was logged; `resumed_from`: by case, the step it went on from.

    refused: what was said of the truncated checkpoint.
    """

    steps: int
    killed_at: int
    resumed_from: dict[str, int]
    refused: str
    compared: list[Compared]

    @property
    def same(self) -> bool:
        """Whether not a bit differs."""
        return all(each.count > 0 and each.differs == 0 for each in self.compared)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"same": self.same, **asdict(self)}


def verify_resume(run: RunSpec, beside: Path, steps: int = STEPS, seed: int | None = None) -> Verification:
    """Train the first `steps` of a run three times, as above. `beside`: the run's folder, next to which it is done.

    The schedule is that of the whole run. Lines are written after each step, checkpoints four times, evaluations twice
    (none of which changes what is computed). seed: of the moment of the kill; None: another one each time. Raises
    `UserError` where a process fails.
    """
    run = _in_one_process(run.resolved())
    steps = min(steps, run.steps)
    if steps < LEAST_STEPS:
        raise UserError(f"training.steps: {run.steps}: expected at least {LEAST_STEPS} for a kill between two of them")
    with _folder_beside(beside) as folder:
        asked = _in_its_precision(_prefix(run, steps), beside)
        write_text(folder / "run.yaml", yaml.safe_dump(asked.to_dict()))
        straight, killed, damaged = (folder / name for name in ("straight", "killed", "truncated"))
        with progress("verify", 3 * steps) as advance:
            _carry_out(straight, steps, advance)
            write_text(folder / "run.yaml", yaml.safe_dump(_in_its_precision(asked, straight).to_dict()))
            _carry_out(killed, steps, advance, _moment(steps, seed))
            killed_at = RunFolder(killed).metrics.tail()[-1]["step"]
            shutil.copytree(killed, damaged)
            _truncate_newest(damaged)
            resumed = [_carry_out(path, steps, lambda _: None) for path in (killed, damaged)]
            advance(steps)
        compared = [
            each
            for path, case in ((killed, "killed"), (damaged, "killed, checkpoint truncated"))
            for each in _compared(straight, path, case)
        ]
        said = next((line for line in resumed[1] if "damaged checkpoint passed over" in line), "")
        begun = {"killed": _begun(resumed[0]), "truncated": _begun(resumed[1])}
    refused = Compared("killed, checkpoint truncated", "refused, the one before it used", 1, int(not said))
    return Verification(steps, killed_at, begun, said.replace(f"{folder}/", ""), [*compared, refused])


@contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """A folder on the same disk, which is removed at the end."""
    parent = next(folder for folder in path.absolute().parents if folder.is_dir())
    folder = Path(tempfile.mkdtemp(prefix=".verify-resume.", suffix=PARTIAL, dir=parent))
    try:
        yield folder
    finally:
        remove_folder(folder)


def _moment(steps: int, seed: int | None) -> tuple[int, float]:
    """After which step, and what share of a step's time later, a process is killed: it has two checkpoints then."""
    drawn, first = random.Random(seed), 2 * max(1, steps // 4) + 1
    return drawn.randint(first, max(first, steps - 2)), drawn.random()


def _prefix(run: RunSpec, steps: int) -> RunSpec:
    """The run with lines, checkpoints and evaluations often enough for a few steps."""
    training = run.training
    every = {
        "log": training.log.model_copy(update={"every": 1}),
        "checkpoint": training.checkpoint.model_copy(update={"every": max(1, steps // 4), "keep": 8}),
        "evaluate": training.evaluate.model_copy(update={"every": max(2, steps // 2)}),
    }
    return run.model_copy(update={"training": training.model_copy(update=every)})


def _in_one_process(run: RunSpec) -> RunSpec:
    """The run with whole copies of the weights: it is one process that is killed here."""
    shard = run.training.parallel.shard
    if shard == 1:
        return run
    note(f"verified in one process, with training.parallel.shard 1 instead of {shard}: what comes out is the same")
    return run.model_copy(update={"training": with_shard(run.training, 1)})


def _in_its_precision(run: RunSpec, path: Path) -> RunSpec:
    """The run in the precision that was measured for it at `path`: a second measurement might choose the other one."""
    if run.training.precision != "auto" or not (path / PRECISION).is_file():
        return run
    known = RunFolder(path).precision()
    assert known is not None, "there is a file of it"
    return run.model_copy(update={"training": run.training.model_copy(update={"precision": known.name})})


class _Ends(Reporter):
    """Tells its notes, and asks for a stop after a step; or is killed some time after an earlier one."""

    def __init__(self, steps: int, killed_after: int | None, share: float) -> None:
        self._steps, self._killed_after, self._share = steps, killed_after, share
        self._begun_s = time.monotonic()

    def note(self, text: str) -> None:
        print(text, flush=True)

    def begin(self, step: int, steps: int) -> None:
        self._begun_s = time.monotonic()

    def step(self, progress: Progress) -> None:
        if progress.step == self._killed_after:
            mean_s = (time.monotonic() - self._begun_s) / progress.step
            threading.Timer(self._share * mean_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if progress.step == self._steps:
            if self._killed_after is not None:
                time.sleep(LONGEST_S)  # so short are its steps: it is about to be killed
            os.kill(os.getpid(), signal.SIGTERM)


def child() -> None:
    """The process that trains: `CONFIG OUT STEPS [KILLED_AFTER SHARE]`; its notes are what it prints."""
    config, out, steps, *killed = sys.argv[1:]
    reporter = _Ends(int(steps), int(killed[0]) if killed else None, float(killed[1]) if killed else 0.0)
    try:
        train(RunSpec.parse(parse_yaml(read_text(config), config), config), out, reporter)
    except (UserError, DivergedError) as error:
        print(error)
        sys.exit(2)


def _carry_out(
    out: Path, steps: int, advance: Callable[[int], None], killed: tuple[int, float] | None = None
) -> list[str]:
    """Let a process train to its end, which may be that it is killed; its notes."""
    command = [sys.executable, "-c", CHILD, *map(str, (out.parent / "run.yaml", out, steps, *(killed or ())))]
    notes = out.parent / f"{out.name}.txt"
    with notes.open("w") as handle, subprocess.Popen(command, stdout=handle, stderr=subprocess.STDOUT) as process:
        try:
            _follow(process, out, advance)
        finally:
            process.kill()
    told = notes.read_text(errors="replace").splitlines()
    if process.returncode != (-signal.SIGKILL if killed else 0):
        raise UserError(f"a process of the verification failed: {(told or [f'exit code {process.returncode}'])[-1]}")
    return told


def _follow(process: "subprocess.Popen[bytes]", out: Path, advance: Callable[[int], None]) -> None:
    """Tell how far a process is until it ends."""
    seen = 0
    while process.poll() is None:
        time.sleep(LOOK_S)
        lines = RunFolder(out).metrics.tail()
        now = lines[-1]["step"] if lines else 0
        advance(max(0, now - seen))
        seen = max(seen, now)


def _truncate_newest(out: Path) -> None:
    checkpoints = RunFolder(out).checkpoints
    newest = checkpoint_path(checkpoints, checkpoint_steps(checkpoints)[-1]) / WEIGHTS
    os.truncate(newest, newest.stat().st_size // 2)


def _begun(told: list[str]) -> int:
    """The step from which a process went on, as it said."""
    line = next((line for line in told if line.startswith("going on from step ")), None)
    return 0 if line is None else int(line.split()[4])


def _compared(straight: Path, other: Path, case: str) -> Iterator[Compared]:
    ends = [_end(path) for path in (straight, other)]
    for what in ("weights", "moments"):
        tensors = [getattr(end, what) for end in ends]
        count = sum(tensor.numel() for tensor in tensors[0].values())
        yield Compared(case, what, count, _differing(*tensors))
    standings = [_unmeasured(end.standing.to_dict()) for end in ends]
    fields = [list(standing.items()) for standing in standings]
    yield Compared(case, "where it stands", len(fields[0]), _unequal(*fields))
    lines = [[_unmeasured(line) for line in RunFolder(path).metrics.read()] for path in (straight, other)]
    yield Compared(case, "lines of figures", len(lines[0]), _unequal(*lines))


def _end(path: Path) -> Checkpoint:
    found = load_newest(RunFolder(path).checkpoints, lambda _: None)
    if found is None:
        raise UserError(f"{path}: the verification left no whole checkpoint")
    return found


def _differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> int:
    """Values whose bits are not the same; all of a tensor that only one of the two has."""
    alone = one.keys() ^ other.keys()
    count: int = sum((one | other)[name].numel() for name in alone)
    for name in one.keys() & other.keys():
        if one[name].shape != other[name].shape or one[name].dtype != other[name].dtype:
            count += one[name].numel()
        else:
            bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one[name], other[name])]
            unequal = (bits[0] != bits[1]).reshape(-1, one[name].element_size())
            count += int(unequal.any(dim=1).sum().item())
    return count


def _unequal(one: list[Any], other: list[Any]) -> int:
    return sum(bool(a != b) for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))


def _unmeasured(plain: Any) -> Any:
    """Without what is the machine's."""
    if isinstance(plain, dict):
        return {name: _unmeasured(value) for name, value in plain.items() if name not in MEASURED}
    return plain
