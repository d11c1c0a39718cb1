"""Model descriptions that llama.cpp has a graph for, and their metadata in a GGUF file.

`llama` rotates adjacent elements of a head and supports biases on any linear map; `qwen3` rotates the halves of a head,
normalizes queries and keys, and supports biases only on the maps to queries, keys and values. Neither stores a tensor
for a tied head. Keys are those of llama.cpp's `src/llama-arch.cpp`, with the meaning of
`llama_model_base::load_hparams`.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from linnet.core.errors import UserError
from linnet.interop.families.family import Plain
from linnet.interop.families.llama import LlamaLike
from linnet.interop.families.matching import differences, format_value, nearest_member, plain_form
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.rotary import LinearScaling, YarnScaling
from linnet.model.spec import ModelSpec
from linnet.ops.rotary import Pairing

Metadata = dict[str, Any]
"""Integers, floats, booleans, text, bytes, and lists of numbers or texts, by key."""

PAIRING: dict[str, Pairing] = {"llama": "adjacent", "qwen3": "halves"}
"""The elements of a head that each architecture rotates together."""

_TOKENS_BELOW = 1 << 31
_RAMP = ("factor", "original_max_position_embeddings")
_ROPE_FIELDS = {
    "default": (),
    "linear": ("factor",),
    "yarn": (*_RAMP, "attention_factor"),
    "llama3": (*_RAMP, "low_freq_factor", "high_freq_factor"),
}
"""Fields of each kind of rotary positions that a file holds: in metadata, those of `llama3` in a tensor of factors."""


class GgufLlama(LlamaLike):
    """llama.cpp's `llama`, or its `qwen3` if queries and keys are normalized.

    Rows are written in the order of the architecture, so heads may rotate either way; YaRN's ramp is that of the paper.
    """

    table: ClassVar[Mapping[str, str]] = {
        **LlamaLike.table,
        "attention_bias": "block.mixer.bias",
        "out_bias": "block.mixer.out_bias",
        "mlp_bias": "block.feed_forward.bias",
    }

    model_type: Literal["llama", "qwen3"] = "llama"
    hidden_act: Literal["silu"] = "silu"
    head_dim: int
    pairing: Pairing
    attention_bias: bool
    out_bias: bool
    mlp_bias: bool = False

    def computed(self) -> dict[str, Any]:
        rotary = {**super().computed()["block.mixer.rotary"], "pairing": self.pairing}
        norm = {"kind": "rms", "eps": self.rms_norm_eps} if self.model_type == "qwen3" else None
        return {"block.mixer.rotary": rotary, "block.mixer.query_key_norm": norm}

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        mixer, fields = plain["blocks"][0]["mixer"], super().fields(plain)
        rope, is_llama = fields["rope_parameters"], mixer["query_key_norm"] is None
        # llama.cpp's graph of qwen3 reads no factors.
        kind = "default" if rope["rope_type"] == "llama3" and not is_llama else rope["rope_type"]
        rope = {
            "rope_type": kind,
            "rope_theta": rope["rope_theta"],
            **{name: rope[name] for name in _ROPE_FIELDS[kind]},
        }
        pairing = (mixer["rotary"] or {}).get("pairing", "halves")
        fields |= {"hidden_act": "silu", "rope_parameters": rope, "pairing": pairing}
        if is_llama:
            return {**fields, "model_type": "llama"}
        return {**fields, "model_type": "qwen3", "out_bias": False, "mlp_bias": False}


def form_in_gguf(spec: ModelSpec) -> str:
    """Name llama.cpp's architecture for a description; `UserError` as `check_architecture`."""
    check_architecture(spec, spec.name)
    return architecture_of(spec)


def architecture_of(spec: ModelSpec) -> str:
    """Return `llama` or `qwen3`, for a description that passed `check_architecture`."""
    return _nearest(spec).model_type


def check_architecture(spec: ModelSpec, origin: str) -> None:
    """Raise `UserError` for the first field that llama.cpp's llama and qwen3 do not support."""

    def refusal(field: str, value: str, accepted: str, architecture: str = "llama") -> UserError:
        problem = f"a GGUF file ({architecture}) cannot express it"
        return UserError(f"{origin}: {field}: {value}: {problem}; expected {accepted}")

    for index, block in enumerate(spec.blocks):
        if not isinstance(block.mixer, AttentionSpec):
            raise refusal(f"blocks[{index}].mixer.kind", block.mixer.kind, "attention")
    plain = plain_form(spec)
    nearest = nearest_member(GgufLlama, plain, spec)
    if nearest is None:  # heads of an odd width, without rotary positions or only partly rotated
        head_dim = format_value(plain["blocks"][0]["mixer"]["head_dim"])
        raise refusal("blocks[0].mixer.head_dim", head_dim, "an even one")
    for field, ours, theirs in differences(spec, nearest.model(spec.name, origin)):
        raise refusal(field, format_value(ours), format_value(theirs), nearest.model_type)
    if spec.context_length >= _TOKENS_BELOW:
        raise refusal("context_length", str(spec.context_length), f"less than {_TOKENS_BELOW}")


def _nearest(spec: ModelSpec) -> GgufLlama:
    member = nearest_member(GgufLlama, plain_form(spec), spec)
    assert member is not None, "a description that passed `check_architecture`"
    return member


def architecture_metadata(spec: ModelSpec) -> Metadata:
    """Return the metadata of a model's shape."""
    member = _nearest(spec)
    shape: Metadata = {
        "vocab_size": member.vocab_size,
        "context_length": member.max_position_embeddings,
        "embedding_length": member.hidden_size,
        "block_count": member.num_hidden_layers,
        "feed_forward_length": member.intermediate_size,
        "attention.head_count": member.num_attention_heads,
        "attention.head_count_kv": member.num_key_value_heads,
        "attention.key_length": member.head_dim,
        "attention.value_length": member.head_dim,
        "attention.layer_norm_rms_epsilon": member.rms_norm_eps,
        "rope.dimension_count": member.head_dim,
        "rope.freq_base": member.rope_theta,
    }
    # llama.cpp needs no NTK scaling, which is only another base. It multiplies YaRN's gain by that of the paper.
    mixer = spec.blocks[0].mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rotary is not None
    scaling = mixer.rotary.scaling
    if isinstance(scaling, LinearScaling):
        shape |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
    if isinstance(scaling, YarnScaling):
        shape |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling.factor,
            "rope.scaling.original_context_length": scaling.trained,
            "rope.scaling.attn_factor": scaling.law.gain / (1 + 0.1 * math.log(scaling.factor)),
        }
    return {f"{member.model_type}.{key}": value for key, value in shape.items()}
