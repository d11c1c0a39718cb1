"""Families of models of code and others in the form of GPT-2 or GPT-NeoX: StarCoder, GPT-J, CodeGen, Falcon."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from linnet.interop.families.family import ActivationName, Family, Rope
from linnet.interop.families.gpt import COMMON, Gpt2
from linnet.interop.tensor_names import CODEGEN, FALCON, GPT_BIGCODE, GPT_J


class GptBigCode(Gpt2):
    """StarCoder 1 and SantaCoder: a GPT-2 with one key and value for all heads, or with those of each head."""

    tensors, architecture, exported = GPT_BIGCODE, "GPTBigCodeForCausalLM", False

    model_type: Literal["gpt_bigcode"] = "gpt_bigcode"  # type: ignore[assignment]
    activation_function: ActivationName = "gelu_pytorch_tanh"
    multi_query: bool = True

    def computed(self) -> dict[str, Any]:
        return {**super().computed(), "block.mixer.kv_heads": 1 if self.multi_query else None}


class GptJ(Gpt2):
    """GPT-J: parallel branches, rotary positions of a part of each head, a head with a bias."""

    tensors, architecture, exported = GPT_J, "GPTJForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {
        **COMMON,
        "block.mixer.bias": False,
        "block.residual": "parallel",
        "head.bias": True,
    }

    model_type: Literal["gptj"] = "gptj"  # type: ignore[assignment]
    vocab_size: PositiveInt = 50_400
    n_positions: PositiveInt = 2048
    n_embd: PositiveInt = 4096
    n_layer: PositiveInt = 28
    n_head: PositiveInt = 16
    rotary_dim: PositiveInt = 64
    tie_word_embeddings: Literal[False] = False

    def computed(self) -> dict[str, Any]:
        head_dim = self.n_embd // self.n_head
        fraction = self.rotary_dim / head_dim
        if int(head_dim * fraction) != self.rotary_dim:  # rounded down
            fraction = math.nextafter(fraction, 1.0)
        return {**super().computed(), "block.mixer.rotary": {"pairing": "adjacent", "fraction": fraction}}


class CodeGen(GptJ):
    """CodeGen 1: a GPT-J with another order of the rows of its joint projection."""

    tensors, architecture = CODEGEN, "CodeGenForCausalLM"

    model_type: Literal["codegen"] = "codegen"  # type: ignore[assignment]


class Falcon(Family):
    """Falcon 7B: parallel branches that read one norm, one key and value for all heads."""

    tensors, architecture, exported = FALCON, "FalconForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {**COMMON, "block.residual": "parallel"}
    table: ClassVar[Mapping[str, str]] = {
        **Family.table,
        "hidden_size": "d_model",
        "max_position_embeddings": "context_length",
        "num_hidden_layers": "block.repeat",
        "num_attention_heads": "block.mixer.heads",
        "layer_norm_epsilon": "block.norm.eps head.norm.eps",
        "bias": "block.mixer.bias block.feed_forward.bias",
        "activation": "block.feed_forward.activation",
        "tie_word_embeddings": "head.tied",
    }
    aliases: ClassVar[Mapping[str, str]] = {"n_embed": "hidden_size"}

    model_type: Literal["falcon"] = "falcon"
    vocab_size: PositiveInt = 65_024
    hidden_size: PositiveInt = 4544
    num_hidden_layers: PositiveInt = 32
    num_attention_heads: PositiveInt = 71
    ffn_hidden_size: PositiveInt | None = None
    layer_norm_epsilon: PositiveFloat = 1e-5
    max_position_embeddings: PositiveInt = 2048
    activation: ActivationName = "gelu"
    bias: bool = False
    multi_query: bool = True
    tie_word_embeddings: bool = True
    rope_theta: PositiveFloat = 10_000.0
    rope_scaling: Rope | None = None
    rope_parameters: Rope | None = None
    alibi: Literal[False] = False  # distances that are rounded to bfloat16 and divided by the root of the head width
    new_decoder_architecture: Literal[False] = False
    parallel_attn: Literal[True] = True
    num_ln_in_parallel_attn: Literal[1] | None = None

    @property
    def rope(self) -> Rope:
        """The rotary positions, by the field of any version of Transformers."""
        return self.rope_scaling or self.rope_parameters or Rope()

    def computed(self) -> dict[str, Any]:
        scaling = self.rope.scaling(self.max_position_embeddings)
        return {
            "block.mixer.kv_heads": 1 if self.multi_query else None,
            "block.mixer.rotary": {"base": self.rope.rope_theta or self.rope_theta, "scaling": scaling},
            "block.feed_forward.hidden": self.ffn_hidden_size or 4 * self.hidden_size,
        }

    def notes(self) -> list[str]:
        return self.rope.notes(self.max_position_embeddings)

    @classmethod
    def tensor_name(cls, name: str) -> str:
        return Gpt2.tensor_name(name)
