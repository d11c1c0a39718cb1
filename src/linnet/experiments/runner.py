"""The one runner of trainings: each in a folder of its own, gone on with where it stopped, never made twice."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pydantic import PositiveInt

from linnet.core.checksum import read_checked_json
from linnet.core.spec import Spec
from linnet.data.token_data import TokenData
from linnet.training.data import fit_to_data
from linnet.training.reporter import Reporter, terminal_reporter
from linnet.training.run import RunResult, train_run
from linnet.training.run_folder import DIVERGED, DivergedError, RunFolder
from linnet.training.spec import RunSpec

Say = Callable[[str], None]

Watching = Callable[[str], AbstractContextManager[Reporter]]
"""Makes what watches one training, from its title."""


class ExperimentStopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """Training was asked to stop, by Ctrl-C or SIGTERM, and saved; the trainings that follow did not begin.

    `signal` is what asked.
    """

    def __init__(self, said: str, signal: int | None) -> None:
        super().__init__(said)
        self.signal = signal


class Diverged(Spec):
    """What `diverged.json` holds: the step at which training stopped, and what was measured there."""

    step: PositiveInt
    reason: str

    def __str__(self) -> str:
        return f"diverged at step {self.step}: {self.reason}"

    @classmethod
    def of(cls, folder: Path) -> "Diverged | None":
        """What the folder of a run says; None for one that came to its end, or never diverged."""
        path = folder / DIVERGED
        if not path.is_file() or RunFolder(folder).finished() is not None:
            return None
        return cls.parse(read_checked_json(path), str(path))


@dataclass(frozen=True)
class Planned:
    """A training that is to be: its `title` for people, the folder where it lies, and all that decides it."""

    title: str
    folder: Path
    run: RunSpec


@dataclass(frozen=True)
class Runner:
    """Carries trainings out one after another.

    `say` hears of what becomes of them, `command` is kept with each, `watching` shows the one that goes on.
    """

    say: Say
    command: str | None = None
    watching: Watching = terminal_reporter

    def train(self, planned: Planned) -> RunResult:
        """Train to the end, from where an earlier call stopped; a finished run is left as it is.

        `UserError`; `DivergedError` where it diverges; `ExperimentStopped` where it was asked to stop.
        """
        steps = planned.run.steps
        with self.watching(planned.title) as reporter:
            result = train_run(planned.run, planned.folder, reporter, command=self.command)
        if not result.finished or result.signal is not None:  # one that came while the last step was saved
            said = f"stopped at step {result.summary['step']} of {steps} of {planned.title}"
            raise ExperimentStopped(said, result.signal)
        return result

    def attempt(self, planned: Planned) -> RunResult | Diverged:
        """`train`, for one of several: where it diverged, as its folder says, it is not tried again by itself."""
        before = Diverged.of(planned.folder)
        if before is not None:
            RunFolder(planned.folder).check(fit_to_data(planned.run, TokenData.open(planned.run.data)))
            again = f"not trained again (remove {planned.folder} to train it anew)"
            self.say(f"{planned.title}: {before}; {again}")
            return before
        try:
            return self.train(planned)
        except DivergedError as error:
            diverged = Diverged(step=error.step, reason=error.reason)
        self.say(f"{planned.title}: {diverged}")
        return diverged
