"""The state of a run besides weights and optimizer: plain data, saved as JSON in every checkpoint."""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.spec import describe

Kind = TypeVar("Kind")


class Stateful(Protocol):
    """What a checkpoint knows of a callback: it saves plain data under `name`, and tensors beside the optimizer's."""

    name: ClassVar[str]

    def load_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class TrainState:
    """A run after `step` steps.

    data_hash: SHA-256 of the data folder's manifest. seed: of the first weights and the order of the data.
    data_position: number of the next step's data, counted in steps. It exceeds `step` where data was skipped.
    lr, gradient_norm: of the latest step. elapsed_s: time in steps, since the run began.
    callbacks_done: the callbacks of this step have run; a stop can come between the step and them.
    word_vectors: how many tokens began with a word vector, if the run has a file of these.
    callbacks: by name, what each callback's `state_dict` returned.
    """

    data_hash: str
    seed: int = 0
    step: int = 0
    tokens: int = 0
    data_position: int = 0
    lr: float = 0.0
    gradient_norm: float = 0.0
    elapsed_s: float = 0.0
    callbacks_done: bool = True
    word_vectors: int | None = None
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Any, origin: str) -> Self:
        """What `to_dict` returned; `UserError`, which names `origin`, for anything else."""
        return parse_dataclass(cls, plain, f"{origin}: state: not the state of a run")


def parse_dataclass(kind: type[Kind], plain: Any, problem: str) -> Kind:
    """A dataclass from plain data; `UserError`, which begins with `problem`, for fields of another type."""
    try:
        return TypeAdapter(kind).validate_python(plain)
    except ValidationError as error:
        raise UserError(f"{problem} ({describe(error, plain)})") from None
