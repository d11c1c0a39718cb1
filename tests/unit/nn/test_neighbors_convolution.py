from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from linnet.nn.neighbors import CausalConvolution, convolution_cost


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [1, 4])
def test_each_channel_sums_its_last_inputs(width: int, bias: bool):
    torch.manual_seed(0)
    convolution, x_BET = CausalConvolution(3, width, bias), torch.randn(2, 3, 6)
    out_BET, _ = convolution.following(x_BET, None)
    assert out_BET.shape == x_BET.shape
    for token in range(6):
        expected_BE = torch.zeros(2, 3) if convolution.bias is None else convolution.bias.expand(2, 3)
        for age in range(min(width, token + 1)):
            expected_BE = expected_BE + convolution.weight[:, 0, width - 1 - age] * x_BET[:, :, token - age]
        torch.testing.assert_close(out_BET[:, :, token], expected_BE)


@pytest.mark.parametrize("bounds", [[0, 1, 2, 9], [0, 5, 9], list(range(10))])
def test_chunks_continue_each_other(bounds: list[int]):
    convolution, x_BET = CausalConvolution(3, 4, True), torch.randn(2, 3, 9)
    before_BEW, outs = torch.zeros(2, 3, 3), []
    for begin, end in pairwise(bounds):
        out_BET, before_BEW = convolution.following(x_BET[:, :, begin:end], before_BEW)
        assert before_BEW.shape == (2, 3, convolution.before)
        outs.append(out_BET)
    torch.testing.assert_close(torch.cat(outs, dim=2), convolution.following(x_BET, None)[0])


def test_the_cost_is_that_of_the_module():
    for bias in (True, False):
        convolution, cost = CausalConvolution(5, 3, bias), convolution_cost(5, 3, bias)
        assert cost.parameters == sum(parameter.numel() for parameter in convolution.parameters())
        assert cost.state_elements == convolution.following(torch.zeros(1, 5, 9), None)[1].numel()


def test_a_state_is_read_and_advanced():
    layer, x_BET = CausalConvolution(3, 4, bias=True), torch.randn(2, 3, 9)
    state = SimpleNamespace(inputs=torch.zeros(2, 3, 3, dtype=torch.float64))
    parts = [layer.advancing(x_BET[:, :, :5], state), layer.advancing(x_BET[:, :, 5:], state)]
    torch.testing.assert_close(torch.cat(parts, dim=2), layer.advancing(x_BET, None))
    assert state.inputs.dtype == torch.float64 and not state.inputs.requires_grad
    assert state.inputs.equal(x_BET[:, :, 6:].double())
