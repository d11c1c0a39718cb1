"""Families that differ from Llama in a few fields: Granite, SmolLM 3, OLMo, OLMoE, EXAONE 4, Helium, ERNIE 4.5, Cohere,
StarCoder 2, and Qwen's hybrids of gated delta nets and attention.

Granite multiplies token vectors by `m` and the output of each branch by `r`. Its residual stream divided by `r` is that
of an ordinary model with token vectors times `m / r`, branches as they are, and norms with `eps / r^2`: a norm gives
the same if its input is divided by `r` and its epsilon by `r^2`. So no weight is changed or rounded.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from linnet.interop.families.family import OURS, ActivationName, PartialRope
from linnet.interop.families.llama import LayerNormed, LlamaLike, Olmo2, OneWindow, PartlyRotated
from linnet.interop.families.recurrent import check_step_limit
from linnet.interop.tensor_names import (
    COHERE,
    GRANITE_EXPERTS,
    GRANITE_HYBRID,
    OLMO,
    OLMO2,
    QWEN3_NEXT,
    QWEN35,
    SMALL_EXPERTS,
    STARCODER2,
)

LayerKind = Literal["full_attention", "sliding_attention"]


class ListedLayers(LlamaLike):
    """The common fields of families that list the kind of attention of each layer."""

    exported = False
    layer_types: list[LayerKind] | None = None

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if len(self.kinds()) != self.num_hidden_layers:
            expected = f"must be num_hidden_layers, {self.num_hidden_layers}"
            raise ValueError(f"layer_types: {len(self.kinds())} layers: {expected}")
        return self

    def kinds(self) -> list[LayerKind]:
        """Return the kind of attention of each layer."""
        return self.layer_types if self.layer_types is not None else ["full_attention"] * self.num_hidden_layers


class Multiplied(LlamaLike):
    """The common fields of Granite 3 and 4: the multipliers (see the module)."""

    exported = False
    table: ClassVar[Mapping[str, str]] = {
        **{name: paths for name, paths in LlamaLike.table.items() if name != "rms_norm_eps"},
        "attention_bias": "block.mixer.bias",
        "attention_multiplier": "block.mixer.scale",
    }

    vocab_size: PositiveInt = 32_000
    max_position_embeddings: PositiveInt = 2048
    attention_bias: bool = False
    embedding_multiplier: PositiveFloat = 1.0
    residual_multiplier: PositiveFloat = 1.0
    attention_multiplier: PositiveFloat = 1.0
    logits_scaling: PositiveFloat = 1.0

    def computed(self) -> dict[str, Any]:
        eps, vectors = (
            self.rms_norm_eps / self.residual_multiplier**2,
            self.embedding_multiplier / self.residual_multiplier,
        )
        return {
            **super().computed(),
            "block.norm.eps": eps,
            "head.norm.eps": eps,
            "embedding.scale": False if vectors == 1 else vectors,
            "head.scale": False if self.logits_scaling == 1 else self.logits_scaling,
        }


class Granite(Multiplied):
    """Granite 3."""

    architecture = "GraniteForCausalLM"
    table: ClassVar[Mapping[str, str]] = {**Multiplied.table, "mlp_bias": "block.feed_forward.bias"}

    model_type: Literal["granite"] = "granite"
    mlp_bias: bool = False


class GraniteExperts(Multiplied):
    """Granite 3 with experts in every layer."""

    tensors, architecture = GRANITE_EXPERTS, "GraniteMoeForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {**Multiplied.constants, "block.feed_forward.kind": "experts"}
    table: ClassVar[Mapping[str, str]] = {
        **Multiplied.table,
        "num_local_experts": "block.feed_forward.experts",
        "num_experts_per_tok": "block.feed_forward.top_k",
        "router_aux_loss_coef": "block.feed_forward.balance",
    }

    model_type: Literal["granitemoe"] = "granitemoe"
    num_local_experts: PositiveInt = 8
    num_experts_per_tok: PositiveInt = 2
    router_aux_loss_coef: float = Field(default=0.001, ge=0)


class GraniteHybrid(Multiplied):
    """Granite 4 without experts: layers of attention, layers of Mamba-2, or both."""

    tensors, architecture = GRANITE_HYBRID, "GraniteMoeHybridForCausalLM"
    table: ClassVar[Mapping[str, str]] = {
        **{name: paths for name, paths in Multiplied.table.items() if name != "intermediate_size"},
        "shared_intermediate_size": "block.feed_forward.hidden",
    }
    aliases: ClassVar[Mapping[str, str]] = {"layers_block_type": "layer_types"}

    model_type: Literal["granitemoehybrid"] = "granitemoehybrid"
    shared_intermediate_size: PositiveInt = 1024
    num_local_experts: Literal[0]
    position_embedding_type: Literal["rope", "nope"] | None = None
    layer_types: list[Literal["attention", "full_attention", "mamba", "linear_attention"]] | None = None
    mamba_n_heads: PositiveInt = 128
    mamba_n_groups: PositiveInt = 1
    mamba_d_state: PositiveInt = 256
    mamba_d_head: PositiveInt | Literal["auto"] = "auto"
    mamba_d_conv: PositiveInt = 4
    mamba_expand: PositiveInt = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: Any = (0.0, math.inf)

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            expected = f"must be num_hidden_layers, {self.num_hidden_layers}"
            raise ValueError(f"layer_types: {len(self.layer_types)} layers: {expected}")
        channels = self.mamba_expand * self.hidden_size
        if "mamba" not in self._mixers():
            return self
        if self.mamba_n_heads * self._mamba_head_dim != channels:
            raise ValueError(f"mamba_n_heads: {self.mamba_n_heads}: must be {channels} / mamba_d_head")
        if OURS[self.hidden_act] != "silu":
            raise ValueError(f"hidden_act: {self.hidden_act}: must be silu with layers of Mamba-2")
        check_step_limit(self.time_step_limit)
        return self

    @property
    def _mamba_head_dim(self) -> int:
        channels = self.mamba_expand * self.hidden_size
        return channels // self.mamba_n_heads if self.mamba_d_head == "auto" else self.mamba_d_head

    def _mixers(self) -> list[Literal["mamba", "attention"]]:
        kinds = self.layer_types or ["mamba"] * self.num_hidden_layers
        return ["attention" if kind in ("attention", "full_attention") else "mamba" for kind in kinds]

    def computed(self) -> dict[str, Any]:
        computed = super().computed()
        return computed if self.position_embedding_type == "rope" else {**computed, "block.mixer.rotary": None}

    def layers(self) -> list[dict[str, Any]]:
        mamba = {
            "kind": "mamba2",
            "state": self.mamba_d_state,
            "expand": self.mamba_expand,
            "conv": self.mamba_d_conv,
            "head_dim": self._mamba_head_dim,
            "groups": self.mamba_n_groups,
            "bias": self.mamba_proj_bias,
            "conv_bias": self.mamba_conv_bias,
            "eps": self.rms_norm_eps,
        }
        return [{} if kind == "attention" else {"mixer": mamba} for kind in self._mixers()]


class SmolLm3(ListedLayers):
    """SmolLM 3: layers without rotary positions, by default every fourth one."""

    architecture = "SmolLM3ForCausalLM"
    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "attention_bias": "block.mixer.bias",
        "mlp_bias": "block.feed_forward.bias",
    }

    model_type: Literal["smollm3"] = "smollm3"
    vocab_size: PositiveInt = 128_256
    hidden_size: PositiveInt = 2048
    num_hidden_layers: PositiveInt = 36
    num_attention_heads: PositiveInt = 16
    num_key_value_heads: PositiveInt | None = 4
    max_position_embeddings: PositiveInt = 32_768
    rope_theta: PositiveFloat = 2e6
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    no_rope_layers: list[Literal[0, 1]] | None = None
    no_rope_layer_interval: PositiveInt = 4
    use_sliding_window: bool = False
    sliding_window: PositiveInt | None = None

    def _rotated(self) -> list[bool]:
        if self.no_rope_layers is not None:
            return [bool(rotated) for rotated in self.no_rope_layers[: self.num_hidden_layers]]
        return [(index + 1) % self.no_rope_layer_interval != 0 for index in range(self.num_hidden_layers)]

    def kinds(self) -> list[LayerKind]:
        if self.layer_types is not None:
            return self.layer_types
        windowed = self.use_sliding_window and self.sliding_window is not None
        return ["full_attention" if rotated or not windowed else "sliding_attention" for rotated in self._rotated()]

    @model_validator(mode="after")
    def _check_rotated(self) -> Self:
        if len(self._rotated()) != self.num_hidden_layers:
            expected = f"must be at least num_hidden_layers, {self.num_hidden_layers}"
            raise ValueError(f"no_rope_layers: {len(self._rotated())} layers: {expected}")
        if "sliding_attention" in self.kinds() and not (self.use_sliding_window and self.sliding_window):
            raise ValueError("layer_types: sliding_attention: requires use_sliding_window: true and a sliding_window")
        return self

    def layers(self) -> list[dict[str, Any]]:
        return [
            {"mixer.window": self.sliding_window if kind == "sliding_attention" else None}
            | ({} if rotated else {"mixer.rotary": None})
            for kind, rotated in zip(self.kinds(), self._rotated(), strict=True)
        ]


class Exaone4(ListedLayers):
    """EXAONE 4: norms after the branches, and of queries and keys; with windows, only their layers are rotated."""

    tensors, architecture = OLMO2, "Exaone4ForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {
        **LlamaLike.constants,
        "block.norm.placement": "output",
        "block.mixer.query_key_norm.kind": "rms",
    }
    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "rms_norm_eps": "block.norm.eps head.norm.eps block.mixer.query_key_norm.eps",
    }

    model_type: Literal["exaone4"] = "exaone4"
    vocab_size: PositiveInt = 102_400
    intermediate_size: PositiveInt = 16_384
    num_key_value_heads: PositiveInt | None = 32
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: PositiveFloat = 1e-5
    sliding_window: PositiveInt | None = 4096
    sliding_window_pattern: PositiveInt | str | None = 4

    @model_validator(mode="before")
    @classmethod
    def _known_layers(cls, data: Any) -> Any:
        pattern = data.get("sliding_window_pattern") if isinstance(data, dict) else None
        if isinstance(pattern, str) and data.get("layer_types") is None:
            raise ValueError(f"sliding_window_pattern: {pattern}: must be a number, or layer_types must be given")
        return data

    def kinds(self) -> list[LayerKind]:
        if self.layer_types is not None or self.sliding_window is None:
            return super().kinds()
        assert isinstance(self.sliding_window_pattern, int)
        numbers = range(1, self.num_hidden_layers + 1)
        return ["sliding_attention" if number % self.sliding_window_pattern else "full_attention" for number in numbers]

    def layers(self) -> list[dict[str, Any]]:
        if self.sliding_window is None:
            return []
        full, sliding = {"mixer.rotary": None}, {"mixer.window": self.sliding_window}
        return [sliding if kind == "sliding_attention" else full for kind in self.kinds()]


class Interleaved(LlamaLike):
    """The common fields of Helium and ERNIE 4.5: rotary positions turn neighboring elements of a head."""

    exported = False

    def computed(self) -> dict[str, Any]:
        computed = super().computed()
        return {**computed, "block.mixer.rotary": {**computed["block.mixer.rotary"], "pairing": "adjacent"}}


class Helium(Interleaved):
    """Helium 1."""

    architecture = "HeliumForCausalLM"
    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "attention_bias": "block.mixer.bias",
        "mlp_bias": "block.feed_forward.bias",
    }
    constants: ClassVar[Mapping[str, Any]] = {**LlamaLike.constants, "block.mixer.out_bias": False}

    model_type: Literal["helium"] = "helium"
    vocab_size: PositiveInt = 48_000
    hidden_size: PositiveInt = 2560
    intermediate_size: PositiveInt = 7040
    num_hidden_layers: PositiveInt = 24
    num_attention_heads: PositiveInt = 20
    num_key_value_heads: PositiveInt | None = 20
    head_dim: PositiveInt = 128
    max_position_embeddings: PositiveInt = 4096
    rms_norm_eps: PositiveFloat = 1e-8
    rope_theta: PositiveFloat = 1e5
    attention_bias: bool = False
    mlp_bias: bool = False


class Ernie45(Interleaved):
    """ERNIE 4.5 without experts."""

    architecture = "Ernie4_5ForCausalLM"
    table: ClassVar[Mapping[str, str]] = {**LlamaLike.table, "use_bias": "block.mixer.bias block.feed_forward.bias"}

    model_type: Literal["ernie4_5"] = "ernie4_5"
    vocab_size: PositiveInt = 103_424
    hidden_size: PositiveInt = 1024
    intermediate_size: PositiveInt = 3072
    num_hidden_layers: PositiveInt = 18
    num_attention_heads: PositiveInt = 16
    num_key_value_heads: PositiveInt | None = 2
    head_dim: PositiveInt | None = 128
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: PositiveFloat = 1e-5
    rope_theta: PositiveFloat = 5e5
    tie_word_embeddings: bool = True
    use_bias: bool = False


class Olmo(LlamaLike):
    """OLMo 1: norms without parameters."""

    tensors, architecture, exported = OLMO, "OlmoForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {
        **LlamaLike.constants,
        "block.norm": {"kind": "layer", "eps": 1e-5, "placement": "pre"},
        "head.norm": {"kind": "layer", "eps": 1e-5},
    }
    table: ClassVar[Mapping[str, str]] = {
        **{name: paths for name, paths in LlamaLike.table.items() if name != "rms_norm_eps"},
        "attention_bias": "block.mixer.bias",
    }

    model_type: Literal["olmo"] = "olmo"
    vocab_size: PositiveInt = 50_304
    max_position_embeddings: PositiveInt = 2048
    attention_bias: bool = False
    clip_qkv: Literal[None] = None


class Olmoe(LlamaLike):
    """OLMoE: a mixture of experts in every layer, norms of all queries and all keys together."""

    tensors, architecture, exported = SMALL_EXPERTS, "OlmoeForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {
        **Olmo2.constants,
        "block.norm.placement": "pre",
        "block.feed_forward.kind": "experts",
    }
    table: ClassVar[Mapping[str, str]] = {
        **Olmo2.table,
        "num_experts": "block.feed_forward.experts",
        "num_experts_per_tok": "block.feed_forward.top_k",
        "norm_topk_prob": "block.feed_forward.normalize",
        "router_aux_loss_coef": "block.feed_forward.balance",
    }
    aliases: ClassVar[Mapping[str, str]] = {"num_local_experts": "num_experts"}

    model_type: Literal["olmoe"] = "olmoe"
    vocab_size: PositiveInt = 50_304
    hidden_size: PositiveInt = 2048
    intermediate_size: PositiveInt = 2048
    num_hidden_layers: PositiveInt = 16
    num_attention_heads: PositiveInt = 16
    max_position_embeddings: PositiveInt = 4096
    rms_norm_eps: PositiveFloat = 1e-5
    attention_bias: bool = False
    clip_qkv: Literal[None] = None
    num_experts: PositiveInt = 64
    num_experts_per_tok: PositiveInt = 8
    norm_topk_prob: bool = False
    router_aux_loss_coef: float = Field(default=0.01, ge=0)


class TextRope(PartialRope):
    """Rotary positions of a model that also reads images: the three positions of a text's token are the same."""

    mrope_section: list[int] | None = None
    mrope_interleaved: bool | None = None


class DeltaHybrid(PartlyRotated):
    """The common fields of Qwen3-Next and Qwen 3.5: three layers of gated delta nets, then one of gated attention."""

    buffers: ClassVar[re.Pattern[str]] = re.compile(r"^mtp\.|\.rotary_emb\.inv_freq$")
    constants: ClassVar[Mapping[str, Any]] = {
        **LlamaLike.constants,
        "block.norm.unit_offset": True,
        "head.norm.unit_offset": True,
        "block.mixer.query_key_norm.kind": "rms",
        "block.mixer.query_key_norm.unit_offset": True,
        "block.mixer.gate": "channel",
    }
    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "attention_bias": "block.mixer.bias",
        "rms_norm_eps": "block.norm.eps head.norm.eps block.mixer.query_key_norm.eps",
    }

    num_attention_heads: PositiveInt = 16
    max_position_embeddings: PositiveInt = 32_768
    head_dim: PositiveInt | None = 256
    partial_rotary_factor: float = Field(default=0.25, gt=0, le=1)
    rope_scaling: TextRope | None = None
    rope_parameters: TextRope | None = None
    attention_bias: bool = False
    layer_types: list[Literal["linear_attention", "full_attention"]] | None = None
    full_attention_interval: PositiveInt = 4
    linear_conv_kernel_dim: PositiveInt = 4
    linear_key_head_dim: PositiveInt = 128
    linear_value_head_dim: PositiveInt = 128
    linear_num_key_heads: PositiveInt = 16
    linear_num_value_heads: PositiveInt = 32

    def kinds(self) -> list[Literal["linear_attention", "full_attention"]]:
        """Return the kind of each layer."""
        numbers, interval = range(1, self.num_hidden_layers + 1), self.full_attention_interval
        return self.layer_types or ["linear_attention" if n % interval else "full_attention" for n in numbers]

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if len(self.kinds()) != self.num_hidden_layers:
            expected = f"must be num_hidden_layers, {self.num_hidden_layers}"
            raise ValueError(f"layer_types: {len(self.kinds())} layers: {expected}")
        if "linear_attention" in self.kinds() and OURS[self.hidden_act] != "silu":
            raise ValueError(f"hidden_act: {self.hidden_act}: must be silu with layers of linear attention")
        return self

    def layers(self) -> list[dict[str, Any]]:
        delta = {
            "kind": "gated_delta",
            "heads": self.linear_num_value_heads,
            "key_heads": self.linear_num_key_heads,
            "head_dim": self.linear_key_head_dim,
            "value_dim": self.linear_value_head_dim,
            "conv": self.linear_conv_kernel_dim,
            "eps": self.rms_norm_eps,
        }
        return [{} if kind == "full_attention" else {"mixer": delta} for kind in self.kinds()]


class Qwen35(DeltaHybrid):
    """Qwen 3.5 for texts, without experts."""

    tensors, architecture = QWEN35, "Qwen3_5ForCausalLM"

    model_type: Literal["qwen3_5_text"] = "qwen3_5_text"
    vocab_size: PositiveInt = 248_320
    intermediate_size: PositiveInt = 12_288
    num_key_value_heads: PositiveInt | None = 4


class Qwen3Next(DeltaHybrid):
    """Qwen3-Next: experts beside a gated shared one in every layer, or in every n-th, except the layers named dense."""

    tensors, architecture = QWEN3_NEXT, "Qwen3NextForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {**DeltaHybrid.constants, "block.feed_forward.kind": "experts"}
    table: ClassVar[Mapping[str, str]] = {
        **{name: paths for name, paths in DeltaHybrid.table.items() if name != "intermediate_size"},
        "moe_intermediate_size": "block.feed_forward.hidden",
        "shared_expert_intermediate_size": "block.feed_forward.shared",
        "num_experts": "block.feed_forward.experts",
        "num_experts_per_tok": "block.feed_forward.top_k",
        "norm_topk_prob": "block.feed_forward.normalize",
        "router_aux_loss_coef": "block.feed_forward.balance",
    }

    model_type: Literal["qwen3_next"] = "qwen3_next"
    vocab_size: PositiveInt = 151_936
    hidden_size: PositiveInt = 2048
    intermediate_size: PositiveInt = 5632
    num_hidden_layers: PositiveInt = 48
    num_key_value_heads: PositiveInt | None = 2
    moe_intermediate_size: PositiveInt = 512
    shared_expert_intermediate_size: PositiveInt = 512
    num_experts: NonNegativeInt = 512
    num_experts_per_tok: PositiveInt = 10
    norm_topk_prob: bool = True
    router_aux_loss_coef: float = Field(default=0.001, ge=0)
    decoder_sparse_step: PositiveInt = 1
    mlp_only_layers: list[int] | None = None

    def layers(self) -> list[dict[str, Any]]:
        dense = {"kind": "glu", "hidden": self.intermediate_size, "activation": OURS[self.hidden_act]}
        named = self.mlp_only_layers or []
        return [
            mixers
            if self.num_experts and index not in named and (index + 1) % self.decoder_sparse_step == 0
            else {**mixers, "feed_forward": dense}
            for index, mixers in enumerate(super().layers())
        ]


class Cohere(Interleaved):
    """Cohere's Command R and Aya: parallel branches, layer norms without biases, scaled logits."""

    tensors, architecture = COHERE, "CohereForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {**LayerNormed.constants, "block.residual": "parallel"}
    table: ClassVar[Mapping[str, str]] = {**LayerNormed.table, "attention_bias": "block.mixer.bias"}

    model_type: Literal["cohere"] = "cohere"
    vocab_size: PositiveInt = 256_000
    hidden_size: PositiveInt = 8192
    intermediate_size: PositiveInt = 22_528
    num_hidden_layers: PositiveInt = 40
    num_attention_heads: PositiveInt = 64
    max_position_embeddings: PositiveInt = 8192
    layer_norm_eps: PositiveFloat = 1e-5
    rope_theta: PositiveFloat = 5e5
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    logit_scale: PositiveFloat = 0.0625
    use_qk_norm: Literal[False] = False

    def computed(self) -> dict[str, Any]:
        return {**super().computed(), "head.scale": False if self.logit_scale == 1 else 1 / self.logit_scale}


class Starcoder2(OneWindow):
    """StarCoder 2: layer norms, feed-forwards without a gate, biases on all linear maps or none."""

    tensors, architecture, exported = STARCODER2, "Starcoder2ForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {**LayerNormed.constants, "block.feed_forward.kind": "mlp"}
    table: ClassVar[Mapping[str, str]] = {
        **{name: paths for name, paths in LayerNormed.table.items() if name != "layer_norm_eps"},
        "norm_epsilon": "block.norm.eps head.norm.eps",
        "use_bias": "block.mixer.bias block.feed_forward.bias",
    }

    model_type: Literal["starcoder2"] = "starcoder2"
    vocab_size: PositiveInt = 49_152
    hidden_size: PositiveInt = 3072
    intermediate_size: PositiveInt = 12_288
    num_hidden_layers: PositiveInt = 30
    num_attention_heads: PositiveInt = 24
    num_key_value_heads: PositiveInt | None = 2
    hidden_act: ActivationName = "gelu_pytorch_tanh"
    max_position_embeddings: PositiveInt = 4096
    norm_epsilon: PositiveFloat = 1e-5
    use_bias: bool = True
    tie_word_embeddings: bool = True
