"""The events of a session, its stop texts, and its continuation on an engine that others share."""

import copy
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import EXAMPLES, UNLIKE, speaker

from linnet.core.errors import UserError
from linnet.inference.constrained import Constraint, Grammar
from linnet.inference.engine import Engine
from linnet.inference.language_model import LanguageModel
from linnet.inference.prefix_store import PrefixStore
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling
from linnet.inference.session import Session
from linnet.inference.speculative import Speculation, speculation_of
from linnet.inference.streams import Event
from linnet.inference.weights import convert_weights, fingerprint, precision_of
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.ted import EvictionCache
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

FIRST = {mixer.kind: mixer for mixer in reversed(EXAMPLES)}
GREEDY = {"temperature": 0.0, "ignore_eos": True}
CONSTRAINT = Constraint("regex", "a+")
SAMPLED = {"temperature": 1.0, "ignore_eos": True}


def fed(model: LanguageModel, text: str = "Once", **settings: object) -> Session:
    session = Session(model, **settings)
    session.feed(text)
    return session


@pytest.fixture
def guesses_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever time they take."""

    def guessing(*given: Any) -> Speculation:
        return replace(speculation_of(*given), adapts=False)

    monkeypatch.setattr("linnet.inference.session.speculation_of", guessing)


def test_events_have_the_text_the_tokens_and_the_probabilities():
    model, session = speaker(), fed(speaker())
    events = list(session.events(12, logprobs=3, seed=4, **SAMPLED))
    said = fed(model).generate(12, seed=4, **SAMPLED)
    assert "".join(event.text for event in events) == said
    assert [event.token for event in events] == session.token_ids[5:]
    with torch.no_grad():
        logits_TV = model.decoder(torch.tensor([session.token_ids[:-1]]))[0, 4:]
    for event, logits_V in zip(events, logits_TV.float().log_softmax(dim=-1), strict=True):
        assert event.logprob == pytest.approx(float(logits_V[event.token]), abs=1e-4)
        assert [choice.token for choice in event.top] == logits_V[: model.tokenizer.vocab_size].topk(3).indices.tolist()
    assert all(event.logprob is None and not event.top for event in fed(model).events(3, **GREEDY))


def test_tokens_behind_a_stop_text_are_part_of_the_text_that_goes_on():
    """An engine that others share may have chosen some before the session saw the stop text."""
    session = fed(speaker())
    Engine(session.model.decoder, vocab_size=257).submit(session.request(9, stop="x", **GREEDY))
    for token in b"x\xc3":  # the first byte of a character of two
        assert not session.accept(Event(token))
    assert session.has_stopped and session._text.push(0xA9) == "é"


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_text_ends_a_continuation_and_the_next_one_continues_behind_it(length: int, streamed: bool):
    whole, session = fed(speaker()), fed(speaker())
    said = whole.generate(40, seed=1, **SAMPLED)
    pieces = [(at, said[at : at + length]) for at in range(6, 30)]
    at, stop = next((at, text) for at, text in pieces if "\ufffd" not in text and said.find(text) == at)
    if streamed:
        begun = "".join(session.stream(40, Sampling(temperature=1.0, seed=1), ignore_eos=True, stop=["never", stop]))
    else:
        begun = session.generate(40, stop=["never", stop], seed=1, **SAMPLED)
    assert begun == said[:at]
    session.generate(whole.tokens - session.tokens, **SAMPLED)
    assert session.token_ids == whole.token_ids


def test_what_was_held_for_a_stop_text_is_not_lost():
    said = fed(speaker()).generate(12, seed=1, **SAMPLED)
    session = fed(speaker())
    assert session.generate(12, stop=said[-2:] + "and more", seed=1, **SAMPLED) == said
    assert not session.has_stopped


def test_bad_settings_leave_a_session_as_it_was():
    model = speaker()
    session, other = fed(model), fed(model)
    bad = [{"stop": ""}, {"top_p": 2.0}, {"max_tokens": 0}, {"max_tokens": 1.5}, {"max_tokens": True}]
    bad += [{"max_tokens": None}, {"max_tokens": "5"}, {"max_tokens": 10**30}, {"choices": 5}]
    bad += [{"max_tokens": 10**15}, {"logprobs": -1}, {"logprobs": True}, {"draft": "x"}, {"logit_bias": {10**6: 1.0}}]
    for turn in range(3):  # before anything was generated, and behind it
        known = {
            name: copy.copy(vars(session)[name]) for name in ("_tokens", "_runs", "_drawn", "seed", "finish_reason")
        }
        kept = session._state, session._texts, session._draft
        for settings in bad:
            for call in (session.generate, session.events, session.request):
                # The engine of others refuses more than there is memory for.
                if call != session.request or settings.get("max_tokens") not in (10**15, 10**30):
                    with pytest.raises(UserError):
                        call(**{"max_tokens": 4, "seed": 9, **settings})
            streamed = {"max_tokens": 4, **settings}
            if streamed.keys() <= {"max_tokens", "logprobs", "draft"}:
                with pytest.raises(UserError):
                    session.stream(streamed.pop("max_tokens"), Sampling(seed=9), **streamed)
        with pytest.raises(TypeError, match="temperature"):
            session.generate(3, temprature=1.0)
        for text in (5, None, ["a"]):
            with pytest.raises(UserError, match=r"^text: .*expected a text$"):
                session.feed(text)
        assert known == {name: vars(session)[name] for name in known}
        assert kept == (session._state, session._texts, session._draft)
        seed = {"seed": 1} if turn == 0 else {}
        assert session.generate(6, **seed, **SAMPLED) == other.generate(6, **seed, **SAMPLED)
    with pytest.raises(UserError, match=r"^input: 5: expected a text$"):
        Session(model, input=5)


def contents(session: Session) -> dict[str, object]:
    """Everything that a session is, with copies of what is changed in place."""
    state, draft, counts = session._state, session._draft, session._counts
    names = ("seed", "_drawn", "finish_reason", "_cache_policy", "_first_chunk", "_texts", "_stop_texts", "_text")
    return {
        **{name: vars(session)[name] for name in names},
        "tokens": session.token_ids,
        "runs": copy.deepcopy(session._runs),
        "text": session._text.state_dict(),
        "counts": (counts.seen, counts.generated),
        "state": state if state is None else (state, state.positions, state.capacity, bytes_of(state)),
        "draft": draft and (draft, draft.state.position - len(draft.tokens)),
    }


def bytes_of(state: DecoderState) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in state.tensors().items()}


@pytest.mark.parametrize("mixer", [FIRST["attention"], FIRST["mamba2"]], ids=["attention", "mamba2"])
@pytest.mark.usefixtures("guesses_in_every_step")
def test_a_request_that_an_engine_refuses_leaves_a_session_as_it_was(mixer: MixerSpec):
    model = speaker(mixer)
    session, other = fed(model), fed(model)
    small = Engine(model.decoder, vocab_size=100)
    closed, opened = (Engine(model.decoder, vocab_size=model.tokenizer.vocab_size) for _ in range(2))
    closed.submit = lambda _: 1 / 0
    guesses = {"draft": model}
    for turn in range(3):  # before anything was generated, and behind it
        before = contents(session)
        refusing = [(small, {"logit_bias": {200: 1.0}, **guesses}), (small, {"logit_bias": {200: 1.0}, "stop": "x"})]
        refusing += [(closed, guesses)]
        if turn == 0 and mixer.kind == "attention":  # no memory; behind it the session refuses so many tokens itself
            refusing += [(opened, {"max_tokens": 10**15})]
        for engine, settings in refusing:
            request = session.request(**{"max_tokens": 12, "seed": 9, **SAMPLED, **settings})
            assert contents(session) == before
            with pytest.raises((UserError, ZeroDivisionError)):
                engine.submit(request)
            assert contents(session) == before
        seed = {"seed": 1} if turn == 0 else {}
        request = session.request(8, **seed, **SAMPLED, **guesses)
        assert contents(session) == before
        stream = opened.submit(request)
        assert session.finish_reason is None and contents(session) != before
        said = "".join(part.text for event in stream for part in session.accept(event))
        said += "".join(part.text for part in session.finish(stream))
        assert said == other.generate(8, **seed, **SAMPLED) and session.token_ids == other.token_ids
        assert session._draft is not None
        for one in (session, other):
            one.rewind(6)  # the draft has read some of them
            one.feed("xy")
        assert session.generate(2, **SAMPLED) == other.generate(2, **SAMPLED)


def test_a_request_of_a_session_that_has_changed_since_is_refused():
    session = fed(speaker())
    session.generate(4, **GREEDY)
    request, engine = session.request(4, **GREEDY), Engine(session.model.decoder, vocab_size=257)
    session.feed(" and")
    before = contents(session)
    with pytest.raises(UserError, match=r"^request: the session has changed since this request was made"):
        engine.submit(request)
    assert contents(session) == before and engine.waiting == 0


def test_a_continuation_that_was_cancelled_before_it_began_leaves_the_state(monkeypatch: pytest.MonkeyPatch):
    model = speaker(FIRST["mamba2"])
    session, other = fed(model), fed(model)
    engine = Engine(model.decoder, vocab_size=model.tokenizer.vocab_size, prefixes=session.prefixes)
    for turn in range(2):
        stream = engine.submit(session.request(5, **GREEDY))
        assert session.finish(stream) == [] and session.finish_reason == "cancelled"
        assert (session.nbytes > 0) == (turn > 0)
        with monkeypatch.context() as patched:
            read, hidden = [], Decoder.hidden
            patched.setattr(
                Decoder,
                "hidden",
                lambda self, tokens_BT, *given, _read=read, _hidden=hidden, **named: (
                    _read.append(tokens_BT.shape[1]) or _hidden(self, tokens_BT, *given, **named)
                ),
            )
            assert session.generate(5, **GREEDY) == other.generate(5, **GREEDY)
        assert turn == 0 or max(read) == 1


@pytest.mark.parametrize("kind", ["attention", "mamba2", "gla"])
@pytest.mark.parametrize("passes", [0, 1, 6])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_session_goes_on_behind_ctrl_c(kind: str, passes: int, streamed: bool):
    """It strikes in a pass, behind which some layers have read a token and others have not."""
    model, done = speaker(FIRST[kind]), []
    session, other = fed(model), fed(model)

    def interrupt(*_: object) -> None:
        done.append(1)
        if len(done) == passes + 1:
            raise KeyboardInterrupt

    hook = model.decoder.mixers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        if streamed:
            list(session.stream(9, Sampling(temperature=0), ignore_eos=True))
        else:
            session.generate(9, **GREEDY)
    hook.remove()
    begun = session.tokens - 5
    assert session.finish_reason == "error" and passes - 1 <= begun <= passes
    session.generate(9 - begun, **GREEDY)
    other.generate(9, **GREEDY)
    assert session.token_ids == other.token_ids


@pytest.mark.usefixtures("guesses_in_every_step")
def test_a_draft_is_not_kept_behind_an_error():
    """Its own state may be that of a pass which did not end."""
    model, draft = speaker(), speaker(FIRST["mamba2"])
    session = fed(model)
    session.generate(9, draft=draft, **GREEDY)
    assert session._draft is not None
    hook = draft.decoder.mixers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.generate(9, draft=draft, **GREEDY)
    hook.remove()
    assert session._draft is None and session.finish_reason == "error"


def test_a_state_for_which_there_is_no_memory_decides_no_policy(monkeypatch: pytest.MonkeyPatch):
    session = fed(speaker(FIRST["ted"]), cache_policy="bank")
    before = contents(session)

    def fails(*_: object, **__: object) -> None:
        raise UserError("no memory")

    monkeypatch.setattr("linnet.inference.engine.cache_policy_state", fails)
    with pytest.raises(UserError, match="no memory"):
        session.read()
    assert contents(session) == before


def test_a_text_whose_reading_was_interrupted_is_read_again():
    model = speaker(FIRST["gla"])
    session, other = fed(model), fed(model)
    for one in (session, other):
        one.generate(3, **GREEDY)
        one.feed(" and then")
    hook = model.decoder.mixers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.read()
    hook.remove()
    session.read()
    assert session.generate(9, **GREEDY) == other.generate(9, **GREEDY)


def test_a_text_beyond_learned_positions_is_not_fed():
    model = speaker(positions="learned")
    for begun in (False, True):
        session = Session(model)
        if begun:
            session.feed("Once")
            session.generate(10, **GREEDY)
            session.read()
        room = 63 - session.tokens
        before = contents(session)
        with pytest.raises(UserError) as refused:
            session.feed("a" * (room + 1))
        accepted = f"the model's learned positions end at 64; expected at most {room}, so that another one can follow"
        assert str(refused.value) == f"{room + 1} tokens of text behind {session.tokens}: {accepted}"
        assert contents(session) == before
        session.feed("a" * room)
        session.read()
        session.generate(1, **GREEDY)
        session.save(io.BytesIO())
        assert session.tokens == 64
        with pytest.raises(UserError, match="expected at most 0"):
            session.feed("a")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda session: session.stream(3, None), "sampling: None: expected a Sampling"),
        (lambda session: session.stream(3, 0.8), "sampling: 0.8: expected a Sampling"),
        (lambda session: session.stream("3", Sampling()), "max_tokens: '3': expected a whole number, at least 1"),
        (lambda session: session.stream(3, Sampling(), stop=5), "stop: (5,): expected texts that are not empty"),
        (lambda session: session.stream(3, Sampling(), constraint=5), "constraint: 5: expected a Constraint"),
        (lambda session: session.generate(3, choices=5), "choices: 5: expected a list of texts that are not empty"),
        (lambda session: session.generate(10**15, draft=session.model), "max_tokens: "),
        (lambda session: Session("runs/x"), "model: 'runs/x': expected a model, as linnet.load reads it"),
        (lambda session: Session(session.model, prefixes=5), "prefixes: 5: expected a PrefixStore"),
        (lambda session: Session.load(5, "x"), "model: 5: expected a model, as linnet.load reads it"),
        (
            lambda session: Session.load(session.model, 5),
            "source: 5: expected a path, or a binary file that is open to",
        ),
        (lambda session: session.save(5), "target: 5: expected a path, or a binary file that is open to write"),
        (lambda session: session.save(io.StringIO()), "target: <_io.StringIO object"),
        (
            lambda session: session.generate(5, regex="a+", grammar=Grammar(session.model.tokenizer, CONSTRAINT)),
            "regex and grammar: expected one constraint",
        ),
        (
            lambda session: session.model.stream("a", 5, Sampling(), caches=5),
            "caches: 5: expected Caches(kv=..., calibration=...)",
        ),
    ],
)
def test_a_wrong_argument_is_named_in_one_line_and_leaves_the_session(call: Callable[[Session], object], message: str):
    session = fed(speaker())
    before = contents(session)
    with pytest.raises(UserError) as refused:
        call(session)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)
    assert contents(session) == before
    assert session.generate(5, **GREEDY) == fed(session.model).generate(5, **GREEDY)


@pytest.mark.parametrize("kind", ["attention", "rglru"])
@pytest.mark.parametrize("has_store", [True, False])
def test_a_stream_that_is_cancelled_within_a_step_adds_no_token(
    kind: str, has_store: bool, monkeypatch: pytest.MonkeyPatch
):
    """The step has read the last token of the session, and what it chose is no part of it."""
    model = speaker(FIRST[kind])
    session = fed(model, prefixes=PrefixStore(2**30) if has_store else None)
    engine, logits_behind = Engine(model.decoder), CachedReader.logits_behind
    stream = engine.submit(session.request(30, **GREEDY))
    for _ in range(4):
        session.accept(next(stream))

    def cancelling(self: CachedReader, tokens: list[int]) -> torch.Tensor:
        stream.cancel()  # as another thread does
        return logits_behind(self, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(CachedReader, "logits_behind", cancelling)
        engine.step()
    session.finish(stream)
    assert session.finish_reason == "cancelled" and session.tokens == 9
    expected, twin = fed(model), session.fork()
    expected.generate(20, **GREEDY)
    for one in (session, twin):
        one.generate(16, **GREEDY)
        assert one.token_ids == expected.token_ids


def test_a_request_whose_tokens_have_been_read_since_is_refused():
    session = fed(speaker())
    engine = Engine(session.model.decoder)
    for count in (20, 500):  # with room, and with a copy of the state that has more
        session.generate(20, **GREEDY)
        session.rewind(12)
        session.feed(" upon a")
        request = session.request(count, **GREEDY)
        session.read()
        with pytest.raises(UserError, match=r"^request: the session has changed"):
            engine.submit(request)


def test_a_long_text_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch):
    session, read, hidden = fed(speaker(), "Once upon a time. " * 40), [], Decoder.hidden

    def spied(self: Decoder, tokens_BT: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        read.append(tokens_BT.shape[1])
        return hidden(self, tokens_BT, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "hidden", spied)
        session.read()
    assert sum(read) == session.tokens - 1 and max(read) <= 256
    expected = fed(session.model, "Once upon a time. " * 40).generate(9, **GREEDY)
    assert session.generate(9, **GREEDY) == expected


def test_a_state_with_room_needs_no_memory(monkeypatch: pytest.MonkeyPatch):
    session = fed(speaker())
    session.generate(20, **GREEDY)
    session.rewind(10)
    monkeypatch.setattr("linnet.inference.engine.available_bytes", lambda device: 0)
    session.generate(5, **GREEDY)
    with pytest.raises(UserError, match="no memory"):
        fed(session.model).generate(5, **GREEDY)


def test_one_stop_text_of_a_streamed_continuation_is_no_list_of_characters():
    stop = "".join(map(chr, range(32, 127)))
    session, model = fed(speaker()), speaker()
    said, sampling = session.fork().generate(40, seed=1, **SAMPLED), Sampling(temperature=1.0, seed=1)
    assert any(character in said for character in stop)
    assert "".join(session.stream(40, sampling, ignore_eos=True, stop=stop)) == said
    assert "".join(model.stream("Once", 40, sampling, ignore_eos=True, stop=stop)).startswith(said)
    (whole,) = model.completions(["Once"], 40, sampling, ignore_eos=True, stop=stop)
    assert whole.text.startswith(said)


def test_a_session_tells_why_its_last_continuation_ended(monkeypatch: pytest.MonkeyPatch):
    session = fed(speaker())
    assert session.finish_reason is None
    said = session.generate(12, seed=1, **SAMPLED)
    assert session.finish_reason == session.fork().finish_reason == "length"
    session.rewind(12)
    events = session.events(12, seed=1, **SAMPLED)
    next(events)
    assert session.finish_reason is None
    events.close()
    assert session.finish_reason == "cancelled"

    pieces = (said[at : at + 2] for at in range(4, 10))
    stop = next(text for text in pieces if "\ufffd" not in text and text not in said[:4])
    for streamed in (False, True):
        session = fed(speaker())
        if streamed:
            list(session.stream(12, Sampling(temperature=1.0, seed=1), ignore_eos=True, stop=[stop]))
        else:
            session.generate(12, stop=stop, seed=1, **SAMPLED)
        assert session.finish_reason == "stop" and session.has_stopped
        pieces = session.stream(3, Sampling(temperature=1.0), ignore_eos=True)
        list(pieces)
        assert session.finish_reason == pieces.finish_reason == "length" and not session.has_stopped
        pieces = session.stream(3, Sampling(temperature=1.0), ignore_eos=True)
        next(pieces.events())
        assert session.finish_reason is None
        pieces.events().close()
        assert session.finish_reason == pieces.finish_reason == "cancelled"

    with monkeypatch.context() as patched:
        patched.setattr("linnet.inference.streams.choose_tokens", lambda *_: [session.model.tokenizer.end_id])
        assert session.generate(5, seed=1, temperature=1.0) == "" and session.finish_reason == "stop"
        patched.setattr("linnet.inference.streams.choose_tokens", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.generate(5, seed=1, temperature=1.0)
    assert session.finish_reason == "error"
    stream = Engine(session.model.decoder, vocab_size=257).submit(session.request(4, **SAMPLED))
    assert session.finish_reason is None
    for event in stream:
        session.accept(event)
    session.finish(stream)
    assert session.finish_reason == "length"


def test_a_session_gives_the_log_probabilities_with_the_text():
    model = speaker()
    completion = fed(model).generate(12, logprobs=2, seed=4, **SAMPLED)
    assert completion.text == fed(model).generate(12, seed=4, **SAMPLED)
    assert completion.events == list(fed(model).events(12, logprobs=2, seed=4, **SAMPLED))
    assert completion.finish_reason == "length" and len(completion.events[0].top) == 2


@pytest.mark.parametrize("mixer", UNLIKE)
def test_sessions_share_an_engine(mixer: MixerSpec):
    """Each says what it says alone, turn by turn, whatever the others do at the same time."""
    model = speaker(mixer)
    engine = Engine(
        model.decoder, vocab_size=model.tokenizer.vocab_size, prefixes=PrefixStore(2**30, 8), chunk_tokens=8
    )
    texts = ["Once", "Once upon a time there was", "Twice"]
    sessions, alone = ([fed(model, text, prefixes=engine.prefixes) for text in texts] for _ in range(2))
    for turn, counts in enumerate([(3, 9, 6), (7, 1, 4)]):
        asked = zip(sessions, counts, strict=True)
        streams = [engine.submit(session.request(count, seed=turn, **SAMPLED)) for session, count in asked]
        said = [""] * len(sessions)
        while engine.step():
            for row, (session, stream) in enumerate(zip(sessions, streams, strict=True)):
                while stream.events:
                    said[row] += "".join(event.text for event in session.accept(stream.events.popleft()))
        for row, (session, stream) in enumerate(zip(sessions, streams, strict=True)):
            said[row] += "".join(event.text for event in session.finish(stream))
        expected = [one.generate(count, seed=turn, **SAMPLED) for one, count in zip(alone, counts, strict=True)]
        assert said == expected
        assert [session.token_ids for session in sessions] == [one.token_ids for one in alone]
        for one in (*sessions, *alone):
            one.feed(" and")


def test_a_cancelled_continuation_and_one_with_an_error_leave_the_tokens_that_were_taken():
    model, whole = speaker(), fed(speaker())
    whole.generate(12, **GREEDY)
    for breaks in (False, True):
        session, engine = fed(model), Engine(model.decoder, vocab_size=model.tokenizer.vocab_size)
        stream = engine.submit(session.request(12, **GREEDY))
        for _ in range(5):
            engine.step()
        if breaks:
            stream.fail(RuntimeError("the device is lost"))
        session.finish(stream)
        assert session.token_ids == whole.token_ids[: 5 + 5] and (session.nbytes == 0) == breaks
        session.generate(7, **GREEDY)
        assert session.token_ids == whole.token_ids


def test_a_session_tells_what_it_holds():
    session = fed(speaker(FIRST["ted"]), cache_policy=EvictionCache(top_k=3))
    assert session.observe() == []
    session.generate(9, **GREEDY)
    held = session.observe()
    assert sum(one.contents.nbytes for one in held) == session.nbytes > 0
    assert [one.contents.entries for one in held] == [3, 3]
    events = session.events(4, **GREEDY)
    next(events)
    assert session.observe()[0].contents.ages[-1] == 0


def test_a_session_is_saved_to_bytes_and_loaded_from_them(tmp_path: Path):
    model, session = speaker(), fed(speaker())
    session.generate(6, **GREEDY)
    session.save(file := io.BytesIO())
    session.save(path := tmp_path / "stream.safetensors")
    (tmp_path / "written").write_bytes(file.getvalue())
    assert Session.load(model, tmp_path / "written").token_ids == Session.load(model, path).token_ids
    file.seek(0)
    loaded = Session.load(model, file)
    assert loaded.token_ids == session.token_ids
    assert loaded.generate(6, **GREEDY) == session.generate(6, **GREEDY)
    for damaged, reason in ((file.getvalue()[:-1], "not a safetensors file"), (b"x", "not a safetensors file")):
        with pytest.raises(UserError, match=f"state: {reason}"):
            Session.load(model, io.BytesIO(damaged))
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    with pytest.raises(UserError, match="state: is not what linnet wrote"):
        Session.load(model, io.BytesIO(bytes(changed)))


def rewritten(path: Path, **changes: object) -> Path:
    """The file of a session with other fields of its record."""
    with safe_open(path, "pt") as file:
        notes = dict(file.metadata())
    notes.pop("checksum")
    record = json.loads(notes["stream"])
    for name in changes:
        if name == "tokens":
            notes["tokens"] = json.dumps(changes[name])
        else:
            record[name] = changes[name]
    save_file(load_file(path), path, {**notes, "stream": json.dumps(record)})
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": "int8"}, r"a stream of another precision \(int8; this model's is float64\)"),
        ({"tokenizer": "0"}, "a stream of another tokenizer"),
        ({"tokens": None}, "metadata tokens: expected the token ids of the whole stream"),
        ({"tokens": [1, 2]}, "pending: expected the last of the 2 tokens"),
        ({"tokens": [10**6] * 11}, "tokens: expected tokens below"),
        ({"runs": [[3, 90, None, 0, True]]}, "runs: expected places among the 11 tokens"),
        ({"beginning": 40}, "pending: expected the last of the 11 tokens"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(changes: dict[str, object], reason: str, tmp_path: Path):
    session = fed(speaker())
    session.generate(6, **GREEDY)
    session.save(path := tmp_path / "stream.safetensors")
    with pytest.raises(UserError, match=reason):
        Session.load(speaker(), rewritten(path, **changes))


def test_snapshots_of_another_model_are_refused(tmp_path: Path):
    model = speaker(FIRST["rglru"])
    session = fed(model, "Once upon a time", prefixes=PrefixStore(2**30, snapshot_tokens=4))
    session.generate(6, **GREEDY)
    session.save(path := tmp_path / "stream.safetensors")
    with safe_open(path, "pt") as file:
        notes = {name: text for name, text in file.metadata().items() if name != "checksum"}
    tensors = load_file(path)
    name = next(name for name in tensors if name.startswith("snapshot.4."))
    for damage, reason in (
        ({name: tensors[name][..., :1].contiguous()}, "snapshot.4: tensor .*shape"),
        ({"snapshot.99.layer.0.hidden": tensors[name].clone()}, "expected snapshots of 1 to"),
        ({"snapshot.x": tensors[name].clone()}, "expected snapshots of 1 to"),
    ):
        save_file({**tensors, **damage}, path, notes)
        with pytest.raises(UserError, match=reason):
            Session.load(model, path)


def test_every_weight_distinguishes_models(tmp_path: Path):
    """Also one of the last layer, a table of few bits, and the same weights in another precision."""
    model, same = speaker(), speaker()
    assert fingerprint(model.decoder) == fingerprint(same.decoder)
    fed(model).save(path := tmp_path / "stream.safetensors")
    before = fingerprint(same.decoder)
    with torch.no_grad():
        list(same.decoder.layers[-1].parameters())[-1].view(-1)[-1] += 1e-9
    assert fingerprint(same.decoder) != before
    with pytest.raises(UserError, match="a stream of another model"):
        Session.load(same, path)
    with pytest.raises(UserError, match="another precision"):
        few = speaker()
        convert_weights(few.decoder, "int8")
        Session.load(few, path)
    converted = [speaker(seed=seed) for seed in (0, 0, 1)]
    for one in converted:
        convert_weights(one.decoder, "int4")
    prints = [fingerprint(one.decoder) for one in converted]
    assert prints[0] == prints[1] != prints[2] and precision_of(converted[0].decoder) == "int4"
