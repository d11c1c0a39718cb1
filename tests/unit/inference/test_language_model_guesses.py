"""Guesses and beams of a model whose prompts are text."""

import pytest
from small_models import EXAMPLES, speaker

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

TEXT = "abcabcabcabd abcabcab"
ATTENTION, MAMBA = EXAMPLES[0], next(spec for spec in EXAMPLES if spec.kind == "mamba2")


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.1}])
@pytest.mark.parametrize("mixer", [ATTENTION, MAMBA], ids=lambda mixer: mixer.kind)
def test_guesses_do_not_change_the_text(mixer, settings):
    model = speaker(mixer)
    plain = model.generate(TEXT, 40, **settings)
    for guesses in ({"prompt_lookup": 5}, {"draft": model}, {"draft": speaker(MAMBA), "prompt_lookup": 3}):
        assert model.generate(TEXT, 40, **guesses, **settings) == plain
        continuation = model.generate(TEXT, 40, stream=True, **guesses, **settings)
        assert "".join(continuation) == plain
        assert continuation.figures.speculation is not None
    assert model.generate(TEXT, 40, stream=True).figures.speculation is None


def test_a_draft_guesses_with_the_random_numbers_of_a_seed_that_was_not_given():
    model = speaker()
    continuation = model.generate(TEXT, 30, stream=True, draft=model, temperature=1.0, ignore_eos=True)
    speculation = continuation._stream.request.speculation
    speculation.adapts = False
    assert "".join(continuation)
    assert continuation.figures.speculation.proposed > 10
    assert continuation.figures.speculation.acceptance_rate == 1


def test_guesses_that_cannot_be_are_refused_in_one_line():
    model = speaker()
    other = LanguageModel(speaker(extra_ids=9).decoder, Tokenizer.train("char", ["abcd"]))
    with pytest.raises(
        UserError, match=r"draft: .*its tokenizer is another one, \w{12}; expected one with the tokenizer"
    ):
        model.generate(TEXT, draft=other)
    for value in (-1, True, "3", 257):
        with pytest.raises(
            UserError, match=r"prompt_lookup: .*: expected 0 .no look-up. or a number of tokens up to 256"
        ):
            model.generate(TEXT, prompt_lookup=value)


def test_several_prompts_are_generated_without_guesses_after_a_note(caplog: pytest.LogCaptureFixture):
    model = speaker()
    both = model.generate([TEXT, "b"], 5, temperature=0, prompt_lookup=3)
    assert both == [model.generate(TEXT, 5, temperature=0), model.generate("b", 5, temperature=0)]
    assert "2 texts are generated as one batch, without guesses" in caplog.text


def test_a_draft_with_fewer_positions_guesses_up_to_their_end():
    model, draft = speaker(), speaker(positions="learned")
    plain = model.generate("a" * 50, 40, temperature=0, ignore_eos=True)
    assert model.generate("a" * 50, 40, temperature=0, ignore_eos=True, draft=draft) == plain
    assert model.generate("a" * 80, 9, temperature=0, draft=draft) == model.generate("a" * 80, 9, temperature=0)


def test_beams_give_the_best_text_and_all_of_them_with_scores():
    model = speaker()
    found = model.beam_search(TEXT, 6, 3)
    assert len(found) == 3
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert model.generate(TEXT, 6, beams=3) == found[0].text == str(found[0])
    assert model.generate([TEXT, "b"], 6, beams=3) == [found[0].text, model.generate("b", 6, beams=3)]
    assert model.generate(TEXT, 6, beams=1) == model.generate(TEXT, 6, temperature=0)
    assert model.generate(TEXT, 6, beams=3, logit_bias={found[0].tokens[0]: -50.0}) != found[0].text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stream": True}, "beams: 2: a search for the best text has no stream; leave it out"),
        ({"n": 2}, "beams: 2: a search for the best text has no n; leave it out"),
        ({"stop": "."}, "beams: 2: a search for the best text has no stop; leave it out"),
        ({"prompt_lookup": 2}, "beams: 2: a search for the best text has no prompt_lookup; leave it out"),
        ({"temperature": 0.5}, "beams: 2: nothing is drawn, so temperature has no effect; leave it out"),
        ({"top_k": 5}, "beams: 2: nothing is drawn, so top_k has no effect; leave it out"),
    ],
)
def test_settings_that_a_search_does_not_have_are_refused(settings, message):
    with pytest.raises(UserError) as refused:
        speaker().generate(TEXT, 5, beams=2, **settings)
    assert str(refused.value) == message


def test_an_encoder_decoder_searches_behind_its_input():
    tokenizer = Tokenizer.train("bytes", [])
    spec = ModelSpec.load("tiny-encoder-decoder").model_copy(update={"vocab_size": tokenizer.vocab_size})
    model = LanguageModel(Decoder(spec).eval(), tokenizer)
    assert model.generate("", 5, beams=3, input="abc") == model.beam_search("", 5, 3, input="abc")[0].text
    plain = model.generate("", 20, input="abc", temperature=0, ignore_eos=True)
    assert model.generate("", 20, input="abc", temperature=0, ignore_eos=True, draft=model) == plain
    with pytest.raises(UserError, match="input: missing: the model has an encoder"):
        model.generate("", 5, beams=3)
