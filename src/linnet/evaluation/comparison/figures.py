"""What a comparison finds: each run's figures seed by seed, their mean and spread, and its learning curve."""

import math
import statistics
from dataclasses import dataclass
from typing import Any

from linnet.evaluation.likelihood import Evaluation


@dataclass(frozen=True)
class CurvePoint:
    """The validation set at one step: nats per token, and the share of tokens guessed first; both causal."""

    step: int
    nats_per_token: float
    accuracy: float


@dataclass(frozen=True)
class Outcome:
    """One run with one seed: its evaluation on the whole validation split and its curve."""

    seed: int
    evaluation: Evaluation
    curve: list[CurvePoint]


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


@dataclass(frozen=True)
class ComparedFigures:
    """One run, all seeds. `leak` is None for a model that is causal by itself."""

    name: str
    parameters: int
    tokens: int
    outcomes: list[Outcome]

    @property
    def bits_per_byte(self) -> Spread:
        """Of the causal evaluation."""
        return Spread.of([outcome.evaluation.causal.bits_per_byte for outcome in self.outcomes])

    @property
    def accuracy(self) -> Spread:
        """The share of tokens guessed first."""
        return Spread.of([outcome.evaluation.causal.accuracy for outcome in self.outcomes])

    @property
    def leak(self) -> Spread | None:
        """Bits per byte by which the whole-sequence pass looks better."""
        leaks = [outcome.evaluation.leak for outcome in self.outcomes]
        return Spread.of([leak for leak in leaks if leak is not None]) if None not in leaks else None

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
        leak = self.leak
        return {
            "name": self.name,
            "parameters": self.parameters,
            "tokens": self.tokens,
            "bits_per_byte": self.bits_per_byte.plain(),
            "accuracy": self.accuracy.plain(),
            "leak": None if leak is None else leak.plain(),
            "seeds": [{"seed": o.seed, **o.evaluation.figures()} for o in self.outcomes],
        }
