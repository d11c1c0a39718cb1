"""Transformers' latent attention of DeepSeek-V2 and DeepSeek-V3, and ours."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention, DeepseekV2RotaryEmbedding
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from linnet.layers.contract import Place
from linnet.layers.mixers.latent_attention import LatentAttention, LatentAttentionSpec
from same_weights.twins import Names, Twins, drawn

VERSIONS = {
    "v2": (transformers.DeepseekV2Config, DeepseekV2Attention, DeepseekV2RotaryEmbedding),
    "v3": (transformers.DeepseekV3Config, DeepseekV3Attention, DeepseekV3RotaryEmbedding),
}


class Theirs(nn.Module):
    """Transformers' attention with its rotary positions; `kernel`: PyTorch's fused one, else a causal mask."""

    def __init__(self, version: str, config: Any, kernel: bool) -> None:
        super().__init__()
        _, attention, rotary = VERSIONS[version]
        self.attention, self.rotary, self.kernel = attention(config, 0), rotary(config), kernel

    def forward(self, x_BTD: Tensor, cache: Any = None, start: int = 0) -> Tensor:
        """`[B, T, D] -> [B, T, D]`, a chunk that begins at a position."""
        queries, keys = x_BTD.shape[1], start + x_BTD.shape[1]
        angles = self.rotary(x_BTD, torch.arange(start, keys)[None].expand(len(x_BTD), -1))
        mask = None if self.kernel else torch.full((queries, keys), float("-inf")).triu(start + 1)[None, None]
        return self.attention(
            x_BTD, attention_mask=mask, past_key_values=cache, position_embeddings=angles
        )[0]  # fmt: skip


def twins(
    spec: LatentAttentionSpec, width: int, version: str, std: float = 0.3, kernel: bool = False
) -> Twins[LatentAttention]:
    """kernel: theirs is PyTorch's fused one."""
    torch.manual_seed(0)
    content = spec.head_dim or width // spec.heads
    shape: dict[str, Any] = {
        "hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.heads, "qk_nope_head_dim": content, "qk_rope_head_dim": spec.rotary_dim,
        "v_head_dim": spec.value_dim or content, "kv_lora_rank": spec.kv_rank, "q_lora_rank": spec.q_rank,
        "max_position_embeddings": 256, "attn_implementation": "sdpa" if kernel else "eager",
    }  # fmt: skip
    if version == "v3":
        shape["rope_interleave"] = spec.rotary.pairing == "adjacent"
    theirs = drawn(Theirs(version, VERSIONS[version][0](**shape), kernel).eval(), std)
    names = _names(spec.heads, content, spec.rotary_dim, spec.kv_rank)
    return Twins.of(theirs, spec.build(Place(width, 128)), names)


def _names(heads: int, content: int, rotary_dim: int, rank: int) -> Names:
    """In their heads the rotary part comes last; their keys and values are made by one map, head by head."""

    def rotary_first(weight: Tensor) -> Tensor:
        return torch.unflatten(weight, 0, (heads, -1)).roll(rotary_dim, dims=1).flatten(0, 1)

    def names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weights = {name.removeprefix("attention."): value for name, value in theirs.items()}
        by_head = torch.unflatten(weights["kv_b_proj.weight"], 0, (heads, -1))
        latent, rotary = weights["kv_a_proj_with_mqa.weight"].split([rank, rotary_dim])
        ours = {
            "key_up.weight": by_head[:, :content].flatten(0, 1),
            "value_up.weight": by_head[:, content:].flatten(0, 1),
            "latent_norm.weight": weights["kv_a_layernorm.weight"],
            "out.weight": weights["o_proj.weight"],
        }
        if "q_proj.weight" in weights:
            return ours | {"down.weight": torch.cat([rotary_first(weights["q_proj.weight"]), rotary, latent])}
        return ours | {
            "down.weight": torch.cat([weights["q_a_proj.weight"], rotary, latent]),
            "query_up.weight": rotary_first(weights["q_b_proj.weight"]),
            "query_norm.weight": weights["q_a_layernorm.weight"],
        }

    return names
