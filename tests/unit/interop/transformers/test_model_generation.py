"""`generate` of Transformers with our states as its cache: sampling, beams, a draft that is taken back."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from linnet_models import KINDS, VOCABULARY, few_fast, greedy, model_of, settles, tokens
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList

from linnet.core.errors import UserError
from linnet.inference.decode import decode
from linnet.inference.sampling import Sampling, TokenCounts, adjust
from linnet.interop.transformers import GeneratedTokenPenalties
from linnet.model.decoder import Decoder

PROMPT, NEW = 6, 9


def next_log_probabilities(decoder: Decoder, text: list[int]) -> Tensor:
    """Behind a text whose first `PROMPT` tokens were read as one chunk, anew from its beginning: `[V]`."""
    state = decoder.initial_state(1, len(text))
    logits_1TV = decoder(torch.tensor([text[:PROMPT]]), state)
    if text[PROMPT:]:
        logits_1TV = decoder(torch.tensor([text[PROMPT:]]), state)
    return logits_1TV[0, -1].log_softmax(dim=0)


PADDED = {"cache": {}, "no cache": {"use_cache": False}, "chunks": {"prefill_chunk_size": 2}, "beams": {"num_beams": 3}}


@torch.no_grad()
@pytest.mark.parametrize("way", PADDED)
@few_fast()
def test_a_row_padded_behind_continues_as_if_it_were_alone(kind, way):
    """`generate` reads the logits at the last position, which is padding; in chunks, a whole chunk of it."""
    model, settings = model_of(kind), PADDED[way]
    if settles(model.decoder) and way in ("no cache", "chunks"):
        pytest.skip("the operator is inferred from what is read at once")
    settings = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0, **settings}
    text, mask = tokens(2, PROMPT), torch.ones(2, PROMPT, dtype=torch.int64)
    text[1, 3:] = mask[1, 3:] = 0
    alone = [model.generate(text[:1], **settings)[0, PROMPT:], model.generate(text[1:, :3], **settings)[0, 3:]]
    assert model.generate(text, attention_mask=mask, **settings)[:, PROMPT:].tolist() == [row.tolist() for row in alone]


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


@torch.no_grad()
@pytest.mark.parametrize("kind", ["attention", "mamba", "plga"])
def test_a_draft_for_a_native_model_changes_no_token(kind):
    """A native Llama hands its positions on to the draft."""
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **shape, **ends)).eval()
    text, settings = tokens(1, PROMPT), {"do_sample": False, "max_new_tokens": NEW}
    made = llama.generate(text, assistant_model=model_of(kind).float(), **settings)
    assert made.tolist() == llama.generate(text, **settings).tolist()


MODES = {"sampling": {}, "beams": {"num_beams": 2, "do_sample": False}, "sampled beams": {"num_beams": 2}}


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
@few_fast(*(kind for kind in KINDS if kind not in ("plga", "hybrid")))
def test_every_mode_is_the_same_without_a_cache(kind, mode):
    """With scores, logits and processors, as the tests of Transformers ask of its own models."""
    model, text = model_of(kind), tokens(2, PROMPT)
    processors = {"bad_words_ids": [[1, 2]], "repetition_penalty": 1.2, "no_repeat_ngram_size": 2}
    settings = {"max_new_tokens": 4, "do_sample": True, "num_return_sequences": 2, **processors, **MODES[mode]}
    found = []
    for use_cache in (True, False):
        torch.manual_seed(0)
        outputs = {"output_scores": True, "output_logits": True, "return_dict_in_generate": True}
        found.append(model.generate(text, use_cache=use_cache, **outputs, **settings))
    cached, anew = found
    assert cached.sequences.tolist() == anew.sequences.tolist() and cached.sequences.shape == (4, PROMPT + 4)
    assert len(cached.scores) == 4 and cached.past_key_values is not None and anew.past_key_values is None
    torch.testing.assert_close(cached.logits, anew.logits)


@few_fast("attention", "rwkv4", "plga")
def test_a_second_call_continues_a_text(kind):
    model, prompt_1T = model_of(kind), tokens(1, PROMPT)
    whole_1T = model.generate(prompt_1T, max_new_tokens=2 * NEW, do_sample=False)
    first = model.generate(prompt_1T, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True)
    then_1T = model.generate(
        first.sequences, past_key_values=first.past_key_values, max_new_tokens=NEW, do_sample=False
    )
    assert torch.equal(then_1T, whole_1T)


NONE = {"frequency_penalty": 0.0, "presence_penalty": 0.0}
PENALTIES = [(0.7, 0.0), (0.0, 1.5), (0.6, -0.4), (-1.2, 0.3)]


@torch.no_grad()
@pytest.mark.parametrize("penalties", PENALTIES[:3])
@few_fast("attention", "mamba")
def test_penalties_of_generated_tokens_are_those_of_our_chain(kind, penalties):
    model, (frequency, presence) = model_of(kind), penalties
    prompts = [tokens(PROMPT), tokens(4, seed=1)]
    rows_BT = torch.stack([prompts[0], torch.cat([torch.zeros(2, dtype=torch.int64), prompts[1]])])
    mask_BT = torch.tensor([[1] * PROMPT, [0, 0] + [1] * 4])
    own = GeneratedTokenPenalties(PROMPT, frequency, presence)
    asked = {"max_new_tokens": 20, "do_sample": False, "repetition_penalty": 1.1}
    found_BT = model.generate(rows_BT, attention_mask=mask_BT, logits_processor=LogitsProcessorList([own]), **asked)
    sampling = Sampling(0.0, repetition_penalty=1.1, frequency_penalty=frequency, presence_penalty=presence)
    for found_T, prompt_T in zip(found_BT[:, PROMPT:], prompts, strict=True):
        expected = [token for (token,) in decode(model.decoder, [prompt_T.tolist()], 20, sampling)]
        without = [token for (token,) in decode(model.decoder, [prompt_T.tolist()], 20, replace(sampling, **NONE))]
        assert found_T.tolist() == expected != without


def test_penalties_of_generated_tokens_are_bit_for_bit_ours():
    logits_BV = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(3))
    text_BT = tokens(3, PROMPT + 30)
    for frequency, presence in PENALTIES:
        counts = [TokenCounts(row[:PROMPT], Counter(row[PROMPT:])) for row in text_BT.tolist()]
        expected_BV = adjust(logits_BV, Sampling(frequency_penalty=frequency, presence_penalty=presence), counts)
        assert torch.equal(GeneratedTokenPenalties(PROMPT, frequency, presence)(text_BT, logits_BV), expected_BV)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1,), "prompt_tokens: -1: expected the length of input_ids"),
        ((3, float("nan")), "frequency_penalty: nan: expected a number within"),
        ((3, 0.0, 1e9), "presence_penalty: 1000000000.0: expected a number within"),
    ],
)
def test_penalties_that_cannot_be_are_one_line(arguments, message):
    with pytest.raises(UserError) as raised:
        GeneratedTokenPenalties(*arguments)
    assert str(raised.value).startswith(message)
