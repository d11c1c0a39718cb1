"""Llama and Qwen 2, 2.5 and 3: gated feed-forwards, RMS norms, rotary positions, grouped-query attention."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from linnet.interop.families.family import ActivationName, Family, Plain, Rope
from linnet.interop.tensor_names import LLAMA


class LlamaLike(Family):
    """The common fields of Llama and Qwen."""

    tensors = LLAMA
    constants: ClassVar[Mapping[str, Any]] = {
        "block.mixer.kind": "attention",
        "block.feed_forward.kind": "glu",
        "block.norm.kind": "rms",
        "block.norm.placement": "pre",
        "head.norm.kind": "rms",
    }
    table: ClassVar[Mapping[str, str]] = {
        **Family.table,
        "hidden_size": "d_model",
        "intermediate_size": "block.feed_forward.hidden",
        "num_hidden_layers": "block.repeat",
        "num_attention_heads": "block.mixer.heads",
        "num_key_value_heads": "block.mixer.kv_heads",
        "head_dim": "block.mixer.head_dim",
        "max_position_embeddings": "context_length",
        "hidden_act": "block.feed_forward.activation",
        "rms_norm_eps": "block.norm.eps head.norm.eps",
        "tie_word_embeddings": "head.tied",
    }

    hidden_size: PositiveInt = 4096
    intermediate_size: PositiveInt = 11_008
    num_hidden_layers: PositiveInt = 32
    num_attention_heads: PositiveInt = 32
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    max_position_embeddings: PositiveInt
    hidden_act: ActivationName = "silu"
    rms_norm_eps: PositiveFloat = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: PositiveFloat = 10_000.0
    rope_scaling: Rope | None = None
    rope_parameters: Rope | None = None

    def computed(self) -> dict[str, Any]:
        rope = self.rope_scaling or self.rope_parameters or Rope()
        scaling = rope.scaling(self.max_position_embeddings)
        rotary = {"base": rope.rope_theta or self.rope_theta, "pairing": "halves", "scaling": scaling}
        return {"block.mixer.rotary": rotary}

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        rope = Rope.fields(plain["blocks"][0]["mixer"].get("rotary") or {})
        return {**super().fields(plain), "rope_theta": rope["rope_theta"] or 10_000.0, "rope_parameters": rope}


class Llama(LlamaLike):
    """Llama, and models of the same form: SmolLM, TinyLlama. Biases on all linear maps of a branch or none."""

    architecture = "LlamaForCausalLM"
    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "attention_bias": "block.mixer.bias",
        "mlp_bias": "block.feed_forward.bias",
    }

    model_type: Literal["llama"] = "llama"
    vocab_size: PositiveInt = 32_000
    max_position_embeddings: PositiveInt = 2048
    attention_bias: bool = False
    mlp_bias: bool = False


class Qwen2(LlamaLike):
    """Qwen 2 and 2.5: biases on the projections to queries, keys and values."""

    architecture = "Qwen2ForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {
        **LlamaLike.constants,
        "block.mixer.bias": True,
        "block.mixer.out_bias": False,
    }

    model_type: Literal["qwen2"] = "qwen2"
    vocab_size: PositiveInt = 151_936
    intermediate_size: PositiveInt = 22_016
    max_position_embeddings: PositiveInt = 32_768
    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None


class Qwen3(LlamaLike):
    """Qwen 3: queries and keys are normalized head by head; biases on all linear maps of attention or none."""

    architecture = "Qwen3ForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {**LlamaLike.constants, "block.mixer.query_key_norm.kind": "rms"}
    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "attention_bias": "block.mixer.bias",
        "rms_norm_eps": "block.norm.eps head.norm.eps block.mixer.query_key_norm.eps",
    }

    model_type: Literal["qwen3"] = "qwen3"
    vocab_size: PositiveInt = 151_936
    intermediate_size: PositiveInt = 22_016
    max_position_embeddings: PositiveInt = 32_768
    head_dim: PositiveInt = 128
    attention_bias: bool = False
    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None
