"""The same weights in attentions of Transformers (Qwen3-Next, gpt-oss) and in ours give the same outputs, gradients."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.attention import Attention, AttentionSpec

transformers = pytest.importorskip("transformers")
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding  # noqa: E402
from transformers.models.qwen3_next.modeling_qwen3_next import (  # noqa: E402
    Qwen3NextAttention,
    Qwen3NextRotaryEmbedding,
)

WIDTH, HEADS, KV_HEADS, HEAD = 32, 4, 2, 8
EPS = 1e-5


class Theirs(nn.Module):
    """An attention of Transformers with its rotary positions and a causal mask, of a window if there is one."""

    def __init__(self, attention: nn.Module, rotary: nn.Module, window: int | None = None) -> None:
        super().__init__()
        self.attention, self.rotary, self.window = attention, rotary, window

    def forward(self, x_BTD: Tensor, cache: object = None, start: int = 0) -> Tensor:
        queries, keys = x_BTD.shape[1], start + x_BTD.shape[1]
        angles = self.rotary(x_BTD, torch.arange(start, keys)[None].expand(len(x_BTD), -1))
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(start + 1)
        if self.window is not None:
            hidden |= torch.ones(queries, keys, dtype=torch.bool).tril(start - self.window)
        mask = torch.zeros(queries, keys).masked_fill(hidden, float("-inf"))[None, None]
        return self.attention(x_BTD, angles, mask, past_key_values=cache)[0]


def from_qwen(theirs: dict[str, Tensor], gradients: bool = False) -> dict[str, Tensor]:
    """Their rows stand by head: its query, its gates. Their gains are what is added to 1."""
    weights = {name.removeprefix("attention."): value for name, value in theirs.items()}
    query, gate = torch.unflatten(weights["q_proj.weight"], 0, (HEADS, 2, HEAD)).unbind(1)
    one = 0 if gradients else 1
    return {
        "query_key_value.weight": torch.cat([query.flatten(0, 1), weights["k_proj.weight"], weights["v_proj.weight"]]),
        "gate.to_gates.weight": gate.flatten(0, 1),
        "query_key_norm.query.weight": one + weights["q_norm.weight"],
        "query_key_norm.key.weight": one + weights["k_norm.weight"],
        "out.weight": weights["o_proj.weight"],
    }


def qwen() -> tuple[Theirs, Attention]:
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        hidden_size=WIDTH, num_hidden_layers=1, layer_types=["full_attention"], num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD, rms_norm_eps=EPS, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    theirs = Theirs(Qwen3NextAttention(config, 0), Qwen3NextRotaryEmbedding(config))
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    spec = AttentionSpec(
        heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD, gate="channel", query_key_norm={"eps": EPS},
        rotary={"fraction": 0.5},
    )  # fmt: skip
    ours = spec.build(Place(WIDTH, 128))
    ours.load_state_dict(from_qwen(theirs.state_dict()))
    return theirs.eval(), ours


TOLERANCES = {"rtol": 1e-4, "atol": 1e-4}


def results(mixer: nn.Module, x_BTD: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The output, the gradient of the input, those of the parameters."""
    x = x_BTD.clone().requires_grad_()
    out = mixer(x)
    out.backward(upstream)
    return out, x.grad, {name: weight.grad for name, weight in mixer.named_parameters()}


@pytest.mark.parametrize("length", [1, 63, 65, 130])
def test_outputs_and_all_gradients_of_gated_attention(length: int):
    theirs, ours = qwen()
    x_BTD, upstream = torch.randn(2, length, WIDTH), torch.randn(2, length, WIDTH)
    expected, found = (results(mixer, x_BTD, upstream) for mixer in (theirs, ours))
    torch.testing.assert_close(found[:2], expected[:2], **TOLERANCES)
    torch.testing.assert_close(found[2], from_qwen(expected[2], gradients=True), **TOLERANCES)


def assert_decodes_alike(theirs: Theirs, ours: Attention) -> None:
    x_BTD, cache = torch.randn(2, 76, WIDTH), transformers.DynamicCache()
    state = ours.initial_state(2, 76, torch.device("cpu"), torch.float32)
    expected, found = [], []
    for begin, end in pairwise([0, 67, *range(68, 77)]):
        expected.append(theirs(x_BTD[:, begin:end], cache, begin))
        found.append(ours(x_BTD[:, begin:end], state, BatchLayout(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), **TOLERANCES)
    torch.testing.assert_close(torch.cat(found, 1), theirs(x_BTD), **TOLERANCES)


@torch.no_grad()
def test_decoding_of_gated_attention_with_a_cache():
    assert_decodes_alike(*qwen())


WINDOW = 20


def from_gpt_oss(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    weights = {name.removeprefix("attention."): value for name, value in theirs.items()}
    joint = {part: torch.cat([weights[f"{x}_proj.{part}"] for x in "qkv"]) for part in ("weight", "bias")}
    return {
        "sinks_N": weights["sinks"],
        **{f"query_key_value.{part}": value for part, value in joint.items()},
        **{f"out.{part}": weights[f"o_proj.{part}"] for part in ("weight", "bias")},
    }


def gpt_oss(window: int | None) -> tuple[Theirs, Attention]:
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        hidden_size=WIDTH, num_hidden_layers=1, layer_types=["sliding_attention" if window else "full_attention"],
        sliding_window=window, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD,
        attn_implementation="eager", rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    theirs = Theirs(GptOssAttention(config, 0), GptOssRotaryEmbedding(config), window)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    nn.init.normal_(theirs.attention.sinks)
    spec = AttentionSpec(heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD, sinks=True, bias=True, window=window)
    ours = spec.build(Place(WIDTH, 128))
    ours.load_state_dict(from_gpt_oss(theirs.state_dict()))
    return theirs.eval(), ours


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("length", [1, 63, 65, 130])
def test_outputs_and_all_gradients_of_attention_with_sinks(length: int, window: int | None):
    theirs, ours = gpt_oss(window)
    x_BTD, upstream = torch.randn(2, length, WIDTH), torch.randn(2, length, WIDTH)
    expected, found = (results(mixer, x_BTD, upstream) for mixer in (theirs, ours))
    torch.testing.assert_close(found[:2], expected[:2], **TOLERANCES)
    torch.testing.assert_close(found[2], from_gpt_oss(expected[2]), **TOLERANCES)


@torch.no_grad()
@pytest.mark.parametrize("window", [None, WINDOW])
def test_decoding_of_attention_with_sinks_and_a_cache(window: int | None):
    assert_decodes_alike(*gpt_oss(window))
