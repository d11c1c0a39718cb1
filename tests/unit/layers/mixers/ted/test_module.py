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
