"""GPT-2, GPT-Neo, OPT, BLOOM and GPT-NeoX (Pythia): feed-forwards without a gate, layer norms, biases."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from linnet.interop.families.family import ActivationName, Family, PartialRope, Plain, Rope
from linnet.interop.tensor_names import BLOOM, GPT2, GPT_NEO, GPT_NEOX, OPT

COMMON = {
    "block.mixer.kind": "attention",
    "block.feed_forward.kind": "mlp",
    "block.feed_forward.bias": True,
    "block.norm.kind": "layer",
    "block.norm.placement": "pre",
    "head.norm.kind": "layer",
}
"""Values of a description that these families have, by path."""


class Gpt2(Family):
    """GPT-2, and models of the same form: Cerebras-GPT, DistilGPT2."""

    tensors, architecture = GPT2, "GPT2LMHeadModel"
    unused: ClassVar[Mapping[str, Any]] = {
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }  # Transformers' default of dropout is 0.1
    constants: ClassVar[Mapping[str, Any]] = {
        **COMMON,
        "embedding.positions": "learned",
        "block.mixer.bias": True,
        "block.mixer.rotary": None,
        "initialization.scale_residual": True,
    }
    table: ClassVar[Mapping[str, str]] = {
        **Family.table,
        "n_positions": "context_length",
        "n_embd": "d_model",
        "n_layer": "block.repeat",
        "n_head": "block.mixer.heads",
        "n_inner": "block.feed_forward.hidden",
        "activation_function": "block.feed_forward.activation",
        "layer_norm_epsilon": "block.norm.eps head.norm.eps",
        "tie_word_embeddings": "head.tied",
    }
    buffers = re.compile(r"\.attn\.(masked_)?bias$")
    aliases: ClassVar[Mapping[str, str]] = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }

    model_type: Literal["gpt2"] = "gpt2"
    vocab_size: PositiveInt = 50_257
    n_positions: PositiveInt = 1024
    n_embd: PositiveInt = 768
    n_layer: PositiveInt = 12
    n_head: PositiveInt = 12
    n_inner: PositiveInt | None = None
    activation_function: ActivationName = "gelu_new"
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False

    def computed(self) -> dict[str, Any]:
        return {"block.feed_forward.hidden": self.n_inner or 4 * self.n_embd}

    @classmethod
    def tensor_name(cls, name: str) -> str:
        # Files that were saved without the head have no prefix.
        return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


class GptNeo(Family):
    """GPT-Neo: scores without a scale, a window in some layers."""

    tensors, architecture, exported = GPT_NEO, "GPTNeoForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {
        **COMMON,
        "embedding.positions": "learned",
        "block.mixer.out_bias": True,
        "block.mixer.rotary": None,
        "block.mixer.scale": 1.0,
    }
    table: ClassVar[Mapping[str, str]] = {
        **Family.table,
        "max_position_embeddings": "context_length",
        "hidden_size": "d_model",
        "num_layers": "block.repeat",
        "num_heads": "block.mixer.heads",
        "activation_function": "block.feed_forward.activation",
        "layer_norm_epsilon": "block.norm.eps head.norm.eps",
        "tie_word_embeddings": "head.tied",
    }
    buffers = re.compile(r"\.attn\.attention\.(masked_)?bias$")
    aliases: ClassVar[Mapping[str, str]] = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}

    model_type: Literal["gpt_neo"] = "gpt_neo"
    vocab_size: PositiveInt = 50_257
    max_position_embeddings: PositiveInt = 2048
    hidden_size: PositiveInt = 2048
    num_layers: PositiveInt = 24
    num_heads: PositiveInt = 16
    intermediate_size: PositiveInt | None = None
    window_size: PositiveInt = 256
    attention_types: tuple[tuple[tuple[Literal["global", "local"], ...], PositiveInt], ...] = (
        (("global", "local"), 12),
    )
    activation_function: ActivationName = "gelu_new"
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if len(self.layers()) != self.num_layers:
            raise ValueError(f"attention_types: {len(self.layers())} layers: must be num_layers, {self.num_layers}")
        return self

    def computed(self) -> dict[str, Any]:
        return {"block.feed_forward.hidden": self.intermediate_size or 4 * self.hidden_size}

    def layers(self) -> list[dict[str, Any]]:
        kinds = [kind for pattern, times in self.attention_types for kind in pattern * times]
        return [{"mixer.window": self.window_size if kind == "local" else None} for kind in kinds]

    @classmethod
    def tensor_name(cls, name: str) -> str:
        return Gpt2.tensor_name(name)


class Opt(Family):
    """OPT: token vectors may be narrower than the model, and norms may follow the branches (OPT-350M)."""

    tensors, architecture, exported = OPT, "OPTForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {
        "embedding.positions": "learned",
        "block.mixer.kind": "attention",
        "block.mixer.bias": True,
        "block.mixer.rotary": None,
        "block.feed_forward.kind": "mlp",
        "block.feed_forward.bias": True,
        "block.norm": {"kind": "layer", "eps": 1e-5},
    }
    table: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "init_std": "initialization.std initialization.embedding_std",
        "max_position_embeddings": "context_length",
        "hidden_size": "d_model",
        "num_hidden_layers": "block.repeat",
        "num_attention_heads": "block.mixer.heads",
        "ffn_dim": "block.feed_forward.hidden",
        "activation_function": "block.feed_forward.activation",
        "tie_word_embeddings": "head.tied",
    }

    model_type: Literal["opt"] = "opt"
    vocab_size: PositiveInt = 50_272
    init_std: PositiveFloat = 0.02
    max_position_embeddings: PositiveInt = 2048
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    ffn_dim: PositiveInt = 3072
    word_embed_proj_dim: PositiveInt | None = None
    do_layer_norm_before: bool = True
    activation_function: ActivationName = "relu"
    tie_word_embeddings: bool = True
    enable_bias: Literal[True] = True
    layer_norm_elementwise_affine: Literal[True] = True

    def computed(self) -> dict[str, Any]:
        before = self.do_layer_norm_before
        return {
            "block.norm.placement": "pre" if before else "post",
            "head.norm": {"kind": "layer", "eps": 1e-5} if before else None,
            "embedding.width": self.word_embed_proj_dim,
        }

    @classmethod
    def tensor_name(cls, name: str) -> str:
        # Files that were saved without the head have a shorter prefix.
        return f"model.{name}" if name.startswith("decoder.") else name


class Bloom(Family):
    """BLOOM: positions by distance (ALiBi), a norm of the token vectors.

    seq_length: the length of training sequences, which Transformers does not read. n_embed: `hidden_size` in older
    files, which wins.
    """

    tensors, architecture, exported = BLOOM, "BloomForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {
        **COMMON,
        "block.mixer.bias": True,
        "block.mixer.positions.kind": "alibi",
        "block.feed_forward.activation": "gelu_tanh",
        "embedding.norm.kind": "layer",
    }
    table: ClassVar[Mapping[str, str]] = {
        **Family.table,
        "seq_length": "context_length",
        "n_layer": "block.repeat",
        "n_head": "block.mixer.heads",
        "layer_norm_epsilon": "embedding.norm.eps block.norm.eps head.norm.eps",
        "tie_word_embeddings": "head.tied",
    }
    aliases: ClassVar[Mapping[str, str]] = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}

    model_type: Literal["bloom"] = "bloom"
    vocab_size: PositiveInt = 250_880
    seq_length: PositiveInt = 2048
    hidden_size: PositiveInt = 64
    n_embed: PositiveInt | None = None
    n_layer: PositiveInt = 2
    n_head: PositiveInt = 8
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    apply_residual_connection_post_layernorm: Literal[False] = False

    def computed(self) -> dict[str, Any]:
        width = self.n_embed or self.hidden_size
        return {"d_model": width, "block.feed_forward.hidden": 4 * width}

    @classmethod
    def tensor_name(cls, name: str) -> str:
        return Gpt2.tensor_name(name)


class GptNeoX(Family):
    """GPT-NeoX and Pythia: parallel residual branches, a part of each head rotated."""

    tensors, architecture = GPT_NEOX, "GPTNeoXForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = COMMON
    table: ClassVar[Mapping[str, str]] = {
        **Family.table,
        "hidden_size": "d_model",
        "num_hidden_layers": "block.repeat",
        "num_attention_heads": "block.mixer.heads",
        "intermediate_size": "block.feed_forward.hidden",
        "hidden_act": "block.feed_forward.activation",
        "max_position_embeddings": "context_length",
        "layer_norm_eps": "block.norm.eps head.norm.eps",
        "tie_word_embeddings": "head.tied",
        "attention_bias": "block.mixer.bias",
    }
    buffers = re.compile(r"\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)$")

    model_type: Literal["gpt_neox"] = "gpt_neox"
    vocab_size: PositiveInt = 50_432
    hidden_size: PositiveInt = 6144
    num_hidden_layers: PositiveInt = 44
    num_attention_heads: PositiveInt = 64
    intermediate_size: PositiveInt = 24_576
    hidden_act: ActivationName = "gelu"
    max_position_embeddings: PositiveInt = 2048
    layer_norm_eps: PositiveFloat = 1e-5
    tie_word_embeddings: bool = False
    use_parallel_residual: bool = True
    attention_bias: bool = True
    rotary_pct: float = Field(default=0.25, gt=0, le=1)
    rotary_emb_base: PositiveFloat = 10_000.0
    rope_scaling: PartialRope | None = None
    rope_parameters: PartialRope | None = None

    @property
    def rope(self) -> PartialRope:
        """The rotary positions, by the field of any version of Transformers."""
        return self.rope_scaling or self.rope_parameters or PartialRope()

    def computed(self) -> dict[str, Any]:
        rope = self.rope
        rotary = {
            "base": rope.rope_theta or self.rotary_emb_base,
            "scaling": rope.scaling(self.max_position_embeddings),
            "fraction": rope.partial_rotary_factor or self.rotary_pct,
            "pairing": "halves",
        }
        residual = "parallel" if self.use_parallel_residual else "sequential"
        return {"block.mixer.rotary": rotary, "block.residual": residual}

    def notes(self) -> list[str]:
        return self.rope.notes(self.max_position_embeddings)

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        block = plain["blocks"][0]
        rotary = block["mixer"].get("rotary") or {}
        rope, fraction = Rope.fields(rotary), rotary.get("fraction", 1.0)
        return {
            **super().fields(plain),
            "use_parallel_residual": block["residual"] == "parallel",
            "rotary_pct": fraction,
            "rotary_emb_base": rope["rope_theta"] or 10_000.0,
            "rope_parameters": {**rope, "partial_rotary_factor": fraction},
        }

    @classmethod
    def tensor_name(cls, name: str) -> str:
        # Transformers 5 names the head differently from published files.
        return name.replace("lm_head.", "embed_out.")
