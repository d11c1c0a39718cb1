"""Mamba, Mamba-2 and RWKV-4: models with a state of constant size."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from linnet.interop.families.family import Family
from linnet.interop.tensor_names import MAMBA, MAMBA2, RWKV4

CONTEXT_LENGTH = 2048
"""The length of Mamba's training sequences, which `config.json` does not have."""


class MambaLike(Family):
    """The common fields of Mamba and Mamba-2."""

    exported = False
    constants: ClassVar[Mapping[str, Any]] = {
        "context_length": CONTEXT_LENGTH,
        "block.feed_forward": None,
        "block.norm.kind": "rms",
        "head.norm.kind": "rms",
    }
    table: ClassVar[Mapping[str, str]] = {
        **Family.table,
        "hidden_size": "d_model",
        "num_hidden_layers": "block.repeat",
        "state_size": "block.mixer.state",
        "expand": "block.mixer.expand",
        "conv_kernel": "block.mixer.conv",
        "use_bias": "block.mixer.bias",
        "use_conv_bias": "block.mixer.conv_bias",
        "layer_norm_epsilon": "block.norm.eps head.norm.eps",
        "tie_word_embeddings": "head.tied",
    }

    initializer_range: PositiveFloat = 0.1
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    state_size: PositiveInt
    expand: PositiveInt = 2
    conv_kernel: PositiveInt = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    layer_norm_epsilon: PositiveFloat = 1e-5
    hidden_act: Literal["silu", "swish"] = "silu"
    tie_word_embeddings: bool

    def notes(self) -> list[str]:
        return [f"has no context length; {CONTEXT_LENGTH} here"]

    @classmethod
    def tensor_name(cls, name: str) -> str:
        # The first files had another name.
        return name.replace("backbone.embedding.", "backbone.embeddings.")


def check_step_limit(limits: Any) -> None:
    """Raise `ValueError` for limits of step sizes: Transformers applies them to whole texts, not to single tokens."""
    try:  # Transformers 5 writes an infinite number as a section
        numbers = [float(x["__float__"] if isinstance(x, dict) else x) for x in limits]
    except (TypeError, ValueError, KeyError):
        numbers = []
    if numbers != [0.0, math.inf]:
        raise ValueError(f"time_step_limit: {limits}: must be 0.0 and Infinity")


class MambaModel(MambaLike):
    """Mamba."""

    tensors, architecture = MAMBA, "MambaForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {**MambaLike.constants, "block.mixer.kind": "mamba"}

    model_type: Literal["mamba"] = "mamba"
    vocab_size: PositiveInt = 50_280
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 32
    state_size: PositiveInt = 16
    time_step_rank: PositiveInt | Literal["auto"] = "auto"
    tie_word_embeddings: bool = True

    def computed(self) -> dict[str, Any]:
        rank = self.time_step_rank
        return {"block.mixer.step_rank": math.ceil(self.hidden_size / 16) if rank == "auto" else rank}


class Mamba2Model(MambaLike):
    """Mamba-2, with steps of any size."""

    tensors, architecture = MAMBA2, "Mamba2ForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {**MambaLike.constants, "block.mixer.kind": "mamba2"}
    table: ClassVar[Mapping[str, str]] = {
        **MambaLike.table,
        "head_dim": "block.mixer.head_dim",
        "n_groups": "block.mixer.groups",
        "layer_norm_epsilon": "block.norm.eps head.norm.eps block.mixer.eps",
    }

    model_type: Literal["mamba2"] = "mamba2"
    vocab_size: PositiveInt = 32_768
    hidden_size: PositiveInt = 4096
    num_hidden_layers: PositiveInt = 64
    state_size: PositiveInt = 128
    num_heads: PositiveInt = 128
    head_dim: PositiveInt = 64
    n_groups: PositiveInt = 8
    time_step_limit: Any = (0.0, math.inf)
    tie_word_embeddings: bool = False

    @model_validator(mode="after")
    def _check_heads_and_steps(self) -> Self:
        channels = self.expand * self.hidden_size
        if self.num_heads * self.head_dim != channels:
            raise ValueError(f"num_heads: {self.num_heads}: must be {channels} / head_dim, which is {self.head_dim}")
        check_step_limit(self.time_step_limit)
        return self


class Rwkv4Model(Family):
    """RWKV-4, `rwkv` in Transformers."""

    tensors, architecture, exported = RWKV4, "RwkvForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {
        "embedding.norm.kind": "layer",
        "block.mixer.kind": "rwkv4",
        "block.feed_forward.kind": "rwkv4_channel",
        "block.norm.kind": "layer",
        "head.norm": {"kind": "layer", "eps": 1e-5},
    }
    table: ClassVar[Mapping[str, str]] = {
        **Family.table,
        "hidden_size": "d_model",
        "context_length": "context_length",
        "num_hidden_layers": "block.repeat",
        "layer_norm_epsilon": "embedding.norm.eps block.norm.eps",
        "tie_word_embeddings": "head.tied",
    }
    aliases: ClassVar[Mapping[str, str]] = {"max_position_embeddings": "context_length"}

    model_type: Literal["rwkv"] = "rwkv"
    vocab_size: PositiveInt = 50_277
    context_length: PositiveInt = 1024
    hidden_size: PositiveInt = 4096
    num_hidden_layers: PositiveInt = 32
    attention_hidden_size: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = False

    def computed(self) -> dict[str, Any]:
        return {
            "block.mixer.channels": self.attention_hidden_size or self.hidden_size,
            "block.feed_forward.hidden": self.intermediate_size or 4 * self.hidden_size,
        }
