"""Trainings that the records want: which of them are missing or of another description, and one after another made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import Made, hashed, is_unknown, plan_said, why
from record import Figure

from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.experiments.runner import Diverged, Planned, Runner
from linnet.training.spec import RunSpec

ORIGIN = "origin.json"

AS_LONG = 1.1
"""A training in attention's time is made anew where its steps are so many times more or fewer: a time is never twice
the same."""


@dataclass(frozen=True)
class Wanted:
    """A training, what its figure depends on, and the one that the record has. steps: where they follow from speeds."""

    mixer: str
    seed: int
    run: RunSpec
    of: Made
    known: Figure | None
    runs: Path
    steps: int | None = None

    @property
    def name(self) -> str:
        """For people."""
        return self.mixer if self.seed == 0 else f"{self.mixer}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Another for each description: what is there is of this one, and goes on."""
        key = hashed({**self.of, "steps": self.steps})
        return self.runs / f"{self.mixer.replace(' ', '-')}-{key}-seed-{self.seed}"

    @property
    def reason(self) -> str | None:
        """Why it has to be trained; None where the record's figure is of the same."""
        reason = why(self.known and self.known["made"], self.of)
        before: int | None = self.known.get("steps") if self.known is not None else None
        if reason or self.steps is None or before is None:
            return reason
        moved = max(self.steps, before) / min(self.steps, before) > AS_LONG
        return f"{before} steps then, {self.steps} by today's speeds" if moved else None

    @property
    def is_unknown(self) -> bool:
        """Whether it is kept without knowing what it was made with."""
        known = self.known
        no_steps = known is not None and self.steps is not None and known.get("steps") is None
        return self.reason is None and (no_steps or is_unknown(known and known["made"], self.of))


def to_train(title: str, wanted: Sequence[Wanted], say: Callable[[str], None]) -> list[Wanted]:
    """Those that the record lacks, or has of another description; which and why is said in one line."""
    reasons = {one.name: one.reason for one in wanted}
    say(plan_said(title, reasons, [one.name for one in wanted if one.is_unknown]))
    return [one for one in wanted if one.reason is not None]


def train(one: Wanted, runner: Runner, origin: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """To its end, from where it stopped; None where it diverged, which its folder keeps.

    Returns the origin of who ended it, which the folder keeps as well: that may have been an earlier call.
    """
    if isinstance(runner.attempt(Planned(one.name, one.folder, one.run)), Diverged):
        return None
    if not (kept := one.folder / ORIGIN).is_file():
        write_checked_json(kept, origin)
    found: Mapping[str, Any] = read_checked_json(kept)
    return found
