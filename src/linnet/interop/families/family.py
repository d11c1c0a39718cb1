"""What a family is: its fields in `config.json`, the description that they amount to, and the names of its tensors.

Fields have Transformers' names, and where a file says nothing Transformers' own values hold. A field with one value
alone (`Literal`) says what no description of ours has.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from linnet.core.spec import Spec
from linnet.interop.tensor_names import TensorMaps
from linnet.model.spec import ModelSpec
from linnet.nn.activation import Activation

Plain = Mapping[str, Any]
"""What a model computes, in plain data: `member.plain_form`."""

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

THEIRS: dict[Activation, ActivationName] = {ours: theirs for theirs, ours in reversed(OURS.items())}
"""Transformers' names of activations, of several the first."""

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

    @classmethod
    def fields(cls, rotary: Plain) -> dict[str, Any]:
        """From the rotary positions of a description; none are like unscaled ones."""
        scaling = rotary.get("scaling") or {"kind": "default"}
        said = {
            "rope_theta": rotary.get("base"),
            "factor": scaling.get("factor"),
            "original_max_position_embeddings": scaling.get("trained"),
            "beta_fast": scaling.get("fast"),
            "beta_slow": scaling.get("slow"),
            "attention_factor": scaling.get("attention_factor"),
        }
        kind = scaling["kind"] if scaling["kind"] in ROPE_TYPES else "default"
        return {"rope_type": kind, **({} if kind == "default" else said), "rope_theta": said["rope_theta"]}

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
    maps: the ways of its tensors. architecture: the class of Transformers. begins_with_end: whether every text begins
    with the end token where its tokenizer says nothing else.
    """

    buffers: ClassVar[re.Pattern[str]] = re.compile(r"\.rotary_emb\.inv_freq$")
    maps: ClassVar[TensorMaps]
    architecture: ClassVar[str]
    begins_with_end: ClassVar[bool] = False

    model_type: str
    vocab_size: PositiveInt
    initializer_range: PositiveFloat = 0.02
    quantization_config: Literal[None] = None

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The description in our words, but for its name."""

    @classmethod
    @abstractmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        """The fields of the member that is as much like a description as a member can be."""

    def config(self) -> dict[str, Any]:
        """What `config.json` says of the model."""
        fields = self.model_dump(exclude_none=True)
        rope = fields.get("rope_parameters", {})
        older = {"rope_scaling": rope} if rope.get("rope_type", "default") != "default" else {}
        return {"architectures": [self.architecture], **fields, **older}

    @classmethod
    def current(cls, name: str) -> str:
        """The name of a published tensor of `maps` that stands under this one in a published file."""
        return name

    def model(self, name: str, origin: str) -> ModelSpec:
        """The description."""
        start = {"std": self.initializer_range, "embedding_std": self.initializer_range}
        plain = {"name": name, "vocab_size": self.vocab_size, "initialization": start}
        return ModelSpec.parse(plain | self.to_dict(), origin)

    @classmethod
    def read(cls, config: Mapping[str, Any], origin: str) -> Self:
        """From the content of a `config.json`; `UserError` names the field that linnet cannot say."""
        return cls.parse({name: value for name, value in config.items() if name in cls.model_fields}, origin)
