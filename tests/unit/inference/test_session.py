"""A stream that goes on says what one uninterrupted generation says."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import CASES, EXAMPLES, in_turn, speaker

from linnet.core.errors import UserError
from linnet.inference import cache_policy
from linnet.inference.language_model import LanguageModel
from linnet.inference.session import Session
from linnet.inference.state import save_state, with_room
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.ted import BankCache, EvictionCache

every_mixer = pytest.mark.parametrize("mixer", CASES)
TED = next(mixer for mixer in EXAMPLES if mixer.kind == "ted")
each_mixer_and_choice = pytest.mark.parametrize(
    ("mixer", "choice"), in_turn(greedy={"temperature": 0.0}, seeded={"temperature": 1.0, "top_k": 50})
)
PENALTIES = {"temperature": 0.7, "repetition_penalty": 1.6, "frequency_penalty": 0.8, "presence_penalty": 0.5}


def _session(model: LanguageModel, text: str = "Once", **settings: object) -> Session:
    session = Session(model, **settings)
    session.feed(text)
    return session


def _whole(model: LanguageModel, tokens: int, **choice: float) -> str:
    return model.generate("Once", tokens, seed=3, ignore_eos=True, **choice)


def _ended(said: str, session: Session) -> str:
    """With U+FFFD for what is held back of a character, as where a text ends."""
    return said + session._text.finish()


@each_mixer_and_choice
def test_several_calls_generate_the_text_of_one_call(mixer: MixerSpec, choice: dict[str, float]):
    model, session = speaker(mixer), _session(speaker(mixer))
    parts = [session.generate(5, seed=3, ignore_eos=True, **choice)]
    parts += [session.generate(count, ignore_eos=True, **choice) for count in (1, 7, 3)]
    assert session.tokens == 1 + 4 + 16
    assert _whole(model, 16, **choice) == _ended("".join(parts), session)


@each_mixer_and_choice
def test_a_saved_and_loaded_session_continues_exactly(mixer: MixerSpec, choice: dict[str, float], tmp_path: Path):
    model, path = speaker(mixer), tmp_path / "stream.safetensors"
    session = _session(model)
    said = session.generate(6, seed=3, ignore_eos=True, **choice)
    for _ in range(3):
        session.save(path)
        session = Session.load(speaker(mixer), path)
        said += session.generate(4, ignore_eos=True, **choice)
    assert _ended(said, session) == _whole(model, 18, **choice)


@pytest.mark.parametrize("saved", [False, True])
def test_penalties_count_across_calls_and_files(saved: bool, tmp_path: Path):
    session, path, said = _session(speaker(TED)), tmp_path / "stream.safetensors", ""
    for count in (5, 1, 10):
        said += session.generate(count, seed=3 if session.seed is None else None, ignore_eos=True, **PENALTIES)
        if saved:
            session.save(path)
            session = Session.load(speaker(TED), path)
    assert _ended(said, session) == _whole(speaker(TED), 16, **PENALTIES) != _whole(speaker(TED), 16, temperature=0.7)


def test_a_new_text_begins_the_count_of_generated_tokens_again_and_a_fork_counts_alone():
    session = _session(speaker(TED))
    session.generate(5, seed=3, ignore_eos=True, presence_penalty=2.0)
    twin = session.fork()
    twin.generate(5, ignore_eos=True)
    assert sum(session._counts.generated.values()) == 5 and sum(twin._counts.generated.values()) == 10
    session.feed(" Then")
    assert not session._counts.generated and len(session._counts.seen) > 5


def test_before_anything_is_generated_it_can_be_saved_too(tmp_path: Path):
    model, path = speaker(), tmp_path / "stream.safetensors"
    _session(model).save(path)
    assert Session.load(model, path).generate(9, temperature=0) == _session(model).generate(9, temperature=0)


@every_mixer
def test_a_fork_goes_its_own_way(mixer: MixerSpec):
    session = _session(speaker(mixer))
    session.generate(4, temperature=0, ignore_eos=True)
    session._state = with_room(session._state, 90)  # no fork has to grow, which would make a copy
    third, others = session.fork(), []
    expected = third.generate(8, temperature=0, ignore_eos=True)
    for text in (" and something else", " but not this", "x"):
        twin = session.fork()
        twin.feed(text)
        others.append(twin.generate(8, temperature=0, ignore_eos=True))
    assert session.generate(8, temperature=0, ignore_eos=True) == expected
    assert set(others) != {expected}


def test_a_character_is_held_back_until_it_is_whole(tmp_path: Path):
    model, path = speaker(), tmp_path / "stream.safetensors"
    session = _session(model)
    session._text.push("é".encode()[0])
    session.save(path)
    for one in (session.fork(), Session.load(model, path)):
        assert one._text.push("é".encode()[1]) == "é"


def test_behind_the_end_of_a_document_the_next_one_begins():
    model, session = speaker(), _session(speaker())
    for one in (model, session.model):
        one.decoder.head.weight.data[model.tokenizer.end_id] *= 3  # it comes soon
    whole = [_session(model).generate(40, seed=3, ignore_eos=True)]
    parts = [session.generate(40, seed=3)]
    assert session.tokens < 45 and session._pending == [model.tokenizer.end_id]
    parts.append(session.generate(45 - session.tokens, ignore_eos=True))
    assert parts[0] and "".join(parts) == "".join(whole)


@pytest.mark.parametrize("context", [EvictionCache(top_k=3), BankCache(64)], ids=["policy", "bank"])
def test_a_session_uses_its_cache_policy(context: EvictionCache | BankCache, tmp_path: Path):
    model, path = speaker(TED), tmp_path / "stream.safetensors"
    whole = model.generate("Once", 30, temperature=0, cache_policy=context, ignore_eos=True)
    session = _session(model, cache_policy=context)
    said = session.generate(11, temperature=0, ignore_eos=True)
    session.save(path)
    session = Session.load(model, path)
    said += session.generate(19, temperature=0, ignore_eos=True)
    assert _ended(said, session) == whole


@settings(max_examples=12, deadline=None)
@given(length=st.integers(6, 40), data=st.data())
def test_a_bank_serves_streams_up_to_its_length(length: int, data: st.DataObject):
    """A stream of any length up to the bank's can be generated in any parts, and saved after each of them."""
    model = speaker(TED)
    whole = model.generate("Once", length - 5, temperature=0, cache_policy=BankCache(length), ignore_eos=True)
    session, text = _session(model, cache_policy=BankCache(length)), ""
    with TemporaryDirectory() as folder:
        while session.tokens < length:
            count = data.draw(st.integers(1, length - session.tokens))
            text += session.generate(count, temperature=0, ignore_eos=True)
            session.save(Path(folder) / "stream.safetensors")
            session = Session.load(model, Path(folder) / "stream.safetensors")
    assert _ended(text, session) == whole


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 12])
def test_a_stream_whose_bank_is_full_can_be_saved(tokens: int, tmp_path: Path):
    """The bank is for exactly the tokens that are asked for, so there is no room for another one."""
    model = speaker(TED)
    session = _session(model, cache_policy=BankCache(len(model.prompt_tokens("Once")) + tokens))
    text = session.generate(tokens, temperature=0, ignore_eos=True)
    session.save(tmp_path / "stream.safetensors")
    loaded = Session.load(speaker(TED), tmp_path / "stream.safetensors")
    assert loaded.tokens == session.tokens
    assert text == session.model.generate("Once", tokens, temperature=0, ignore_eos=True)
    with pytest.raises(UserError, match="a bank for"):
        loaded.generate(50, temperature=0, ignore_eos=True)


def test_a_bank_without_a_length_serves_a_session_that_goes_on():
    model = speaker(TED)
    session = _session(model, cache_policy="bank")
    text = session.generate(2, temperature=0, ignore_eos=True)
    text += session.fork().generate(60, temperature=0, ignore_eos=True)
    assert text == model.generate("Once", 62, temperature=0, cache_policy=BankCache(1 << 16), ignore_eos=True)


def test_a_bank_without_a_length_has_room_for_a_long_beginning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_policy, "OPEN_ENDED_TOKENS", 16)
    session = _session(speaker(TED), cache_policy="bank")
    session.generate(90, temperature=0, ignore_eos=True)
    assert all(part.cache_policy.length >= session.tokens for part in session._state.layers)


def test_a_bank_is_not_read_beyond_its_bound():
    session = _session(speaker(TED), cache_policy=BankCache(16))
    with pytest.raises(UserError, match="a bank for 16 tokens: the stream needs"):
        for _ in range(9):
            session.generate(20, temperature=0, ignore_eos=True)


def test_a_stream_of_another_model_is_refused(tmp_path: Path):
    path = tmp_path / "stream.safetensors"
    _session(speaker(seed=1)).save(path)
    for other in (speaker(seed=0), speaker(TED)):
        with pytest.raises(UserError, match="a stream of another model"):
            Session.load(other, path)
    with pytest.raises(UserError, match="no such file"):
        Session.load(speaker(), tmp_path / "missing")


def test_a_state_without_its_stream_is_refused(tmp_path: Path):
    model, path = speaker(), tmp_path / "state.safetensors"
    save_state(model.decoder.initial_state(1, 4), path)
    with pytest.raises(UserError, match="a decode state alone"):
        Session.load(model, path)


def test_more_tokens_than_learned_positions_are_refused():
    session = _session(speaker(positions="learned"))
    session.generate(40, temperature=0, ignore_eos=True)
    with pytest.raises(UserError, match="learned positions end at 64"):
        session.generate(40, temperature=0, ignore_eos=True)
