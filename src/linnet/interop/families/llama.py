"""Llama and Qwen 2, 2.5 and 3: gated feed-forwards, RMS norms, rotary positions, grouped-query attention."""

from typing import Any, Literal

from pydantic import PositiveFloat, PositiveInt

from linnet.interop.families.family import OURS, THEIRS, ActivationName, Family, Plain, Rope
from linnet.interop.tensor_names import LLAMA_MAPS


class LlamaLike(Family):
    """The common fields of Llama and Qwen."""

    maps = LLAMA_MAPS

    hidden_size: PositiveInt = 4096
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt = 32
    num_attention_heads: PositiveInt = 32
    num_key_value_heads: PositiveInt | None = None
    max_position_embeddings: PositiveInt
    hidden_act: ActivationName = "silu"
    rms_norm_eps: PositiveFloat = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: PositiveFloat = 10_000.0
    rope_scaling: Rope | None = None
    rope_parameters: Rope | None = None

    def to_dict(self) -> dict[str, Any]:
        norm = {"kind": "rms", "eps": self.rms_norm_eps}
        heads = {"heads": self.num_attention_heads, "kv_heads": self.num_key_value_heads}
        block = {
            "repeat": self.num_hidden_layers,
            "mixer": {"kind": "attention", **heads, "rotary": self.rotary(), **self.mixer()},
            "feed_forward": {"kind": "glu", "hidden": self.intermediate_size, **self.feed_forward()},
            "norm": {**norm, "placement": "pre"},
        }
        return {
            "d_model": self.hidden_size,
            "context_length": self.max_position_embeddings,
            "blocks": [block],
            "head": {"tied": self.tie_word_embeddings, "norm": norm},
        }

    def rotary(self) -> dict[str, Any]:
        rope = self.rope_scaling or self.rope_parameters or Rope()
        scaling = rope.scaling(self.max_position_embeddings)
        return {"base": rope.rope_theta or self.rope_theta, "pairing": "halves", "scaling": scaling}

    def mixer(self) -> dict[str, Any]:
        """Return the attention fields in which the families differ."""
        return {}

    def feed_forward(self) -> dict[str, Any]:
        """Return the feed-forward fields in which the families differ."""
        return {"activation": OURS[self.hidden_act]}

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        block = plain["blocks"][0]
        mixer, feed_forward = block["mixer"], block["feed_forward"] or {}
        rope = Rope.fields(mixer.get("rotary") or {})
        return {
            "vocab_size": plain["vocab_size"],
            "hidden_size": plain["d_model"],
            "intermediate_size": feed_forward.get("hidden", 1),
            "num_hidden_layers": plain["layers"],
            "num_attention_heads": mixer["heads"],
            "num_key_value_heads": mixer["kv_heads"],
            "head_dim": mixer["head_dim"],
            "max_position_embeddings": plain["context_length"],
            "hidden_act": THEIRS[feed_forward.get("activation", "silu")],
            "rms_norm_eps": block["norm"]["eps"],
            "tie_word_embeddings": plain["head"]["tied"],
            "rope_theta": rope["rope_theta"] or 10_000.0,
            "rope_parameters": rope,
        }


class Llama(LlamaLike):
    """Llama, and models of the same form: SmolLM, TinyLlama. Biases on all linear maps of a branch or none."""

    architecture = "LlamaForCausalLM"

    model_type: Literal["llama"] = "llama"
    vocab_size: PositiveInt = 32_000
    intermediate_size: PositiveInt = 11_008
    max_position_embeddings: PositiveInt = 2048
    head_dim: PositiveInt | None = None
    attention_bias: bool = False
    mlp_bias: bool = False

    def mixer(self) -> dict[str, Any]:
        return {"head_dim": self.head_dim, "bias": self.attention_bias}

    def feed_forward(self) -> dict[str, Any]:
        return {**super().feed_forward(), "bias": self.mlp_bias}

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        block = plain["blocks"][0]
        mlp_bias = (block["feed_forward"] or {}).get("bias", False)
        return {**super().fields(plain), "attention_bias": block["mixer"]["bias"], "mlp_bias": mlp_bias}


class Qwen2(LlamaLike):
    """Qwen 2 and 2.5: biases on the projections to queries, keys and values."""

    architecture = "Qwen2ForCausalLM"

    model_type: Literal["qwen2"] = "qwen2"
    vocab_size: PositiveInt = 151_936
    intermediate_size: PositiveInt = 22_016
    max_position_embeddings: PositiveInt = 32_768
    head_dim: PositiveInt | None = None
    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None

    def mixer(self) -> dict[str, Any]:
        return {"head_dim": self.head_dim, "bias": True, "out_bias": False}


class Qwen3(LlamaLike):
    """Qwen 3: queries and keys are normalized head by head; biases on all linear maps of attention or none."""

    architecture = "Qwen3ForCausalLM"

    model_type: Literal["qwen3"] = "qwen3"
    vocab_size: PositiveInt = 151_936
    intermediate_size: PositiveInt = 22_016
    max_position_embeddings: PositiveInt = 32_768
    head_dim: PositiveInt = 128
    attention_bias: bool = False
    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None

    def mixer(self) -> dict[str, Any]:
        norm = {"kind": "rms", "eps": self.rms_norm_eps}
        return {"head_dim": self.head_dim, "bias": self.attention_bias, "query_key_norm": norm}

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        return {**super().fields(plain), "attention_bias": plain["blocks"][0]["mixer"]["bias"]}
