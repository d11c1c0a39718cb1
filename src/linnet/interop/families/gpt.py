"""GPT-2 and GPT-NeoX (Pythia): feed-forwards without a gate, layer norms, biases on all linear maps."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from linnet.interop.families.family import ActivationName, Family, Plain, Rope
from linnet.interop.tensor_names import GPT2, GPT_NEOX

COMMON = {
    "block.mixer.kind": "attention",
    "block.feed_forward.kind": "mlp",
    "block.feed_forward.bias": True,
    "block.norm.kind": "layer",
    "block.norm.placement": "pre",
    "head.norm.kind": "layer",
}
"""Values of a description that both families have, by path."""


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


class NeoXRope(Rope):
    """Rotary positions of GPT-NeoX, which rotate a part of each head."""

    partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)


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
    rope_scaling: NeoXRope | None = None
    rope_parameters: NeoXRope | None = None

    def computed(self) -> dict[str, Any]:
        rope = self.rope_scaling or self.rope_parameters or NeoXRope()
        rotary = {
            "base": rope.rope_theta or self.rotary_emb_base,
            "scaling": rope.scaling(self.max_position_embeddings),
            "fraction": rope.partial_rotary_factor or self.rotary_pct,
            "pairing": "halves",
        }
        residual = "parallel" if self.use_parallel_residual else "sequential"
        return {"block.mixer.rotary": rotary, "block.residual": residual}

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
