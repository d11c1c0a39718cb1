"""Finished runs with their losses, read from their folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.core.files import read_json
from linnet.core.migration import upgrade_figures
from linnet.core.spec import first_schema_error, flatten
from linnet.model.cost import model_cost
from linnet.model.folder import MODEL, RUN, RUNS
from linnet.model.spec import ModelSpec
from linnet.present.progress import progress
from linnet.training.metrics import CONFIG, DIVERGED, SUMMARY, finished_summary
from linnet.training.run_folder import RunFolder
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
    summary = finished_summary(path)
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
