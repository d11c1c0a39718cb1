"""Llama and its relatives: Mistral, Mixtral, Qwen 2, 2.5 and 3, Phi, StableLM.

Most have gated feed-forwards, RMS norms, rotary positions and grouped-query attention.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from linnet.interop.families.family import ActivationName, Family, PartialRope, Plain, Rope
from linnet.interop.tensor_names import LLAMA, MIXTRAL, OLMO2, PHI, PHI3


class LlamaLike(Family):
    """The common fields of Llama, Mistral and Qwen."""

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

    @property
    def rope(self) -> Rope:
        """The rotary positions, by the field of any version of Transformers."""
        return self.rope_scaling or self.rope_parameters or Rope()

    def computed(self) -> dict[str, Any]:
        scaling = self.rope.scaling(self.max_position_embeddings)
        rotary = {"base": self.rope.rope_theta or self.rope_theta, "pairing": "halves", "scaling": scaling}
        return {"block.mixer.rotary": rotary}

    def notes(self) -> list[str]:
        return self.rope.notes(self.max_position_embeddings)

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


class OneWindow(LlamaLike):
    """The common fields of Mistral, Mixtral and Phi-3: a sliding window in all layers or none."""

    sliding_window: PositiveInt | None = None

    def computed(self) -> dict[str, Any]:
        return {**super().computed(), "block.mixer.window": self.sliding_window}

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        return {**super().fields(plain), "sliding_window": plain["blocks"][0]["mixer"].get("window")}


class Mistral(OneWindow):
    """Mistral."""

    architecture = "MistralForCausalLM"

    model_type: Literal["mistral"] = "mistral"
    vocab_size: PositiveInt = 32_000
    intermediate_size: PositiveInt = 14_336
    num_key_value_heads: PositiveInt | None = 8
    max_position_embeddings: PositiveInt = 131_072
    sliding_window: PositiveInt | None = 4096


class WindowedLayers(LlamaLike):
    """The common fields of Qwen 2 and 3: a sliding window in some layers, by default from `max_window_layers` on."""

    vocab_size: PositiveInt = 151_936
    intermediate_size: PositiveInt = 22_016
    num_key_value_heads: PositiveInt | None = 32
    max_position_embeddings: PositiveInt = 32_768
    use_sliding_window: bool = False
    sliding_window: PositiveInt | None = 4096
    max_window_layers: int = 28
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        types = self.layer_types
        if types is not None and len(types) != self.num_hidden_layers:
            raise ValueError(f"layer_types: {len(types)} layers: must be num_hidden_layers, {self.num_hidden_layers}")
        if types is not None and "sliding_attention" in types and not (self.use_sliding_window and self.sliding_window):
            raise ValueError("layer_types: sliding_attention: requires use_sliding_window: true and a sliding_window")
        return self

    def layers(self) -> list[dict[str, Any]]:
        if not self.use_sliding_window or self.sliding_window is None:
            return []
        sliding = [index >= self.max_window_layers for index in range(self.num_hidden_layers)]
        if self.layer_types is not None:
            sliding = [kind == "sliding_attention" for kind in self.layer_types]
        return [{"mixer.window": self.sliding_window if slides else None} for slides in sliding]

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        windows = [block["mixer"].get("window") for block in plain["blocks"]]
        if not any(windows):
            return super().fields(plain)
        kinds = ["sliding_attention" if window else "full_attention" for window in windows]
        sliding = {"use_sliding_window": True, "sliding_window": max(filter(None, windows)), "layer_types": kinds}
        return {**super().fields(plain), **sliding}


class Qwen2(WindowedLayers):
    """Qwen 2 and 2.5: biases on the projections to queries, keys and values."""

    architecture = "Qwen2ForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {
        **LlamaLike.constants,
        "block.mixer.bias": True,
        "block.mixer.out_bias": False,
    }

    model_type: Literal["qwen2"] = "qwen2"


class Qwen3(WindowedLayers):
    """Qwen 3: queries and keys are normalized head by head; biases on all linear maps of attention or none."""

    architecture = "Qwen3ForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {**LlamaLike.constants, "block.mixer.query_key_norm.kind": "rms"}
    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "attention_bias": "block.mixer.bias",
        "rms_norm_eps": "block.norm.eps head.norm.eps block.mixer.query_key_norm.eps",
    }

    model_type: Literal["qwen3"] = "qwen3"
    head_dim: PositiveInt = 128
    attention_bias: bool = False


class Olmo2(LlamaLike):
    """OLMo 2: norms after the branches, and of all queries and all keys together."""

    tensors, architecture, exported = OLMO2, "Olmo2ForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {
        **LlamaLike.constants,
        "block.norm.placement": "output",
        "block.mixer.query_key_norm.kind": "rms",
        "block.mixer.query_key_norm.joint": True,
    }
    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "attention_bias": "block.mixer.bias",
        "rms_norm_eps": "block.norm.eps head.norm.eps block.mixer.query_key_norm.eps",
    }

    model_type: Literal["olmo2"] = "olmo2"
    vocab_size: PositiveInt = 50_304
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: PositiveFloat = 1e-5
    head_dim: Literal[None] = None
    attention_bias: bool = False


class Mixtral(OneWindow):
    """Mixtral: a mixture of experts in every layer."""

    tensors, architecture, exported = MIXTRAL, "MixtralForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {**LlamaLike.constants, "block.feed_forward.kind": "experts"}
    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "num_local_experts": "block.feed_forward.experts",
        "num_experts_per_tok": "block.feed_forward.top_k",
        "router_aux_loss_coef": "block.feed_forward.balance",
    }
    aliases: ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}

    model_type: Literal["mixtral"] = "mixtral"
    vocab_size: PositiveInt = 32_000
    intermediate_size: PositiveInt = 14_336
    num_key_value_heads: PositiveInt | None = 8
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: PositiveFloat = 1e-5
    rope_theta: PositiveFloat = 1e6
    num_local_experts: PositiveInt = 8
    num_experts_per_tok: PositiveInt = 2
    router_aux_loss_coef: float = Field(default=0.001, ge=0)


class PartlyRotated(LlamaLike):
    """The common fields of Phi and StableLM: rotary positions may rotate a part of each head."""

    exported = False
    num_key_value_heads: PositiveInt | None = None
    partial_rotary_factor: float = Field(default=1.0, gt=0, le=1)
    rope_scaling: PartialRope | None = None
    rope_parameters: PartialRope | None = None

    def computed(self) -> dict[str, Any]:
        computed = super().computed()
        rope = self.rope_scaling or self.rope_parameters or PartialRope()
        fraction = rope.partial_rotary_factor or self.partial_rotary_factor
        return {**computed, "block.mixer.rotary": {**computed["block.mixer.rotary"], "fraction": fraction}}


class Phi3Rope(PartialRope):
    """Rotary positions of Phi-3; those of its models for long texts (`longrope`) are not supported."""

    rope_type: Literal["default"] = "default"


class Phi3(PartlyRotated, OneWindow):
    """Phi-3."""

    tensors, architecture = PHI3, "Phi3ForCausalLM"

    model_type: Literal["phi3"] = "phi3"
    vocab_size: PositiveInt = 32_064
    hidden_size: PositiveInt = 3072
    intermediate_size: PositiveInt = 8192
    max_position_embeddings: PositiveInt = 4096
    rms_norm_eps: PositiveFloat = 1e-5
    head_dim: Literal[None] = None
    rope_scaling: Phi3Rope | None = None
    rope_parameters: Phi3Rope | None = None


class LayerNormed(PartlyRotated):
    """The common fields of Phi 1 and 2 and StableLM 2: layer norms."""

    constants: ClassVar[Mapping[str, Any]] = {
        **LlamaLike.constants,
        "block.norm.kind": "layer",
        "head.norm.kind": "layer",
    }
    table: ClassVar[Mapping[str, str]] = {
        **{name: paths for name, paths in LlamaLike.table.items() if name != "rms_norm_eps"},
        "layer_norm_eps": "block.norm.eps head.norm.eps",
    }

    layer_norm_eps: PositiveFloat = 1e-5
    head_dim: Literal[None] = None
    qk_layernorm: Literal[False] = False


class Phi(LayerNormed):
    """Phi 1, 1.5 and 2: parallel branches, biases on all linear maps and on the head."""

    tensors, architecture = PHI, "PhiForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {
        **LayerNormed.constants,
        "block.mixer.bias": True,
        "block.feed_forward.kind": "mlp",
        "block.feed_forward.bias": True,
        "block.residual": "parallel",
        "head.bias": True,
    }

    model_type: Literal["phi"] = "phi"
    vocab_size: PositiveInt = 51_200
    hidden_size: PositiveInt = 2048
    intermediate_size: PositiveInt = 8192
    num_hidden_layers: PositiveInt = 24
    hidden_act: ActivationName = "gelu_new"
    max_position_embeddings: PositiveInt = 2048
    partial_rotary_factor: float = Field(default=0.5, gt=0, le=1)


class StableLm(LayerNormed):
    """StableLM 3B and StableLM 2 1.6B."""

    architecture = "StableLmForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {**LayerNormed.constants, "block.mixer.out_bias": False}
    table: ClassVar[Mapping[str, str]] = {**LayerNormed.table, "use_qkv_bias": "block.mixer.bias"}

    model_type: Literal["stablelm"] = "stablelm"
    vocab_size: PositiveInt = 50_304
    hidden_size: PositiveInt = 2560
    intermediate_size: PositiveInt = 6912
    num_key_value_heads: PositiveInt | None = 32
    max_position_embeddings: PositiveInt = 4096
    partial_rotary_factor: float = Field(default=0.25, gt=0, le=1)
    use_qkv_bias: bool = False
    use_parallel_residual: Literal[False] = False
