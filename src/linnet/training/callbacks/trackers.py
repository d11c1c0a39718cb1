"""Trackers: the lines of `metrics.jsonl`, told to TensorBoard or Weights & Biases as well.

A run that goes on from a checkpoint makes some steps again. TensorBoard is told from which step on what it has is void;
Weights & Biases, which keeps what it has, is not told a step twice: `trackers.json` in the run's folder knows the last.
"""

import os
import uuid
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field, NonNegativeInt

from linnet.core.atomic import remove_folder
from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.training.initialization import leaves
from linnet.training.run_folder import RunFolder
from linnet.training.spec import RunSpec

TRACKERS, TENSORBOARD = "trackers.json", "tensorboard"
PROJECT = "linnet"
"""In Weights & Biases, where `WANDB_PROJECT` names none."""


class Tracker(Protocol):
    """What is told the lines of figures."""

    def begin(self, step: int) -> None:
        """The run is at `step`, or went back there: what is told next is of later steps."""

    def line(self, step: int, figures: dict[str, float]) -> None:
        """A line of figures."""

    def close(self) -> None:
        """The run ends here, for now."""


class TensorBoardTracker:
    """Event files in `tensorboard/` of the run's folder, which `tensorboard --logdir` shows."""

    def __init__(self, folder: RunFolder, run: RunSpec) -> None:
        self._make = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._folder, self._writer = folder.path / TENSORBOARD, None

    def begin(self, step: int) -> None:
        """A new event file; with it the steps after `step` that earlier ones have are void."""
        self.close()
        self._writer = self._make(self._folder, purge_step=step + 1)

    def line(self, step: int, figures: dict[str, float]) -> None:
        """A scalar for each figure, on the disk at once: a kill loses none."""
        assert self._writer is not None, "not begun"
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


class WandbTracker:
    """A run of Weights & Biases with an id that stays; its files lie in `wandb/` of the run's folder.

    `WANDB_MODE=offline` sends nothing, `wandb sync` does later. Project and account are as the environment says. What a
    killed process was told may be lost, in part: it is told again, in the place of what that process left offline.
    """

    def __init__(self, folder: RunFolder, run: RunSpec) -> None:
        self._wandb = _imported("wandb", "wandb")
        self._folder, self._config = folder, run.to_dict()
        self._run: Any = None
        known = _known(folder)
        self._id, self._told, self._left = known.id, known.told, known.unfinished
        self._step = 0

    def begin(self, step: int) -> None:
        """Go on with the run of this id; lines that it was not surely told, it is told now."""
        if self._run is not None:
            return
        self._remove_left()
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=self._id,
                name=self._folder.path.resolve().name,
                dir=str(self._folder.path),
                config=self._config,
                resume="allow",
                settings=self._wandb.Settings(silent=True, console="off"),
            )
        except Exception as error:
            accepted = "an account, or WANDB_MODE=offline"
            raise UserError(f"{error}", field="training.trackers", value="wandb", accepted=accepted) from None
        self._step = max(self._told, self._run.step - 1)
        self._keep(Path(self._run.dir).parent.name if self._run.offline else None)
        for line in self._folder.metrics.read():
            if line["step"] <= step:
                self.line(line["step"], numbers_of(line))

    def line(self, step: int, figures: dict[str, float]) -> None:
        """Log them, unless they were."""
        assert self._run is not None, "not begun"
        if step > self._step:
            self._run.log(figures, step=step)
            self._step = step

    def close(self) -> None:
        """Finish writing; the run can go on later."""
        if self._run is not None:
            self._run.finish()
            self._run, self._told = None, self._step
            self._keep(None)

    def _keep(self, unfinished: str | None) -> None:
        known = WandbStanding(id=self._id, told=self._told, unfinished=unfinished)
        write_checked_json(self._folder.path / TRACKERS, {"version": 1, "wandb": known.model_dump()})

    def _remove_left(self) -> None:
        """What a killed process left offline, unless it was sent since."""
        left = self._left and self._folder.path / "wandb" / self._left
        if left and left.is_dir() and not left.is_symlink() and not [*left.glob("*.synced")]:
            remove_folder(left)


KINDS: dict[str, type[TensorBoardTracker] | type[WandbTracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
}


class Trackers:
    """All that a run has; before it goes on from a checkpoint, so that lines that are to be written again are known."""

    def __init__(self, wanted: Sequence[str], folder: RunFolder, run: RunSpec) -> None:
        """`UserError` naming the extra where one is not installed."""
        self._trackers: list[Tracker] = [KINDS[name](folder, run) for name in dict.fromkeys(wanted)]

    def begin(self, step: int) -> None:
        """The run goes on after `step`."""
        for tracker in self._trackers:
            tracker.begin(step)

    def line(self, line: dict[str, Any]) -> None:
        """Tell a line of `metrics.jsonl`."""
        for tracker in self._trackers:
            tracker.line(line["step"], numbers_of(line))

    def close(self) -> None:
        """Let all of them finish."""
        for tracker in self._trackers:
            tracker.close()


def numbers_of(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line but for its step, those of a section as `validation/bits_per_byte`."""
    found = {name: value for name, value in leaves(line).items() if isinstance(value, int | float) and name != "step"}
    return {name.replace(".", "/"): float(value) for name, value in found.items()}


class WandbStanding(Spec):
    """What `trackers.json` holds: the run's id, the last step that surely was told, an offline folder in work."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,64}$")]
    told: NonNegativeInt = 0
    unfinished: Annotated[str, Field(pattern=r"^offline-run-[A-Za-z0-9_-]{1,100}$")] | None = None


def _known(folder: RunFolder) -> WandbStanding:
    path = folder.path / TRACKERS
    plain = read_checked_json(path) if path.is_file() else {"wandb": {"id": uuid.uuid4().hex[:12]}}
    return WandbStanding.parse(plain.get("wandb") if isinstance(plain, dict) else None, f"{path}: wandb")


def _imported(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise UserError(
            f"is not installed: `pip install 'linnet[{extra}]'`", field="training.trackers", value=extra
        ) from None
