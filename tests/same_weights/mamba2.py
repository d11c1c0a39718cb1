"""Transformers' Mamba-2 and ours."""

import torch
import transformers
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from linnet.layers.contract import Place
from linnet.layers.mixers.mamba2 import Mamba2, Mamba2Spec
from same_weights.twins import Twins, drawn


def config_of(spec: Mamba2Spec, width: int, chunk: int) -> "transformers.Mamba2Config":
    """Transformers' description of the same, in chunks of so many tokens."""
    return transformers.Mamba2Config(
        hidden_size=width, state_size=spec.state, expand=spec.expand, conv_kernel=spec.conv, num_hidden_layers=1,
        head_dim=spec.head_dim, num_heads=spec.widths(width)[2], n_groups=spec.groups, layer_norm_epsilon=spec.eps,
        use_bias=spec.bias, use_conv_bias=spec.conv_bias, chunk_size=chunk,
        time_step_limit=(spec.step_floor, float("inf") if spec.step_ceiling is None else spec.step_ceiling),
    )  # fmt: skip


def twins(spec: Mamba2Spec, width: int, std: float = 0.3, chunk: int = 256) -> Twins[Mamba2]:
    """chunk: of theirs."""
    torch.manual_seed(0)
    theirs = drawn(Mamba2Mixer(config_of(spec, width, chunk), layer_idx=0).eval(), std)
    return Twins.of(theirs, spec.build(Place(width, 128)))
