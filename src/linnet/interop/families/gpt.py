"""GPT-2 and GPT-NeoX (Pythia): feed-forwards without a gate, layer norms, biases on all linear maps."""

import re
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from linnet.interop.families.family import OURS, THEIRS, ActivationName, Family, Plain, Rope
from linnet.interop.tensor_names import GPT2_MAPS, GPT_NEOX_MAPS


class Gpt2(Family):
    """GPT-2, and models of the same form: Cerebras-GPT, DistilGPT2."""

    maps, architecture = GPT2_MAPS, "GPT2LMHeadModel"
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

    def to_dict(self) -> dict[str, Any]:
        norm = {"kind": "layer", "eps": self.layer_norm_epsilon}
        feed_forward = {"kind": "mlp", "hidden": self.n_inner or 4 * self.n_embd, "bias": True}
        start = {"std": self.initializer_range, "embedding_std": self.initializer_range, "scale_residual": True}
        block = {
            "repeat": self.n_layer,
            "mixer": {"kind": "attention", "heads": self.n_head, "bias": True, "rotary": None},
            "feed_forward": {**feed_forward, "activation": OURS[self.activation_function]},
            "norm": {**norm, "placement": "pre"},
        }
        return {
            "d_model": self.n_embd,
            "context_length": self.n_positions,
            "embedding": {"positions": "learned"},
            "blocks": [block],
            "head": {"tied": self.tie_word_embeddings, "norm": norm},
            "initialization": start,
        }

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        block = plain["blocks"][0]
        feed_forward = block["feed_forward"] or {}
        return {
            "vocab_size": plain["vocab_size"],
            "n_positions": plain["context_length"],
            "n_embd": plain["d_model"],
            "n_layer": plain["layers"],
            "n_head": block["mixer"]["heads"],
            "n_inner": feed_forward.get("hidden"),
            "activation_function": THEIRS[feed_forward.get("activation", "gelu")],
            "layer_norm_epsilon": block["norm"]["eps"],
            "tie_word_embeddings": plain["head"]["tied"],
        }

    def config(self) -> dict[str, Any]:
        """Return `config.json` without dropout, which linnet does not have; Transformers' default is 0.1."""
        return {**super().config(), "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

    @classmethod
    def current(cls, name: str) -> str:
        # Files that were saved without the head have no prefix.
        return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


class NeoXRope(Rope):
    """Rotary positions of GPT-NeoX, which rotate a part of each head."""

    partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)


class GptNeoX(Family):
    """GPT-NeoX and Pythia: parallel residual branches, a part of each head rotated."""

    maps, architecture = GPT_NEOX_MAPS, "GPTNeoXForCausalLM"
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

    def to_dict(self) -> dict[str, Any]:
        norm = {"kind": "layer", "eps": self.layer_norm_eps}
        rope = self.rope_scaling or self.rope_parameters or NeoXRope()
        rotary = {
            "base": rope.rope_theta or self.rotary_emb_base,
            "scaling": rope.scaling(self.max_position_embeddings),
            "fraction": rope.partial_rotary_factor or self.rotary_pct,
            "pairing": "halves",
        }
        heads = {"heads": self.num_attention_heads, "bias": self.attention_bias}
        feed_forward = {"kind": "mlp", "hidden": self.intermediate_size, "bias": True}
        block = {
            "repeat": self.num_hidden_layers,
            "mixer": {"kind": "attention", **heads, "rotary": rotary},
            "feed_forward": {**feed_forward, "activation": OURS[self.hidden_act]},
            "norm": {**norm, "placement": "pre"},
            "residual": "parallel" if self.use_parallel_residual else "sequential",
        }
        return {
            "d_model": self.hidden_size,
            "context_length": self.max_position_embeddings,
            "blocks": [block],
            "head": {"tied": self.tie_word_embeddings, "norm": norm},
        }

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        block = plain["blocks"][0]
        mixer, feed_forward = block["mixer"], block["feed_forward"] or {}
        rotary = mixer.get("rotary") or {}
        rope, fraction = Rope.fields(rotary), rotary.get("fraction", 1.0)
        return {
            "vocab_size": plain["vocab_size"],
            "hidden_size": plain["d_model"],
            "num_hidden_layers": plain["layers"],
            "num_attention_heads": mixer["heads"],
            "intermediate_size": feed_forward.get("hidden", 1),
            "hidden_act": THEIRS[feed_forward.get("activation", "gelu")],
            "max_position_embeddings": plain["context_length"],
            "layer_norm_eps": block["norm"]["eps"],
            "tie_word_embeddings": plain["head"]["tied"],
            "use_parallel_residual": block["residual"] == "parallel",
            "attention_bias": mixer["bias"],
            "rotary_pct": fraction,
            "rotary_emb_base": rope["rope_theta"] or 10_000.0,
            "rope_parameters": {**rope, "partial_rotary_factor": fraction},
        }

    @classmethod
    def current(cls, name: str) -> str:
        # Transformers 5 names the head differently from published files.
        return name.replace("lm_head.", "embed_out.")
