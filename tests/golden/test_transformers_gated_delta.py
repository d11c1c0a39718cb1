"""The same weights in Transformers' gated delta nets (Qwen3-Next, Kimi Linear) and in ours give the same outputs,
gradients and decoding.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from linnet.layers.contract import Place
from linnet.layers.mixers.gated_delta import GatedDelta, GatedDeltaSpec
from linnet.layers.view import View

transformers = pytest.importorskip("transformers")
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention  # noqa: E402
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet  # noqa: E402

WIDTH = 32
KEY_HEADS, HEADS, KEY, VALUE = 2, 6, 8, 5

Names = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


def from_qwen(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their rows stand by key head: its query, key, values and gates; its shares and decays."""
    group = HEADS // KEY_HEADS
    by_head, controls = (theirs[f"in_proj_{name}.weight"].unflatten(0, (KEY_HEADS, -1)) for name in ("qkvz", "ba"))
    parts = by_head.split([KEY, KEY, group * VALUE, group * VALUE], dim=1)
    return {
        "query_key_value_gate.weight": torch.cat([part.flatten(0, 1) for part in parts]),
        "share_decay.weight": torch.cat([part.flatten(0, 1) for part in controls.split(group, dim=1)]),
        "out.weight": theirs["out_proj.weight"],
        **{name: theirs[name] for name in ("conv1d.weight", "A_log", "dt_bias", "norm.weight")},
    }


def from_kimi(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    maps = [theirs[f"{name}_proj.weight"] for name in ("q", "k", "v", "g_a")]
    return {
        "query_key_value_gate.weight": torch.cat(maps),
        "share_decay.weight": torch.cat([theirs["b_proj.weight"], theirs["forget_gate.f_a_proj.weight"]]),
        "channel_decay.weight": theirs["forget_gate.f_b_proj.weight"],
        "A_log": theirs["forget_gate.A_log"].flatten(),
        "dt_bias": theirs["forget_gate.dt_bias"],
        "gate_out.weight": theirs["g_b_proj.weight"],
        "norm.weight": theirs["o_norm.weight"],
        "out.weight": theirs["o_proj.weight"],
        "conv1d.weight": theirs["conv1d.weight"],
    }


def qwen() -> tuple[nn.Module, GatedDeltaSpec, Names]:
    config = transformers.Qwen3NextConfig(
        hidden_size=WIDTH, num_hidden_layers=1, layer_types=["linear_attention"], linear_conv_kernel_dim=3,
        linear_num_key_heads=KEY_HEADS, linear_num_value_heads=HEADS, linear_key_head_dim=KEY,
        linear_value_head_dim=VALUE, rms_norm_eps=1e-3,
    )  # fmt: skip
    spec = GatedDeltaSpec(heads=HEADS, key_heads=KEY_HEADS, head_dim=KEY, value_dim=VALUE, conv=3, eps=1e-3)
    return Qwen3NextGatedDeltaNet(config, 0), spec, from_qwen


def kimi() -> tuple[nn.Module, GatedDeltaSpec, Names]:
    config = transformers.KimiLinearConfig(
        hidden_size=WIDTH, num_hidden_layers=1, layer_types=["linear_attention"], linear_conv_kernel_dim=4,
        linear_head_dim=KEY, linear_num_heads=3, rms_norm_eps=1e-5,
    )  # fmt: skip
    spec = GatedDeltaSpec(heads=3, head_dim=KEY, decay="channel", gate="sigmoid", gate_rank=KEY, eps=1e-5)
    return KimiLinearDeltaAttention(config, 0), spec, from_kimi


def pair(which: Callable[[], tuple[nn.Module, GatedDeltaSpec, Names]]) -> tuple[nn.Module, GatedDelta, Names]:
    """Transformers' mixer and ours, with weights alike away from where they start."""
    torch.manual_seed(0)
    theirs, spec, names = which()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = spec.build(Place(WIDTH, 128))
    ours.load_state_dict(names(theirs.state_dict()))
    return theirs.eval(), ours, names


@pytest.mark.parametrize("length", [1, 3, 63, 64, 65, 130])
@pytest.mark.parametrize("which", [qwen, kimi])
def test_outputs_and_all_gradients(which, length: int):
    theirs, ours, names = pair(which)
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
    torch.testing.assert_close(of_ours, names(of_theirs), **tolerances)


@torch.no_grad()
@pytest.mark.parametrize("which", [qwen, kimi])
def test_decoding_with_a_cache(which):
    theirs, ours, _ = pair(which)
    x_BTD = torch.randn(2, 76, WIDTH)
    cache = transformers.DynamicCache(
        config=transformers.Qwen3NextConfig(num_hidden_layers=1, layer_types=["linear_attention"])
    )
    state = ours.initial_state(2, 76, torch.device("cpu"), torch.float32)
    expected, found = ([], [])
    for begin, end in pairwise([0, 67, *range(68, 77)]):
        expected.append(theirs(x_BTD[:, begin:end], cache_params=cache))
        found.append(ours(x_BTD[:, begin:end], state, View(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(found, 1), theirs(x_BTD), rtol=1e-4, atol=1e-5)
