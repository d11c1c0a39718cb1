"""The lifetimes of a text's tokens: the statistics, and a decoder that really drops what is below the threshold."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import small_decoder

from linnet.core.errors import UserError
from linnet.inference.cache_policy import cache_policy_state
from linnet.inspection.lifetimes.contributions import ted_layers, text_contributions
from linnet.inspection.lifetimes.text import LayerLifetimes, quantile, text_lifetimes
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.ted import EvictionCache, TedSpec
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops.decay.eviction import half_lives, lifetimes

TED = TedSpec(heads=2, rate_bias=True)


def _windows(count: int, tokens: int) -> torch.Tensor:
    return torch.randint(1, 23, (count, tokens), generator=torch.Generator().manual_seed(3))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0.01, 1))
def test_a_quantile_is_a_value_that_the_share_does_not_exceed(values, share):
    found = quantile(torch.tensor(values, dtype=torch.float64), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values)


def test_figures_of_a_layer():
    lives = torch.tensor([[0.0, 2.0, 2.0, 5.0, math.inf], [1.0, 7.0, 0.0, 3.0, 4.0]], dtype=torch.float64)
    layer = LayerLifetimes(3, lives, lives / 10)
    held = [sum(a <= t < a + life for a, life in enumerate(row)) for row in lives.tolist() for t in range(5)]
    assert layer.figures() == {
        "layer": 3,
        "median": 2,
        "percentile_90": 7,
        "half_life_median": 0.2,
        "share_never_kept": 0.2,
        "share_outliving_window": 0.2,
        "average_context": sum(held) / 10,
    }
    endless = LayerLifetimes(0, torch.full((1, 3), math.inf).double(), torch.full((1, 3), math.inf).double())
    assert (endless.figures()["median"], endless.figures()["half_life_median"]) == (None, None)
    assert endless.average_context == 2.0


@pytest.mark.parametrize("mixer", [TedSpec(), TED])
def test_the_average_context_is_what_a_decoder_holds_that_drops_what_is_below(mixer):
    """Exactly in the lowest layer; higher up what has been dropped changes the text's contributions a little."""
    decoder, windows = small_decoder(mixer), _windows(3, 40)
    found = text_lifetimes(decoder, windows, [0, 1], 1e-3)
    assert (found.windows, found.tokens, found.whole_context) == (3, 40, 20.5)
    held = torch.zeros(2)
    policy = EvictionCache(threshold=1e-3, min_tokens_to_keep=0)
    state = cache_policy_state(decoder, 3, 40, policy)
    for tokens in windows.split(1, dim=1):
        decoder.hidden(tokens, state)
        held += torch.tensor([float(layer.sizes(state.position).float().mean()) for layer in state.layers]) / 40
    assert found.layers[0].average_context == pytest.approx(held[0].item(), rel=1e-6)
    assert found.layers[1].average_context == pytest.approx(held[1].item(), rel=0.02)
    assert 1 < held.min() < held.max() < 20.5


def test_each_window_is_read_by_itself():
    decoder, windows = small_decoder(TED), _windows(2, 9)
    found = text_lifetimes(decoder, windows, [0, 1], 1e-3)
    for window, tokens in enumerate(windows):
        for layer, (norms, rates) in zip(found.layers, text_contributions(decoder, tokens), strict=True):
            assert layer.lifetimes_WT[window].equal(lifetimes(norms, rates, 1e-3))
            assert layer.half_lives_WT[window].equal(half_lives(norms, rates))
    assert not found.layers[0].lifetimes_WT.equal(found.layers[1].lifetimes_WT)
    assert not any(module._forward_pre_hooks for module in decoder.modules())


def test_layers_between_others_and_layers_that_share_weights():
    ted = {"kind": "ted", "heads": 2}
    blocks = [
        {"mixer": {"kind": "attention", "heads": 2}},
        {"repeat": 3, "mixer": ted, "share_weights": True},
        {"mixer": {"kind": "attention", "heads": 2}},
        {"mixer": {**ted, "heads": 4}},
    ]
    spec = ModelSpec.parse({"vocab_size": 23, "d_model": 16, "context_length": 64, "blocks": blocks}, "test")
    decoder = Decoder(spec)
    layers = ted_layers(decoder, "model")
    found = text_lifetimes(decoder, _windows(2, 9), layers, 1e-3)
    assert [layer.layer for layer in found.layers] == layers == [1, 2, 3, 5]
    assert [rates.shape for _, rates in text_contributions(decoder, _windows(1, 9)[0])] == [(9, 2)] * 3 + [(9, 4)]


def test_a_model_without_ted_is_refused():
    with pytest.raises(
        UserError, match="runs/x: no token of it has a lifetime: its token mixer is attention; expected"
    ):
        ted_layers(small_decoder(AttentionSpec(heads=2)), "runs/x")


def test_a_model_that_has_broken_down_has_no_lifetimes():
    decoder = small_decoder(TED)
    with torch.no_grad():
        decoder.mixers[1].quantity_gate.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError):
        text_contributions(decoder, _windows(1, 5)[0])
