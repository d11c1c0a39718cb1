"""Runs read from their folders: finished runs with their losses, and lists of runs in any state.

A list reads only small files, so that thousands of runs can be listed.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from linnet.core.atomic import lock_holder
from linnet.core.checksum import check_files, read_checked_json
from linnet.core.errors import UserError
from linnet.core.files import read_json
from linnet.core.migration import upgrade_figures
from linnet.core.spec import first_schema_error
from linnet.evaluation.likelihood import Evaluation
from linnet.model.cost import model_cost
from linnet.model.spec import CONFIG as DESCRIPTION
from linnet.model.spec import MODEL, RUN, RUNS, ModelSpec
from linnet.present.progress import progress
from linnet.training.checkpoint import checkpoint_path, checkpoint_steps, read_state
from linnet.training.initialization import flatten
from linnet.training.metrics import SUMMARY
from linnet.training.run_folder import CHECKPOINTS, CONFIG, DIVERGED, LOCK, METRICS, RunFolder
from linnet.training.spec import RunSpec


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. summary: `run.json`. lines: its evaluations, the last one at its end.

    tokens: of the whole training. tokenizer, data: the hashes of the tokenizer and of the data folder's manifest.
    """

    path: Path
    spec: RunSpec
    summary: dict[str, Any]
    lines: list[dict[str, Any]]
    tokens: int
    seed: int
    tokenizer: str
    data: str

    @property
    def bytes_per_token(self) -> float:
        """Of the held-out text."""
        validation = self.summary["validation"]
        return float(validation["bytes"] / validation["tokens"])

    @property
    def training_flops(self) -> float:
        """FLOPs of the whole training, exact."""
        return self.tokens * self.flops_per_token

    @property
    def flops_per_token(self) -> float:
        """FLOPs of training per token, exact."""
        growth = self.spec.growth
        return growth.mean(lambda length: training_flops_per_token(self.spec.model, length), 0, growth.steps)


class NotARunError(UserError):
    """A path is not the folder of a finished run; among several paths it can be left out."""


def read_run_folder(path: Path) -> FinishedRun:
    """A finished run; `NotARunError` if it is none, not finished, or was never evaluated."""
    if not (path / CONFIG).is_file():
        raise NotARunError(f"{path}: not the folder of a run (no {CONFIG}), nor one with runs/ in it")
    folder = RunFolder(path)
    summary = folder.finished()
    if summary is None and (path / DIVERGED).is_file():
        raise NotARunError(f"{path}: the run diverged; it has no loss")
    if summary is None:
        raise NotARunError(f"{path}: the run is not finished; the command that began it resumes it")
    if not summary.get("validation"):
        raise NotARunError(f"{path}: the run was never evaluated; it has no loss of held-out text")
    data = summary.get("data")
    if not isinstance(data, dict) or {"manifest_sha256", "tokenizer_hash"} - data.keys() or "tokens" not in summary:
        raise UserError(f"{path / MODEL / RUN}: does not name its data and its tokens; expected a run's")
    end: dict[str, Any] = {name: summary.get(name) for name in ("step", "tokens", "validation")}
    step = summary.get("step")
    lines = folder.metrics.read() if step is None else folder.lines_to_end(step)
    evaluated = [line for line in lines if {"validation", "tokens"} <= line.keys()]
    before = [line for line in evaluated if line["tokens"] < end["tokens"]]
    spec = folder.configuration().resolved()
    return FinishedRun(
        path,
        spec,
        summary,
        [*before, end],
        tokens=int(summary["tokens"]),
        seed=spec.training.seed,
        tokenizer=str(data["tokenizer_hash"]),
        data=str(data["manifest_sha256"]),
    )


def read_run_folders(paths: Sequence[Path]) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs among these folders, and a message for each of the others."""
    found, left_out = [], []
    with progress("read runs", len(paths)) as advance:
        for path in paths:
            try:
                found.append(read_run_folder(path))
            except NotARunError as error:
                left_out.append(str(error))
            advance(1)
    return found, left_out


def runs_of(source: Path) -> list[Path]:
    """The path itself; for a folder that is not a run but contains `runs/`, the folders in there, by name."""
    if (source / CONFIG).is_file() or not (source / RUNS).is_dir():
        return [source]
    members = sorted(member for member in (source / RUNS).iterdir() if member.is_dir())
    return [path for member in members for path in runs_of(member)]


def check_comparable(runs: Sequence[FinishedRun]) -> None:
    """`UserError` that names two runs with different tokenizers or data, whose losses cannot be compared."""
    for run in runs[1:]:
        for what, first, other in (
            ("tokenizer", runs[0].tokenizer, run.tokenizer),
            ("data folder", runs[0].data, run.data),
        ):
            if first != other:
                raise UserError(
                    f"{run.path}: another {what} than {runs[0].path}: their losses are not comparable;"
                    f" expected runs on one {what}; leave out the others"
                )


def training_flops_per_token(model: ModelSpec, context_length: int | None) -> float:
    """FLOPs of training per token, exact, with the head, in windows of `context_length` tokens (None: the model's)."""
    tokens = context_length or model.context_length
    return model_cost(model).training_flops(tokens, with_head=True) / tokens


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
    summary = RunFolder(path).finished(also=(DESCRIPTION,))
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


def differences(one: Path, other: Path) -> dict[str, tuple[Any, Any]]:
    """The fields in which the configurations of two runs differ, with both values; `UserError` if one is not a run."""
    for path in (one, other):
        check_run(path)
    first, second = (flatten(RunFolder(path).configuration().to_dict()) for path in (one, other))
    return {
        field: (first.get(field), second.get(field))
        for field in dict.fromkeys([*first, *second])
        if first.get(field) != second.get(field)
    }


def check_run(path: Path) -> None:
    """`UserError` unless it is the folder of a run."""
    if not (path / CONFIG).is_file():
        raise UserError(f"{path}: not the folder of a run (no {CONFIG})")


def read_summary(path: Path) -> dict[str, Any]:
    """The content of a run's `run.json`; empty before it was first stopped or finished. `UserError` if it is wrong."""
    file = path / MODEL / RUN
    found: dict[str, Any] = upgrade_figures(read_json(file)) if file.is_file() else {}
    if wrong := first_schema_error(found, SUMMARY):
        raise UserError(f"{file}: {wrong}")
    return found
