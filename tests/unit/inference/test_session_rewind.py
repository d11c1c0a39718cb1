"""A session that was rewound is as if it had never read what was taken back."""

import io
import logging
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import CASES, EXAMPLES, in_turn, speaker

from linnet.core.errors import UserError
from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.engine import Engine
from linnet.inference.language_model import LanguageModel
from linnet.inference.prefix_store import PrefixStore
from linnet.inference.session import Session
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.ted import BankCache, EvictionCache

FIRST = {mixer.kind: mixer for mixer in reversed(EXAMPLES)}
every_mixer = pytest.mark.parametrize("mixer", CASES)
SAMPLED = {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "ignore_eos": True}
GREEDY = {"temperature": 0.0, "ignore_eos": True}


def fed(model: LanguageModel, *texts: str, **settings: object) -> Session:
    session = Session(model, **settings)
    for text in texts:
        session.feed(text)
    return session


@pytest.mark.parametrize(("mixer", "taken"), [*in_turn(one=1, five=5), *in_turn(twelve=12, fourteen=14)])
def test_a_rewound_session_generates_what_it_would_have(mixer: MixerSpec, taken: int):
    """Back into the second answer, to its beginning, and into the first one."""
    model = speaker(mixer)
    session, other = (fed(model, "Once", prefixes=PrefixStore(2**30, snapshot_tokens=4)) for _ in range(2))
    session.generate(4, seed=3, **SAMPLED)
    expected = session.fork()
    session.generate(12, **SAMPLED)
    session.rewind(taken)
    if taken <= 12:
        if taken < 12:
            expected.generate(12 - taken, **SAMPLED)
    else:
        expected = other
        expected.generate(16 - taken, seed=3, **SAMPLED)
    assert session.token_ids == expected.token_ids and session.seed == expected.seed == 3
    assert session._counts.generated == expected._counts.generated and session._counts.seen == expected._counts.seen
    assert session._text.state_dict() == expected._text.state_dict()
    assert session.generate(9, **SAMPLED) == expected.generate(9, **SAMPLED)


@every_mixer
def test_a_session_rewound_into_what_was_fed_continues_with_another_text(mixer: MixerSpec):
    model = speaker(mixer)
    session = fed(model, "Once upon a time")
    session.generate(5, **GREEDY)
    session.rewind(5 + len(" a time"))
    expected = fed(model, "Once upon")
    assert session.token_ids == expected.token_ids and session.seed is None
    for one in (session, expected):
        one.feed(" a hill")
    assert session.generate(9, **GREEDY) == expected.generate(9, **GREEDY)


@every_mixer
def test_a_session_can_be_rewound_to_its_beginning(mixer: MixerSpec):
    session = fed(speaker(mixer), "Once upon a time")
    session.generate(5, **GREEDY)
    session.rewind(session.tokens - 1)
    session.feed("Twice")
    assert session.generate(9, **GREEDY) == fed(speaker(mixer), "Twice").generate(9, **GREEDY)


@pytest.mark.parametrize("policy", [EvictionCache(top_k=3), BankCache(64)], ids=["eviction", "bank"])
def test_a_session_with_a_cache_policy_is_rewound(policy: EvictionCache | BankCache):
    session, expected = (fed(speaker(FIRST["ted"]), "Once", cache_policy=policy) for _ in range(2))
    session.generate(20, **GREEDY)
    session.rewind(13)
    expected.generate(7, **GREEDY)
    assert session.generate(20, **GREEDY) == expected.generate(20, **GREEDY)


def tokens_read(session: Session) -> int:
    """The tokens that the session's next token reads."""
    read = session._read
    if read == 0:
        empty = cache_policy_state(session.model.decoder, 1, session.tokens, session._policies(1))
        read = session.prefixes.longest(session.token_ids[:-1], session._key(empty))
    return session.tokens - read


@pytest.mark.parametrize("kind", ["attention", "rglru", "ted"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_rewind_reads_few_tokens_anew(kind: str, data: st.DataObject):
    store = PrefixStore(2**30, snapshot_tokens=data.draw(st.integers(1, 9)))
    session = fed(MODELS[kind], "Once upon a time there was", prefixes=store)
    session.generate(data.draw(st.integers(1, 30)), **GREEDY)
    session.rewind(data.draw(st.integers(1, session.tokens - 2)))
    assert tokens_read(session) <= (1 if kind == "attention" else store.snapshot_tokens + 1)


@pytest.mark.parametrize("kind", ["attention", "rglru"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_sequence_of_calls_leaves_the_state_of_the_tokens(kind: str, data: st.DataObject):
    """Texts are fed, generated, taken back, saved, loaded, forked: what follows depends on the tokens alone."""
    model, session = MODELS[kind], Session(MODELS[kind], prefixes=PrefixStore(2**20, snapshot_tokens=3))
    for _ in range(data.draw(st.integers(1, 7))):
        match data.draw(st.sampled_from(["feed", "generate", "rewind", "save", "fork"])):
            case "feed":
                session.feed(data.draw(st.sampled_from(["a", "Once upon", " "])))
            case "generate":
                session.generate(data.draw(st.integers(1, 8)), **SAMPLED, seed=data.draw(st.sampled_from([None, 1])))
            case "rewind":
                session.rewind(data.draw(st.integers(0, session.tokens - 1)))
            case "save":
                session = Session.load(model, saved(session), prefixes=session.prefixes)
            case "fork":
                session.fork().generate(2, **GREEDY)
    fresh = Session(model)
    fresh._tokens = session.token_ids
    for one in (session, fresh):
        one.generate(6, **GREEDY)
    assert session.token_ids == fresh.token_ids


def saved(session: Session) -> io.BytesIO:
    file = io.BytesIO()
    session.save(file)
    file.seek(0)
    return file


@pytest.mark.parametrize("kind", ["attention", "rglru"])
def test_a_loaded_session_is_rewound_by_its_snapshots(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model = MODELS[kind]
    session = fed(model, "Once upon a time", prefixes=PrefixStore(2**30, snapshot_tokens=4))
    session.generate(20, **GREEDY)
    session.save(tmp_path / "stream.safetensors")
    loaded = Session.load(model, tmp_path / "stream.safetensors", prefixes=PrefixStore(2**30, snapshot_tokens=4))
    for one in (session, loaded):
        one.rewind(11)
    assert tokens_read(loaded) <= 5 and not caplog.messages
    assert loaded.generate(20, **GREEDY) == session.generate(20, **GREEDY)


@every_mixer
def test_a_session_that_was_rewound_and_saved_reads_nothing_again(mixer: MixerSpec, monkeypatch: pytest.MonkeyPatch):
    session = fed(speaker(mixer), "Once upon a time", prefixes=PrefixStore(2**30, snapshot_tokens=4))
    session.generate(20, **GREEDY)
    session.rewind(7)
    file, twin = saved(session), session.fork()
    loaded = Session.load(session.model, file)
    expected, read, hidden = session.generate(9, **GREEDY), [], session.model.decoder.hidden

    def counting(tokens_BT: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        read.append(tokens_BT.numel())
        return hidden(tokens_BT, *given, **named)

    monkeypatch.setattr(session.model.decoder, "hidden", counting)
    for one in (loaded, twin):
        assert one.generate(9, **GREEDY) == expected
    assert read == [1] * 18


def test_a_stream_that_goes_on_stores_snapshots_too():
    session = fed(MODELS["rglru"], "Once", prefixes=PrefixStore(2**30, snapshot_tokens=4))
    session.generate(3, **GREEDY)
    session.generate(20, **GREEDY)
    session.rewind(2)
    assert tokens_read(session) <= 5


@pytest.mark.parametrize("kind", ["attention", "rglru"])
def test_a_text_that_is_read_at_once_is_stored_and_found(kind: str):
    store = PrefixStore(2**30, snapshot_tokens=4)
    first, second = (fed(MODELS[kind], "Once upon a time", prefixes=store) for _ in range(2))
    first.read()
    first.rewind(2)
    assert tokens_read(first) <= 5
    second.read()
    assert store.counters.hits == 1 and second._read == second.tokens - 1
    assert second.generate(9, **GREEDY) == fed(MODELS[kind], "Once upon a time").generate(9, **GREEDY)


def test_a_fork_in_the_middle_of_the_first_text_knows_what_layers_calibrated_on():
    model = speaker(FIRST["plga"])
    session = fed(model, "Once upon")
    events = session.events(20, **GREEDY)
    next(events)
    for one in (session.fork(), Session.load(model, saved(session))):
        one.generate(3, **GREEDY)
        one.rewind(one.tokens - len("_Once up"))
        assert one.generate(9, **GREEDY) == fed(model, "Once up").generate(9, **GREEDY)
    events.close()


def test_a_first_text_that_was_never_read_may_grow():
    model = speaker(FIRST["plga"])
    session, engine = fed(model, "Once"), Engine(model.decoder)
    stream = engine.submit(session.request(5, **GREEDY))
    stream.cancel()
    session.finish(stream)
    session.feed(" upon")
    assert session.generate(9, **GREEDY) == fed(model, "Once", " upon").generate(9, **GREEDY)


def test_layers_calibrate_on_the_first_text_alone_when_it_is_read_again(monkeypatch: pytest.MonkeyPatch):
    """After an error in the model the state is read anew, with the same first chunk as before."""
    session, expected = (fed(speaker(FIRST["plga"]), "Once upon") for _ in range(2))
    for one in (session, expected):
        one.generate(5, **GREEDY)
        one.feed(" a time")

    def failing(*given: object, **named: object) -> torch.Tensor:
        raise RuntimeError("no memory")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(session.model.decoder, "hidden", failing)
            with pytest.raises(RuntimeError, match="no memory"):
                session.generate(1, **GREEDY)
    session.events(3)  # not pulled
    assert session.nbytes == 0
    assert session.generate(12, **GREEDY) == expected.generate(12, **GREEDY)


def test_a_session_that_has_read_nothing_of_a_stored_text_is_saved():
    session = fed(MODELS["rglru"], "Once upon a time", prefixes=PrefixStore(2**30, snapshot_tokens=4))
    session.fork().generate(5, **GREEDY)
    loaded = Session.load(MODELS["rglru"], saved(session))
    assert loaded.generate(5, **GREEDY) == session.generate(5, **GREEDY)


def test_a_rewind_without_a_snapshot_is_reported(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    session = fed(MODELS["rglru"], "Once upon a time", prefixes=PrefixStore(1, snapshot_tokens=4))
    session.generate(20, **GREEDY)
    session.rewind(11)
    assert "26 tokens of a session are read again" in caplog.text
    expected = fed(MODELS["rglru"], "Once upon a time")
    expected.generate(9, **GREEDY)
    assert session.generate(5, **GREEDY) == expected.generate(5, **GREEDY)


def test_numbers_that_cannot_be_taken_back_are_refused():
    session = fed(MODELS["attention"], "Once")
    for wrong in (5, -1, 1.0, True):
        with pytest.raises(UserError, match=r"rewind: .*expected 0 to 4, the tokens behind the beginning"):
            session.rewind(wrong)
    session.rewind(0)
    assert session.tokens == 5


@pytest.mark.parametrize("kind", ["attention", "rglru"])
def test_a_session_is_rewound_and_forked_while_it_generates(kind: str):
    whole = fed(MODELS[kind], "Once")
    whole.generate(12, **GREEDY)
    session = fed(MODELS[kind], "Once", prefixes=PrefixStore(2**30, snapshot_tokens=4))
    events, twins = session.events(12, **GREEDY), []
    for _ in range(7):
        next(events)
        twins.append(session.fork())
    for twin in twins:
        twin.generate(whole.tokens - twin.tokens, **GREEDY)
        assert twin.token_ids == whole.token_ids
    session.rewind(4)
    assert list(events) == [] and session.tokens == 5 + 3
    session.generate(9, **GREEDY)
    assert session.token_ids == whole.token_ids


MODELS = {kind: speaker(FIRST[kind]) for kind in ("attention", "rglru", "ted")}
