from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from linnet.nn.neighbors import CausalConvolution, convolution_cost, token_mixes, token_shift_cost


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
def test_chunks_of_a_convolution_continue_each_other(bounds: list[int]):
    convolution, x_BET = CausalConvolution(3, 4, True), torch.randn(2, 3, 9)
    before_BEW, outs = torch.zeros(2, 3, 3), []
    for begin, end in pairwise(bounds):
        out_BET, before_BEW = convolution.following(x_BET[:, :, begin:end], before_BEW)
        assert before_BEW.shape == (2, 3, convolution.before)
        outs.append(out_BET)
    torch.testing.assert_close(torch.cat(outs, dim=2), convolution.following(x_BET, None)[0])


def test_the_cost_of_a_convolution_is_that_of_the_module():
    for bias in (True, False):
        convolution, cost = CausalConvolution(5, 3, bias), convolution_cost(5, 3, bias)
        assert cost.parameters == sum(parameter.numel() for parameter in convolution.parameters())
        assert cost.state_elements == convolution.following(torch.zeros(1, 5, 9), None)[1].numel()


def test_a_convolution_reads_and_advances_its_state():
    layer, x_BET = CausalConvolution(3, 4, bias=True), torch.randn(2, 3, 9)
    state = SimpleNamespace(inputs=torch.zeros(2, 3, 3, dtype=torch.float64))
    parts = [layer.advancing(x_BET[:, :, :5], state), layer.advancing(x_BET[:, :, 5:], state)]
    torch.testing.assert_close(torch.cat(parts, dim=2), layer.advancing(x_BET, None))
    assert state.inputs.dtype == torch.float64 and not state.inputs.requires_grad
    assert state.inputs.equal(x_BET[:, :, 6:].double())


def by_definition(x_BTD: Tensor, shares: list[Tensor]) -> list[Tensor]:
    before_BTD = nn.functional.pad(x_BTD, (0, 0, 1, 0))[:, :-1]
    return [x_BTD * (1 - share_D) + before_BTD * share_D for share_D in shares]


@pytest.mark.parametrize("length", [1, 2, 7])
def test_each_token_is_mixed_with_the_previous_one_with_all_gradients(length: int):
    torch.manual_seed(length)
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, length, 3), (3,), (3,))]
    x_BTD, *shares = inputs
    results = []
    for mixes in (token_mixes(x_BTD, shares, None), by_definition(x_BTD, shares)):
        of_all = mixes[0].square().sum() + mixes[1].sin().sum()
        results.append((*mixes, *torch.autograd.grad(of_all, inputs)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_gradients_of_a_token_shift_are_those_of_finite_differences():
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 4, 3), (2, 3), (3,), (3,))]
    assert torch.autograd.gradcheck(lambda x, last, *shares: token_mixes(x, shares, SimpleNamespace(last=last)), inputs)


def test_a_share_of_0_gives_the_token_and_1_the_previous_one():
    x_BTD = torch.randn(2, 5, 3)
    same_BTD, before_BTD = token_mixes(x_BTD, [torch.zeros(3), torch.ones(3)], None)
    torch.testing.assert_close(same_BTD, x_BTD)
    torch.testing.assert_close(before_BTD[:, 1:], x_BTD[:, :-1])
    assert not before_BTD[:, 0].any()


@pytest.mark.parametrize("bounds", [[0, 1, 2, 9], [0, 5, 9], list(range(10))])
def test_chunks_of_a_token_shift_continue_each_other(bounds: list[int]):
    x_BTD, share_D = torch.randn(2, 9, 3), torch.rand(3)
    state = SimpleNamespace(last=torch.zeros(2, 3, dtype=torch.float64))
    parts = [token_mixes(x_BTD[:, a:b], [share_D], state)[0] for a, b in pairwise(bounds)]
    torch.testing.assert_close(torch.cat(parts, dim=1), token_mixes(x_BTD, [share_D], None)[0])
    assert state.last.equal(x_BTD[:, -1].double()) and state.last.dtype == torch.float64


def test_the_state_of_a_token_shift_holds_one_token_and_no_graph():
    x_BTD, state = torch.randn(2, 9, 3, requires_grad=True), SimpleNamespace(last=torch.zeros(2, 3))
    token_mixes(x_BTD, [torch.rand(3)], state)
    assert not state.last.requires_grad and state.last.untyped_storage().nbytes() == state.last.nbytes


def test_the_cost_of_a_token_shift_is_that_of_the_kept_tensors():
    x_BTD, shares = torch.randn(1, 8, 5), [torch.rand(5, requires_grad=True) for _ in range(3)]
    state = SimpleNamespace(last=torch.zeros(1, 5))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for mix_BTD in token_mixes(x_BTD, shares, state):
            nn.functional.linear(mix_BTD, torch.ones(2, 5, requires_grad=True))
    cost = token_shift_cost(5, 3)
    assert (cost.parameters, cost.state_elements) == (15, state.last.numel())
    assert sum(kept.values()) == 8 * cost.activations_per_token + 5 + 3 * (5 + 2 * 5)
