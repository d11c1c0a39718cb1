"""Cross-attention: the fast form, gradients, and the memory that is read."""

import pytest
import torch

from linnet.layers.batch_layout import BatchLayout, Memory
from linnet.layers.contract import Place
from linnet.layers.cross_attention import CrossAttention, CrossAttentionSpec

PLACE = Place(16, 128, memory_width=12)
EXAMPLES = CrossAttentionSpec.examples()


@pytest.fixture(params=EXAMPLES, ids=range(len(EXAMPLES)))
def layer(request: pytest.FixtureRequest) -> CrossAttention:
    torch.manual_seed(0)
    built = request.param.build(PLACE).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return built


def memory(rows: int, length: int) -> Memory:
    real_BS = torch.arange(length) >= torch.tensor([0, length // 2])[:rows, None]
    return Memory(torch.randn(rows, length, 12, dtype=torch.float64, requires_grad=True), real_BS)


@pytest.mark.parametrize("length", [1, 63, 65])
def test_fast_form_equals_reference_form_with_all_gradients(layer: CrossAttention, length: int):
    given, x_BTD = memory(2, length + 1), torch.randn(2, length, 16, dtype=torch.float64, requires_grad=True)
    tensors = [x_BTD, given.hidden_BSE, *layer.parameters()]
    found = []
    for form in (layer.attend, layer.references["attend"]):
        layer.attend = form
        out = layer(x_BTD, None, BatchLayout(memory=given))
        found.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
    torch.testing.assert_close(*found)


def test_padding_of_the_memory_is_not_seen(layer: CrossAttention):
    given, x_BTD = memory(2, 6), torch.randn(2, 4, 16, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(layer(x_BTD, None, BatchLayout(memory=given)).square().sum(), given.hidden_BSE)
    assert torch.equal(gradient.abs().sum(-1) > 0, given.real_BS)


def test_gradients_by_finite_differences(layer: CrossAttention):
    given, x_BTD = memory(2, 3), torch.randn(2, 2, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, hidden: layer(x, None, BatchLayout(memory=Memory(hidden, given.real_BS))), (x_BTD, given.hidden_BSE)
    )


@torch.no_grad()
def test_a_new_memory_replaces_the_previous_one(layer: CrossAttention):
    x_BTD, first, second = torch.randn(2, 4, 16, dtype=torch.float64), memory(2, 5), memory(2, 7)
    state = layer.initial_state(2, 4, torch.device("cpu"), torch.float64)
    layer(x_BTD, state, BatchLayout(memory=first))
    expected = layer(x_BTD, None, BatchLayout(memory=second))
    torch.testing.assert_close(layer(x_BTD, state, BatchLayout(memory=second)), expected)
    torch.testing.assert_close(layer(x_BTD, state, BatchLayout()), expected)


def test_heads_must_fit(layer: CrossAttention):
    with pytest.raises(ValueError, match="kv_heads: 3: must divide heads, which is 4"):
        CrossAttentionSpec(heads=4, kv_heads=3).check(16)
