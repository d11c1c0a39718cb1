"""What a comparison finds: each run's figures seed by seed, their mean and spread, and its learning curve.

A seed that came to nothing is told apart, and has no part in means.
"""

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnet.evaluation.likelihood import Evaluation
from linnet.training.record import RunFolder


@dataclass(frozen=True)
class CurvePoint:
    """The validation set at one step: nats per token, and the share of tokens guessed first; both causal."""

    step: int
    nats_per_token: float
    accuracy: float


def validation_curve(folder: Path) -> list[CurvePoint]:
    """The evaluations of a run while it was trained."""
    lines = [line for line in RunFolder(folder).metrics.read() if "validation" in line]
    return [
        CurvePoint(line["step"], line["validation"]["nats_per_token"], line["validation"]["accuracy"]) for line in lines
    ]


@dataclass(frozen=True)
class Outcome:
    """One run with one seed: its evaluation on the whole validation split and its curve."""

    seed: int
    evaluation: Evaluation
    curve: list[CurvePoint]


@dataclass(frozen=True)
class Breakdown:
    """A run with a seed that came to nothing: it diverged at `step`, or, without one, could not be trained.

    reason: what was measured, or what is missing, in words. curve: what there was until then.
    """

    run: str
    seed: int
    step: int | None
    reason: str
    curve: list[CurvePoint] = field(default_factory=list)

    @property
    def fate(self) -> str:
        """`diverged` or `not trained`."""
        return "not trained" if self.step is None else "diverged"

    def __str__(self) -> str:
        place = "" if self.step is None else f" at step {self.step}"
        return f"{self.run}, seed {self.seed}: {self.fate}{place}: {self.reason}"

    def plain(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"run": self.run, "seed": self.seed, "fate": self.fate, "step": self.step, "reason": self.reason}


@dataclass(frozen=True)
class Spread:
    """The mean over seeds, their standard deviation (None for one seed), the lowest and the highest."""

    mean: float
    deviation: float | None
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """The spread of at least one value."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, min(values), max(values))

    def plain(self) -> dict[str, float | None]:
        """Ready for JSON: null for what is not finite."""
        return {name: value if value is None or math.isfinite(value) else None for name, value in vars(self).items()}


def _spread(values: list[float]) -> Spread | None:
    return Spread.of(values) if values else None


@dataclass(frozen=True)
class ComparedFigures:
    """One run, all seeds: `outcomes` of those that were trained to the end, and those that came to nothing.

    Without an outcome every figure is None. `leak` is None, too, for a model that is causal by itself.
    """

    name: str
    parameters: int | None
    tokens: int | None
    outcomes: list[Outcome]
    broken_down: list[Breakdown] = field(default_factory=list)

    @property
    def seeds(self) -> str:
        """How many seeds the means are over: `3`, or `2 of 3`."""
        trained, lost = len(self.outcomes), len(self.broken_down)
        return f"{trained} of {trained + lost}" if lost else str(trained)

    @property
    def fate(self) -> str:
        """What became of the seeds that came to nothing: `diverged`, `not trained`, or both."""
        return " or ".join(dict.fromkeys(each.fate for each in self.broken_down))

    @property
    def bits_per_byte(self) -> Spread | None:
        """Of the causal evaluation."""
        return _spread([outcome.evaluation.causal.bits_per_byte for outcome in self.outcomes])

    @property
    def accuracy(self) -> Spread | None:
        """The share of tokens guessed first."""
        return _spread([outcome.evaluation.causal.accuracy for outcome in self.outcomes])

    @property
    def leak(self) -> Spread | None:
        """Bits per byte by which the whole-sequence pass looks better."""
        leaks = [outcome.evaluation.leak for outcome in self.outcomes]
        return _spread([leak for leak in leaks if leak is not None]) if None not in leaks else None

    @property
    def curve(self) -> list[tuple[int, Spread, Spread]]:
        """Step, nats per token and accuracy of the validation set, over the seeds."""
        points = zip(*(outcome.curve for outcome in self.outcomes), strict=True)
        return [
            (at[0].step, Spread.of([p.nats_per_token for p in at]), Spread.of([p.accuracy for p in at]))
            for at in points
        ]

    def plain(self) -> dict[str, Any]:
        """Ready for JSON."""
        spreads = {"bits_per_byte": self.bits_per_byte, "accuracy": self.accuracy, "leak": self.leak}
        return {
            "name": self.name,
            "parameters": self.parameters,
            "tokens": self.tokens,
            **{name: None if spread is None else spread.plain() for name, spread in spreads.items()},
            "seeds": [{"seed": o.seed, **o.evaluation.figures()} for o in self.outcomes],
        }


@dataclass(frozen=True)
class Findings:
    """All of a comparison: the runs that are shown, and what came to nothing, among runs that are not shown as well."""

    name: str
    runs: list[ComparedFigures]
    broken_down: list[Breakdown]

    def plain(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "name": self.name,
            "runs": [run.plain() for run in self.runs],
            "broken_down": [each.plain() for each in self.broken_down],
        }
