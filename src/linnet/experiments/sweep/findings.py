"""What a sweep finds: each value's loss of held-out text, the best of them, and whether it lies at an edge."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.experiments.runner import Diverged
from linnet.experiments.sweep.asked import Sweep, said
from linnet.training.spec import RunSpec

FURTHER = 2
"""So many values are proposed beyond an edge."""


@dataclass(frozen=True)
class SweptRun:
    """The run of one value; `bits_per_byte`: of held-out text, causal, at its end, `seconds`: in steps. None, and
    `diverged`, where it came to nothing.
    """

    value: float
    folder: Path
    bits_per_byte: float | None = None
    seconds: float | None = None
    steps: int | None = None
    tokens: int | None = None
    precision: str | None = None
    diverged: Diverged | None = None

    @property
    def state(self) -> str:
        """`finished`, or that and where it diverged."""
        return "finished" if self.diverged is None else f"diverged at step {self.diverged.step}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        told = {name: getattr(self, name) for name in ("bits_per_byte", "seconds", "steps", "tokens", "precision")}
        reason = None if self.diverged is None else self.diverged.reason
        return {"value": self.value, "folder": str(self.folder), **told, "state": self.state, "reason": reason}


@dataclass(frozen=True)
class SweepFindings:
    """All runs, values ascending. `run`: what was asked for, of which each had `steps`, or (None) all."""

    sweep: Sweep
    run: RunSpec
    runs: list[SweptRun]
    steps: int | None = None

    @property
    def best(self) -> SweptRun | None:
        """The one with the fewest bits per byte; None where all diverged."""
        finished = [run for run in self.runs if run.bits_per_byte is not None]
        return min(finished, key=lambda run: run.bits_per_byte or 0.0) if finished else None

    @property
    def edge(self) -> str | None:
        """Whether the best value is the `lowest` or the `highest` of all, and so perhaps not the best there is."""
        values = [run.value for run in self.runs]
        if self.best is None or self.best.value not in (values[0], values[-1]):
            return None
        return "lowest" if self.best.value == values[0] else "highest"

    @property
    def further(self) -> list[float]:
        """The best value, at an edge, and the next ones beyond it that the field may have, in the ratio of the last
        two, ascending; empty where there are none.
        """
        if self.best is None or self.edge is None:
            return []
        neighbor = self.runs[1 if self.edge == "lowest" else -2].value
        if self.best.value <= 0 or neighbor <= 0:
            return []
        ratio = self.best.value / neighbor
        beyond = [_like(self.best.value, self.best.value * ratio**power) for power in range(1, FURTHER + 1)]
        new = [value for value in dict.fromkeys(beyond) if value != self.best.value and self._is_possible(value)]
        return sorted([self.best.value, *new]) if new else []

    def _is_possible(self, value: float) -> bool:
        try:
            self.sweep.run(self.run, value)
        except UserError:
            return False
        return True

    @property
    def flags(self) -> list[str]:
        """What is said to `linnet train`, beside what was said here, to train with the best value."""
        if self.best is None:
            return []
        changes = self.sweep.assignments(self.run, self.best.value)
        return [word for change in changes for word in ("--set", change)]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "field": f"training.{self.sweep.path}",
            "sweep_steps": self.steps,
            "runs": [run.to_dict() for run in self.runs],
            "best": None if self.best is None else self.best.value,
            "edge": self.edge,
            "further": self.further,
            "flags": self.flags,
        }


def _like(known: float, value: float) -> float:
    """Rounded to a whole number where the known value is one, else to six digits."""
    return max(1, round(value)) if isinstance(known, int) else float(f"{value:.6g}")


def values_said(values: list[float]) -> str:
    """`0.001,0.002`, as they are typed."""
    return ",".join(map(said, values))
