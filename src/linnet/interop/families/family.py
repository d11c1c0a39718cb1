"""A family of models: its fields in `config.json`, the model description for them, and the names of its tensors.

Fields have Transformers' names, and Transformers' defaults hold where a file has no value. A field with a single
accepted value (`Literal`) is a feature that model descriptions of linnet do not have. A table maps the fields to the
fields of a description, in both directions.
"""

import copy
import math
import re
from collections.abc import Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Self, get_args

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.interop.tensor_names import PublishedTensors
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

_RAMP = {"factor": "factor", "trained": "original_max_position_embeddings"}
ROPE_FIELDS: dict[str, dict[str, str]] = {
    "linear": {"factor": "factor"},
    "yarn": {**_RAMP, "fast": "beta_fast", "slow": "beta_slow"}
    | {name: name for name in ("attention_factor", "truncate")},
    "llama3": {**_RAMP, "fast": "high_freq_factor", "slow": "low_freq_factor"},
}
"""Transformers' names of the fields of each kind of scaling, by linnet's names."""


class Rope(Spec):
    """Rotary positions in `rope_parameters` or, in older files, `rope_scaling`.

    rope_theta: null where the field of that name beside it has the value. `dynamic` scales only texts that are longer
    than the context length.
    """

    rope_type: Literal["default", "linear", "dynamic", "yarn", "llama3"] = "default"
    rope_theta: PositiveFloat | None = None
    factor: PositiveFloat | None = None
    original_max_position_embeddings: PositiveInt | None = None
    beta_fast: PositiveFloat | None = None
    beta_slow: PositiveFloat | None = None
    attention_factor: PositiveFloat | None = None
    truncate: bool | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    low_freq_factor: PositiveFloat | None = None
    high_freq_factor: PositiveFloat | None = None

    @model_validator(mode="before")
    @classmethod
    def _known_kind(cls, data: Any) -> Any:
        # Older files name the field `type`. Unknown kinds are refused before the fields that only they have.
        if not isinstance(data, dict):
            return data
        data = {"rope_type": data.get("type", "default"), **data}
        data.pop("type", None)
        accepted = get_args(cls.model_fields["rope_type"].annotation)
        if data["rope_type"] not in accepted:
            raise ValueError(f"rope_type: {data['rope_type']!r}: must be one of {', '.join(accepted)}")
        return data

    @model_validator(mode="after")
    def _complete(self) -> Self:
        # Transformers reads these fields of `llama3` without defaults.
        required = ("low_freq_factor", "high_freq_factor") if self.rope_type == "llama3" else ()
        if self.rope_type in ("linear", "llama3"):
            required = ("factor", *required)
        for name in required:
            if getattr(self, name) is None:
                raise ValueError(f"{name}: missing: rope_type {self.rope_type} requires a number")
        return self

    @classmethod
    def fields(cls, rotary: Plain) -> dict[str, Any]:
        """Return the fields for the rotary positions of a description; no positions count as unscaled ones."""
        scaling = rotary.get("scaling") or {"kind": "default"}
        if scaling["kind"] not in ROPE_FIELDS:
            return {"rope_type": "default", "rope_theta": rotary.get("base")}
        of_kind = {theirs: scaling.get(ours) for ours, theirs in ROPE_FIELDS[scaling["kind"]].items()}
        of_kind |= {"truncate": None} if of_kind.get("truncate") else {}  # true is the default of both
        return {"rope_type": scaling["kind"], "rope_theta": rotary.get("base"), **of_kind}

    def notes(self, context_length: int) -> list[str]:
        """Return what a description does not express of these positions, in words."""
        if self.rope_type != "dynamic":
            return []
        return [f"rope_type: dynamic: positions from {context_length} on are not scaled here"]

    def scaling(self, context_length: int) -> dict[str, Any] | None:
        """Return the scaling section of a model description."""
        if self.rope_type not in ROPE_FIELDS:
            return None
        names = ROPE_FIELDS[self.rope_type]
        plain: dict[str, Any] = {name: context_length for name in ("trained",) if name in names}
        plain |= {ours: getattr(self, theirs) for ours, theirs in names.items() if getattr(self, theirs) is not None}
        if self.rope_type == "yarn":
            factor = plain.setdefault("factor", context_length / plain["trained"])
            if self.attention_factor is None and self.mscale and self.mscale_all_dim:
                gains = [0.1 * scale * math.log(max(factor, 1.0)) + 1 for scale in (self.mscale, self.mscale_all_dim)]
                plain["attention_factor"] = gains[0] / gains[1]
        return {"kind": self.rope_type, **plain}


class PartialRope(Rope):
    """Rotary positions that rotate a part of each head."""

    partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)


class Family(Spec):
    """The fields of `config.json` that describe a model of the family; other fields of the file are not read.

    table: the paths of each field in a model description, separated by spaces; `block` is the block that all layers
    share. constants: values by path that all models of the family have. tensors: names and storage of the tensors.
    buffers: pattern of names of tensors in published files that are not weights. architecture: the class in
    Transformers. unused: values in `config.json` that linnet does not read. begins_with_end: True if every text begins
    with the end token unless the tokenizer's file says otherwise. exported: False if its models are imported only.
    aliases: other names of fields that files have, as Transformers' `attribute_map` and older versions define them.
    """

    table: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "initializer_range": "initialization.std initialization.embedding_std",
    }
    constants: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    tensors: ClassVar[PublishedTensors]
    buffers: ClassVar[re.Pattern[str]] = re.compile(r"\.rotary_emb\.inv_freq$")
    architecture: ClassVar[str]
    unused: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    begins_with_end: ClassVar[bool] = False
    exported: ClassVar[bool] = True
    aliases: ClassVar[Mapping[str, str]] = MappingProxyType({})

    model_type: str
    vocab_size: PositiveInt
    initializer_range: PositiveFloat = 0.02
    quantization_config: Literal[None] = None

    def computed(self) -> dict[str, Any]:
        """Return the values of a description, by path, that the table does not determine."""
        return {}

    def layers(self) -> list[dict[str, Any]]:
        """Return for each layer the values of a block, by path, that differ between layers; empty if none do."""
        return []

    def notes(self) -> list[str]:
        """Return what a description does not express of the model, in words."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Return the model description without its name."""
        values = dict(self.constants)
        for name, paths in self.table.items():
            value = getattr(self, name)
            for path in paths.split():
                values[path] = OURS[value] if path.endswith(".activation") else value
        description = _nested({**values, **self.computed()})
        block = description.pop("block")
        description["blocks"] = [
            _nested({"repeat": len(list(layers)), **changes}, copy.deepcopy(block))
            for changes, layers in groupby(self.layers())
        ] or [block]
        return description

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        """Return the fields of the family's model that is closest to a description."""
        description = {**plain, "block": {**plain["blocks"][0], "repeat": plain["layers"]}}
        fields: dict[str, Any] = {}
        for name, paths in cls.table.items():
            path, *_ = paths.split()
            value: Any = description
            for part in path.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                fields[name] = THEIRS[value] if path.endswith(".activation") else value
        return fields

    def config(self) -> dict[str, Any]:
        """Return the content of `config.json`."""
        fields = self.model_dump(exclude_none=True)
        # A null is written where Transformers' default is another value.
        defaults = {name: field.default for name, field in type(self).model_fields.items() if name not in fields}
        fields |= {name: None for name, default in defaults.items() if default is not None}
        rope = fields.get("rope_parameters", {})
        older = {"rope_scaling": rope} if rope.get("rope_type", "default") != "default" else {}
        return {"architectures": [self.architecture], **fields, **older, **self.unused}

    @classmethod
    def tensor_name(cls, name: str) -> str:
        """Translate the name of a tensor in a published file to the name in `tensors`."""
        return name

    def model(self, name: str, origin: str) -> ModelSpec:
        """Return the model description."""
        return ModelSpec.parse({"name": name, **self.to_dict()}, origin)

    @classmethod
    def read(cls, config: Mapping[str, Any], origin: str) -> Self:
        """Parse a `config.json`; `UserError` names the field that linnet does not support."""
        for alias, name in cls.aliases.items():
            if config.get(alias) is None:
                continue
            if config.get(name) not in (None, config[alias]):
                problem = f"{origin}: {alias}: {config[alias]}: another name of {name}, which is {config[name]}"
                raise UserError(f"{problem}; expected one value")
            config = {**config, name: config[alias]}
        return cls.parse({name: value for name, value in config.items() if name in cls.model_fields}, origin)


def _nested(values: Mapping[str, Any], into: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return values by path as sections of plain data, in `into` if it is given."""
    plain = {} if into is None else into
    for path, value in values.items():
        *sections, name = path.split(".")
        section = plain
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return plain


MODEL_TYPE: Final = "linnet"
PREFIX = "decoder."
"""Prefix of tensor names: the attribute of `LinnetForCausalLM` that holds the decoder."""


class Linnet(Family):
    """Any decoder of linnet, for `interop.transformers`: the whole description, and linnet's tensor names with a
    prefix.
    """

    tensors, architecture = PublishedTensors(None, PREFIX), "LinnetForCausalLM"
    begins_with_end = True

    model_type: Literal["linnet"] = MODEL_TYPE
    description: dict[str, Any]

    @classmethod
    def of(cls, spec: ModelSpec) -> "Linnet":
        return cls(vocab_size=spec.vocab_size, description=spec.model_dump(mode="json"))

    def model(self, name: str, origin: str) -> ModelSpec:
        """Return the description, with the name that it contains."""
        return ModelSpec.parse(self.description, f"{origin}: description")
