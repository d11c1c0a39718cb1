"""What a run says of itself, as far as linnet reads it again.

Where no checksum tells that linnet wrote it, it is held to its kinds.
"""

from typing import Any

from pydantic import BaseModel, Field, PositiveInt

_ABSENT: Any = Field(default=None)
"""Which fields there have to be, each reader says itself."""


class Validation(BaseModel):
    """An evaluation's figures."""

    bits_per_byte: float = _ABSENT
    nats_per_token: float = _ABSENT
    tokens: PositiveInt = _ABSENT
    bytes: PositiveInt = _ABSENT
    whole_sequence_bits_per_byte: float = _ABSENT
    leak: float = _ABSENT
    accuracy: float = _ABSENT


class Line(BaseModel):
    """Of `metrics.jsonl`."""

    step: int
    tokens: int = _ABSENT
    bits_per_byte: float = _ABSENT
    lr: float = _ABSENT
    gradient_norm: float = _ABSENT
    validation: Validation = _ABSENT


class Data(BaseModel):
    """What a run was trained on."""

    manifest_sha256: str = _ABSENT
    tokenizer_hash: str = _ABSENT


class Machine(BaseModel):
    """What it was trained with."""

    precision: str = _ABSENT


class Best(BaseModel):
    """Its lowest loss."""

    step: int = _ABSENT
    bits_per_byte: float = _ABSENT
    checkpoint: str = _ABSENT


class Process(BaseModel):
    """What one of several processes did."""

    process: int = _ABSENT
    tokens_per_s: float = _ABSENT
    share_of_peak: float = _ABSENT
    memory_bytes: int = _ABSENT
    waiting_s: float = _ABSENT


class Spikes(BaseModel):
    """Those of its loss."""

    count: int


class Prolonged(BaseModel):
    """Where it was given more steps."""

    step: int
    steps: int


class WordVectors(BaseModel):
    """The file of word vectors that tokens began with, and how many of how many tokens did."""

    file: str
    tokens_found: int
    tokens: PositiveInt


class Summary(BaseModel):
    """`run.json` of a training run."""

    step: int = _ABSENT
    steps: int = _ABSENT
    tokens: int = _ABSENT
    parameters: int = _ABSENT
    seconds: float = _ABSENT
    tokens_per_s: float | None = _ABSENT
    share_of_peak: float | None = _ABSENT
    orthogonalizing_share: float | None = _ABSENT
    memory_bytes: int = _ABSENT
    validation: Validation | None = _ABSENT
    best: Best | None = _ABSENT
    data: Data | None = _ABSENT
    machine: Machine = _ABSENT
    processes: list[Process] = _ABSENT
    embedding_from: WordVectors | None = _ABSENT
    spikes: Spikes | None = _ABSENT
    prolonged: list[Prolonged] | None = _ABSENT
    configuration: str | None = _ABSENT
