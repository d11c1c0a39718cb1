"""Visibility of tokens with prefixes, for every kind that supports them; other kinds refuse them."""

import itertools
from dataclasses import replace

import pytest
import torch
from examples import PLACE, inputs, padded_view
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Mixer, Sublayer, SublayerSpec
from linnet.layers.passes import run
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from on_device import DEVICE

LENGTH = 9


@pytest.fixture
def seeing(spec: SublayerSpec, sublayer: Sublayer) -> Sublayer:
    if not sublayer.traits.prefix:
        pytest.skip("the kind supports no prefixes")
    return sublayer


def test_traits_and_spec_agree_on_prefixes(spec: SublayerSpec, sublayer: Sublayer):
    assert spec.supports_prefix == sublayer.traits.prefix


def test_tokens_of_a_prefix_see_all_of_it_and_later_ones_the_past(seeing: Sublayer):
    for prefix, padding in itertools.product((0, 1, 4, LENGTH), (0, 2)):
        layout = BatchLayout(0, (padding,) if padding else None, prefixes=(min(prefix, LENGTH - padding),))
        ends = [max(place + 1, layout.prefixes[0] + padding) for place in range(LENGTH)]
        for place in range(padding, LENGTH):
            x_BTD = inputs(1, LENGTH).requires_grad_()
            (gradient,) = torch.autograd.grad(run(seeing, x_BTD, None, layout)[0, place].square().sum(), x_BTD)
            seen = (gradient[0].abs().sum(1) > 0).tolist()
            expected = [padding <= other < ends[place] for other in range(LENGTH)]
            assert seen == expected, (prefix, padding, place)


@torch.no_grad()
@pytest.mark.parametrize("prefixes", [(4, 2, 0), (LENGTH, LENGTH - 1, LENGTH - 3)])
def test_rows_with_prefixes_equal_separate_rows_and_streams_continue_after_them(seeing: Sublayer, prefixes):
    """With any padding; the prefix is in the first chunk."""
    x_BTD, padding = inputs(3, LENGTH), (0, 1, 3)
    together = run(seeing, x_BTD, None, BatchLayout(0, padding, prefixes=prefixes))
    state = seeing.initial_state(3, LENGTH, DEVICE, torch.float64)
    cut = max(prefix + pad for prefix, pad in zip(prefixes, padding, strict=True))
    first = replace(padded_view(0, cut, padding), prefixes=prefixes)
    parts = [run(seeing, x_BTD[:, :cut], state, first)]
    for place in range(cut, LENGTH):
        parts.append(run(seeing, x_BTD[:, place : place + 1], state, padded_view(place, place + 1, padding)))
    for row, (prefix, pad) in enumerate(zip(prefixes, padding, strict=True)):
        alone = run(seeing, x_BTD[row : row + 1, pad:], None, BatchLayout(prefixes=(prefix,)))
        torch.testing.assert_close(together[row : row + 1, pad:], alone)
        torch.testing.assert_close(torch.cat(parts, dim=1)[row : row + 1, pad:], alone)


@pytest.mark.parametrize("prefix", [5, 65])
def test_the_fast_form_with_a_prefix_equals_the_reference_with_all_gradients(
    spec: SublayerSpec, seeing: Sublayer, prefix: int
):
    slow = spec.build(PLACE).double().to(DEVICE)
    slow.load_state_dict(seeing.state_dict())
    for name, reference in seeing.references.items():
        setattr(slow, name, reference)
    x_BTD, upstream = inputs(2, 65), inputs(2, 65)
    found: list[list[Tensor]] = []
    for each in (seeing, slow):
        own = x_BTD.clone().requires_grad_()
        out = each(own, None, BatchLayout(prefixes=(prefix, prefix)))
        found.append([out, *torch.autograd.grad(out, [own, *each.parameters()], upstream)])
    torch.testing.assert_close(*found)


def test_flops_of_whole_rows_are_predicted(spec: SublayerSpec, seeing: Sublayer):
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        seeing(inputs(1, 70), None, BatchLayout(prefixes=(70,)))
    assert spec.cost(replace(PLACE, whole=True)).flops(70) == counter.get_total_flops()


def test_a_model_with_a_layer_that_only_sees_earlier_tokens_refuses_prefixes(spec: SublayerSpec, sublayer: Sublayer):
    if not isinstance(sublayer, Mixer) or sublayer.traits.prefix:
        pytest.skip("the sublayer supports prefixes, or is not a mixer")
    plain = {"vocab_size": 5, "d_model": 16, "context_length": 32, "blocks": [{"mixer": spec}]}
    decoder = Decoder(ModelSpec.parse(plain, "test")).to(DEVICE)
    with pytest.raises(ValueError, match=f"prefixes: layers of {spec.kind} only see earlier tokens"):
        decoder(torch.zeros(1, 4, dtype=torch.int64, device=DEVICE), prefixes=[2])
    with pytest.raises(ValueError, match=rf"blocks\[0\].mixer: {spec.kind}: only sees earlier tokens"):
        ModelSpec.parse({**plain, "prefix": True}, "test")
