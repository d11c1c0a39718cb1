"""What a family is: its fields in `config.json`, the description that they amount to, and the names of its tensors.

Fields have Transformers' names, and where a file says nothing Transformers' own values hold. A field with one value
alone (`Literal`) says what no description of ours has.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from linnet.core.spec import Spec
from linnet.data.tokenizer import Tokenizer
from linnet.model.spec import ModelSpec
from linnet.nn.activation import Activation

Named = Mapping[str, Tensor]

ActivationName = Literal["silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "relu2"]
OURS: dict[ActivationName, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
}
"""Activations by Transformers' names."""


ROPE_TYPES = ("default", "linear", "yarn")


class Rope(Spec):
    """Rotary positions, as `rope_parameters` and, in older files, `rope_scaling` say them.

    rope_theta: null where the field of that name beside it says it.
    """

    rope_type: Literal["default", "linear", "yarn"] = "default"
    rope_theta: PositiveFloat | None = None
    factor: PositiveFloat | None = None
    original_max_position_embeddings: PositiveInt | None = None
    beta_fast: PositiveFloat | None = None
    beta_slow: PositiveFloat | None = None
    attention_factor: PositiveFloat | None = None

    @model_validator(mode="before")
    @classmethod
    def _known_kind(cls, data: Any) -> Any:
        """Older files call it `type`. It is refused before the fields that other kinds have."""
        if not isinstance(data, dict):
            return data
        data = {"rope_type": data.get("type", "default"), **data}
        data.pop("type", None)
        if data["rope_type"] not in ROPE_TYPES:
            raise ValueError(f"rope_type: {data['rope_type']!r}: must be one of {', '.join(ROPE_TYPES)}")
        return data

    def scaling(self, context_length: int) -> dict[str, Any] | None:
        """In our words."""
        if self.rope_type == "default":
            return None
        plain: dict[str, Any] = {"kind": self.rope_type, "factor": self.factor}
        if self.rope_type == "yarn":
            plain["trained"] = self.original_max_position_embeddings or context_length
            said = {"fast": self.beta_fast, "slow": self.beta_slow, "attention_factor": self.attention_factor}
            plain |= {name: value for name, value in said.items() if value is not None}
        return plain


class Family(Spec):
    """What of `config.json` describes a model of the family; other fields of the file are not read.

    buffers: a pattern of the names of tensors in published files that are none of the model's weights.
    """

    buffers: ClassVar[re.Pattern[str]] = re.compile(r"\.rotary_emb\.inv_freq$")

    model_type: str
    vocab_size: PositiveInt
    initializer_range: PositiveFloat = 0.02
    quantization_config: Literal[None] = None

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """The description in our words, but for its name."""

    @classmethod
    @abstractmethod
    def ours(cls, named: Named, spec: ModelSpec) -> dict[str, Tensor]:
        """Our tensors from published ones, by the names and in the shapes of `theirs`."""

    @classmethod
    @abstractmethod
    def theirs(cls, tensors: Named, spec: ModelSpec) -> dict[str, Tensor]:
        """The published tensors from ours."""

    @classmethod
    def current(cls, name: str) -> str:
        """The name of a tensor in `theirs` that stands under this one in a published file."""
        return name

    @classmethod
    def tokenizer(cls, path: Path) -> Tokenizer:
        """The tokenizer of a tokenizer.json."""
        return Tokenizer.load(path)

    def model(self, name: str, origin: str) -> ModelSpec:
        """The description."""
        start = {"std": self.initializer_range, "embedding_std": self.initializer_range}
        plain = {"name": name, "vocab_size": self.vocab_size, "initialisation": start}
        return ModelSpec.parse(plain | self.plain(), origin)

    @classmethod
    def read(cls, config: Mapping[str, Any], origin: str) -> Self:
        """From the content of a `config.json`; `UserError` names the field that linnet cannot say."""
        return cls.parse({name: value for name, value in config.items() if name in cls.model_fields}, origin)
