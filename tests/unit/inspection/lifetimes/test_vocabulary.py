"""What is known of a vocabulary without text, against what a model does when it reads one."""

import math

import pytest
import torch
from small_models import small_decoder
from torch import nn

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inspection.lifetimes.contributions import text_contributions
from linnet.inspection.lifetimes.vocabulary import (
    Vocabulary,
    follow,
    spread_entries,
    tokens_of,
    unknown_without_text,
    vocabulary_lifetimes,
)
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.ted import TedSpec
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops.decay.eviction import half_lives, lifetimes, relevance

BYTES = Tokenizer.train("bytes", [])
TED = {"kind": "ted", "heads": 2, "rate_bias": True}
MODELS = {
    "pre": {"blocks": [{"repeat": 2, "mixer": TED}]},
    "post": {"blocks": [{"mixer": TED, "norm": {"placement": "post"}}]},
    "narrow": {"blocks": [{"mixer": TED, "width": 8}]},
    "embedding": {"embedding": {"scale": True, "norm": {"kind": "layer"}}, "blocks": [{"mixer": {"kind": "ted"}}]},
    "skip": {"embedding": {"skip": True}, "blocks": [{"repeat": 2, "mixer": TED}]},
    "mixed": {"blocks": [{"mixer": TED}, {"mixer": {"kind": "attention", "heads": 2}}]},
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
    assert unknown_without_text(decoder) is None
    vocabulary = vocabulary_lifetimes(decoder, BYTES, 1e-3)
    tokens = torch.randint(BYTES.vocab_size, (50,), generator=torch.Generator().manual_seed(1))
    norms, rates = text_contributions(decoder, tokens)[0]
    torch.testing.assert_close(vocabulary.norms_VN[tokens], norms)
    torch.testing.assert_close(vocabulary.rates_VN[tokens], rates)
    assert len(vocabulary.names) == len(vocabulary.lifetimes_V) == BYTES.vocab_size
    assert vocabulary.lifetimes_V.equal(lifetimes(vocabulary.norms_VN, vocabulary.rates_VN, 1e-3))
    assert vocabulary.half_lives_V.equal(half_lives(vocabulary.norms_VN, vocabulary.rates_VN))


def test_large_vocabularies_are_taken_in_pieces(monkeypatch):
    decoder = _decoder(**MODELS["pre"])
    whole = vocabulary_lifetimes(decoder, BYTES, 1e-3)
    monkeypatch.setattr("linnet.inspection.lifetimes.vocabulary.ENTRIES_AT_ONCE", 100)
    torch.testing.assert_close(vocabulary_lifetimes(decoder, BYTES, 1e-3).norms_VN, whole.norms_VN)


def test_models_of_which_nothing_is_known_without_text():
    assert unknown_without_text(small_decoder(TedSpec(), positions="learned")) == (
        "the model adds positions to its tokens"
    )
    before = unknown_without_text(small_decoder(TedSpec(conv=2)))
    assert before == "the lowest layer reads a token with those just before it"
    assert unknown_without_text(small_decoder(AttentionSpec(heads=2))) == "the lowest layer is attention, not ted"


def _vocabulary(rates: list[list[float]], norms: list[float], threshold: float = 0.5) -> Vocabulary:
    rates_VN = torch.tensor(rates, dtype=torch.float64)
    norms_VN = torch.tensor(norms, dtype=torch.float64)[:, None].expand_as(rates_VN)
    ends, halves = lifetimes(norms_VN, rates_VN, threshold), half_lives(norms_VN, rates_VN)
    return Vocabulary(threshold, [f"'{n}'" for n in range(len(norms))], norms_VN, rates_VN, ends, halves)


def test_the_longest_life_comes_first_and_the_half_life_decides_between_equal_ones():
    vocabulary = _vocabulary([[2.0], [0.1], [1.9], [0.0], [1.0], [0.1]], [1.0, 1.0, 1.0, 1.0, 0.1, 1.0])
    assert vocabulary.lifetimes_V.tolist() == [1, 7, 1, math.inf, 0, 7]
    assert vocabulary.ranked == [3, 1, 5, 2, 0, 4]
    entries = vocabulary.figures()["entries"]
    assert [entry["token"] for entry in entries] == vocabulary.ranked
    assert entries[0] == {"token": 3, "entry": "'3'", "lifetime": None, "half_life": None, "norm": 1.0}
    assert entries[3]["lifetime"] == 1 and entries[3]["half_life"] == pytest.approx(math.log(2) / 1.9)


def test_curves_are_the_relevance_at_ages_until_the_last_life_has_ended():
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
def test_curves_of_endless_and_of_short_lives_end_somewhere(rate: float):
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
