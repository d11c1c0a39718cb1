"""A decoder of linnet as a causal language model of Transformers, with its configuration.

Legend: `B` batch, `T` positions of the chunk, `V` vocabulary.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from linnet.core.errors import UserError
from linnet.interop.families.family import MODEL_TYPE
from linnet.interop.transformers.cache import Chunk, StateCache
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder, meta_decoder
from linnet.model.initialize import without_calibration_file
from linnet.model.spec import ModelSpec
from linnet.training.objectives.language_modelling import mean_losses

IGNORED_LABEL = -100
CACHE = "cache" if "cache" in {field.name for field in fields(CausalLMOutputWithPast)} else "past_key_values"
"""The name of the cache in arguments and outputs, which Transformers 5.24 changed."""


class LinnetConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """A whole model description; the fields beside it repeat what other tools look for.

    description: content of `config.json` of a model folder, from which the model is built. Other tools read only
    `vocab_size` and the three fields after it (`HFLM` takes `max_position_embeddings` as the longest text).
    """

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference: ClassVar[list[str]] = [CACHE]  # `Trainer` appends to it: a list

    description: dict[str, Any] | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **others: Any) -> None:
        super().__post_init__(**others)  # type: ignore[no-untyped-call]
        if self.description is not None:
            spec = self.spec
            self.vocab_size, self.hidden_size = spec.vocab_size, spec.d_model
            self.num_hidden_layers, self.max_position_embeddings = spec.layers, spec.context_length
            self.tie_word_embeddings = spec.head.tied

    @classmethod
    def of(cls, spec: ModelSpec) -> "LinnetConfig":
        return cls(description=spec.model_dump(mode="json"))

    @property
    def spec(self) -> ModelSpec:
        """The checked description; `UserError` if it is invalid, or has an encoder."""
        if self.description is None:
            raise UserError("missing", field="description", accepted="what config.json of a model folder holds")
        spec = ModelSpec.parse(self.description, "description")
        check_decoder(spec)
        return spec


def check_decoder(spec: ModelSpec) -> None:
    """Raise `UserError` for a model with an encoder."""
    if spec.encoder is not None:
        raise UserError(
            "encoder: Transformers' causal models have none; expected a decoder alone; `linnet generate --input` runs "
            "encoder-decoders"
        )


class LinnetForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """A causal language model whose cache is a `StateCache` of the mixers' states."""

    config_class = LinnetConfig
    main_input_name = "input_ids"
    _tied_weights_keys = {}  # noqa: RUF012 (declared like this in Transformers; a tied head has no matrix to tie)

    def __init__(self, config: LinnetConfig) -> None:
        super().__init__(config)
        spec = config.spec
        loading = torch.get_default_device().type == "meta"  # the weights come from a file
        self.decoder = meta_decoder(without_calibration_file(spec)) if loading else Decoder(spec)
        self.decoder.spec = spec
        self.calibrates = any(sublayer.traits.calibrates for sublayer in self.decoder.sublayers)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def of(cls, decoder: Decoder) -> "LinnetForCausalLM":
        """Wrap this decoder without a copy."""
        config = LinnetConfig.of(decoder.spec)
        config.dtype = decoder.dtype
        with torch.device("meta"):
            model = cls(config)
        model.decoder = decoder
        model.train(decoder.training)
        return model

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: StateCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        cache: StateCache | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """`[B, T] -> logits [B, T, V]`; with labels also the loss of Transformers (shifted, -100 ignored).

        attention_mask: `[B, all positions so far]`, 0 for padding anywhere; at padding stand the logits of the last
        token before it. cache: that to continue from, advanced in place; past_key_values: its name before Transformers
        5.24. use_cache: return a cache; None: as configured, but not with labels or gradients.
        logits_to_keep: number of last positions, or a tensor of positions; 0: all. num_items_in_batch: number of labels
        for the mean loss. `UserError` for unsupported arguments (`inputs_embeds`, `cache_position`, …), and for
        `position_ids` that do not count the tokens.
        """
        position_ids = others.pop("position_ids", None)
        for name, value in others.items():
            if value is not None and value is not False:
                raise UserError(f"{name}: models of linnet do not support it; expected None")
        if use_cache is None:
            use_cache = self.config.use_cache and labels is None and not torch.is_grad_enabled()
        cache = self._cache(past_key_values if cache is None else cache, use_cache)
        chunk = Chunk.of(input_ids, attention_mask)
        if position_ids is not None:
            chunk.check_positions(position_ids, None if cache is None else cache.tokens_read())
        record = AuxiliaryOutputs(training=self.training and labels is not None)
        seen = 0 if cache is None or cache.state is None else cache.state.position
        longest = chunk.length if chunk.real_BT is None else int(chunk.real_BT.sum(dim=1).max())
        length = self.config.max_position_embeddings
        if self.decoder.embedding.positions is not None and seen + longest > length:
            raise UserError(f"input_ids: {seen + longest} tokens: the model's learned positions end at {length}")
        x_BTD = self._hidden(chunk, cache, record)
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self.decoder.logits(x_BTD[:, positions])
        loss = None if labels is None else self._loss(logits_BTV, labels, num_items_in_batch, record)
        named: dict[str, Any] = {CACHE: cache}
        return CausalLMOutputWithPast(loss=loss, logits=logits_BTV, **named)

    def _cache(self, cache: StateCache | None, create: bool) -> StateCache | None:
        if cache is not None and not isinstance(cache, StateCache):
            accepted = "a StateCache, which the model itself gives back"
            raise UserError(field=CACHE, value=type(cache).__name__, accepted=accepted)
        return StateCache() if cache is None and create else cache

    def _hidden(self, chunk: Chunk, cache: StateCache | None, record: AuxiliaryOutputs) -> Tensor:
        if cache is not None:
            return cache.read(self.decoder, chunk, record)
        # Causal layers do not see padding on the right, so it can be read like tokens, which is faster.
        same = not self.training or all(sublayer.traits.same_in_training for sublayer in self.decoder.sublayers)
        real_BT = chunk.real_BT
        only_right_padding = real_BT is None or bool((real_BT[:, :-1] >= real_BT[:, 1:]).all())
        if only_right_padding and self.decoder.causal and same:
            x_BTD = Chunk(chunk.tokens_BT).hidden(self.decoder, None, record)
            if chunk.real_BT is None:
                return x_BTD
            if not record.losses:
                last_BT1 = chunk.last_tokens().clamp(min=0)[..., None]
                return x_BTD.gather(1, last_BT1.expand(-1, -1, x_BTD.shape[2]))
            record.losses.clear()  # they would include the padding
        return chunk.hidden(self.decoder, None, record)

    def _loss(
        self, logits_BTV: Tensor, labels_BT: Tensor, items: int | Tensor | None, record: AuxiliaryOutputs
    ) -> Tensor:
        """Return the mean over the labels plus the sublayers' losses, which count once per label, as in training."""
        loss: Tensor = self.loss_function(
            logits=logits_BTV, labels=labels_BT, vocab_size=self.config.vocab_size, num_items_in_batch=items
        )
        share = 1.0 if items is None else (labels_BT[:, 1:] != IGNORED_LABEL).sum() / items
        coefficients = {added.name: added.coefficient for added in record.losses}
        for name, value in mean_losses(record.losses).items():
            if coefficients[name]:
                loss = loss + share * coefficients[name] * value
        return loss

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> bool:
        # `generate` of Transformers calls this to put a cache into `model_kwargs` if none is there and one is used.
        kind, cache = generation_config.cache_implementation, model_kwargs.get(CACHE)
        if kind not in (None, "dynamic"):
            raise UserError(field="cache_implementation", value=kind, accepted="none: the model has a cache of its own")
        if generation_config.assistant_early_exit is not None:
            raise UserError("assistant_early_exit: the model has no output after fewer layers; expected None")
        if self.calibrates and generation_config.prefill_chunk_size is not None:
            raise UserError("prefill_chunk_size: the operator is inferred from the whole prompt; expected None")
        if cache is None and generation_config.use_cache is not False:
            cache = StateCache(min(max_cache_length, self.config.max_position_embeddings))
        elif cache is not None:
            cache._is_user_defined = True  # Transformers reads it to keep the cache
        if cache is None:
            return False
        model_kwargs[CACHE] = self._cache(cache, True)
        if self.calibrates and generation_mode == GenerationMode.ASSISTED_GENERATION:
            mask = model_kwargs.get("attention_mask")  # absent without padding; its length is known all the same
            cache.prompt = generation_config._mask_length if mask is None else mask.shape[1]
        if generation_config.is_assistant:
            cache.activate_past_recording()
        return True

    def prepare_inputs_for_generation(
        self, *inputs: Any, tokenizer: Any = None, assistant_tokenizer: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return what `forward` reads; `generate` leaves the tokenizers of its stopping criteria among the rest."""
        prepare: Callable[..., dict[str, Any]] = super().prepare_inputs_for_generation  # type: ignore[misc]
        return prepare(*inputs, **kwargs)

    def init_continuous_batching(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: it keeps pages of keys and values, and layers of linnet keep states."""
        raise UserError("generate_batch: layers of linnet keep states, not pages of keys and values; expected generate")

    def get_input_embeddings(self) -> nn.Embedding:
        tokens = self.decoder.embedding.tokens
        assert isinstance(tokens, nn.Embedding)  # quantized embeddings do not occur in models of Transformers
        return tokens

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the head; None if it is tied to the embedding."""
        return self.decoder.head

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any, **__: Any) -> nn.Embedding:
        """Refuse any change: the vocabulary is part of the description."""
        if new_num_tokens not in (None, self.config.vocab_size):
            accepted = f"{self.config.vocab_size}, as in the description"
            raise UserError(field="new_num_tokens", value=new_num_tokens, accepted=accepted)
        return self.get_input_embeddings()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: sublayers initialize themselves."""

    def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
        # A tensor missing from the files would keep uninitialized memory.
        super()._adjust_missing_and_unexpected_keys(loading_info)
        for name in sorted(loading_info.missing_keys):
            raise UserError(f"{self.config.name_or_path}: tensor {name} is missing")


AutoConfig.register(MODEL_TYPE, LinnetConfig)
AutoModelForCausalLM.register(LinnetConfig, LinnetForCausalLM)
