"""The description of a model as a configuration of Transformers."""

from typing import Any, ClassVar

from transformers import AutoConfig, PretrainedConfig

from linnet.core.errors import UserError
from linnet.interop.families.linnet import MODEL_TYPE
from linnet.model.spec import ModelSpec


class LinnetConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """A description of ours, whole; the fields beside it say again what other tools look for.

    description: what `config.json` of a model folder holds. Only `vocab_size` and the three after it are read by
    others (`HFLM` takes `max_position_embeddings` for the longest text); the model is built from the description.
    """

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]  # `Trainer` adds to it: a list

    description: dict[str, Any] | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool = False
    use_cache: bool = True

    def __post_init__(self, **others: Any) -> None:
        super().__post_init__(**others)  # type: ignore[no-untyped-call]
        if self.description is not None:
            spec = self.spec
            self.vocab_size, self.hidden_size = spec.vocab_size, spec.d_model
            self.num_hidden_layers, self.max_position_embeddings = spec.layers, spec.context_length
            self.tie_word_embeddings = spec.head.tied

    @classmethod
    def of(cls, spec: ModelSpec) -> "LinnetConfig":
        """The configuration of a model."""
        return cls(description=spec.model_dump(mode="json"))

    @property
    def spec(self) -> ModelSpec:
        """The description, checked; `UserError` for what no model can be, or one that Transformers cannot ask."""
        if self.description is None:
            raise UserError("missing", field="description", accepted="what config.json of a model folder holds")
        spec = ModelSpec.parse(self.description, "description")
        check_decoder(spec)
        return spec


def check_decoder(spec: ModelSpec) -> None:
    """`UserError` for a model with an encoder."""
    if spec.encoder is not None:
        raise UserError(
            "encoder: Transformers' causal models have none; expected a decoder alone: `linnet generate --input` and "
            "`linnet serve` run encoder-decoders"
        )


AutoConfig.register(MODEL_TYPE, LinnetConfig)
