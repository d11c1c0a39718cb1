"""Which descriptions llama.cpp has a graph for, and what a GGUF file says of one.

`llama` turns adjacent elements of a head and takes biases on any map; `qwen3` turns the halves of a head, normalises
queries and keys, and has biases on their maps and on that of the values alone. Neither needs a tensor for a tied head.
Keys are those of llama.cpp's `src/llama-arch.cpp`, and mean what `llama_model_base::load_hparams` makes of them.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.layers.feed_forwards.glu import GatedSpec
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.rotary import RotarySpec
from linnet.layers.rotary_scaling import LinearScaling, NtkScaling, YarnScaling
from linnet.model.spec import BlockSpec, HeadSpec, ModelSpec
from linnet.nn.norms import NormSpec
from linnet.ops.rotary import Pairing

Metadata = dict[str, Any]
"""Whole numbers, fractions, truth values, text, and lists of numbers or texts, by key."""

PAIRING: dict[str, Pairing] = {"llama": "adjacent", "qwen3": "halves"}
"""Which elements of a head each architecture turns together."""

_MOST_TOKENS = 1 << 31
_VARIES: dict[type[Spec], set[str]] = {
    ModelSpec: {"name", "vocab_size", "d_model", "context_length", "embedding", "blocks", "head", "initialisation"},
    BlockSpec: {"repeat", "mixer", "feed_forward", "norm"},
    AttentionSpec: {"heads", "kv_heads", "head_dim", "bias", "out_bias", "rotary", "query_key_norm"},
    HeadSpec: {"tied", "norm"},
    RotarySpec: {"base", "pairing", "scaling"},
    GatedSpec: {"hidden", "bias"},
}
"""The fields that a file can say; all others are to have their default."""


def architecture_of(spec: ModelSpec) -> str:
    """`llama` or `qwen3`, of a description that `check_architecture` has passed."""
    return "llama" if _mixer(spec).query_key_norm is None else "qwen3"


def check_architecture(spec: ModelSpec, origin: str) -> None:
    """`UserError` that names the first field with which llama.cpp's llama and qwen3 cannot be built."""
    for field, value, accepted in _faults(spec):
        raise UserError(f"{origin}: {field}: {_said(value)}: a GGUF file cannot say it; expected {accepted}")


def architecture_metadata(spec: ModelSpec) -> Metadata:
    """What a file says of the model's shape, by key."""
    mixer, feed_forward = _mixer(spec), spec.blocks[0].feed_forward
    assert isinstance(feed_forward, GatedSpec)
    heads, kv_heads, width = mixer.widths(spec.d_model)
    shape = {
        "vocab_size": spec.vocab_size,
        "context_length": spec.context_length,
        "embedding_length": spec.d_model,
        "block_count": spec.layers,
        "feed_forward_length": feed_forward.hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": width,
        "attention.value_length": width,
        "attention.layer_norm_rms_epsilon": spec.blocks[0].norm.eps,
        "rope.dimension_count": width,
    }
    name = architecture_of(spec)
    return {f"{name}.{key}": value for key, value in {**shape, **_rope(_rotary(spec), width)}.items()}


def _rope(rotary: RotarySpec, width: int) -> Metadata:
    """llama.cpp has no NTK scaling, and needs none: it is another base. It multiplies YaRN's gain by the paper's."""
    scaling = rotary.scaling
    if isinstance(scaling, NtkScaling):
        return {"rope.freq_base": scaling.law.base(width, rotary.base)}
    said: Metadata = {"rope.freq_base": rotary.base}
    if isinstance(scaling, LinearScaling):
        said |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
    if isinstance(scaling, YarnScaling):
        said |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling.factor,
            "rope.scaling.original_context_length": scaling.trained,
            "rope.scaling.attn_factor": scaling.law.gain / (1 + 0.1 * math.log(scaling.factor)),
        }
    return said


def _mixer(spec: ModelSpec) -> AttentionSpec:
    mixer = spec.blocks[0].mixer
    assert isinstance(mixer, AttentionSpec)
    return mixer


def _rotary(spec: ModelSpec) -> RotarySpec:
    rotary = _mixer(spec).rotary
    assert rotary is not None
    return rotary


Fault = tuple[str, object, str]


def _faults(spec: ModelSpec) -> Iterator[Fault]:
    """Field, value, what would do."""
    yield from _changed(spec, "")
    yield from _changed(spec.embedding, "embedding.")
    yield from _block_faults(spec.blocks[0])
    first = spec.blocks[0].model_copy(update={"repeat": 1})
    for index, block in enumerate(spec.blocks):
        if block.model_copy(update={"repeat": 1}) != first:
            yield f"blocks[{index}]", block, "the fields of blocks[0]: all layers of a file are alike"
    yield from _changed(spec.head, "head.")
    if spec.head.norm is None or spec.head.norm.kind != "rms" or spec.head.norm.eps != first.norm.eps:
        yield "head.norm", spec.head.norm, f"kind: rms with the eps of the blocks, {first.norm.eps:g}"
    if spec.context_length >= _MOST_TOKENS:
        yield "context_length", spec.context_length, f"less than {_MOST_TOKENS}"


def _block_faults(block: BlockSpec) -> Iterator[Fault]:
    where, mixer, feed_forward, norm = "blocks[0].", block.mixer, block.feed_forward, block.norm
    yield from _changed(block, where)
    if norm.kind != "rms":
        yield f"{where}norm.kind", norm.kind, "rms"
    if norm.placement != "pre":
        yield f"{where}norm.placement", norm.placement, "pre"
    if not isinstance(feed_forward, GatedSpec):
        yield f"{where}feed_forward", feed_forward and feed_forward.kind, "kind: glu"
    else:
        yield from _changed(feed_forward, f"{where}feed_forward.")
    if not isinstance(mixer, AttentionSpec):
        yield f"{where}mixer.kind", mixer.kind, "attention"
    else:
        yield from _changed(mixer, f"{where}mixer.")
        yield from _rotary_faults(mixer.rotary, f"{where}mixer.rotary")
        if mixer.query_key_norm is not None:
            biased = mixer.out_has_bias, isinstance(feed_forward, GatedSpec) and feed_forward.bias
            yield from _normed_faults(mixer.query_key_norm, norm.eps, biased, where)


def _rotary_faults(rotary: RotarySpec | None, where: str) -> Iterator[Fault]:
    if rotary is None:
        yield where, None, "rotary positions"
        return
    yield from _changed(rotary, f"{where}.")
    scaling = rotary.scaling
    if isinstance(scaling, YarnScaling):
        yield from _changed(scaling, f"{where}.scaling.", {"kind", "factor", "trained", "attention_factor"})


def _normed_faults(norm: NormSpec, eps: float, biased: tuple[bool, bool], where: str) -> Iterator[Fault]:
    """Beside normalised queries and keys llama.cpp's qwen3 has one eps for all norms, and fewer biases."""
    if norm.kind != "rms" or norm.eps != eps:
        yield f"{where}mixer.query_key_norm", norm, f"kind: rms with the eps of the block, {eps:g}"
    if biased[0]:
        yield f"{where}mixer.out_bias", True, "false beside query_key_norm"
    if biased[1]:
        yield f"{where}feed_forward.bias", True, "false beside query_key_norm"


def _changed(spec: Spec, where: str, varies: set[str] | None = None) -> Iterator[Fault]:
    """The fields that no file can say, where they are not as they are by default."""
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name not in (_VARIES.get(type(spec), set()) if varies is None else varies) and value != field.default:
            yield f"{where}{name}", value, _said(field.default)


def _said(value: object) -> str:
    """As a YAML file of one line has it."""
    return json.dumps(value.model_dump() if isinstance(value, Spec) else value)
