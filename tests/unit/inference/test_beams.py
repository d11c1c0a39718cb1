"""Beam search: the texts found and their scores, for every mixer; `tests/golden` compares with Transformers."""

from itertools import product

import pytest
import torch
from small_models import EXAMPLES, UNLIKE, VOCABULARY, small_decoder

from linnet.core.errors import UserError
from linnet.inference.beams import BeamSearch, beam_search
from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.inference.prefill import EMPTY, PrefillContext, prefill_inputs
from linnet.inference.sampling import Sampling
from linnet.inference.step_packages import ordinary_steps
from linnet.layers.cache_policy import FULL
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.ted import BankCache, EvictionCache
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from recorded_steps import compile_from_the_first_token, record_from_the_first_token

SIZE, PROMPT, STOP = 3, [2, 0, 1, 1, 2], 0
"""A vocabulary of three tokens, one of which ends a text."""


def log_probability(
    decoder: Decoder, text: list[int], policy: CachePolicies = FULL, context: PrefillContext = EMPTY
) -> float:
    """Of the tokens behind the prompt."""
    state = cache_policy_state(decoder, 1, len(PROMPT) + len(text), policy)
    logits_TV = decoder.logits(decoder.hidden(torch.tensor([PROMPT]), state, **vars(context)))[0, -1:]
    for token in text[:-1]:
        logits_TV = torch.cat([logits_TV, decoder(torch.tensor([[token]]), state)[0]])
    return float(logits_TV.float().log_softmax(-1).gather(1, torch.tensor(text)[:, None]).sum())


def first_of(kind: str) -> MixerSpec:
    return next(mixer for mixer in EXAMPLES if mixer.kind == kind)


def encoder_decoder() -> Decoder:
    """With weights that are large enough that its beams differ."""
    torch.manual_seed(0)
    spec = ModelSpec.load("tiny-encoder-decoder")
    decoder = Decoder(spec.model_copy(update={"vocab_size": VOCABULARY}))
    for parameter in decoder.blocks.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    return decoder.eval()


def searched_with_passes(
    monkeypatch: pytest.MonkeyPatch, decoder: Decoder, policy: CachePolicies, context: PrefillContext
) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """The texts of four beams of 40 tokens, and the shapes of the tokens that ordinary passes read."""
    passes, hidden = list[tuple[int, ...]](), Decoder.hidden

    def counted(self: Decoder, tokens_BT: torch.Tensor, *rest: object, **named: object) -> torch.Tensor:
        passes.append(tuple(tokens_BT.shape))
        return hidden(self, tokens_BT, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "hidden", counted)
        found = beam_search(decoder, PROMPT, 40, BeamSearch(4), cache_policy=policy, context=context)
    for one in found:
        expected = log_probability(decoder, one.tokens, policy, context) / 40
        assert one.score == pytest.approx(expected, abs=1e-4)
    return [one.tokens for one in found], passes


@pytest.mark.parametrize("form", ["compiled", "recorded"])
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("attention", FULL),
        ("mamba2", FULL),
        ("plga", FULL),
        ("ted", BankCache()),
        ("ted", EvictionCache(top_k=4)),
        ("encoder-decoder", FULL),
    ],
    ids=str,
)
@torch.no_grad()
def test_captured_steps_read_all_tokens_behind_the_prompt(
    name: str, policy: CachePolicies, form: str, monkeypatch: pytest.MonkeyPatch
):
    """Steps hold tensors of the state, whose rows become those of other beams between them."""
    decoder, context = (encoder_decoder() if "-" in name else small_decoder(first_of(name)).float()), EMPTY
    if decoder.encoder is not None:
        context = prefill_inputs(decoder, [PROMPT], [[5, 3, 9, 1]]).context(decoder)
    with ordinary_steps():
        expected, passes = searched_with_passes(monkeypatch, decoder, policy, context)
    assert passes == [(1, len(PROMPT)), *[(4, 1)] * 39]
    if form == "compiled":
        compile_from_the_first_token(monkeypatch)
    else:
        record_from_the_first_token(monkeypatch)
    assert searched_with_passes(monkeypatch, decoder, policy, context) == (expected, [(1, len(PROMPT))])


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
