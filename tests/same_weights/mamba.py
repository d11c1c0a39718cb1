"""Transformers' Mamba and ours."""

import torch
import transformers
from transformers.models.mamba.modeling_mamba import MambaMixer

from linnet.layers.contract import Place
from linnet.layers.mixers.mamba import Mamba, MambaSpec
from same_weights.twins import Twins, drawn


def config_of(spec: MambaSpec, width: int) -> "transformers.MambaConfig":
    """Transformers' description of the same."""
    return transformers.MambaConfig(
        hidden_size=width, state_size=spec.state, expand=spec.expand, conv_kernel=spec.conv, num_hidden_layers=1,
        time_step_rank=spec.widths(width)[1], use_bias=spec.bias, use_conv_bias=spec.conv_bias,
    )  # fmt: skip


def twins(spec: MambaSpec, width: int, std: float = 0.3) -> Twins[Mamba]:
    """As described."""
    torch.manual_seed(0)
    theirs = drawn(MambaMixer(config_of(spec, width), layer_idx=0).eval(), std)
    return Twins.of(theirs, spec.build(Place(width, 128)))
