"""Transformers' gated delta nets, Qwen3-Next's and (decays by channel) Kimi Linear's, and ours."""

from collections.abc import Mapping

import torch
import transformers
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from linnet.layers.contract import Place
from linnet.layers.mixers.gated_delta import GatedDelta, GatedDeltaSpec
from same_weights.twins import Names, Twins, drawn


def qwen(spec: GatedDeltaSpec, width: int, std: float = 0.3) -> Twins[GatedDelta]:
    """Decays by head."""
    torch.manual_seed(0)
    heads, (key_heads, key, value) = spec.heads, _widths(spec, width)
    config = transformers.Qwen3NextConfig(
        hidden_size=width, num_hidden_layers=1, layer_types=["linear_attention"], linear_conv_kernel_dim=spec.conv,
        linear_num_key_heads=key_heads, linear_num_value_heads=heads, linear_key_head_dim=key,
        linear_value_head_dim=value, rms_norm_eps=spec.eps,
    )  # fmt: skip
    theirs = drawn(Qwen3NextGatedDeltaNet(config, 0).eval(), std)
    return Twins.of(theirs, spec.build(Place(width, 128)), _from_qwen(key_heads, heads // key_heads, key, value))


def kimi(spec: GatedDeltaSpec, width: int, std: float = 0.3) -> Twins[GatedDelta]:
    """Decays by channel."""
    torch.manual_seed(0)
    _, key, _ = _widths(spec, width)
    config = transformers.KimiLinearConfig(
        hidden_size=width, num_hidden_layers=1, layer_types=["linear_attention"], linear_conv_kernel_dim=spec.conv,
        linear_head_dim=key, linear_num_heads=spec.heads, rms_norm_eps=spec.eps,
    )  # fmt: skip
    return Twins.of(drawn(KimiLinearDeltaAttention(config, 0).eval(), std), spec.build(Place(width, 128)), from_kimi)


def _widths(spec: GatedDeltaSpec, width: int) -> tuple[int, int, int]:
    key = spec.head_dim or width // spec.heads
    return spec.key_heads or spec.heads, key, spec.value_dim or key


def _from_qwen(key_heads: int, group: int, key: int, value: int) -> Names:
    """Their rows stand by key head: its query, key, values and gates; its shares and decays."""

    def names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        by_head, controls = (theirs[f"in_proj_{name}.weight"].unflatten(0, (key_heads, -1)) for name in ("qkvz", "ba"))
        parts = by_head.split([key, key, group * value, group * value], dim=1)
        return {
            "query_key_value_gate.weight": torch.cat([part.flatten(0, 1) for part in parts]),
            "share_decay.weight": torch.cat([part.flatten(0, 1) for part in controls.split(group, dim=1)]),
            "out.weight": theirs["out_proj.weight"],
            **{name: theirs[name] for name in ("conv1d.weight", "A_log", "dt_bias", "norm.weight")},
        }

    return names


def from_kimi(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours, of their weights or gradients."""
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
