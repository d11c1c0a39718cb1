"""What is swept: a field of `training` and its values, from `lr` or `batch_size=4,8,16`; and the runs that it makes."""

import json
from dataclasses import dataclass
from typing import Any

from linnet.core.errors import UserError, did_you_mean
from linnet.core.spec import field_kinds, is_number_field, read_assignment
from linnet.training.initialization import flatten
from linnet.training.recipe import LOW_LR, NO_LOW_LR_PARAMETERS, has_low_lr_parameters
from linnet.training.spec import RunSpec, TrainingSpec, run_of

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Of the configured learning rate, where no values are given."""

NOT_SWEPT = ("steps", "tokens", "seed", "threads", "evaluate.", "checkpoint.", "log.", "parallel.")
"""Lengths, which are no matter of better or worse; a seed, which nobody chooses by its loss; and how a run is kept."""

SIZES = ("batch_size", "gradient_accumulation", "context_length")
"""Fields that decide how many tokens a step has."""

OTHER = {"schedule.warmup_steps": "schedule.warmup_share", "schedule.warmup_share": "schedule.warmup_steps"}
"""Two ways to say one thing, of which a run has one."""


@dataclass(frozen=True)
class Sweep:
    """A field by its path below `training`, and two values or more of it, ascending."""

    path: str
    values: tuple[float, ...]

    @property
    def name(self) -> str:
        """The last part of the path, where that means no other field: `lr`, but `optimizer.muon.lr`."""
        last = self.path.rpartition(".")[2]
        return last if _known().get(last) == self.path else self.path

    def label(self, value: float) -> str:
        """`lr-0.001`: what the run of the value is called, and its folder."""
        return f"{self.name}-{said(value)}"

    def assignments(self, run: RunSpec, value: float) -> list[str]:
        """What makes of `run` the one with the value; as many tokens in any case.

        Where a step then has another number of tokens, the warm-up in steps becomes the share that it was.
        """
        changes = [f"training.{self.path}={said(value)}"]
        if self.path in OTHER:
            changes.append(f"training.{OTHER[self.path]}=null")
        if self.path not in SIZES:
            return changes
        if run.training.tokens is None:
            tokens = run.resolved().growth.tokens(0, run.steps)
            changes += ["training.steps=null", f"training.tokens={tokens}"]
        share = _warmup_share(run)
        return changes if share is None else [*changes, *_as_assignments(share)]

    def run(self, run: RunSpec, value: float) -> RunSpec:
        """The run with the value; `UserError` where it is none of the field's, or does not fit the rest."""
        changed = run_of(run.to_dict(), self.assignments(run, value), "run", "`sweep` ")
        try:
            changed.resolved()
        except UserError as error:
            raise UserError(str(error), field="sweep", value=f"{self.name}={said(value)}") from None
        return changed


def read_sweep(text: str, run: RunSpec) -> Sweep:
    """`lr`, which is a quarter to four times the configured peak, or `FIELD=A,B,...`; `UserError` names what is wrong.

    A field of `training` is named by its path, or its last part where that is enough.
    """
    name, equals, given = text.partition("=")
    path = _field(name.strip(), text)
    if path == LOW_LR and not has_low_lr_parameters(run.model):
        raise UserError(f"{NO_LOW_LR_PARAMETERS}, and all values train the same", field="sweep", value=text)
    if equals:
        values = tuple(_number(part, text) for part in given.split(","))
    elif path.rpartition(".")[2] == "lr":
        peak = flatten(run.to_dict()["training"])[path]
        values = tuple(factor * (peak or run.training.optimizer.lr) for factor in FACTORS)
    else:
        raise UserError(field="sweep", value=text, accepted=f"values, as in {name}=A,B,C")
    if len(set(values)) < max(2, len(values)):
        raise UserError(field="sweep", value=text, accepted="two values or more, each once")
    return Sweep(path, tuple(sorted(values)))


def shortened(run: RunSpec, steps: int | None) -> RunSpec:
    """The run in its first sizes and whole schedule, of fewer steps; None: as it is. `UserError` for more steps."""
    if steps is None:
        return run
    if steps > run.steps:
        raise UserError(field="sweep_steps", value=steps, accepted=f"at most the {run.steps} steps of the run")
    changes = ["training.tokens=null", f"training.steps={steps}", *_as_assignments(_warmup_share(run) or {})]
    return run_of(run.to_dict(), changes, "run")


def said(value: float) -> str:
    """A value as it is typed: `0.001`, `8`."""
    return repr(value).removesuffix(".0")


def _warmup_share(run: RunSpec) -> dict[str, Any] | None:
    """The warm-up as a share of the steps; None where it is no number of steps."""
    warmup = run.training.schedule.warmup_steps
    return None if warmup is None else {"warmup_steps": None, "warmup_share": warmup / run.steps}


def _as_assignments(schedule: dict[str, Any]) -> list[str]:
    return [f"training.schedule.{field}={json.dumps(value)}" for field, value in schedule.items()]


def _known() -> dict[str, str]:
    """The fields that can be swept, by their paths, and by the last parts of those where they mean no other field.

    `lr` is that of the optimizer: what a section of a section has refines it.
    """
    kinds = dict(field_kinds(TrainingSpec))
    paths = [path for path, kind in kinds.items() if is_number_field(kind) and not path.startswith(NOT_SWEPT)]
    called: dict[str, list[str]] = {}
    for path in sorted(kinds, key=_depth):
        called.setdefault(path.rpartition(".")[2], []).append(path)
    alone = {last: same[0] for last, same in called.items() if [*map(_depth, same)].count(_depth(same[0])) == 1}
    return {last: path for last, path in alone.items() if path in paths} | {path: path for path in paths}


def _depth(path: str) -> int:
    return path.count(".")


def _field(name: str, text: str) -> str:
    known, wanted = _known(), name.removeprefix("training.")
    if wanted in known:
        return known[wanted]
    fields = (
        "expected a number of training that decides what is learned, such as lr, batch_size, optimizer.weight_decay"
    )
    is_field = wanted in dict(field_kinds(TrainingSpec))
    raise UserError(fields if is_field else did_you_mean(wanted, known, fields), field="sweep", value=text)


def _number(part: str, text: str) -> float:
    _, value = read_assignment(f"sweep={part}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{part.strip()!r} is no number", field="sweep", value=text, accepted="FIELD=A,B,...")
    return value
