"""linnet's own models as Transformers keeps them: the description whole, our names behind a prefix."""

from pathlib import Path
from typing import Any, Final, Literal

from torch import Tensor

from linnet.core.files import read_json
from linnet.data.tokenizer import Tokenizer
from linnet.interop.families.family import Family, Named
from linnet.model.spec import ModelSpec

MODEL_TYPE: Final = "linnet"
PREFIX = "decoder."
"""Before the names of the tensors: the attribute of `LinnetForCausalLM` that holds the decoder."""


class Linnet(Family):
    """A folder that `interop.transformers` wrote, or `save_pretrained` of what it read."""

    model_type: Literal["linnet"] = MODEL_TYPE
    description: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """See `Family`."""
        return self.description

    def model(self, name: str, origin: str) -> ModelSpec:
        """The description, name and all."""
        return ModelSpec.parse(self.description, f"{origin}: description")

    @classmethod
    def tokenizer(cls, path: Path) -> Tokenizer:
        """Without the post-processor that ours get on their way out."""
        tokenizer, definition = Tokenizer.load(path), read_json(path)
        end = end_token(definition, tokenizer.end_id)
        if definition.get("post_processor") != begins_with(end, tokenizer.end_id):
            return tokenizer
        return Tokenizer({**definition, "post_processor": None}, str(path))

    @classmethod
    def ours(cls, named: Named, spec: ModelSpec) -> dict[str, Tensor]:
        """See `Family`."""
        return {name.removeprefix(PREFIX): tensor for name, tensor in named.items()}

    @classmethod
    def theirs(cls, tensors: Named, spec: ModelSpec) -> dict[str, Tensor]:
        """See `Family`."""
        return {PREFIX + name: tensor for name, tensor in tensors.items()}


def begins_with(end: str, end_id: int) -> dict[str, Any]:
    """The `post_processor` of a tokenizer.json that puts the end token before every text, unless told not to."""
    token, text = {"SpecialToken": {"id": end, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [token, text],
        "pair": [token, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {end: {"id": end, "ids": [end_id], "tokens": [end]}},
    }


def end_token(definition: dict[str, Any], end_id: int) -> str:
    """How a tokenizer.json of ours names its end token."""
    return next(str(token["content"]) for token in definition["added_tokens"] if token["id"] == end_id)
