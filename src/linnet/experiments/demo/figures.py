"""What a demo found: plain figures, which the table, the page and the JSON are written from."""

from dataclasses import dataclass
from typing import Any

SHORT_TOKENS, LONG_TOKENS = 1024, 65536
"""The two lengths of text whose decode state the table gives."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Sample:
    """A story: the prompt and its continuation. `complete`: the model ended it itself."""

    prompt: str
    continuation: str
    complete: bool

    @property
    def text(self) -> str:
        """The whole story."""
        return self.prompt + self.continuation


@dataclass(frozen=True)
class ModelFigures:
    """One model. `leak` is None for a model that is causal by itself.

    training_curve, validation_curve: points of (tokens trained on, bits per byte). state_bytes: by tokens of text.
    training_s: time in steps.
    """

    key: str
    title: str
    idea: str
    folder: str
    parameters: int
    bits_per_byte: float
    whole_sequence_bits_per_byte: float | None
    leak: float | None
    tokens: int
    training_s: float
    training_tokens_per_s: float
    decode_tokens_per_s: float
    state_bytes: dict[int, int]
    training_curve: list[Point]
    validation_curve: list[Point]
    sample: Sample

    @property
    def causal(self) -> bool:
        """Whether the model's training pass is causal."""
        return self.leak is None

    def plain(self) -> dict[str, Any]:
        """The model's row of the table, ready for JSON."""
        return {
            "model": self.key,
            "folder": self.folder,
            "parameters": self.parameters,
            "bits_per_byte": self.bits_per_byte,
            "whole_sequence_bits_per_byte": self.whole_sequence_bits_per_byte,
            "leak": self.leak,
            "training_tokens": self.tokens,
            "training_seconds": self.training_s,
            "training_tokens_per_s": self.training_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "state_bytes": {str(tokens): self.state_bytes[tokens] for tokens in (SHORT_TOKENS, LONG_TOKENS)},
            "sample": self.sample.text,
            "sample_complete": self.sample.complete,
        }


@dataclass(frozen=True)
class CorpusFigures:
    """The text: stories, tokens and bytes to train on and held out; bits per byte of xz for the latter."""

    folder: str
    vocab_size: int
    train_stories: int
    train_tokens: int
    train_bytes: int
    validation_stories: int
    validation_tokens: int
    validation_bytes: int
    xz_bits_per_byte: float


@dataclass(frozen=True)
class DemoFigures:
    """Everything. `parts_s`: seconds of each part that is not training; `machine`: what it is by name of the fact."""

    models: list[ModelFigures]
    corpus: CorpusFigures
    context_length: int
    tokens_per_step: int
    seed: int
    temperature: float
    top_p: float
    decode_tokens: int
    decode_runs: int
    parts_s: dict[str, float]
    machine: dict[str, str]
    command: str
    """How `linnet` is called here."""
    invocation: str
    """The command line that made this."""
    made: str
    """The day and minute."""

    @property
    def training_s(self) -> float:
        """Seconds in steps, all models together."""
        return sum(model.training_s for model in self.models)

    def plain(self) -> dict[str, Any]:
        """The table and where it comes from, ready for JSON."""
        return {
            "models": [model.plain() for model in self.models],
            "corpus": vars(self.corpus),
            "seed": self.seed,
            "seconds": {"training": self.training_s, **self.parts_s},
            "machine": self.machine,
        }
