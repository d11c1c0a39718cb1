"""What a comparison finds: each run's figures seed by seed, their mean and spread, and its learning curve.

A seed that came to nothing is told apart, and has no part in means.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from linnet.experiments.side_by_side.record import Beside, MemoryFigures
from linnet.training.runs import FinishedRun


@dataclass(frozen=True)
class CurvePoint:
    """The validation set at one step: bits per byte, causal."""

    step: int
    bits_per_byte: float


def validation_curve(lines: Iterable[dict[str, Any]]) -> list[CurvePoint]:
    """The evaluations among the lines of figures of a run."""
    evaluated = [(line["step"], line["validation"]) for line in lines if "validation" in line]
    return [CurvePoint(step, found["bits_per_byte"]) for step, found in evaluated]


@dataclass(frozen=True)
class Outcome:
    """One run with one seed: the figures of its evaluation (`Evaluation.figures`), its curve, its speed in training."""

    seed: int
    evaluation: dict[str, Any]
    curve: list[CurvePoint]
    tokens_per_s: float | None = None

    @property
    def bits_per_byte(self) -> float:
        """Of the causal evaluation."""
        return self._finite("bits_per_byte")

    @property
    def accuracy(self) -> float:
        """The share of tokens guessed first."""
        return self._finite("accuracy")

    @property
    def leak(self) -> float | None:
        """None for a model that is causal by itself."""
        return self._finite("leak") if "leak" in self.evaluation else None

    def _finite(self, name: str) -> float:
        """What is not finite is null in JSON."""
        value = self.evaluation[name]
        return math.nan if value is None else float(value)


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

    def to_dict(self) -> dict[str, Any]:
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

    def to_dict(self) -> dict[str, float | None]:
        """Ready for JSON: null for what is not finite."""
        return {name: value if value is None or math.isfinite(value) else None for name, value in vars(self).items()}


@dataclass(frozen=True)
class ComparedFigures:
    """One run, all seeds: `outcomes` of those that were trained to the end, and those that came to nothing.

    Without an outcome every figure is None. `leak` is None, too, for a model that is causal by itself. training_flops:
    exact, of one training. beside: what was measured beside the likelihood, where it was wanted, of one seed's model.
    """

    name: str
    parameters: int | None
    tokens: int | None
    outcomes: list[Outcome]
    broken_down: list[Breakdown] = field(default_factory=list)
    training_flops: float | None = None
    memory: MemoryFigures | None = None
    beside: Beside | None = None

    @classmethod
    def of(
        cls,
        name: str,
        runs: Sequence[FinishedRun],
        evaluations: Sequence[dict[str, Any]],
        broken_down: Sequence[Breakdown] = (),
        beside: Beside | None = None,
    ) -> "ComparedFigures":
        """From the folders of finished runs that differ in their seeds alone, and what each was found to be worth."""
        outcomes = [
            Outcome(run.seed, evaluation, validation_curve(run.lines), run.summary.get("tokens_per_s"))
            for run, evaluation in zip(runs, evaluations, strict=True)
        ]
        parameters, tokens = (runs[0].summary.get(name) if runs else None for name in ("parameters", "tokens"))
        training_flops = runs[0].training_flops if runs else None
        memory = MemoryFigures.of(runs[0].spec.model) if runs else None
        return cls(name, parameters, tokens, outcomes, list(broken_down), training_flops, memory, beside)

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
        return self._spread("bits_per_byte")

    @property
    def accuracy(self) -> Spread | None:
        """The share of tokens guessed first."""
        return self._spread("accuracy")

    @property
    def leak(self) -> Spread | None:
        """Bits per byte by which the whole-sequence pass looks better."""
        return self._spread("leak")

    @property
    def tokens_per_s(self) -> Spread | None:
        """The speed of the steps of training."""
        return self._spread("tokens_per_s")

    def _spread(self, name: str) -> Spread | None:
        values = [getattr(outcome, name) for outcome in self.outcomes]
        known = [value for value in values if value is not None]
        return Spread.of(known) if known else None

    @property
    def curve(self) -> list[tuple[int, Spread]]:
        """Step, and bits per byte of the validation set, at the steps that all seeds tell of."""
        by_step = [{point.step: point for point in outcome.curve} for outcome in self.outcomes]
        common = [step for step in by_step[0] if all(step in points for points in by_step)]
        return [(step, Spread.of([points[step].bits_per_byte for points in by_step])) for step in common]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        spreads = {name: self._spread(name) for name in ("bits_per_byte", "accuracy", "leak", "tokens_per_s")}
        return {
            "name": self.name,
            "parameters": self.parameters,
            "tokens": self.tokens,
            "training_flops": self.training_flops,
            **{name: None if spread is None else spread.to_dict() for name, spread in spreads.items()},
            **({} if self.memory is None else {"memory": self.memory.to_dict()}),
            **({} if self.beside is None else {"beside": self.beside.model_dump(mode="json", exclude_defaults=True)}),
            "seeds": [{"seed": o.seed, **o.evaluation} for o in self.outcomes],
        }


@dataclass(frozen=True)
class Findings:
    """All of a comparison: the runs that are shown, and what came to nothing, among runs that are not shown as well."""

    name: str
    runs: list[ComparedFigures]
    broken_down: list[Breakdown]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "name": self.name,
            "runs": [run.to_dict() for run in self.runs],
            "broken_down": [each.to_dict() for each in self.broken_down],
        }
