"""A run from its description to its folder, by one process or by several."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.data.shards import TokenData
from linnet.training.data import check_data, fitted, vocabulary_note
from linnet.training.distributed import Processes, processes
from linnet.training.divergence import DivergedError
from linnet.training.machine import threads
from linnet.training.objective import Objective, next_token_loss
from linnet.training.reporter import Reporter
from linnet.training.run_folder import RunFolder
from linnet.training.spec import RunSpec
from linnet.training.stop import StopRequest
from linnet.training.trainer import Trainer


@dataclass(frozen=True)
class RunResult:
    """What a run came to: its folder and the figures of `model/run.json`; `signal`: the one that asked it to stop."""

    folder: Path
    summary: dict[str, Any]
    signal: int | None = None

    @property
    def finished(self) -> bool:
        """False where the run was asked to stop before its last step."""
        return bool(self.summary["finished"])

    @property
    def model(self) -> Path:
        """The model folder, with the weights of the last step made."""
        return RunFolder(self.folder).model


def train(
    run: RunSpec,
    out: str | Path,
    reporter: Reporter | None = None,
    objective: Objective = next_token_loss,
    command: str | None = None,
) -> RunResult:
    """Train a model into the run folder `out`, going on where an earlier call with the same `run` stopped.

    A `run` with more steps prolongs it (`training.prolonged` says what becomes of the schedule), a finished one too.

    `reporter` hears of the progress; `command` is kept in `run.json`. A finished run is left as it is. Ctrl-C and
    SIGTERM
    save and return (`finished` is False). Raises `UserError` where nothing could be trained, and `DivergedError`,
    which the folder keeps until the run is tried again.

    Of processes that torchrun started each calls it with the same arguments; all return the same.
    """
    with processes() as several:
        return _train(
            run, RunFolder(out), reporter if reporter and several.first else Reporter(), objective, command, several
        )


def _train(
    run: RunSpec, folder: RunFolder, reporter: Reporter, objective: Objective, command: str | None, processes: Processes
) -> RunResult:
    data = TokenData.open(run.data)
    asked, run = run, folder.as_long_as(run, fitted(run, data))
    processes.broadcast_from_rank0(lambda: folder.check(run))
    summary = processes.broadcast_from_rank0(folder.finished)
    if summary is not None and not folder.prolongs(run):
        processes.broadcast_from_rank0(folder.tidy)
        check_data(summary.get("data", {}).get("manifest_sha256"), data, folder.path)
        reporter.note(f"{folder.path}: finished at step {summary['step']}, nothing to do")
        return RunResult(folder.path, summary)
    held = folder.locked() if processes.first else nullcontext()
    with StopRequest() as stop, held, threads(run.training.threads):
        processes.broadcast_from_rank0(lambda: folder.check(run))
        # It refuses what cannot be trained.
        trainer = Trainer(run, data, folder, objective, reporter, stop, processes)
        if run.model.vocab_size != asked.model.vocab_size:
            reporter.note(vocabulary_note(asked, run))
        processes.broadcast_from_rank0(lambda: folder.start(run))
        processes.broadcast_from_rank0(trainer.keep_precision)
        with closing(trainer.trackers), _recorded(folder, processes):
            trainer.resume()
            trainer.run_steps()
        return RunResult(folder.path, trainer.finish(command), stop.signal)


@contextmanager
def _recorded(folder: RunFolder, processes: Processes) -> Iterator[None]:
    """Keep with the run that it broke down."""
    try:
        yield
    except DivergedError as error:
        if processes.first:
            folder.keep_diverged(error)
        raise
