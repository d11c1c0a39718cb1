"""The tensor names of Transformers' OPT, GPT-NeoX and GPT-Neo, mapped to ours; whichever blocks the layers lie in."""

from collections.abc import Iterator

import torch
from torch import Tensor

from linnet.layers.mixers.attention import AttentionSpec
from linnet.model.spec import ModelSpec

ENDS = ("weight", "bias")
OPT_OFFSET = 2
"""Rows of OPT's table of positions that no token's position reaches."""


def from_opt(named: dict[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """From `OPTForCausalLM`. The first two rows of its positions, which only padding reads, are left out."""
    body = {name.removeprefix("model.decoder."): tensor for name, tensor in named.items()}
    ours = {
        "embedding.tokens.weight": body["embed_tokens.weight"],
        "embedding.positions.weight": body["embed_positions.weight"][OPT_OFFSET:],
    }
    if spec.embedding.width is not None:
        ours["embedding.project.weight"] = body["project_in.weight"]
        ours["head_project.weight"] = body["project_out.weight"]
    if spec.head.norm is not None:
        ours |= {f"norm.{end}": body[f"final_layer_norm.{end}"] for end in ENDS}
    names = {
        "mixer_norm": "self_attn_layer_norm", "mixer.out": "self_attn.out_proj",
        "feed_forward_norm": "final_layer_norm", "feed_forward.up": "fc1", "feed_forward.down": "fc2",
    }  # fmt: skip
    for theirs, layer in _layers(spec):
        for end in ENDS:
            ours |= {f"{layer}.{mine}.{end}": body[f"layers.{theirs}.{name}.{end}"] for mine, name in names.items()}
            parts = [body[f"layers.{theirs}.self_attn.{part}_proj.{end}"] for part in "qkv"]
            ours[f"{layer}.mixer.query_key_value.{end}"] = torch.cat(parts)
    return ours


def from_gpt_neox(named: dict[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """From `GPTNeoXForCausalLM` (Pythia), whose joint projection goes head by head; ours query, key, value.

    Its head is called `lm_head` by Transformers 5, `embed_out` before and in published files.
    """
    body = {name.removeprefix("gpt_neox."): tensor for name, tensor in named.items()}
    head = named["embed_out.weight"] if "embed_out.weight" in named else named["lm_head.weight"]
    ours = {"embedding.tokens.weight": body["embed_in.weight"], "head.weight": head}
    ours |= {f"norm.{end}": body[f"final_layer_norm.{end}"] for end in ENDS}
    names = {
        "mixer_norm": "input_layernorm", "mixer.out": "attention.dense", "feed_forward_norm":
        "post_attention_layernorm", "feed_forward.up": "mlp.dense_h_to_4h", "feed_forward.down": "mlp.dense_4h_to_h",
    }  # fmt: skip
    mixer = spec.blocks[0].mixer
    assert isinstance(mixer, AttentionSpec)
    for theirs, layer in _layers(spec):
        for end in ENDS:
            ours |= {f"{layer}.{mine}.{end}": body[f"layers.{theirs}.{name}.{end}"] for mine, name in names.items()}
            joint = body[f"layers.{theirs}.attention.query_key_value.{end}"]
            by_head = joint.reshape(mixer.heads, 3, -1, *joint.shape[1:])
            ours[f"{layer}.mixer.query_key_value.{end}"] = by_head.transpose(0, 1).reshape(joint.shape)
    return ours


def from_gpt_neo(named: dict[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """From `GPTNeoForCausalLM`."""
    body = {name.removeprefix("transformer."): tensor for name, tensor in named.items()}
    ours = {"embedding.tokens.weight": body["wte.weight"], "embedding.positions.weight": body["wpe.weight"]}
    ours |= {f"norm.{end}": body[f"ln_f.{end}"] for end in ENDS}
    names = {
        "mixer_norm": "ln_1", "mixer.out": "attn.attention.out_proj", "feed_forward_norm": "ln_2",
        "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj",
    }  # fmt: skip
    for theirs, layer in _layers(spec):
        for end in ENDS:
            ours |= {f"{layer}.{mine}.{end}": body[f"h.{theirs}.{name}.{end}"] for mine, name in names.items()}
        parts = [body[f"h.{theirs}.attn.attention.{part}_proj.weight"] for part in "qkv"]
        ours[f"{layer}.mixer.query_key_value.weight"] = torch.cat(parts)
    return ours


def _layers(spec: ModelSpec) -> Iterator[tuple[int, str]]:
    """The number of each layer in Transformers' model, and its name in ours."""
    places = [(block, layer) for block, described in enumerate(spec.blocks) for layer in range(described.repeat)]
    for theirs, (block, layer) in enumerate(places):
        yield theirs, f"blocks.{block}.layers.{layer}"
