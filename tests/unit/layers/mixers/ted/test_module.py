"""What tokens contribute, against what the layer makes of it."""

import pytest
import torch
import torch.nn.functional as F

from linnet.layers.contract import Place
from linnet.layers.mixers.ted import TedSpec
from linnet.ops.decay.reference import decay_definition


@pytest.mark.parametrize("spec", [TedSpec(), TedSpec(heads=4, rate_bias=True)])
def test_contributions_are_what_later_tokens_read(spec):
    torch.manual_seed(0)
    mixer, x_BTD = spec.build(Place(16, 64)).double(), torch.randn(2, 7, 16, dtype=torch.float64)
    v_BTNC, rates_BTN = mixer.contributions(x_BTD)
    assert v_BTNC.shape == (2, 7, spec.heads, 16 // spec.heads) and rates_BTN.shape == (2, 7, spec.heads)
    _, gate_weight = mixer.quantity_gate.part_weights()
    sums_BTD = decay_definition(rates_BTN, v_BTNC, 7).flatten(2)
    torch.testing.assert_close(mixer(x_BTD), mixer.out(F.silu(sums_BTD)) * (x_BTD @ gate_weight.T))


def test_rates_decay_with_the_weights_and_stay_wide():
    mixer = TedSpec(heads=4, rate_bias=True).build(Place(16, 64))
    assert [parameter is mixer.rate_bias for parameter in mixer.undecayed()] == [True]
    x_BTD = torch.randn(2, 7, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert mixer.rates(x_BTD).dtype == torch.float32
    narrow = mixer.bfloat16()
    state = narrow.initial_state(2, 7, torch.device("cpu"), torch.bfloat16)
    assert (state.values.dtype, state.rates.dtype) == (torch.bfloat16, torch.float32)
    assert narrow.rates(x_BTD.bfloat16()).dtype == torch.float32


def test_first_lifetimes_are_spread():
    torch.manual_seed(0)
    rates_BTN = TedSpec(heads=4, rate_bias=True).build(Place(16, 64)).rates(torch.zeros(1, 1, 16))
    torch.testing.assert_close(rates_BTN.flatten(), 64 ** -torch.tensor([0, 1 / 3, 2 / 3, 1]), rtol=1e-4, atol=1e-6)
    assert 0.5 < TedSpec().build(Place(256, 64)).rates(torch.randn(1, 500, 256)).log().std() < 5
