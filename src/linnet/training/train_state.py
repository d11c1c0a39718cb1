"""Where a run stands: beside weights and moments, all that going on needs. Plain data, so that it is saved as JSON."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from linnet.core.errors import UserError
from linnet.core.spec import describe
from linnet.evaluation.likelihood import Evaluation
from linnet.training.callbacks.guard import GuardState
from linnet.training.step import StepResult


@dataclass
class Meter:
    """Sums since the last line of figures, and the latest step's learning rate and gradient norm."""

    nats: float = 0.0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    lr: float = 0.0
    gradient_norm: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)
    orthogonalizing_s: float = 0.0
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    def add(self, result: StepResult, seconds: float, orthogonalizing_s: float = 0.0, waited_s: float = 0.0) -> None:
        """Count a step."""
        self.orthogonalizing_s += orthogonalizing_s
        self.waited_s += waited_s
        self.nats += result.nats
        self.tokens += result.tokens
        self.bytes += result.bytes
        self.seconds += seconds
        self.lr, self.gradient_norm = result.lr, result.gradient_norm
        for name, value in result.terms.items():
            self.terms[name] = self.terms.get(name, 0.0) + value

    @property
    def means(self) -> dict[str, float]:
        """The objective's terms, as means over the tokens."""
        return {name: value / self.tokens for name, value in self.terms.items()}

    @property
    def nats_per_token(self) -> float:
        """The mean loss."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """The mean loss over the bytes of the targets' text (of a single byte where they hold none)."""
        return self.nats / math.log(2) / max(1, self.bytes)

    @property
    def tokens_per_s(self) -> float:
        """Speed of the steps alone, without evaluation and saving."""
        return self.tokens / self.seconds

    @property
    def waiting_share(self) -> float:
        """Of the steps' time: the wait for data."""
        return self.waited_s / self.seconds


@dataclass
class TrainState:
    """A run after `step` steps.

    closed: what was due at this step (evaluation, line of figures) is done; a stop can come between the two.
    seconds: time spent in steps, over all processes of the run; `orthogonalizing_s` of these in Muon's iteration.
    evaluation: sums of the latest one, made at `evaluation_step`. embedded: how many tokens began with a word vector,
    where the run has a file of these.
    """

    data_hash: str
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    closed: bool = True
    meter: Meter = field(default_factory=Meter)
    evaluation_step: int | None = None
    evaluation: dict[str, Any] | None = None
    best_step: int | None = None
    best_bits_per_byte: float | None = None
    orthogonalizing_s: float = 0.0
    guard: GuardState | None = None
    embedded: int | None = None
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    @property
    def place(self) -> int:
        """The number of the next step's data, which is the step's own where none was skipped."""
        return self.step + (0 if self.guard is None else self.guard.skipped)

    def add(self, result: StepResult, seconds: float, orthogonalizing_s: float = 0.0, waited_s: float = 0.0) -> None:
        """Count a step; `waited_s` of its time it waited for data."""
        self.step += 1
        self.tokens += result.tokens
        self.seconds += seconds
        self.orthogonalizing_s += orthogonalizing_s
        self.closed = False
        self.meter.add(result, seconds, orthogonalizing_s, waited_s)

    def add_evaluation(self, evaluation: Evaluation) -> bool:
        """Keep an evaluation of this step's weights; True if it is the best so far."""
        self.evaluation_step, self.evaluation = self.step, evaluation.sums()
        found = evaluation.causal.bits_per_byte
        better = self.best_bits_per_byte is None or found < self.best_bits_per_byte
        if better:
            self.best_step, self.best_bits_per_byte = self.step, found
        return better

    @property
    def validation(self) -> dict[str, Any] | None:
        """The latest evaluation's figures."""
        return None if self.evaluation is None else Evaluation.from_sums(self.evaluation).figures()

    def to_dict(self) -> dict[str, Any]:
        """Plain data; Python's JSON keeps every float to the last bit."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Any, origin: str) -> Self:
        """What `plain` wrote; `UserError`, which names `origin`, for anything else."""
        try:
            return TypeAdapter(cls).validate_python(plain)
        except ValidationError as error:
            raise UserError(f"{origin}: standing: not where a run stands ({describe(error, plain)})") from None
