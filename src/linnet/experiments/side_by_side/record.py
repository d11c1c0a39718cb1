"""What was found of one model beside its likelihood, as it is kept with a comparison and read again."""

from dataclasses import dataclass

from pydantic import Field

from linnet.core.spec import Spec
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec

CONTEXTS = tuple(1 << power for power in range(10, 21))
"""Tokens of text that memory is told for: 1k to 1M."""


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes that decoding one stream takes in float32, exact: the weights, and the state with room for a text.

    state_bytes: by tokens of text.
    """

    weights_bytes: int
    state_bytes: dict[int, int]

    @classmethod
    def of(cls, spec: ModelSpec) -> "MemoryFigures":
        """From the description alone."""
        cost = model_cost(spec)
        return cls(cost.weights_bytes("float32"), {tokens: cost.state_bytes(tokens) for tokens in CONTEXTS})

    def total(self, tokens: int) -> int:
        """Weights and state together."""
        return self.weights_bytes + self.state_bytes[tokens]

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {
            "weights_bytes": self.weights_bytes,
            "state_bytes": {str(tokens): size for tokens, size in self.state_bytes.items()},
        }


class TaskScore(Spec):
    """A task, or an average of some (`averaged`, without verdict); shares, not per cent. value: None: not finite."""

    task: str
    value: float | None
    standard_error: float | None
    chance: float
    items: int
    verdict: str = ""
    averaged: bool = False


class AbilityScore(Spec):
    """Whole answers to one ability's questions that are right; `right` None where it could not be asked, and why."""

    ability: str
    chance: float
    items: int = 0
    right: float | None = None
    standard_error: float | None = None
    above_chance: bool = False
    missing: str = ""


class WrittenText(Spec):
    """What a model wrote behind a prompt. complete: it ended the text itself."""

    prompt: str
    text: str
    complete: bool


class DecodingSpeed(Spec):
    """Tokens a second of one stream, the median of `runs` of `tokens` tokens each; `machine`: facts by name."""

    tokens_per_s: float
    runs: int
    tokens: int
    machine: dict[str, str]


class Beside(Spec):
    """One model: what was not asked for is empty. seed: of the training, where there are several."""

    seed: int | None = None
    decoding: DecodingSpeed | None = None
    tasks: list[TaskScore] = Field(default_factory=list)
    abilities: list[AbilityScore] = Field(default_factory=list)
    samples: list[WrittenText] = Field(default_factory=list)
