"""`linnet.train`: a model and a data folder to a run folder, from Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnet.core.system import keep_freed_memory
from linnet.model.spec import ModelSpec
from linnet.training.asked import asked_run, prepare_asked
from linnet.training.distributed import processes
from linnet.training.reporter import Reporter
from linnet.training.run import RunResult
from linnet.training.run import train as carry_out


def train(
    out: str | Path,
    *,
    model: str | Path | ModelSpec | None = None,
    data: str | Path | None = None,
    training: Mapping[str, Any] | None = None,
    start_from: str | Path | None = None,
    config: str | Path | None = None,
    recipe: str | Path | None = None,
    reporter: Reporter | None = None,
    pairs: str | Path | None = None,
) -> RunResult:
    """Train a model into the run folder `out`, or go on where an earlier call with the same settings stopped.

    `train(out)` alone goes on with the run that is there; `train(out, training={"steps": n})` prolongs it.

    model: a preset's name, a YAML file, a model folder (its description alone), or a description. data: a folder made
    by `prepare`. training: fields, `{"steps": 200, "optimizer": {"lr": 1e-3}}` (docs/training.md). start_from: a model
    folder, or a run's, to begin with the weights of. config: a YAML file with the sections model, data, training, which
    the other arguments change. recipe: how a published model was trained. reporter: hears of the progress. pairs: in
    the place of data, a file of inputs and targets (docs/encoder-decoder.md).

    `.model` of the result is the model folder, `.summary` what `run.json` says. Ctrl-C and SIGTERM save and return. The
    process keeps the memory that it frees (`core.system`). Raises `UserError` that names the field that is wrong,
    and `DivergedError` where a loss is not finite.
    """
    keep_freed_memory()
    run = asked_run(out, config, model, data, (), recipe, start_from, training, pairs)
    with processes() as several:
        if pairs is not None:
            several.broadcast_from_rank0(lambda: prepare_asked(run, pairs))
        return carry_out(run, out, reporter)
