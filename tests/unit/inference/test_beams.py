"""Beam search: the texts found and their scores, for every mixer; `tests/golden` compares with Transformers."""

from itertools import product

import pytest
import torch
from small_models import EXAMPLES, UNLIKE, small_decoder

from linnet.core.errors import UserError
from linnet.inference.beams import BeamSearch, beam_search
from linnet.inference.sampling import Sampling
from linnet.layers.contract import MixerSpec

SIZE, PROMPT, STOP = 3, [2, 0, 1, 1, 2], 0
"""A vocabulary of three tokens, one of which ends a text."""


def log_probability(decoder: torch.nn.Module, text: list[int]) -> float:
    """Of the tokens behind the prompt."""
    state = decoder.initial_state(1, 20)
    logits_TV = decoder(torch.tensor([PROMPT]), state)[0, -1:]
    for token in text[:-1]:
        logits_TV = torch.cat([logits_TV, decoder(torch.tensor([[token]]), state)[0]])
    return float(logits_TV.float().log_softmax(-1).gather(1, torch.tensor(text)[:, None]).sum())


@torch.no_grad()
@pytest.mark.parametrize("mixer", UNLIKE)
def test_enough_beams_find_the_likeliest_of_all_texts(mixer: MixerSpec):
    decoder, most = small_decoder(mixer, vocab_size=SIZE), 3
    texts = {
        text
        for length in range(1, most + 1)
        for text in product(range(SIZE), repeat=length)
        if STOP not in text[:-1] and (text[-1] == STOP or length == most)
    }
    scores = {text: log_probability(decoder, list(text)) / len(text) ** 0.5 for text in texts}
    best = sorted(texts, key=lambda text: -scores[text])
    found = beam_search(decoder, PROMPT, most, BeamSearch(8, 0.5, "never"), [STOP])
    for ours, text in zip(found, best[:8], strict=True):
        assert (*ours.tokens, *([STOP] * (ours.finish_reason == "stop"))) == text
        assert ours.score == pytest.approx(scores[text], abs=1e-4)


@torch.no_grad()
def test_penalties_and_bias_change_the_log_probabilities_of_each_beam():
    decoder = small_decoder(vocab_size=SIZE)
    plain = beam_search(decoder, PROMPT, 6, BeamSearch(2))
    without = beam_search(decoder, PROMPT, 6, BeamSearch(2), sampling=Sampling(0, logit_bias={plain[0].tokens[0]: -99}))
    assert all(plain[0].tokens[0] not in one.tokens for one in without)
    other = beam_search(decoder, PROMPT, 6, BeamSearch(2), sampling=Sampling(0, frequency_penalty=9.0))
    assert all(len(set(one.tokens[:3])) == SIZE for one in other)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beams": 0}, "beams: 0: expected a number of beams from 1 to 1024"),
        ({"beams": True}, "beams: True: expected a number of beams from 1 to 1024"),
        ({"beams": 2, "length_penalty": "2"}, "length_penalty: 2: expected a number within 100 of 0"),
        ({"beams": 2, "early_stopping": "often"}, "early_stopping: often: expected True, False or 'never'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(fields: dict, message: str):
    with pytest.raises(UserError) as refused:
        BeamSearch(**fields)
    assert str(refused.value) == message


def test_more_beams_than_there_is_memory_for_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("linnet.inference.beams.available_bytes", lambda device: 5000)
    with pytest.raises(UserError, match="beams: 9: no memory for the states of so many beams"):
        beam_search(small_decoder(EXAMPLES[0]), PROMPT, 5, BeamSearch(9))


def test_a_model_whose_logits_are_no_numbers_is_refused():
    decoder = small_decoder()
    decoder.embedding.tokens.weight.data.fill_(torch.nan)
    with pytest.raises(UserError, match="logits are not finite"):
        beam_search(decoder, PROMPT, 5, BeamSearch(2))
