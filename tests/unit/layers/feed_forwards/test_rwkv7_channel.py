import pytest
import torch
from torch import nn

from linnet.layers.contract import Place
from linnet.layers.feed_forwards.rwkv7_channel import Rwkv7ChannelSpec

WIDTH, HIDDEN, LENGTH = 8, 20, 6


def test_it_equals_the_reference_recurrence_with_all_gradients():
    """`k = x + (x_before - x) x_k` and a squared ReLU, token by token, in float64."""
    torch.manual_seed(0)
    layer = Rwkv7ChannelSpec(hidden=HIDDEN).build(Place(WIDTH, 128)).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x_TD = torch.randn(LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    before_D, outs = torch.zeros(WIDTH, dtype=torch.float64), []
    for x_D in x_TD:
        mixed_D = x_D + (before_D - x_D) * layer.x_k.flatten()
        outs.append(layer.value.weight @ torch.relu(layer.key.weight @ mixed_D) ** 2)
        before_D = x_D
    variables, upstream_TD = [x_TD, *layer.parameters()], torch.randn(LENGTH, WIDTH).double()
    expected_TD, found_TD = torch.stack(outs), layer(x_TD[None])[0]
    torch.testing.assert_close(found_TD, expected_TD)
    for found, expected in zip(
        torch.autograd.grad(found_TD, variables, upstream_TD),
        torch.autograd.grad(expected_TD, variables, upstream_TD),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("index", [0, 1, 3])
def test_initial_shares_are_the_published_ones(index: int):
    """The weight of the previous token decreases with the channel and the layer."""
    layer = Rwkv7ChannelSpec(hidden=HIDDEN).build(Place(WIDTH, 128, index, 4))
    for channel, share in enumerate(layer.x_k.flatten().tolist()):
        assert share == pytest.approx(1 - (channel / WIDTH) ** ((1 - index / 4) ** 4), abs=1e-6)
