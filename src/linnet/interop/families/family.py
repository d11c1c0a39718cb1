"""A family of models: its fields in `config.json`, the model description for them, and the names of its tensors.

Fields have Transformers' names, and Transformers' defaults hold where a file has no value. A field with a single
accepted value (`Literal`) is a feature that model descriptions of linnet do not have.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from linnet.core.spec import Spec
from linnet.interop.tensor_names import TensorMaps
from linnet.model.spec import ModelSpec
from linnet.nn.gates import Activation

Plain = Mapping[str, Any]
"""A normalized model description as plain data: `matching.plain_form`."""

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
"""Activations of linnet by Transformers' names."""

THEIRS: dict[Activation, ActivationName] = {ours: theirs for theirs, ours in reversed(OURS.items())}
"""Transformers' names of activations; the first of several."""

ROPE_TYPES = ("default", "linear", "yarn")


class Rope(Spec):
    """Rotary positions in `rope_parameters` or, in older files, `rope_scaling`.

    rope_theta: null where the field of that name beside it has the value.
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
        # Older files name the field `type`. Unknown kinds are refused before the fields that only they have.
        if not isinstance(data, dict):
            return data
        data = {"rope_type": data.get("type", "default"), **data}
        data.pop("type", None)
        if data["rope_type"] not in ROPE_TYPES:
            raise ValueError(f"rope_type: {data['rope_type']!r}: must be one of {', '.join(ROPE_TYPES)}")
        return data

    @classmethod
    def fields(cls, rotary: Plain) -> dict[str, Any]:
        """Return the fields for the rotary positions of a description; no positions count as unscaled ones."""
        scaling = rotary.get("scaling") or {"kind": "default"}
        fields = {
            "rope_theta": rotary.get("base"),
            "factor": scaling.get("factor"),
            "original_max_position_embeddings": scaling.get("trained"),
            "beta_fast": scaling.get("fast"),
            "beta_slow": scaling.get("slow"),
            "attention_factor": scaling.get("attention_factor"),
        }
        kind = scaling["kind"] if scaling["kind"] in ROPE_TYPES else "default"
        return {"rope_type": kind, **({} if kind == "default" else fields), "rope_theta": fields["rope_theta"]}

    def scaling(self, context_length: int) -> dict[str, Any] | None:
        """Return the scaling section of a model description."""
        if self.rope_type == "default":
            return None
        plain: dict[str, Any] = {"kind": self.rope_type, "factor": self.factor}
        if self.rope_type == "yarn":
            plain["trained"] = self.original_max_position_embeddings or context_length
            optional = {"fast": self.beta_fast, "slow": self.beta_slow, "attention_factor": self.attention_factor}
            plain |= {name: value for name, value in optional.items() if value is not None}
        return plain


class Family(Spec):
    """The fields of `config.json` that describe a model of the family; other fields of the file are not read.

    buffers: pattern of names of tensors in published files that are not weights. maps: conversion of tensors.
    architecture: the class in Transformers. begins_with_end: True if every text begins with the end token unless the
    tokenizer's file says otherwise.
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
        """Return the model description without its name."""

    @classmethod
    @abstractmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        """Return the fields of the family's model that is closest to a description."""

    def config(self) -> dict[str, Any]:
        """Return the content of `config.json`."""
        fields = self.model_dump(exclude_none=True)
        rope = fields.get("rope_parameters", {})
        older = {"rope_scaling": rope} if rope.get("rope_type", "default") != "default" else {}
        return {"architectures": [self.architecture], **fields, **older}

    @classmethod
    def current(cls, name: str) -> str:
        """Translate the name of a tensor in a published file to the name in `maps`."""
        return name

    def model(self, name: str, origin: str) -> ModelSpec:
        """Return the model description."""
        start = {"std": self.initializer_range, "embedding_std": self.initializer_range}
        plain = {"name": name, "vocab_size": self.vocab_size, "initialization": start}
        return ModelSpec.parse(plain | self.to_dict(), origin)

    @classmethod
    def read(cls, config: Mapping[str, Any], origin: str) -> Self:
        """Parse a `config.json`; `UserError` names the field that linnet does not support."""
        return cls.parse({name: value for name, value in config.items() if name in cls.model_fields}, origin)


MODEL_TYPE: Final = "linnet"
PREFIX = "decoder."
"""Prefix of tensor names: the attribute of `LinnetForCausalLM` that holds the decoder."""


def _without_prefix(named: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    return {name.removeprefix(PREFIX): tensor for name, tensor in named.items()}


def _with_prefix(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    return {PREFIX + name: tensor for name, tensor in tensors.items()}


class Linnet(Family):
    """Any decoder of linnet, for `interop.transformers`: the whole description, and linnet's tensor names with a
    prefix.
    """

    maps, architecture = TensorMaps(_without_prefix, _with_prefix), "LinnetForCausalLM"
    begins_with_end = True

    model_type: Literal["linnet"] = MODEL_TYPE
    description: dict[str, Any]

    @classmethod
    def of(cls, spec: ModelSpec) -> "Linnet":
        return cls(vocab_size=spec.vocab_size, description=spec.model_dump(mode="json"))

    def to_dict(self) -> dict[str, Any]:
        return self.description

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        return {"vocab_size": plain["vocab_size"], "description": dict(plain)}

    def model(self, name: str, origin: str) -> ModelSpec:
        """Return the description, with the name that it contains."""
        return ModelSpec.parse(self.description, f"{origin}: description")
