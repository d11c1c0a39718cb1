"""Which descriptions llama.cpp has a graph for, and what a GGUF file says of one.

`llama` turns adjacent elements of a head and takes biases on any map; `qwen3` turns the halves of a head, normalizes
queries and keys, and has biases on their maps and on that of the values alone. Neither needs a tensor for a tied head.
Keys are those of llama.cpp's `src/llama-arch.cpp`, and mean what `llama_model_base::load_hparams` makes of them.
"""

import math
from typing import Any, Literal

from linnet.core.errors import UserError
from linnet.interop.families.family import Plain
from linnet.interop.families.llama import LlamaLike
from linnet.interop.families.member import differences, nearest_member, plain_form, said
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.rotary_scaling import LinearScaling, YarnScaling
from linnet.model.spec import ModelSpec
from linnet.ops.rotary import Pairing

Metadata = dict[str, Any]
"""Whole numbers, fractions, truth values, text, bytes, and lists of numbers or texts, by key."""

PAIRING: dict[str, Pairing] = {"llama": "adjacent", "qwen3": "halves"}
"""Which elements of a head each architecture turns together."""

_MOST_TOKENS = 1 << 31


class GgufLlama(LlamaLike):
    """llama.cpp's `llama`, and its `qwen3` where queries and keys are normalized. Rows of a file are put in its order,
    so that heads may turn either way; YaRN's ramp is the paper's.
    """

    model_type: Literal["llama", "qwen3"] = "llama"
    hidden_act: Literal["silu"] = "silu"
    head_dim: int
    pairing: Pairing
    attention_bias: bool
    out_bias: bool
    mlp_bias: bool

    def rotary(self) -> dict[str, Any]:
        """See `LlamaLike`."""
        return {**super().rotary(), "pairing": self.pairing}

    def mixer(self) -> dict[str, Any]:
        """A head width, biases on any map, norms of queries and keys."""
        norm = {"kind": "rms", "eps": self.rms_norm_eps} if self.model_type == "qwen3" else None
        bias = {"bias": self.attention_bias, "out_bias": self.out_bias}
        return {"head_dim": self.head_dim, **bias, "query_key_norm": norm}

    def feed_forward(self) -> dict[str, Any]:
        """Biases."""
        return {**super().feed_forward(), "bias": self.mlp_bias}

    @classmethod
    def fields(cls, plain: Plain) -> dict[str, Any]:
        """See `Family`."""
        block = plain["blocks"][0]
        mixer, fields = block["mixer"], super().fields(plain)
        normed = mixer["query_key_norm"] is not None
        rope = {name: value for name, value in fields["rope_parameters"].items() if not name.startswith("beta_")}
        return {
            **fields,
            "model_type": "qwen3" if normed else "llama",
            "hidden_act": "silu",
            "rope_parameters": rope,
            "pairing": (mixer["rotary"] or {}).get("pairing", "halves"),
            "attention_bias": mixer["bias"],
            "out_bias": mixer["out_bias"] and not normed,
            "mlp_bias": (block["feed_forward"] or {}).get("bias", False) and not normed,
        }


def architecture_of(spec: ModelSpec) -> str:
    """`llama` or `qwen3`, of a description that `check_architecture` has passed."""
    return _nearest(spec).model_type


def check_architecture(spec: ModelSpec, origin: str) -> None:
    """`UserError` that names the first field with which llama.cpp's llama and qwen3 cannot be built."""
    for index, block in enumerate(spec.blocks):
        if not isinstance(block.mixer, AttentionSpec):
            raise _refusal(origin, f"blocks[{index}].mixer.kind", block.mixer.kind, "attention")
    plain = plain_form(spec)
    nearest = nearest_member(GgufLlama, plain, spec)
    if nearest is None:  # heads of an odd width, which have no rotary positions, or are not turned as a whole
        raise _refusal(origin, "blocks[0].mixer.head_dim", said(plain["blocks"][0]["mixer"]["head_dim"]), "an even one")
    for field, ours, theirs in differences(plain, plain_form(nearest.model(spec.name, origin))):
        raise _refusal(origin, field, said(ours), said(theirs), nearest.model_type)
    if spec.context_length >= _MOST_TOKENS:
        raise _refusal(origin, "context_length", str(spec.context_length), f"less than {_MOST_TOKENS}")


def _nearest(spec: ModelSpec) -> GgufLlama:
    member = nearest_member(GgufLlama, plain_form(spec), spec)
    assert member is not None, "a description that `check_architecture` has passed"
    return member


def _refusal(origin: str, field: str, value: str, accepted: str, architecture: str = "llama") -> UserError:
    return UserError(f"{origin}: {field}: {value}: a GGUF file ({architecture}) cannot say it; expected {accepted}")


def architecture_metadata(spec: ModelSpec) -> Metadata:
    """What a file says of the model's shape, by key."""
    member = _nearest(spec)
    shape = {
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
    return {f"{member.model_type}.{key}": value for key, value in {**shape, **_scaling(spec)}.items()}


def _scaling(spec: ModelSpec) -> Metadata:
    """llama.cpp has no NTK scaling, and needs none: it is another base. It multiplies YaRN's gain by the paper's."""
    mixer = spec.blocks[0].mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rotary is not None
    scaling = mixer.rotary.scaling
    if isinstance(scaling, LinearScaling):
        return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
    if isinstance(scaling, YarnScaling):
        return {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling.factor,
            "rope.scaling.original_context_length": scaling.trained,
            "rope.scaling.attn_factor": scaling.law.gain / (1 + 0.1 * math.log(scaling.factor)),
        }
    return {}
