"""linnet's own models as Transformers keeps them: the description whole, our names behind a prefix."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from torch import Tensor

from linnet.interop.families.family import Family, Plain
from linnet.interop.tensor_names import TensorMaps
from linnet.model.spec import ModelSpec

MODEL_TYPE: Final = "linnet"
PREFIX = "decoder."
"""Before the names of the tensors: the attribute of `LinnetForCausalLM` that holds the decoder."""


def _ours(named: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    return {name.removeprefix(PREFIX): tensor for name, tensor in named.items()}


def _theirs(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    return {PREFIX + name: tensor for name, tensor in tensors.items()}


class Linnet(Family):
    """A folder for `interop.transformers`, or `save_pretrained` of what it read."""

    maps, architecture = TensorMaps(_ours, _theirs), "LinnetForCausalLM"
    begins_with_end = True

    model_type: Literal["linnet"] = MODEL_TYPE
    description: dict[str, Any]

    @classmethod
    def of(cls, spec: ModelSpec) -> "Linnet":
        """Every decoder is a member."""
        return cls(vocab_size=spec.vocab_size, description=spec.model_dump(mode="json"))

    def to_dict(self) -> dict[str, Any]:
        """See `Family`."""
        return self.description

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        """See `Family`."""
        return {"vocab_size": plain["vocab_size"], "description": dict(plain)}

    def model(self, name: str, origin: str) -> ModelSpec:
        """The description, name and all."""
        return ModelSpec.parse(self.description, f"{origin}: description")
