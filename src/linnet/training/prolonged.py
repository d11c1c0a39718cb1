"""Runs that were given more steps: what becomes of the schedule, and the record of it.

The schedule is a function of all steps of a run, so it changes where a run is prolonged: every step is taken with the
number of steps that held when it was first taken. `prolonged.json` in the run's folder keeps them, so that going on
from an older checkpoint ends the same; `config.yaml` has the latest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.core.spec import Amount, Spec
from linnet.training.optimizers.schedule import learning_rate
from linnet.training.spec import RunSpec, TrainingSpec

PROLONGED = "prolonged.json"


class Extension(Spec):
    """After `step` of `before` steps a run was given `steps`, which are more."""

    step: NonNegativeInt
    before: Amount
    steps: Amount


@dataclass(frozen=True)
class StepBudget:
    """How many steps a run has, and had: the latest of `history` led to `steps`."""

    steps: int
    history: tuple[Extension, ...] = ()

    def of(self, step: int) -> int:
        """The steps that the run had when the update number `step` (from 1) was first taken, or has for one to come."""
        return next((each.before for each in self.history if step <= each.step), self.steps)

    def ends(self, step: int) -> bool:
        """Whether the run ends, or once ended, with this step."""
        return step == self.of(step)

    def to_dict(self) -> list[dict[str, int]]:
        """The history, ready for JSON."""
        return [each.model_dump() for each in self.history]


def read_lengths(path: Path, steps: int) -> StepBudget:
    """Those of the run whose `config.yaml` says `steps`, from its `prolonged.json` (none: it was never prolonged).

    A last entry that `config.yaml` does not know of was written by a process that was killed then: it does not count.
    """
    if not path.is_file():
        return StepBudget(steps)
    plain = read_checked_json(path)
    listed = plain.get("prolonged") if isinstance(plain, dict) else None
    if not isinstance(listed, list):
        raise UserError(f"{path}: expected a list under prolonged")
    history = tuple(Extension.parse(each, f"{path}: prolonged[{number}]") for number, each in enumerate(listed))
    if history and history[-1].steps != steps and history[-1].before == steps:
        history = history[:-1]
    ends = [each.steps for each in history]
    begins = [each.before for each in history]
    if history and [*begins, steps] != [begins[0], *ends]:
        raise UserError(f"{path}: prolonged to {ends} steps, and config.yaml says {steps}; expected the last of them")
    return StepBudget(steps, history)


def write_lengths(path: Path, lengths: StepBudget) -> None:
    """Keep the history."""
    write_checked_json(path, {"version": 1, "prolonged": lengths.to_dict()})


def is_longer(run: RunSpec, known: RunSpec) -> bool:
    """Whether a resolved run has more steps than the one that a folder holds."""
    return (run.training.steps or 0) > (known.training.steps or 0)


def with_its_warm_up(asked: RunSpec, run: RunSpec, known: RunSpec) -> RunSpec:
    """The resolved `run` with warm-up and growth of the one known, where they were not asked for in steps."""
    changed: dict[str, Any] = {}
    if asked.training.schedule.warmup_steps is None:
        warmup_steps = known.training.schedule.warmup_steps
        changed["schedule"] = run.training.schedule.model_copy(update={"warmup_steps": warmup_steps})
    growth = asked.training.growth
    if any(end < 1 for end, _ in (*growth.context_length, *growth.batch_size)):
        changed["growth"] = known.training.growth
    return run.model_copy(update={"training": run.training.model_copy(update=changed)})


def told(spec: TrainingSpec, history: Sequence[Extension]) -> str:
    """What becomes of the schedule, in a line."""
    latest, peak = history[-1], spec.optimizer.lr
    said = f"prolonged at step {latest.step}: {latest.steps} steps instead of {latest.before}"
    if latest.step == 0:
        return said
    before = learning_rate(spec.schedule, peak, latest.step, latest.before)
    now = learning_rate(spec.schedule, peak, latest.step + 1, latest.steps)
    return (
        f"{said}; the schedule ({spec.schedule.kind}) is of all steps: learning rate {now:.2e} now, {before:.2e} before"
    )
