"""Lines of metrics sent to TensorBoard and Weights & Biases.

A run that resumes from a checkpoint repeats some steps. TensorBoard is told the step from which its data is void.
Weights & Biases keeps its data, so no step is sent twice: `trackers.json` in the run folder stores the last one.
"""

import os
import uuid
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from linnet.core.atomic import remove_folder
from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.core.spec import Spec, flatten
from linnet.training.callbacks import Callback
from linnet.training.run_folder import RunFolder
from linnet.training.spec import RunSpec

TRACKERS, TENSORBOARD = "trackers.json", "tensorboard"
PROJECT = "linnet"
"""In Weights & Biases, unless `WANDB_PROJECT` names another."""


class TensorBoardTracker:
    """Event files in `tensorboard/` of the run folder, which `tensorboard --logdir` shows."""

    def __init__(self, folder: RunFolder, run: RunSpec) -> None:
        self._make = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._folder, self._writer = folder.path / TENSORBOARD, None

    def begin(self, step: int) -> None:
        self.close()
        self._writer = self._make(self._folder, purge_step=step + 1)  # voids later steps of earlier files

    def line(self, step: int, figures: dict[str, float]) -> None:
        assert self._writer is not None, "not begun"
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a kill loses nothing

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandbState(Spec):
    """What `trackers.json` holds: the run's id, the last step that was surely sent, an unfinished offline folder."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,64}$")]
    last_step: NonNegativeInt = 0
    unfinished: Annotated[str, Field(pattern=r"^offline-run-[A-Za-z0-9_-]{1,100}$")] | None = None


class WandbTracker:
    """A run of Weights & Biases with a permanent id; its files are in `wandb/` of the run folder.

    `WANDB_MODE=offline` sends nothing, `wandb sync` does so later. Project and account come from the environment. Lines
    that a killed process may have lost are sent again, and the folder that it left offline is removed.
    """

    def __init__(self, folder: RunFolder, run: RunSpec) -> None:
        self._wandb = _imported("wandb", "wandb")
        self._folder, self._config = folder, run.to_dict()
        self._run: Any = None
        path = folder.path / TRACKERS
        plain = read_checked_json(path) if path.is_file() else {"wandb": {"id": uuid.uuid4().hex[:12]}}
        self._known = WandbState.parse(plain.get("wandb") if isinstance(plain, dict) else None, f"{path}: wandb")
        self._step = 0

    def begin(self, step: int) -> None:
        """Resume the run with this id, and send the lines that it may not have."""
        if self._run is not None:
            return
        left = self._known.unfinished and self._folder.path / "wandb" / self._known.unfinished
        if left and left.is_dir() and not left.is_symlink() and not [*left.glob("*.synced")]:
            remove_folder(left)
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=self._known.id,
                name=self._folder.path.resolve().name,
                dir=str(self._folder.path),
                config=self._config,
                resume="allow",
                settings=self._wandb.Settings(silent=True, console="off"),
            )
        except Exception as error:
            accepted = "an account, or WANDB_MODE=offline"
            raise UserError(f"{error}", field="training.trackers", value="wandb", accepted=accepted) from None
        self._step = max(self._known.last_step, self._run.step - 1)
        self._write(unfinished=Path(self._run.dir).parent.name if self._run.offline else None)
        for line in self._folder.metrics.read():
            if line["step"] <= step:
                self.line(line["step"], numbers_of(line))

    def line(self, step: int, figures: dict[str, float]) -> None:
        assert self._run is not None, "not begun"
        if step > self._step:
            self._run.log(figures, step=step)
            self._step = step

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
            self._write(last_step=self._step, unfinished=None)

    def _write(self, **changes: Any) -> None:
        self._known = self._known.model_copy(update=changes)
        write_checked_json(self._folder.path / TRACKERS, {"version": 1, "wandb": self._known.model_dump()})


KINDS: dict[str, type[TensorBoardTracker] | type[WandbTracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
}


class Trackers(Callback):
    """All trackers of a run, in rank 0."""

    def __init__(self, names: Sequence[str], folder: RunFolder, run: RunSpec) -> None:
        """`UserError` naming the extra if a tracker is not installed."""
        self._trackers = [KINDS[name](folder, run) for name in dict.fromkeys(names)]

    def on_load(self) -> None:
        state = self.context.state
        step = state.step if state.callbacks_done else state.step - 1

        def begin() -> None:
            for tracker in self._trackers:
                tracker.begin(step)

        self.context.processes.broadcast_from_rank0(begin)  # so that all processes raise its error

    def on_log(self, line: dict[str, Any]) -> None:
        for tracker in self._trackers:
            tracker.line(line["step"], numbers_of(line))

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def numbers_of(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line except its step; those of a section as `validation/bits_per_byte`."""
    found = {name: value for name, value in flatten(line).items() if isinstance(value, int | float) and name != "step"}
    return {name.replace(".", "/"): float(value) for name, value in found.items()}


def _imported(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise UserError(
            f"is not installed: `pip install 'linnet[{extra}]'`", field="training.trackers", value=extra
        ) from None
