"""Transformers' RWKV: time mixing, or channel mixing, and ours."""

import torch
import transformers
from torch import nn
from transformers.models.rwkv.modeling_rwkv import RwkvFeedForward, RwkvSelfAttention

from linnet.layers.contract import Place, Sublayer
from linnet.layers.feed_forwards.rwkv4_channel import Rwkv4ChannelSpec
from linnet.layers.mixers.rwkv4 import Rwkv4Spec
from same_weights.twins import Twins, drawn

BLOCKS: dict[type, type[nn.Module]] = {Rwkv4Spec: RwkvSelfAttention, Rwkv4ChannelSpec: RwkvFeedForward}


def config_of(width: int, channels: int, hidden: int, layers: int = 4) -> "transformers.RwkvConfig":
    """Of a small vocabulary."""
    sizes = {"hidden_size": width, "attention_hidden_size": channels, "intermediate_size": hidden}
    return transformers.RwkvConfig(**sizes, num_hidden_layers=layers, vocab_size=8)


def twins(spec: Rwkv4Spec | Rwkv4ChannelSpec, width: int, std: float = 0.4) -> Twins[Sublayer]:
    """Rates from slow to fast."""
    torch.manual_seed(0)
    channels = (spec.channels or width) if isinstance(spec, Rwkv4Spec) else width
    hidden = spec.hidden if isinstance(spec, Rwkv4ChannelSpec) else width
    theirs = drawn(BLOCKS[type(spec)](config_of(width, channels, hidden)), std, time_decay=2.0)
    return Twins.of(theirs, spec.build(Place(width, 128)), run=lambda x_BTD: theirs(x_BTD)[0])
