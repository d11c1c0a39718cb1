"""Finished runs, as their folders tell them: what was trained, and the causal loss of held-out text along the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.model.store import MODEL, RUN, RUNS
from linnet.present.progress import progress
from linnet.training.run_folder import CONFIG, DIVERGED, RunFolder
from linnet.training.spec import RunSpec


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, as its folder tells it: `summary` is `run.json`, `lines` its evaluations, the last at its end."""

    path: Path
    spec: RunSpec
    summary: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def tokens(self) -> int:
        """That it was trained on."""
        return int(self.summary["tokens"])

    @property
    def seed(self) -> int:
        """That of first weights and of the order of the text."""
        return self.spec.training.seed

    @property
    def tokenizer(self) -> str:
        """The hash of the tokenizer whose tokens it was measured on."""
        return str(self.summary["data"]["tokenizer_hash"])

    @property
    def data(self) -> str:
        """The hash of the data folder's manifest."""
        return str(self.summary["data"]["manifest_sha256"])

    @property
    def bytes_per_token(self) -> float:
        """Of the text that it was measured on."""
        validation = self.summary["validation"]
        return float(validation["bytes"] / validation["tokens"])

    @property
    def training_flops(self) -> float:
        """Exact, of the whole training."""
        return self.tokens * self.flops_per_token

    @property
    def flops_per_token(self) -> float:
        """Exact, of training."""
        growth = self.spec.growth
        return growth.mean(lambda length: training_flops_per_token(self.spec.model, length), 0, growth.steps)


class NotARunError(UserError):
    """A path is not the folder of a finished run; among several it can be left out."""


def read_run_folder(path: Path) -> FinishedRun:
    """A finished run; `NotARunError` where it is none, not finished, or was never evaluated."""
    if not (path / CONFIG).is_file():
        raise NotARunError(f"{path}: not the folder of a run (no {CONFIG}), nor one with runs/ in it")
    folder = RunFolder(path)
    summary = folder.finished()
    if summary is None and (path / DIVERGED).is_file():
        raise NotARunError(f"{path}: the run diverged; it has no loss")
    if summary is None:
        raise NotARunError(f"{path}: the run is not finished; go on with it by the same command that began it")
    if not summary.get("validation"):
        raise NotARunError(f"{path}: the run was never evaluated; it has no loss of held-out text")
    data = summary.get("data")
    if not isinstance(data, dict) or {"manifest_sha256", "tokenizer_hash"} - data.keys() or "tokens" not in summary:
        raise UserError(f"{path / MODEL / RUN}: does not tell its data and its tokens; expected a run's")
    end: dict[str, Any] = {name: summary.get(name) for name in ("step", "tokens", "validation")}
    step = summary.get("step")
    lines = folder.metrics.read() if step is None else folder.lines_to_end(step)
    evaluated = [line for line in lines if {"validation", "tokens"} <= line.keys()]
    before = [line for line in evaluated if line["tokens"] < end["tokens"]]
    return FinishedRun(path, folder.configuration().resolved(), summary, [*before, end])


def read_run_folders(paths: Sequence[Path]) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs among these folders, and a line for each of the others."""
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
    """A path as it is; of a folder that is no run but holds `runs/`, the folders in there, by name."""
    if (source / CONFIG).is_file() or not (source / RUNS).is_dir():
        return [source]
    members = sorted(member for member in (source / RUNS).iterdir() if member.is_dir())
    return [path for member in members for path in runs_of(member)]


def check_comparable(runs: Sequence[FinishedRun]) -> None:
    """`UserError` naming two runs whose losses are not of the same tokens of the same text."""
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
    """Exact, with the head, over windows of `context_length` tokens (None: the model's)."""
    tokens = context_length or model.context_length
    return model_cost(model).training_flops(tokens, with_head=True) / tokens
