"""Callbacks: everything that a run does besides taking steps.

A callback overrides the hooks that it needs. Its plain data from `state_dict` is saved with every checkpoint, so that a
resumed run continues as an uninterrupted one. All processes call all hooks in the same order.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from linnet.core.system import StopRequest
from linnet.data.token_data import TokenData
from linnet.training.distributed import Processes
from linnet.training.optimizers.adamw import Optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.reporter import Reporter
from linnet.training.run_folder import DivergedError, RunFolder, diverged_error
from linnet.training.schedule import StepBudget
from linnet.training.spec import RunSpec, TrainingSpec
from linnet.training.state import TrainState, parse_dataclass
from linnet.training.step import StepResult


class SkipStepError(ArithmeticError):
    """A callback refuses the update of a step. rewind_to: the step whose checkpoint the run returns to, if any."""

    def __init__(self, reason: str, rewind_to: int | None = None) -> None:
        super().__init__(reason)
        self.rewind_to = rewind_to


class Callback:
    """Base class; every hook does nothing. `context` is set before the first hook is called."""

    name: ClassVar[str] = ""
    """Key of its state in `TrainState.callbacks`; a callback that has state needs one."""

    context: "TrainingContext"
    state: Any = None

    def on_load(self) -> None:
        """The state of the run was loaded, or is that of a new run; metrics after its step are gone."""

    def before_step(self) -> None:
        """The next step is `state.step + 1`."""

    def check_update(self, loss: float, gradient_norm: float) -> SkipStepError | None:
        """Why the update of this step must not be made. loss: nats per token, of the whole objective."""

    def on_skip(self, skipped: SkipStepError, step: int, before: dict[str, Any]) -> None:
        """The update of `step` was refused and its data is skipped. before: this callback's state at that time.

        With `skipped.rewind_to` the run went back to that checkpoint, and this callback's state is the one saved there.
        """

    def after_update(self, result: StepResult) -> None:
        """The weights were updated, and `state` counts the step."""

    def after_step(self) -> None:
        """Do what is due after this step. If a stop interrupts it (`Stopped`), it is called again after resuming."""

    def line_fields(self) -> dict[str, Any]:
        """Its fields of a line of metrics; called by all processes."""
        return {}

    def on_log(self, line: dict[str, Any]) -> None:
        """A line of metrics was made; called in rank 0 only."""

    def before_save(self, scheduled: bool) -> None:
        """A checkpoint of this step follows. scheduled: an uninterrupted run has one here, too."""

    def after_save(self) -> None:
        """A checkpoint of this step was written; with several processes it still may be in the background."""

    def saved_weights(self) -> AbstractContextManager[dict[str, Tensor]]:
        """Inside, the model has the weights to evaluate and save; yields tensors to save beside the optimizer's."""
        return nullcontext({})

    def load_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take the tensors that `saved_weights` yielded, after the model was loaded; returns the others."""
        return tensors

    def state_dict(self) -> dict[str, Any]:
        """Its state as plain data; by default the dataclass `state`, if it has one."""
        return {} if self.state is None else asdict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned; an empty mapping: from the start."""
        if self.state is not None:
            self.state = parse_dataclass(type(self.state), state, f"checkpoint: {self.name}")

    def summary(self) -> dict[str, Any]:
        """Its fields of `run.json`."""
        return {}

    def close(self) -> None:
        """The run ends here, perhaps with an error."""


@dataclass
class TrainingContext:
    """What callbacks may use of a run. `run` is resolved, `spec` is its training section as these processes take it.

    save_requested: a callback asks for a checkpoint of this step.
    """

    run: RunSpec
    spec: TrainingSpec
    data: TokenData
    folder: RunFolder
    reporter: Reporter
    stop: StopRequest
    processes: Processes
    device: torch.device
    model: ParallelModel
    optimizer: Optimizer
    state: TrainState
    budget: StepBudget
    callbacks: list[Callback] = field(default_factory=list)
    save_requested: bool = False

    def diverged(self, problem: str) -> DivergedError:
        """The error to raise if the update of this step made something that is not finite."""
        state = self.state
        measured = f"learning rate {state.lr:g}, gradient norm {state.gradient_norm:g}"
        return diverged_error(self.folder.checkpoints, state.step, f"{problem}, {measured}", state.step - 1)

    @contextmanager
    def saved_weights(self) -> Iterator[dict[str, Tensor]]:
        """Inside, the model has the weights that are evaluated and saved; yields the tensors to save beside them."""
        with ExitStack() as entered:
            tensors = dict[str, Tensor]()
            for callback in self.callbacks:
                tensors |= entered.enter_context(callback.saved_weights())
            yield tensors
