"""Guesses and beams of a model whose prompts are text."""

from itertools import islice

import pytest
import torch
from small_models import EXAMPLES, speaker

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel
from linnet.inference.session import Session
from linnet.inference.speculative import DraftModel, Speculation, speculation_of
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


def test_a_search_tells_what_it_does_not_have_from_what_has_no_effect():
    for name in ("stop", "regex", "logprobs"):
        with pytest.raises(UserError, match=f"^beams: 4: a search for the best text has no {name}; leave it out$"):
            speaker().beam_search(TEXT, 5, **{name: "."})
    with pytest.raises(UserError, match=r"^beams: 4: nothing is drawn, so seed has no effect; leave it out$"):
        speaker().beam_search(TEXT, 5, seed=1)
    with pytest.raises(TypeError, match="no keyword 'sede'; did you mean seed"):
        speaker().beam_search(TEXT, 5, sede=1)


def test_an_encoder_decoder_searches_behind_its_input():
    tokenizer = Tokenizer.train("bytes", [])
    spec = ModelSpec.load("tiny-encoder-decoder").model_copy(update={"vocab_size": tokenizer.vocab_size})
    model = LanguageModel(Decoder(spec).eval(), tokenizer)
    assert model.generate("", 5, beams=3, input="abc") == model.beam_search("", 5, 3, input="abc")[0].text
    plain = model.generate("", 20, input="abc", temperature=0, ignore_eos=True)
    assert model.generate("", 20, input="abc", temperature=0, ignore_eos=True, draft=model) == plain
    with pytest.raises(UserError, match="input: missing: the model has an encoder"):
        model.generate("", 5, beams=3)


def eager(monkeypatch: pytest.MonkeyPatch) -> list[Speculation]:
    """Guesses are made at every token from here on; all that are asked for."""
    asked: list[Speculation] = []

    def speculation(prompt_lookup: int, draft: DraftModel | None) -> Speculation:
        asked.append(speculation_of(prompt_lookup, draft))
        asked[-1].adapts = False
        if draft is not None:
            draft.min_confidence = 0.0
        return asked[-1]

    monkeypatch.setattr("linnet.inference.session.speculation_of", speculation)
    return asked


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1.0, "repetition_penalty": 1.1}])
@pytest.mark.parametrize("mixer", [ATTENTION, MAMBA], ids=lambda mixer: mixer.kind)
def test_guesses_do_not_change_a_session(mixer, settings, monkeypatch: pytest.MonkeyPatch):
    """Over several calls, with a rewind, a text that is fed, and a fork."""
    asked, model = eager(monkeypatch), speaker(mixer)
    seeds = {} if settings["temperature"] == 0 else {"seed": 3}
    for guesses in ({"prompt_lookup": 5}, {"draft": model}, {"draft": speaker(MAMBA, seed=1), "prompt_lookup": 3}):
        sessions = [Session(model), Session(model)]
        texts: list[list[str]] = [[], []]
        for session, said, own in zip(sessions, texts, ({}, guesses), strict=True):
            session.feed(TEXT)
            said.append(session.generate(12, **settings, **seeds, **own))
            said.append(session.generate(9, **settings, **own))
            session.rewind(5)
            said.append(session.fork().generate(9, **settings, **own))
            said.append(session.generate(9, **settings, **own))
            session.feed("abc")
            said.append(session.generate(9, **settings, **own))
        assert texts[0] == texts[1]
        assert sessions[0].token_ids == sessions[1].token_ids
        if guesses.get("draft") is model:  # its state follows the stream; an end token is chosen, but not read
            assert all(one.figures.proposed - one.figures.accepted <= 1 for one in asked[-5:])
    assert sum(one.figures.proposed for one in asked) > 50


def test_the_draft_of_a_session_guesses_up_to_the_end_of_its_positions(monkeypatch: pytest.MonkeyPatch):
    """Its state grows by half where it has to, beyond the 64 positions."""
    asked, model, draft = eager(monkeypatch), speaker(), speaker(positions="learned", seed=1)
    plain, guessed = Session(model), Session(model)
    for session in (plain, guessed):
        session.feed("Once upon")
    for count in (35, 4, 40):
        expected = plain.generate(count, temperature=0, ignore_eos=True)
        assert guessed.generate(count, temperature=0, ignore_eos=True, draft=draft) == expected
    assert asked[1].proposers[0].reader.state.capacity > 64
    assert asked[0].figures.proposed > 0


@torch.inference_mode()
@pytest.mark.parametrize("mixer", [ATTENTION, MAMBA], ids=lambda mixer: mixer.kind)
def test_a_draft_reads_no_token_of_a_session_twice(mixer, monkeypatch: pytest.MonkeyPatch):
    asked, session, draft = eager(monkeypatch), Session(speaker(ATTENTION)), speaker(mixer)
    session.feed(TEXT * 3)
    for _ in range(2):
        events = session.events(9, temperature=0, draft=draft, ignore_eos=True)
        list(islice(events, 4))
        events.close()  # while guesses are open
        assert session._draft.tokens == session.token_ids[: session._draft.state.position]
        token_11 = torch.tensor([session.token_ids[-1:]])
        read, fresh = session._draft.state.fork(), draft.decoder.initial_state(1, 99)
        draft.decoder(torch.tensor([session._draft.tokens]), fresh)
        torch.testing.assert_close(draft.decoder(token_11, read), draft.decoder(token_11, fresh))
    (first,), (second,) = (one.proposers for one in asked)
    assert isinstance(second, DraftModel) and isinstance(first, DraftModel)
    assert len(first.prompt) == 1 + 3 * len(TEXT)
    assert 1 <= len(second.prompt) <= 9


@pytest.mark.parametrize("preset", ["tiny-encoder-decoder", "tiny-prefix"])
def test_a_session_with_an_input_has_a_draft(preset: str, monkeypatch: pytest.MonkeyPatch):
    asked, tokenizer = eager(monkeypatch), Tokenizer.train("bytes", [])
    spec = ModelSpec.load(preset).model_copy(update={"vocab_size": tokenizer.vocab_size})
    model = LanguageModel(Decoder(spec).double().eval(), tokenizer)
    plain, guessed = Session(model, input="abc"), Session(model, input="abc")
    for _ in range(2):
        own = {"temperature": 0, "ignore_eos": True}
        assert guessed.generate(8, draft=model, **own) == plain.generate(8, **own)
    for one in asked:
        assert one.figures.acceptance_rate == 1
    with pytest.raises(UserError, match="prompt_lookup: -1: expected 0"):
        guessed.generate(8, prompt_lookup=-1)
    assert guessed.generate(8, **own) == plain.generate(8, **own)
