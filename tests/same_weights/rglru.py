"""Transformers' RecurrentGemma and ours."""

import torch
import transformers
from torch import Tensor, nn
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

from linnet.layers.contract import Place
from linnet.layers.mixers.rglru import Rglru, RglruSpec
from same_weights.twins import Twins


def config_of(spec: RglruSpec, width: int) -> "transformers.RecurrentGemmaConfig":
    """Transformers' description of the same."""
    return transformers.RecurrentGemmaConfig(
        hidden_size=width, lru_width=spec.channels or width, num_attention_heads=spec.heads, conv1d_width=spec.conv,
        num_hidden_layers=1, vocab_size=8,
    )  # fmt: skip


def drawn(module: nn.Module, std: float) -> nn.Module:
    """Decays from almost 1 to almost 0."""
    torch.manual_seed(0)
    for name, parameter in sorted(module.named_parameters()):
        nn.init.normal_(parameter, std=3.0 if name.endswith("recurrent_param") else std)
    return module


def run_theirs(block: nn.Module, x_BTD: Tensor, start: int = 0, use_cache: bool = False) -> Tensor:
    """A chunk that begins at a position."""
    positions_BT = torch.arange(start, start + x_BTD.shape[1]).expand(x_BTD.shape[:2])
    out_BTD: Tensor = block(x_BTD, positions_BT, None, use_cache=use_cache)[0]
    return out_BTD


def twins(spec: RglruSpec, width: int, std: float = 0.4) -> Twins[Rglru]:
    """As described."""
    theirs = drawn(RecurrentGemmaRecurrentBlock(config_of(spec, width), layer_idx=0).eval(), std)
    return Twins.of(theirs, spec.build(Place(width, 128)), run=lambda x_BTD: run_theirs(theirs, x_BTD))
