import json
import re
from dataclasses import replace
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from small_descriptions import BPE, PIECES, UNIGRAM

from linnet.data.pieces import TokenBytes
from linnet.data.sentencepiece import SentencePieceDefinition
from linnet.data.tokenizer import Tokenizer

DESCRIPTIONS = [
    replace(model, **options)
    for model in (UNIGRAM, BPE)
    for options in ({}, {"dummy_prefix": False}, {"collapse": False}, {"byte_fallback": False, "unknown_text": "?"})
]

SENTENCE = {
    ("Unigram", True): ["▁a", "b", "▁a"],
    ("Unigram", False): ["ab", "▁a"],
    ("BPE", True): ["▁a", "b", "▁a"],
    ("BPE", False): ["ab", "▁a"],
}


@pytest.mark.parametrize("model", DESCRIPTIONS)
def test_what_is_written_is_read_again(model: SentencePieceDefinition) -> None:
    assert SentencePieceDefinition.read(model.to_dict()) == model
    library = tokenizers.Tokenizer.from_str(json.dumps(model.to_dict()))
    assert SentencePieceDefinition.read(json.loads(library.to_str())) == model
    assert library.encode("ab a").tokens == SENTENCE[model.kind, model.dummy_prefix]


@pytest.mark.parametrize(
    "definition", [{}, {"post_processor": None}, {"post_processor": {"special_tokens": {"x": {}}}}]
)
def test_other_tokenizers_have_none(definition: dict[str, Any]) -> None:
    assert SentencePieceDefinition.read(definition) is None


def test_unknown_text_is_printed_but_counts_nothing() -> None:
    tokenizer = Tokenizer(UNIGRAM.to_dict(), "here")
    assert tokenizer.decode([261, 0, 260]) == "a ⁇ b"
    assert tokenizer.token_bytes()[[261, 0, 260]].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("dummy_prefix", "collapse", "expected"),
    [(True, True, "a "), (False, True, "a "), (True, False, "  a "), (False, False, "   a ")],
)
def test_spaces_at_the_start_of_a_text(dummy_prefix: bool, collapse: bool, expected: str) -> None:
    model = replace(UNIGRAM, dummy_prefix=dummy_prefix, collapse=collapse)
    assert TokenBytes.from_sentencepiece(model).decode([1, 258, 258, 261, 258]) == expected


@given(st.lists(st.sampled_from([0, 1, 2, 257, 258, 259, 260, 261]), max_size=6), st.integers(0, 6), st.booleans())
def test_what_follows_a_text_is_no_beginning(tokens: list[int], cut: int, collapse: bool) -> None:
    tokenizer = Tokenizer(replace(UNIGRAM, collapse=collapse).to_dict(), "here")
    begun, follows = tokens[:cut], tokens[cut:]
    if tokenizer.end_id in begun:
        begun = begun[len(begun) - begun[::-1].index(tokenizer.end_id) :]
    expected = tokenizer.decode([*begun, *follows]).removeprefix(tokenizer.decode(begun))
    assert tokenizer.decode(follows, behind=tokens[:cut]) == expected
    stream = tokenizer.stream(tokens[:cut])
    assert "".join([stream.push(token) for token in follows]) + stream.finish() == expected


def test_the_end_of_a_text_begins_another() -> None:
    tokenizer = Tokenizer(UNIGRAM.to_dict(), "here")
    assert tokenizer.decode([261], behind=[260]) == " a"
    assert tokenizer.decode([261], behind=[260, tokenizer.end_id]) == "a"


@given(
    pieces=st.lists(st.text("▁▁ab\n", min_size=1, max_size=4), max_size=5),
    text=st.text("▁▁ab\n", max_size=20),
)
def test_no_piece_reaches_from_one_word_into_the_next(pieces: list[str], text: str) -> None:
    model = replace(UNIGRAM, pieces=[*PIECES, *pieces], scores=[*UNIGRAM.scores, *[-1.0] * len(pieces)])
    before = model.to_dict()["pre_tokenizer"]
    words = re.findall(before["pattern"]["Regex"], text) if before else [text]
    assert "".join(words) == text
    places = {place for n in range(1, len(words)) for place in [len("".join(words[:n]))]}
    for piece in pieces:
        for found in re.finditer(f"(?=({re.escape(piece)}))", text):
            assert places.isdisjoint(range(found.start() + 1, found.start() + len(piece)))
