"""Small decoders of every mixer, their weights random and large enough that texts differ."""

import itertools

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import nn

from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel
from linnet.inspection.text_model import TextModel
from linnet.layers.contract import MixerSpec
from linnet.layers.registry import MIXERS
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

EXAMPLES = [spec for kind in MIXERS.values() for spec in kind.examples()]
OWN_WAYS = {"plga": 4, "ted": 3}
"""Kinds of which another example keeps the past in another way: a fixed operator; keys and a convolution."""

CASES = [
    pytest.param(
        spec,
        id=f"{spec.kind}-{index}",
        marks=() if type(spec).examples().index(spec) in (0, OWN_WAYS.get(spec.kind)) else pytest.mark.slow,
    )
    for index, spec in enumerate(EXAMPLES)
]
"""Every example; all but the first, and those that keep the past in another way, as slow tests."""
VOCABULARY = 23


def in_turn(**choices: object) -> list[ParameterSet]:
    """Every case with one of the choices, which take turns, where what is chosen does not depend on the mixer."""
    turns = {quick: itertools.cycle(choices.items()) for quick in (True, False)}
    cases = []
    for case in CASES:
        name, choice = next(turns[not case.marks])
        cases.append(pytest.param(case.values[0], choice, id=f"{case.id}-{name}", marks=case.marks))
    return cases


def small_spec(mixer: MixerSpec, vocab_size: int = VOCABULARY, positions: str = "none") -> ModelSpec:
    """Two layers of width 16."""
    block = {"repeat": 2, "mixer": mixer, "feed_forward": {"kind": "glu", "hidden": 24}}
    description = {"vocab_size": vocab_size, "d_model": 16, "context_length": 64, "blocks": [block]}
    return ModelSpec.parse(
        {**description, "embedding": {"positions": positions}, "head": {"tied": False, "norm": {}}}, "test"
    )


def small_decoder(mixer: MixerSpec = EXAMPLES[0], seed: int = 0, **settings: object) -> Decoder:
    """In float64, so that two ways of computing the same never choose different tokens."""
    torch.manual_seed(seed)
    decoder = Decoder(small_spec(mixer, **settings)).double()
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.4)
    nn.init.normal_(decoder.embedding.tokens.weight)
    return decoder


def _way_of_keeping(mixer: MixerSpec) -> tuple[object, ...]:
    """What an engine knows of a mixer: how its streams may be cut, grown, cropped and calibrated."""
    decoder = small_decoder(mixer)
    traits, state = decoder.mixers[0].traits, decoder.initial_state(1, 1)
    return traits.constant_state, traits.exact_when_split, traits.calibrated_after, traits.window, state.is_croppable


def _unlike() -> list[ParameterSet]:
    cases, ways = [], set[tuple[object, ...]]()
    for case in CASES:
        (mixer,) = case.values
        quick = not case.marks and _way_of_keeping(mixer) not in ways
        ways |= {_way_of_keeping(mixer)} if quick else set()
        cases.append(pytest.param(mixer, id=case.id, marks=() if quick else pytest.mark.slow))
    return cases


UNLIKE = _unlike()
"""Every example, for what calls an engine; all but the first of each way of keeping the past as slow tests."""


def speaker(mixer: MixerSpec = EXAMPLES[0], extra_ids: int = 0, **settings: object) -> LanguageModel:
    """A model that knows all bytes; `extra_ids` more than its tokenizer."""
    tokenizer = Tokenizer.train("bytes", [])
    return LanguageModel(small_decoder(mixer, vocab_size=tokenizer.vocab_size + extra_ids, **settings), tokenizer)


def inspected(model: Decoder | LanguageModel, tokenizer: Tokenizer | None = None) -> TextModel:
    """A model as an inspection sees it; one without a tokenizer of its own may be given one, and may not need it."""
    if isinstance(model, LanguageModel):
        return TextModel(model)
    found = LanguageModel.__new__(LanguageModel)
    found.decoder, found.tokenizer = model, tokenizer
    return TextModel(found)
