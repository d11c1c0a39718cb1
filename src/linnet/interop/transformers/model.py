"""A decoder of ours as a causal language model of Transformers.

Legend: `B` batch, `T` places of the chunk, `V` vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from linnet.core.errors import UserError
from linnet.interop.transformers.cache import StateCache
from linnet.interop.transformers.chunk import Chunk
from linnet.interop.transformers.config import LinnetConfig
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.skip_init import meta_decoder, without_calibration_file
from linnet.training.objectives import mean_losses

IGNORED_LABEL = -100


class LinnetForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """Token ids in, logits out, with a `StateCache` of whatever the mixers keep."""

    config_class = LinnetConfig
    main_input_name = "input_ids"
    _tied_weights_keys = {}  # noqa: RUF012 (so Transformers declares it; a tied head has no matrix of its own to tie)

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
        """A model that holds this decoder itself."""
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
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """`[B, T] -> logits [B, T, V]`; with labels the loss too, as Transformers means it (shifted, -100 left out).

        attention_mask: `[B, all places so far]`, 0 for padding, wherever it is. past_key_values: goes on where it
        stands, and is advanced in place. use_cache: give one back; None: as the configuration says, but for a loss and
        where gradients are wanted. logits_to_keep: so many places, the last ones, or these; 0: all.
        num_items_in_batch: labels that the loss is a mean over. `UserError` for what our models do not know
        (`inputs_embeds`, `position_ids`, …).
        """
        _check_others(others)
        if use_cache is None:
            use_cache = self.config.use_cache and labels is None and not torch.is_grad_enabled()
        cache = self._cache(past_key_values, use_cache)
        chunk, record = (
            Chunk.of(input_ids, attention_mask),
            AuxiliaryOutputs(training=self.training and labels is not None),
        )
        self._check_positions(chunk, cache)
        x_BTD = self._hidden(chunk, cache, record)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self.decoder.logits(x_BTD[:, kept])
        loss = None if labels is None else self._loss(logits_BTV, labels, num_items_in_batch, record)
        return CausalLMOutputWithPast(loss=loss, logits=logits_BTV, past_key_values=cache)

    def _cache(self, given: StateCache | None, wanted: bool) -> StateCache | None:
        if given is not None and not isinstance(given, StateCache):
            accepted = "a StateCache, which the model itself gives back"
            raise UserError(field="past_key_values", value=type(given).__name__, accepted=accepted)
        return StateCache() if given is None and wanted else given

    def _hidden(self, chunk: Chunk, cache: StateCache | None, record: AuxiliaryOutputs) -> Tensor:
        if cache is not None:
            return cache.read(self.decoder, chunk, record)
        alike = not self.training or all(sublayer.traits.same_in_training for sublayer in self.decoder.sublayers)
        if chunk.padded_behind and self.decoder.causal and alike:  # which no token sees: faster as tokens like others
            x_BTD = Chunk(chunk.tokens_BT).hidden(self.decoder, None, record)
            if chunk.real_BT is None or not record.losses:
                return x_BTD
            record.losses.clear()  # padding has counted in them
        return chunk.hidden(self.decoder, None, record)

    def _loss(
        self, logits_BTV: Tensor, labels_BT: Tensor, items: int | Tensor | None, record: AuxiliaryOutputs
    ) -> Tensor:
        """The mean over the labels, with what sublayers add to it: each counts once for each label, as in training."""
        loss: Tensor = self.loss_function(
            logits=logits_BTV, labels=labels_BT, vocab_size=self.config.vocab_size, num_items_in_batch=items
        )
        share = 1.0 if items is None else (labels_BT[:, 1:] != IGNORED_LABEL).sum() / items
        coefficients = {added.name: added.coefficient for added in record.losses}
        for name, value in mean_losses(record.losses).items():
            if coefficients[name]:
                loss = loss + share * coefficients[name] * value
        return loss

    def _check_positions(self, chunk: Chunk, cache: StateCache | None) -> None:
        """`UserError` for more tokens than learned positions."""
        seen = 0 if cache is None or cache.state is None else cache.state.position
        longest = chunk.length if chunk.real_BT is None else int(chunk.real_BT.sum(dim=1).max())
        known = self.config.max_position_embeddings
        if self.decoder.embedding.positions is not None and seen + longest > known:
            raise UserError(f"input_ids: {seen + longest} tokens: the model's learned positions end at {known}")

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> bool:
        """Put a cache into `model_kwargs`, where none is there and one is wanted; called by `generate`."""
        kind, cache = generation_config.cache_implementation, model_kwargs.get("past_key_values")
        if kind not in (None, "dynamic"):
            raise UserError(field="cache_implementation", value=kind, accepted="none: the model has a cache of its own")
        if self.calibrates and generation_config.prefill_chunk_size is not None:
            raise UserError("prefill_chunk_size: the operator is inferred from the whole prompt; expected None")
        if cache is None and generation_config.use_cache is not False:
            cache = StateCache(min(max_cache_length, self.config.max_position_embeddings))
        elif cache is not None:
            cache._is_user_defined = True  # what Transformers reads to keep it
        if cache is None:
            return False
        model_kwargs["past_key_values"] = self._cache(cache, True)
        if self.calibrates and generation_mode == GenerationMode.ASSISTED_GENERATION:
            mask = model_kwargs.get("attention_mask")  # left out where all is real; its length is not
            cache.prompt = generation_config._mask_length if mask is None else mask.shape[1]
        if generation_config.is_assistant:
            cache.activate_past_recording()
        return True

    def get_input_embeddings(self) -> nn.Embedding:
        """The token vectors."""
        tokens = self.decoder.embedding.tokens
        assert isinstance(tokens, nn.Embedding)  # in few bits it is another, which no model of Transformers has
        return tokens

    def get_output_embeddings(self) -> nn.Module | None:
        """The head; None where it is the token vectors'."""
        return self.decoder.head

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any, **__: Any) -> nn.Embedding:
        """Refused, unless it changes nothing: the vocabulary is a part of the description."""
        if new_num_tokens not in (None, self.config.vocab_size):
            accepted = f"{self.config.vocab_size}, which the description says"
            raise UserError(field="new_num_tokens", value=new_num_tokens, accepted=accepted)
        return self.get_input_embeddings()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: sublayers start themselves."""

    def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
        """`UserError` for a tensor that the files lack: numbers that nobody drew would stand in its place."""
        super()._adjust_missing_and_unexpected_keys(loading_info)
        for name in sorted(loading_info.missing_keys):
            raise UserError(f"{self.config.name_or_path}: tensor {name} is missing")


def _check_others(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None and value is not False:
            raise UserError(f"{name}: models of linnet do not know it; expected None")


AutoModelForCausalLM.register(LinnetConfig, LinnetForCausalLM)
