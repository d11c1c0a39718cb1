"""`generate` of Transformers with our states as its cache: sampling, beams, a draft that is taken back."""

import pytest
import torch
from linnet_models import VOCABULARY, few_fast, greedy, model_of, tokens
from torch import Tensor

from linnet.model.decoder import Decoder

PROMPT, NEW = 6, 9


def next_log_probabilities(decoder: Decoder, text: list[int]) -> Tensor:
    """Behind a text whose first `PROMPT` tokens were read as one chunk, anew from its beginning: `[V]`."""
    state = decoder.initial_state(1, len(text))
    logits_1TV = decoder(torch.tensor([text[:PROMPT]]), state)
    if text[PROMPT:]:
        logits_1TV = decoder(torch.tensor([text[PROMPT:]]), state)
    return logits_1TV[0, -1].log_softmax(dim=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["plga", "mamba"])
def test_sampling_draws_what_the_logits_say(kind):
    """Transformers draws from probabilities in float32, a token at a time."""
    model, text = model_of(kind), tokens(PROMPT).tolist()
    torch.manual_seed(7)
    said = model.generate(torch.tensor([text]), max_new_tokens=NEW, do_sample=True, top_k=0, temperature=1.3)
    torch.manual_seed(7)
    for _ in range(NEW):
        probabilities_V = (next_log_probabilities(model.decoder, text).float() / 1.3).softmax(dim=0)
        text.append(int(torch.multinomial(probabilities_V, 1)))
    assert said[0].tolist() == text


@torch.no_grad()
@few_fast("attention", "plga", "mamba", "ted", "gated_delta", "slstm")
def test_beams_are_those_of_a_search_by_hand(kind):
    model, text, width = model_of(kind), tokens(PROMPT).tolist(), 3
    beams = [(0.0, text)]
    for _ in range(NEW):
        grown = [
            (score + float(next_V[token]), [*beam, token])
            for score, beam in beams
            for next_V in [next_log_probabilities(model.decoder, beam)]
            for token in range(VOCABULARY)
        ]
        beams = sorted(grown, key=lambda beam: -beam[0])[:width]
    found = model.generate(
        torch.tensor([text]), max_new_tokens=NEW, num_beams=width, num_return_sequences=width, do_sample=False
    )
    assert found.tolist() == [beam for _, beam in beams]


@few_fast("attention", "mamba", "mlstm")
def test_beams_without_a_cache_are_the_same(kind):
    model = model_of(kind)

    asked = {"max_new_tokens": NEW, "num_beams": 3, "do_sample": False}
    rows_BT, mask_BT = tokens(2, PROMPT), torch.tensor([[1] * PROMPT, [0, 0] + [1] * (PROMPT - 2)])
    found = model.generate(rows_BT, attention_mask=mask_BT, **asked)
    assert torch.equal(model.generate(rows_BT, attention_mask=mask_BT, use_cache=False, **asked), found)


@few_fast()
def test_a_draft_changes_no_token(kind):
    """Of another model, which is mostly taken back; of the model itself, which never is."""
    model, prompt_T = model_of(kind), tokens(PROMPT)
    expected = greedy(model.decoder, prompt_T, NEW)
    for draft in (model_of("ted", seed=1), model_of(kind)):
        found = model.generate(prompt_T[None], max_new_tokens=NEW, do_sample=False, assistant_model=draft)
        assert found[0, PROMPT:].tolist() == expected


@few_fast("attention", "plga", "mamba", "hybrid")
def test_a_draft_from_the_prompt_changes_no_token(kind):
    model, prompt_T = model_of(kind), tokens(4).repeat(4)
    found = model.generate(prompt_T[None], max_new_tokens=20, do_sample=False, prompt_lookup_num_tokens=3)
    assert found[0, 16:].tolist() == greedy(model.decoder, prompt_T, 20)


@few_fast("attention", "rwkv4", "plga")
def test_a_second_call_continues_a_text(kind):
    model, prompt_1T = model_of(kind), tokens(1, PROMPT)
    whole_1T = model.generate(prompt_1T, max_new_tokens=2 * NEW, do_sample=False)
    first = model.generate(prompt_1T, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True)
    then_1T = model.generate(
        first.sequences, past_key_values=first.past_key_values, max_new_tokens=NEW, do_sample=False
    )
    assert torch.equal(then_1T, whole_1T)
