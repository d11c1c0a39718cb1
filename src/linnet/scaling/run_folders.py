"""Runs from the folders that `linnet train` leaves: exact parameters and FLOPs, the causal loss of held-out text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linnet.core.errors import UserError
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.scaling.counts import parameter_counts
from linnet.scaling.points import Run
from linnet.training.record import CONFIG, DIVERGED, RunFolder


@dataclass(frozen=True)
class FolderRun:
    """A run, and what its loss was measured on: text that another run did not see is no common measure."""

    run: Run
    tokenizer: str
    data: str
    bytes_per_token: float


class NoRunError(UserError):
    """A path is not the folder of a finished run; among several it can be left out."""


def read_run_folder(path: Path) -> FolderRun:
    """A finished run; `NoRunError` where it is none, not finished, or was never evaluated."""
    if not (path / CONFIG).is_file():
        raise NoRunError(f"{path}: not the folder of a run (no {CONFIG}), nor one with runs/ in it")
    folder = RunFolder(path)
    summary = folder.finished()
    if summary is None and (path / DIVERGED).is_file():
        raise NoRunError(f"{path}: the run diverged; it has no loss")
    if summary is None:
        raise NoRunError(f"{path}: the run is not finished; go on with it by the same command that began it")
    if not summary.get("validation"):
        raise NoRunError(f"{path}: the run was never evaluated; it has no loss of held-out text")
    spec = folder.configuration().resolved()
    end = {"tokens": summary["tokens"], "validation": summary["validation"]}
    before = [line for line in folder.metrics.read() if "validation" in line and line["tokens"] < end["tokens"]]
    flops_per_token = training_flops_per_token(spec.model, spec.training.context_length)
    return FolderRun(
        _run(str(path), spec.model, [*before, end], flops_per_token),
        summary["data"]["tokenizer_hash"],
        summary["data"]["manifest_sha256"],
        end["validation"]["bytes"] / end["validation"]["tokens"],
    )


def check_comparable(runs: Sequence[FolderRun]) -> None:
    """`UserError` where the losses of two runs are not of the same tokens of the same text."""
    for run in runs[1:]:
        for what, first, other in (
            ("tokenizer", runs[0].tokenizer, run.tokenizer),
            ("data folder", runs[0].data, run.data),
        ):
            if first != other:
                raise UserError(
                    f"{run.run.name}: another {what} than {runs[0].run.name}: losses per token are not comparable;"
                    f" expected runs on one {what}; leave out the others"
                )


def training_flops_per_token(model: ModelSpec, context_length: int | None) -> float:
    """Exact, with the head, over windows of `context_length` tokens (None: the model's)."""
    tokens = context_length or model.context_length
    return model_cost(model).training_flops(tokens, with_head=True) / tokens


def _run(name: str, model: ModelSpec, lines: list[dict[str, Any]], flops_per_token: float) -> Run:
    tokens = np.array([line["tokens"] for line in lines], dtype=float)
    loss = np.array([line["validation"]["nats_per_token"] for line in lines], dtype=float)
    return Run(name, parameter_counts(model).by_name(), tokens, tokens * flops_per_token, loss)
