"""TED layers: contributions of tokens, keys, convolution, initialization."""

import pytest
import torch
import torch.nn.functional as F

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.ted import BankCache, TedSpec
from linnet.ops.decay.reference import Keys, decay_definition


@pytest.mark.parametrize("spec", [TedSpec(), TedSpec(heads=4, rate_bias=True)])
def test_contributions_match_the_sums_of_later_tokens(spec):
    torch.manual_seed(0)
    mixer, x_BTD = spec.build(Place(16, 64)).double(), torch.randn(2, 7, 16, dtype=torch.float64)
    v_BTNC, rates_BTN = mixer.contributions(x_BTD)
    assert v_BTNC.shape == (2, 7, spec.heads, 16 // spec.heads) and rates_BTN.shape == (2, 7, spec.heads)
    _, gate_weight = mixer.quantity_gate.part_weights()
    sums_BTD = decay_definition(rates_BTN, v_BTNC, 7).flatten(2)
    torch.testing.assert_close(mixer(x_BTD), mixer.out(F.silu(sums_BTD)) * (x_BTD @ gate_weight.T))


def test_keys_weight_the_past():
    spec = TedSpec(heads=2, key_width=3, conv=3)
    torch.manual_seed(0)
    mixer, x_BTD = spec.build(Place(16, 64)).double(), torch.randn(2, 7, 16, dtype=torch.float64)
    seen_BTD = x_BTD + sum(
        F.pad(x_BTD, (0, 0, back, 0))[:, :7] * mixer.conv.weight[:, 0, 2 - back] for back in range(3)
    )
    v_BTNC, rates_BTN = mixer.contributions(x_BTD)
    torch.testing.assert_close(v_BTNC.flatten(2), seen_BTD @ mixer.quantity_gate.part_weights()[0].T)
    q_BTNM, k_BTNM = (
        F.normalize((seen_BTD @ weight.T).view(2, 7, 2, 3), dim=-1) for weight in mixer.query_key.part_weights()
    )
    half = 0.5**0.5
    keys = Keys(*(F.pad(half * each, (0, 1), value=half) for each in (q_BTNM, k_BTNM)))
    sums_BTD = decay_definition(rates_BTN, v_BTNC, 7, keys).flatten(2)
    shares_BN = (1 + (q_BTNM[:, 1] * k_BTNM[:, 0]).sum(-1)) / 2
    torch.testing.assert_close((keys.queries[:, 1] * keys.keys[:, 0]).sum(-1), shares_BN)
    expected = mixer.out(F.silu(sums_BTD)) * (seen_BTD @ mixer.quantity_gate.part_weights()[1].T)
    torch.testing.assert_close(mixer(x_BTD), expected, rtol=1e-4, atol=1e-6)  # 1e-6 is added to squared lengths


def test_a_bank_has_the_chunks_that_the_sums_have():
    for spec, chunk in ((TedSpec(), 32), (TedSpec(key_width=2), 64), (TedSpec(key_width=2, chunk=3), 3)):
        state = spec.build(Place(16, 64)).initial_state(1, 9, torch.device("cpu"), torch.float32, BankCache())
        assert state.bank.nearest == chunk


def test_a_convolution_has_no_weight_decay():
    mixer = TedSpec(conv=4).build(Place(16, 64))
    assert [parameter is mixer.conv.weight for parameter in mixer.no_weight_decay()] == [True]


def test_rates_have_weight_decay_and_stay_in_float32():
    mixer = TedSpec(heads=4, rate_bias=True).build(Place(16, 64))
    assert [parameter is mixer.rate_bias for parameter in mixer.no_weight_decay()] == [True]
    x_BTD = torch.randn(2, 7, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert mixer.rates(x_BTD).dtype == torch.float32
    narrow = mixer.bfloat16()
    state = narrow.initial_state(2, 7, torch.device("cpu"), torch.bfloat16)
    assert (state.values.dtype, state.rates.dtype) == (torch.bfloat16, torch.float32)
    assert narrow.rates(x_BTD.bfloat16()).dtype == torch.float32


def test_initial_lifetimes_are_spread():
    """Over the heads from 1 to the context length, one head in the middle; logits vary by 1, without biases by 3."""
    torch.manual_seed(0)
    for heads, exponents in ((4, [0, 1 / 3, 2 / 3, 1]), (1, [0.5])):
        rates_BTN = TedSpec(heads=heads, rate_bias=True).build(Place(16, 64)).rates(torch.zeros(1, 1, 16))
        torch.testing.assert_close(rates_BTN.flatten(), 64 ** -torch.tensor(exponents), rtol=1e-4, atol=1e-6)
    for bias, std in ((True, 1.0), (False, 3.0)):
        rate_weight = TedSpec(heads=64, rate_bias=bias).build(Place(256, 64)).rate_weight
        assert rate_weight.std().item() == pytest.approx(std / 16, rel=0.02)  # of 16,384 draws


def test_rates_are_negative_logarithms_of_sigmoids():
    """The equation of the authors: `rate = -log(sigmoid(x w + b))`."""
    torch.manual_seed(0)
    mixer, x_BTD = TedSpec(heads=4, rate_bias=True).build(Place(16, 64)).double(), torch.randn(2, 5, 16).double()
    logits_BTN = x_BTD @ mixer.rate_weight.T + mixer.rate_bias
    torch.testing.assert_close(mixer.rates(x_BTD), (1 + (-logits_BTN).exp()).log())


def test_a_convolution_begins_after_padding_and_does_not_go_on_after_it():
    mixer = TedSpec(conv=3).build(Place(16, 64))
    state = mixer.initial_state(2, 64, torch.device("cpu"), torch.float32)
    assert mixer.supports(BatchLayout(0, (0, 3)), 8, state)
    assert not mixer.supports(BatchLayout(1, (0, 3)), 8, state)


def test_a_bank_has_at_least_one_token():
    assert BankCache(1).max_length == 1
    with pytest.raises(ValueError, match="length: 0: expected 1 to"):
        BankCache(0)
