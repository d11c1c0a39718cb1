"""Lists of runs in any state, read from their small files: thousands can be listed, finished ones without PyTorch."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from linnet.core.atomic import lock_holder
from linnet.core.checksum import check_files, read_checked_json
from linnet.core.errors import UserError
from linnet.core.files import read_json
from linnet.core.migration import upgrade_figures
from linnet.core.spec import flatten
from linnet.model.folder import CONFIG as DESCRIPTION
from linnet.model.folder import MODEL, RUN
from linnet.training.metrics import CHECKPOINTS, CONFIG, DIVERGED, LOCK, METRICS, finished_summary


@dataclass(frozen=True)
class RunInfo:
    """A run in any state, read from its small files; None for values that they do not contain yet.

    state: `finished`, `running`, `stopped`, `diverged` or `damaged`; problem: details of the last two. step: that of
    the last checkpoint. bits_per_byte: of the latest evaluation, causal. seconds: time in steps.
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
        return asdict(self)


class RunList(list[RunInfo]):
    """Runs, as a list and as a table."""

    def rows(self) -> list[dict[str, Any]]:
        """Each run in one level of names: its figures, and those of its `run.json` (`validation.bits_per_byte`)."""
        found = []
        for run in self:
            file = Path(run.path) / MODEL / RUN
            summary = upgrade_figures(read_json(file)) if run.state != "damaged" and file.is_file() else {}
            found.append({**flatten(summary), **run.to_dict()})
        return found

    def frame(self) -> Any:
        """`rows` as a DataFrame of pandas; `UserError` if pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise UserError("frame: needs pandas: pip install pandas; `rows` returns plain data") from None
        return pandas.DataFrame(self.rows())


def runs(folder: str | Path = ".") -> RunList:
    """All runs in and below a folder, in any state; `.frame()` is a table of them with one row for each.

    `UserError` if there is no such folder.
    """
    return RunList(read_run_info(path) for path in find_runs(Path(folder)))


_SUMMARY_FIELDS = ("parameters", "step", "steps", "tokens", "tokens_per_s", "seconds", "seed")


def find_runs(folder: Path) -> Iterator[Path]:
    """The folders of runs in and below a folder, by name. Links are not followed; hidden folders are left out."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with runs in it")
    for place, inner, files in os.walk(folder):
        has_begun = CHECKPOINTS in inner or MODEL in inner or files != [CONFIG]
        if METRICS in files or (CONFIG in files and has_begun):  # with metrics alone, its configuration was lost
            yield Path(place)
        inner[:] = sorted(name for name in inner if name not in (CHECKPOINTS, MODEL) and not name.startswith("."))


def read_run_info(path: Path) -> RunInfo:
    """The state of the run in a folder; a run that cannot be read is `damaged`."""
    try:
        return _finished_info(path) or _unfinished_info(path)
    except (UserError, KeyError, TypeError, OSError) as error:
        return RunInfo(str(path), "damaged", problem=" ".join(str(error).split()))


def _finished_info(path: Path) -> RunInfo | None:
    if not (path / MODEL).exists():
        return None
    if not (path / MODEL / RUN).is_file():
        check_files(path / MODEL, (RUN,))
        return None
    summary = finished_summary(path, also=(DESCRIPTION,))
    if summary is None:
        return None
    return RunInfo(
        path=str(path),
        state="finished",
        model=read_json(path / MODEL / DESCRIPTION).get("name"),
        bits_per_byte=(summary.get("validation") or {}).get("bits_per_byte"),
        **{name: summary.get(name) for name in _SUMMARY_FIELDS},
    )


def _unfinished_info(path: Path) -> RunInfo:
    """From its configuration, its newest checkpoint (whose weights are not looked at) and its last lines of metrics."""
    from linnet.evaluation.likelihood import Evaluation
    from linnet.model.cost import model_cost
    from linnet.training.checkpoint import checkpoint_path, checkpoint_steps, read_state
    from linnet.training.run_folder import RunFolder

    run, saved = RunFolder(path).configuration().resolved(), checkpoint_steps(path / CHECKPOINTS)
    train_state = read_state(checkpoint_path(path / CHECKPOINTS, saved[-1])) if saved else None
    validations = [line["validation"] for line in RunFolder(path).metrics.tail() if "validation" in line]
    if not validations and train_state is not None:
        sums = train_state.callbacks.get("evaluation", {}).get("sums")
        validations = [Evaluation.from_sums(sums).to_dict()] if sums else []
    state, problem = "stopped", None
    if lock_holder(path / LOCK) is not None:
        state = "running"
    elif (path / DIVERGED).is_file():
        diverged = read_checked_json(path / DIVERGED)
        state, problem = "diverged", f"step {diverged['step']}: {diverged['reason']}"
    elapsed_s = train_state.elapsed_s if train_state else 0.0
    return RunInfo(
        path=str(path),
        state=state,
        model=run.model.name,
        parameters=model_cost(run.model).parameters,
        step=train_state.step if train_state else 0,
        steps=run.training.steps,
        tokens=train_state.tokens if train_state else 0,
        bits_per_byte=validations[-1].get("bits_per_byte") if validations else None,
        tokens_per_s=train_state.tokens / elapsed_s if train_state and elapsed_s else None,
        seconds=elapsed_s,
        seed=run.training.seed,
        problem=problem,
    )
