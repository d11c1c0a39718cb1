"""The same weights in Transformers' DeepSeek-V2 and DeepSeek-V3 and in our latent attention give the same outputs,
gradients and decoding.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linnet.layers.contract import Place
from linnet.layers.mixers.latent_attention import LatentAttention, LatentAttentionSpec
from linnet.layers.view import View

transformers = pytest.importorskip("transformers")
from transformers.models.deepseek_v2.modeling_deepseek_v2 import (  # noqa: E402
    DeepseekV2Attention,
    DeepseekV2RotaryEmbedding,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (  # noqa: E402
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

WIDTH, HEADS, CONTENT, ROTARY, VALUE, RANK = 32, 4, 6, 4, 5, 12
SHAPE: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "qk_nope_head_dim": CONTENT, "qk_rope_head_dim": ROTARY, "v_head_dim": VALUE, "kv_lora_rank": RANK,
    "max_position_embeddings": 256, "attn_implementation": "eager",
}  # fmt: skip
WAYS = [("v2", 9, True), ("v2", None, True), ("v3", 9, True), ("v3", None, True), ("v3", 9, False)]
"""Which, the rank of the queries, whether adjacent elements are pairs."""


class Theirs(nn.Module):
    """Transformers' attention with its rotary positions and a causal mask."""

    def __init__(self, version: str, q_rank: int | None, adjacent: bool) -> None:
        super().__init__()
        if version == "v2":
            config = transformers.DeepseekV2Config(**SHAPE, q_lora_rank=q_rank)
            self.attention, self.rotary = DeepseekV2Attention(config, 0), DeepseekV2RotaryEmbedding(config)
        else:
            config = transformers.DeepseekV3Config(**SHAPE, q_lora_rank=q_rank, rope_interleave=adjacent)
            self.attention, self.rotary = DeepseekV3Attention(config, 0), DeepseekV3RotaryEmbedding(config)

    def forward(self, x_BTD: Tensor, cache: Any = None, start: int = 0) -> Tensor:
        queries, keys = x_BTD.shape[1], start + x_BTD.shape[1]
        angles = self.rotary(x_BTD, torch.arange(start, keys)[None].expand(len(x_BTD), -1))
        mask = torch.full((queries, keys), float("-inf")).triu(start + 1)[None, None]
        return self.attention(
            x_BTD, attention_mask=mask, past_key_values=cache, position_embeddings=angles
        )[0]  # fmt: skip


def ours_of(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In their heads the rotary part comes last; their keys and values are made by one map, head by head."""

    def rotary_first(weight: Tensor) -> Tensor:
        return torch.unflatten(weight, 0, (HEADS, -1)).roll(ROTARY, dims=1).flatten(0, 1)

    weights = {name.removeprefix("attention."): value for name, value in theirs.items()}
    by_head = torch.unflatten(weights["kv_b_proj.weight"], 0, (HEADS, -1)).split([CONTENT, VALUE], dim=1)
    latent, rotary = weights["kv_a_proj_with_mqa.weight"].split([RANK, ROTARY])
    ours = {
        "key_up.weight": by_head[0].flatten(0, 1),
        "value_up.weight": by_head[1].flatten(0, 1),
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


def pair(version: str, q_rank: int | None, adjacent: bool) -> tuple[Theirs, LatentAttention]:
    torch.manual_seed(0)
    theirs = Theirs(version, q_rank, adjacent)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    spec = LatentAttentionSpec(
        heads=HEADS, head_dim=CONTENT, rotary_dim=ROTARY, value_dim=VALUE, kv_rank=RANK, q_rank=q_rank,
        rotary={"pairing": "adjacent" if adjacent else "halves"},
    )  # fmt: skip
    ours = spec.build(Place(WIDTH, 128))
    ours.load_state_dict(ours_of(theirs.state_dict()))
    return theirs.eval(), ours


@pytest.mark.parametrize("length", [1, 63, 65, 130])
@pytest.mark.parametrize("way", WAYS)
def test_outputs_and_all_gradients(way: tuple[str, int | None, bool], length: int):
    theirs, ours = pair(*way)
    x_BTD, upstream = torch.randn(2, length, WIDTH), torch.randn(2, length, WIDTH)
    found = []
    for mixer in (theirs, ours):
        x = x_BTD.clone().requires_grad_()
        out = mixer(x)
        out.backward(upstream)
        found.append((out, x.grad, {name: weight.grad for name, weight in mixer.named_parameters()}))
    (expected, of_x, of_theirs), (out, of_own_x, of_ours) = found
    tolerances = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(out, expected, **tolerances)
    torch.testing.assert_close(of_own_x, of_x, **tolerances)
    torch.testing.assert_close(of_ours, ours_of(of_theirs), **tolerances)


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
def test_decoding_with_a_cache(way: tuple[str, int | None, bool]):
    """They expand what is cached for each token, we read it as it is; what is cached is of the same size."""
    theirs, ours = pair(*way)
    x_BTD, cache = torch.randn(2, 76, WIDTH), transformers.DynamicCache()
    state = ours.initial_state(2, 76, torch.device("cpu"), torch.float32)
    expected, found = [], []
    for begin, end in pairwise([0, 60, 67, *range(68, 77)]):
        expected.append(theirs(x_BTD[:, begin:end], cache, begin))
        found.append(ours(x_BTD[:, begin:end], state, View(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(found, 1), theirs(x_BTD), rtol=1e-4, atol=1e-5)
    assert state.nbytes == cache.layers[0].keys.nbytes + cache.layers[0].values.nbytes
