import torch
from torch import nn

from linnet.layers.contract import Place
from linnet.layers.feed_forwards.rwkv4_channel import Rwkv4ChannelSpec

WIDTH, HIDDEN, LENGTH = 8, 20, 6


@torch.no_grad()
def test_it_equals_the_channel_mixing_of_the_paper():
    """The formula token by token, with the published names."""
    layer = Rwkv4ChannelSpec(hidden=HIDDEN).build(Place(WIDTH, 128)).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x_TD, before_D, outs = torch.randn(LENGTH, WIDTH).double(), torch.zeros(WIDTH).double(), []
    for x_D in x_TD:
        key_D, receptance_D = (
            mix.flatten() * x_D + (1 - mix.flatten()) * before_D
            for mix in (layer.time_mix_key, layer.time_mix_receptance)
        )
        hidden_F = (layer.key.weight @ key_D).clamp(min=0) ** 2
        outs.append((layer.receptance.weight @ receptance_D).sigmoid() * (layer.value.weight @ hidden_F))
        before_D = x_D
    torch.testing.assert_close(layer(x_TD[None])[0], torch.stack(outs))


def test_gates_start_half_open():
    layer, x_BTD = Rwkv4ChannelSpec(hidden=HIDDEN).build(Place(WIDTH, 128, 1, 3)), torch.randn(1, 5, WIDTH)
    gated_BTD = layer(x_BTD)
    nn.init.constant_(layer.time_mix_receptance, 0.0)
    torch.testing.assert_close(layer(x_BTD), gated_BTD)
    assert gated_BTD.any() and not layer.receptance.weight.any()
