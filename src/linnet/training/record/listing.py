"""Runs in a folder and below it, by what they recorded. Only small files are read, so that thousands are listed."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from linnet.core.atomic import lock_holder
from linnet.core.checksum import check_files, read_checked_json
from linnet.core.errors import UserError
from linnet.core.files import read_json
from linnet.core.spec import first_schema_error
from linnet.model.cost import model_cost
from linnet.model.store import CONFIG as DESCRIPTION
from linnet.model.store import MODEL, RUN
from linnet.training.checkpoint import SUMMARY, checkpoint_path, checkpoint_steps
from linnet.training.initialization import leaves
from linnet.training.record.figures import Summary
from linnet.training.run_folder import CHECKPOINTS, CONFIG, DIVERGED, LOCK, METRICS, RunFolder
from linnet.training.train_state import TrainState

NOT_ENTERED = (CHECKPOINTS, MODEL)
"""Folders of a run, in which there are no runs."""


@dataclass(frozen=True)
class RunInfo:
    """What a run says of itself; None: it does not, or not yet.

    state: `finished`, `running`, `stopped`, `diverged`, `damaged`; `problem` says more of the last two. step: of the
    last checkpoint, where the run goes on. bits_per_byte: of the latest evaluation, causal. seconds: in steps.
    """

    path: str
    state: str
    model: str | None = None
    parameters: int | None = None
    step: int | None = None
    steps: int | None = None
    tokens: int | None = None
    bits_per_byte: float | None = None
    tokens_per_s: float | None = None
    seconds: float | None = None
    seed: int | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def find_runs(folder: Path) -> Iterator[Path]:
    """Folders of runs: this one, or those below it, by name; links are not followed, hidden folders left out."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with runs in it")
    for place, inner, files in os.walk(folder):
        begun = CHECKPOINTS in inner or MODEL in inner or files != [CONFIG]
        if METRICS in files or (CONFIG in files and begun):  # the first alone: its configuration is lost
            yield Path(place)
        inner[:] = sorted(name for name in inner if name not in NOT_ENTERED and not name.startswith("."))


def read_run_info(path: Path) -> RunInfo:
    """A run, as its folder tells it; one that cannot be read is listed as such."""
    try:
        return _finished(path) or _unfinished(path)
    except (UserError, KeyError, TypeError, OSError) as error:
        return RunInfo(str(path), "damaged", problem=" ".join(str(error).split()))


def _finished(path: Path) -> RunInfo | None:
    if not (path / MODEL).exists():
        return None
    if not (path / MODEL / RUN).is_file():
        check_files(path / MODEL, (RUN,))
        return None
    summary = RunFolder(path).finished(also=(DESCRIPTION,))
    if summary is None:
        return None
    validation = summary.get("validation") or {}
    return RunInfo(
        path=str(path),
        state="finished",
        model=read_json(path / MODEL / DESCRIPTION).get("name"),
        bits_per_byte=validation.get("bits_per_byte"),
        **{name: summary.get(name) for name in _TOLD},
    )


_TOLD = ("parameters", "step", "steps", "tokens", "tokens_per_s", "seconds", "seed")
"""Figures of `run.json` that a table shows."""


def _unfinished(path: Path) -> RunInfo:
    """What its configuration, its newest checkpoint and its last lines of figures say."""
    run, standing = RunFolder(path).configuration().resolved(), _standing(path)
    evaluated = [line["validation"] for line in RunFolder(path).metrics.tail() if "validation" in line]
    latest = evaluated[-1] if evaluated else (standing and standing.validation) or {}
    state, problem = _state(path)
    return RunInfo(
        path=str(path),
        state=state,
        model=run.model.name,
        parameters=model_cost(run.model).parameters,
        step=standing.step if standing else 0,
        steps=run.training.steps,
        tokens=standing.tokens if standing else 0,
        bits_per_byte=latest.get("bits_per_byte"),
        tokens_per_s=standing.tokens / standing.seconds if standing and standing.seconds else None,
        seconds=standing.seconds if standing else 0.0,
        seed=run.training.seed,
        problem=problem,
    )


def _state(path: Path) -> tuple[str, str | None]:
    if lock_holder(path / LOCK) is not None:
        return "running", None
    if (path / DIVERGED).is_file():
        told = read_checked_json(path / DIVERGED)
        return "diverged", f"step {told['step']}: {told['reason']}"
    return "stopped", None


def _standing(path: Path) -> TrainState | None:
    """Where the newest checkpoint stands; whether its weights are whole is not looked at."""
    steps = checkpoint_steps(path / CHECKPOINTS)
    if not steps:
        return None
    summary = checkpoint_path(path / CHECKPOINTS, steps[-1]) / SUMMARY
    plain = read_json(summary)
    return TrainState.from_dict(plain.get("standing") if isinstance(plain, dict) else None, str(summary))


def differences(one: Path, other: Path) -> dict[str, tuple[Any, Any]]:
    """The fields in which the configurations of two runs differ, and what each has; `UserError` where one is none."""
    fields = [leaves(_configuration(path)) for path in (one, other)]
    return {
        field: (fields[0].get(field), fields[1].get(field))
        for field in dict.fromkeys([*fields[0], *fields[1]])
        if fields[0].get(field) != fields[1].get(field)
    }


def _configuration(path: Path) -> dict[str, Any]:
    check_run(path)
    return RunFolder(path).configuration().to_dict()


def check_run(path: Path) -> None:
    """`UserError` unless it is the folder of a run."""
    if not (path / CONFIG).is_file():
        raise UserError(f"{path}: not the folder of a run (no {CONFIG})")


def read_summary(path: Path) -> dict[str, Any]:
    """What `run.json` says, wherever the run stands; empty before it was first stopped or finished.

    `UserError` where it says what cannot be.
    """
    file = path / MODEL / RUN
    found: dict[str, Any] = read_json(file) if file.is_file() else {}
    if wrong := first_schema_error(found, Summary):
        raise UserError(f"{file}: {wrong}")
    return found
