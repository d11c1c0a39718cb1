"""Llama's architecture, described once for our model and for Transformers' model with the same weights."""

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from linnet.interop.families.matching import match_family
from linnet.interop.tensor_names import LLAMA
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

NO_END = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Fields of a configuration without end tokens, so that `generate` never stops by itself."""


def llama_spec(
    vocabulary: int,
    width: int,
    layers: int,
    mixer: Mapping[str, Any],
    hidden: int,
    context: int,
    tied: bool = False,
    **sections: Any,
) -> ModelSpec:
    """A description of Llama's architecture, with any mixer in place of attention. sections: further sections."""
    norm = {"kind": "rms", "eps": 1e-6}
    block = {"repeat": layers, "mixer": mixer, "feed_forward": {"kind": "glu", "hidden": hidden}, "norm": norm}
    head = {"tied": tied, "norm": norm}
    shape = {"vocab_size": vocabulary, "d_model": width, "context_length": context, "blocks": [block], "head": head}
    return ModelSpec.parse({"name": "llama", **shape, **sections}, "benchmark")


def transformers_llama(spec: ModelSpec, **fields: Any) -> LlamaForCausalLM:
    """Transformers' model of that description, with random weights. fields: further fields of its configuration."""
    return LlamaForCausalLM(LlamaConfig(**{**match_family(spec).config(), **fields}))


def with_weights_of(theirs: LlamaForCausalLM, spec: ModelSpec) -> Decoder:
    """Our model of the same description, with their weights in their precision."""
    ours = Decoder(spec).to(theirs.dtype)
    ours.load_state_dict(LLAMA.from_published(theirs.state_dict(), spec))
    return ours
