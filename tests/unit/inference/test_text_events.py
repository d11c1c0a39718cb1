"""Tokens become text without broken characters, without stop texts, and without loss."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.streams import Event
from linnet.inference.text_events import TextEvent, TextEvents, TokenChoice, stop_texts

BYTES = Tokenizer.train("bytes", [])
BPE = Tokenizer.train("bpe", ["the cat sat. the cat sat! é😀é😀 stop stops"] * 3, 290)
END = BYTES.end_id


def events_of(tokenizer: Tokenizer, tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[list[TextEvent], int]:
    """The events, and the number of tokens that were needed."""
    text, found = TextEvents(tokenizer, stop=stop), list[TextEvent]()
    for count, token in enumerate(tokens, start=1):
        found += text.push(Event(token))
        if text.has_stopped:
            assert text.push(Event(token)) == text.finish() == []
            return found, count
    return found + text.finish(), len(tokens)


STOPS = st.lists(st.text("ab.é😀 ", min_size=1, max_size=3), max_size=3).map(tuple)


@settings(deadline=None)
@given(
    data=st.binary(max_size=12) | st.text("ab.é😀 ", max_size=12).map(str.encode),
    stop=STOPS,
    ends=st.sets(st.integers(0, 12)),
)
@example(data=b"ab", stop=("abc", "b"), ends=set())
@example(data="aé".encode(), stop=("aé😀",), ends={2})
def test_the_texts_of_the_events_are_the_text_before_the_first_stop(data: bytes, stop: tuple[str, ...], ends: set[int]):
    tokens = list(data)
    for place in sorted(ends, reverse=True):
        tokens.insert(place, END)  # an end token that is ignored prints nothing
    events, count = events_of(BYTES, tokens, stop)
    whole = BYTES.decode(tokens)
    found = [(whole.find(text) + len(text), whole.find(text)) for text in stop if text in whole]
    end, start = min(found, default=(len(whole), len(whole)))
    assert "".join(event.text for event in events) == whole[:start]
    assert [event.token for event in events] == tokens[: len(events)]
    if not found:
        assert len(events) == count == len(tokens)
    else:
        assert len(BYTES.decode(tokens[:count])) <= end <= len(BYTES.decode(tokens[: count + 1]))


@pytest.mark.parametrize("stop", [(), ("sat!",), ("cat sat",), ("é😀é", "ps"), ("at",)])
def test_whatever_the_tokens_the_text_is_the_same(stop: tuple[str, ...]):
    text = "the cat sat. the cat sat! é😀é😀 stops"
    one, _ = events_of(BYTES, list(text.encode()), stop)
    other, _ = events_of(BPE, BPE.encode(text), stop)
    assert "".join(event.text for event in one) == "".join(event.text for event in other)


def test_a_character_comes_with_the_token_that_completes_it():
    text = TextEvents(BYTES)
    first, second, third = "é!".encode()
    assert text.push(Event(first)) == []
    assert [(event.token, event.text) for event in text.push(Event(second))] == [(first, ""), (second, "é")]
    assert [event.text for event in text.push(Event(third))] == ["!"]
    assert text.finish() == []


def test_a_character_that_never_ends_is_replaced_or_left_to_the_next_text():
    first, second = "é".encode()
    text = TextEvents(BYTES)
    text.push(Event(first))
    assert [event.text for event in text.finish()] == ["\ufffd"]
    stream = BYTES.stream()
    text = TextEvents(BYTES, stream=stream, ends=False)
    text.push(Event(first))
    assert [event.text for event in text.finish()] == [""]
    text = TextEvents(BYTES, stream=stream, ends=False)
    assert [event.text for event in text.push(Event(second))] == ["é"]


def test_text_that_may_be_a_stop_is_held_with_its_tokens_and_lost_in_no_case():
    text = TextEvents(BYTES, stop=["END"])
    assert [len(text.push(Event(byte))) for byte in b"aENEND"] == [1, 0, 0, 2, 0, 0]
    assert text.has_stopped
    text = TextEvents(BYTES, stop=["END"])
    assert [len(text.push(Event(byte))) for byte in b"aEN"] == [1, 0, 0]
    assert "".join(event.text for event in text.finish()) == "EN"


def test_a_token_in_which_a_stop_begins_has_the_text_before_it():
    token = next(token for token, piece in enumerate(BPE.pieces.table) if piece == b" cat")
    for stop in (("at",), ("cat", "a"), ("a", "cat")):  # of several that which is complete first, as with other tokens
        events, _ = events_of(BPE, [token], stop)
        assert [(event.text, event.choice.text) for event in events] == [(" c", " cat")]


def test_the_tokens_of_a_character_that_begins_a_stop_are_not_reported():
    events, _ = events_of(BYTES, list("aé!".encode()), stop=("é!",))
    assert [event.text for event in events] == ["a"]


def test_log_probabilities_come_with_texts_and_bytes():
    first, second = "é".encode()
    text = TextEvents(BYTES)
    text.push(Event(first, -0.5, [(first, -0.5), (END, -1.0), (ord("x"), -2.0)]))
    event, _ = text.push(Event(second))
    assert event.choice == TokenChoice(first, bytes([first]), "\ufffd", -0.5)
    assert (event.token, event.logprob) == (first, -0.5)
    assert event.top[1:] == (TokenChoice(END, b"", "<|end|>", -1.0), TokenChoice(ord("x"), b"x", "x", -2.0))


def test_the_first_token_of_a_text_is_described_as_it_prints():
    definition = json.loads(json.dumps(dict(BYTES.definition)))
    definition["decoder"] = {
        "type": "Sequence",
        "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    }
    definition["model"]["vocab"][" a"] = len(definition["model"]["vocab"]) + 1
    tokenizer = Tokenizer(definition, "test")
    spaced = definition["model"]["vocab"][" a"]
    events, _ = events_of(tokenizer, [spaced, spaced])
    assert [(event.text, event.choice.bytes) for event in events] == [("a", b"a"), (" a", b" a")]


@pytest.mark.parametrize("stop", ["", ["a", ""], [1], 3])
def test_a_stop_text_that_is_none_is_refused(stop):
    with pytest.raises(UserError, match=r"^stop: "):
        stop_texts(stop)
