"""The ways in which a model's positions can be read beyond the trained length."""

from dataclasses import dataclass
from typing import Any

from linnet.model.decoder import Decoder
from linnet.model.skip_init import decoder_with_weights
from linnet.model.spec import ModelSpec

AS_TRAINED = "as it is"


@dataclass(frozen=True)
class Variant:
    """Rotary positions that are scaled by one factor for all positions, or, `dynamic`, by what each length needs.

    kind: of the scaling (`layers.rotary_scaling`); None for the model as it is.
    """

    name: str
    kind: str | None = None
    dynamic: bool = False

    def decoder(self, decoder: Decoder, tokens: int) -> Decoder:
        """The model that reads so many tokens; it has the very weights of `decoder`."""
        factor = max(1.0, tokens / decoder.spec.context_length)
        if self.kind is None or (self.dynamic and factor == 1):
            return decoder
        scaling: dict[str, Any] = {"kind": self.kind, "factor": factor}
        if self.kind == "yarn":
            scaling["trained"] = decoder.spec.context_length
        return decoder_with_weights(with_scaling(decoder.spec, scaling), decoder.state_dict()).eval()


def variants(spec: ModelSpec) -> list[Variant]:
    """The model as it is, and each scaling where it has rotary positions."""
    plain = [Variant(AS_TRAINED)]
    if not any(_rotary(block) for block in spec.model_dump()["blocks"]):
        return plain
    fixed = [Variant(name, kind) for name, kind in (("interpolated", "linear"), ("NTK", "ntk"), ("YaRN", "yarn"))]
    return [*plain, *fixed, Variant("NTK, dynamic", "ntk", dynamic=True)]


def with_scaling(spec: ModelSpec, scaling: dict[str, Any]) -> ModelSpec:
    """The same description with all rotary positions scaled in this way."""
    plain = spec.model_dump()
    for block in plain["blocks"]:
        if _rotary(block):
            block["mixer"]["rotary"]["scaling"] = scaling
    return ModelSpec.parse(plain, spec.name)


def _rotary(block: dict[str, Any]) -> bool:
    return block["mixer"].get("rotary") is not None
