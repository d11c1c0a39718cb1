"""Lifetimes of a text's tokens, against a decoder with eviction, and of the vocabulary."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import inspected, small_decoder
from torch import nn

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.cache_policy import cache_policy_state
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.ted import EvictionCache, TedSpec
from linnet.layers.mixers.ted.lifetimes import (
    LayerLifetimes,
    VocabularyLifetimes,
    follow,
    quantile,
    spread_entries,
    ted_layers,
    text_contributions,
    text_lifetimes,
    tokens_of,
    unknown_without_text,
    vocabulary_lifetimes,
)
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops.decay.eviction import half_lives, lifetimes, relevance

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
def test_the_average_context_matches_a_decoder_with_eviction(mixer):
    """Exact in the lowest layer; in higher layers evicted tokens change the contributions a little."""
    decoder, windows = small_decoder(mixer), _windows(3, 40)
    found = text_lifetimes(inspected(decoder), windows, [0, 1], 1e-3)
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
    found = text_lifetimes(inspected(decoder), windows, [0, 1], 1e-3)
    for window, tokens in enumerate(windows):
        for layer, (norms, rates) in zip(found.layers, text_contributions(inspected(decoder), tokens), strict=True):
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
    layers = ted_layers(inspected(decoder), "model")
    found = text_lifetimes(inspected(decoder), _windows(2, 9), layers, 1e-3)
    assert [layer.layer for layer in found.layers] == layers == [1, 2, 3, 5]
    assert [rates.shape for _, rates in text_contributions(inspected(decoder), _windows(1, 9)[0])] == [(9, 2)] * 3 + [
        (9, 4)
    ]


def test_a_model_without_ted_is_refused():
    with pytest.raises(UserError, match="runs/x: its tokens have no lifetime: its token mixer is attention; expected"):
        ted_layers(inspected(small_decoder(AttentionSpec(heads=2))), "runs/x")


def test_a_model_that_has_broken_down_has_no_lifetimes():
    decoder = small_decoder(TED)
    with torch.no_grad():
        decoder.mixers[1].quantity_gate.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError):
        text_contributions(inspected(decoder), _windows(1, 5)[0])


BYTES = Tokenizer.train("bytes", [])
SPECIFIED = {"kind": "ted", "heads": 2, "rate_bias": True}
MODELS = {
    "pre": {"blocks": [{"repeat": 2, "mixer": SPECIFIED}]},
    "post": {"blocks": [{"mixer": SPECIFIED, "norm": {"placement": "post"}}]},
    "narrow": {"blocks": [{"mixer": SPECIFIED, "width": 8}]},
    "embedding": {"embedding": {"scale": True, "norm": {"kind": "layer"}}, "blocks": [{"mixer": {"kind": "ted"}}]},
    "skip": {"embedding": {"skip": True}, "blocks": [{"repeat": 2, "mixer": SPECIFIED}]},
    "mixed": {"blocks": [{"mixer": SPECIFIED}, {"mixer": {"kind": "attention", "heads": 2}}]},
}


def _decoder(**description: object) -> Decoder:
    plain = {"vocab_size": BYTES.vocab_size + 3, "d_model": 16, "context_length": 64, **description}
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse(plain, "test")).double()
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.4)
    return decoder


@pytest.mark.parametrize("name", MODELS)
def test_the_lowest_layer_is_known_before_any_text_is_read(name: str):
    decoder = _decoder(**MODELS[name])
    assert unknown_without_text(inspected(decoder)) is None
    vocabulary = vocabulary_lifetimes(inspected(decoder, BYTES), 1e-3)
    tokens = torch.randint(BYTES.vocab_size, (50,), generator=torch.Generator().manual_seed(1))
    norms, rates = text_contributions(inspected(decoder), tokens)[0]
    torch.testing.assert_close(vocabulary.norms_VN[tokens], norms)
    torch.testing.assert_close(vocabulary.rates_VN[tokens], rates)
    assert len(vocabulary.names) == len(vocabulary.lifetimes_V) == BYTES.vocab_size
    assert vocabulary.lifetimes_V.equal(lifetimes(vocabulary.norms_VN, vocabulary.rates_VN, 1e-3))
    assert vocabulary.half_lives_V.equal(half_lives(vocabulary.norms_VN, vocabulary.rates_VN))


def test_large_vocabularies_are_processed_in_pieces(monkeypatch):
    decoder = _decoder(**MODELS["pre"])
    whole = vocabulary_lifetimes(inspected(decoder, BYTES), 1e-3)
    monkeypatch.setattr("linnet.layers.mixers.ted.lifetimes.ENTRIES_AT_ONCE", 100)
    torch.testing.assert_close(vocabulary_lifetimes(inspected(decoder, BYTES), 1e-3).norms_VN, whole.norms_VN)


def test_reasons_why_a_text_is_needed():
    assert unknown_without_text(inspected(small_decoder(TedSpec(), positions="learned"))) == (
        "the model adds positions to its tokens"
    )
    before = unknown_without_text(inspected(small_decoder(TedSpec(conv=2))))
    assert before == "the lowest layer reads a token with those just before it"
    assert (
        unknown_without_text(inspected(small_decoder(AttentionSpec(heads=2))))
        == "the lowest layer is attention, not ted"
    )


def _vocabulary(rates: list[list[float]], norms: list[float], threshold: float = 0.5) -> VocabularyLifetimes:
    rates_VN = torch.tensor(rates, dtype=torch.float64)
    norms_VN = torch.tensor(norms, dtype=torch.float64)[:, None].expand_as(rates_VN)
    ends, halves = lifetimes(norms_VN, rates_VN, threshold), half_lives(norms_VN, rates_VN)
    return VocabularyLifetimes(threshold, [f"'{n}'" for n in range(len(norms))], norms_VN, rates_VN, ends, halves)


def test_entries_are_ordered_by_lifetime_and_then_by_half_life():
    vocabulary = _vocabulary([[2.0], [0.1], [1.9], [0.0], [1.0], [0.1]], [1.0, 1.0, 1.0, 1.0, 0.1, 1.0])
    assert vocabulary.lifetimes_V.tolist() == [1, 7, 1, math.inf, 0, 7]
    assert vocabulary.ranked == [3, 1, 5, 2, 0, 4]
    entries = vocabulary.figures()["entries"]
    assert [entry["token"] for entry in entries] == vocabulary.ranked
    assert entries[0] == {"token": 3, "entry": "'3'", "lifetime": None, "half_life": None, "norm": 1.0}
    assert entries[3]["lifetime"] == 1 and entries[3]["half_life"] == pytest.approx(math.log(2) / 1.9)


def test_curves_show_the_relevance_until_the_last_lifetime_ends():
    vocabulary = _vocabulary([[0.01, 0.3], [0.5, 2.0], [0.02, 0.2]], [3.0, 4.0, 1.0])
    curves = follow(vocabulary, [1, 0])
    assert [curve.token for curve in curves.curves] == [0, 1], "the longest life first"
    assert curves.ages[0] == 0 and {1, 10, 100} < set(curves.ages) and curves.ages == sorted(set(curves.ages))
    assert 1.2 * vocabulary.lifetimes_V[0] < curves.ages[-1] < 1.3 * vocabulary.lifetimes_V[0]
    for curve in curves.curves:
        for age, value in zip(curves.ages, curve.relevance, strict=True):
            expected = relevance(vocabulary.norms_VN[curve.token], vocabulary.rates_VN[curve.token], torch.tensor(age))
            assert value == pytest.approx(float(expected), rel=1e-12)
        end = vocabulary.lifetimes_V[curve.token]
        below = [value < 0.5 for value in curve.relevance]
        assert below == [age >= end for age in curves.ages]


@pytest.mark.parametrize("rate", [0.0, 30.0, 1e-40])
def test_curves_of_endless_and_short_lifetimes_have_an_end(rate: float):
    ages = follow(_vocabulary([[rate]], [1.0]), [0]).ages
    assert len(ages) < 250 and 10 <= ages[-1] <= 10**12


def test_entries_are_spread_from_the_longest_life_to_the_shortest():
    vocabulary = _vocabulary([[0.1 * (n + 1)] for n in range(11)], [1e6] * 11)
    assert spread_entries(vocabulary) == [0, 2, 4, 6, 8, 10]
    assert spread_entries(vocabulary, 40) == list(range(11))
    vocabulary.names[0] = r"b'\xff'"
    assert spread_entries(vocabulary, 2) == [1, 10], "those that can be printed"
    vocabulary.names[:] = [r"b'\xff'"] * 11
    assert spread_entries(vocabulary, 2) == [0, 10], "or all, where none can"


def test_tokens_of_texts_are_distinct():
    assert tokens_of(["abca", "xb"], BYTES) == [*b"abcx"]
    assert tokens_of([], BYTES) == []
    with pytest.raises(UserError, match="token: '': has no token; expected some text"):
        tokens_of(["a", ""], BYTES)
