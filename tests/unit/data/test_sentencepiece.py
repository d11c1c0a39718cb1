"""A unigram model and a byte-pair encoding over the same few pieces, as a tokenizer.json tells of them."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data.chat_setup import chat_setup
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversations import parse_conversation
from linnet.data.pieces import TokenBytes
from linnet.data.sentencepiece import BYTES, SentencePiece, SentencePieceDefinition
from linnet.data.template_doctor import doctor
from linnet.data.tokenizer import TOKENIZER, Tokenizer

PIECES = ["<unk>", "</s>", *BYTES, "▁", "a", "b", "▁a", "ab", "[SEP]", "abb"]
UNIGRAM = SentencePieceDefinition(
    kind="Unigram",
    pieces=PIECES,
    scores=[-99.0] * 258 + [-1.5, -2.0, -2.5, -1.0, -3.0, 0.4, -0.1],
    reserved=list(range(258)),
    user_defined=[263],
    unused=[264],
    unknown=0,
    unknown_text=" ⁇ ",
    end=1,
    byte_fallback=True,
    charsmap=None,
    dummy_prefix=True,
    collapse=True,
)
BPE = replace(UNIGRAM, kind="BPE", scores=[-9.0] * 258 + [-4.0, -3.0, -2.0, -1.0, -1.0, -5.0, 0.0])


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
def test_a_written_model_is_read_again(model: SentencePieceDefinition) -> None:
    assert SentencePieceDefinition.read(model.to_dict()) == model
    library = tokenizers.Tokenizer.from_str(json.dumps(model.to_dict()))
    assert SentencePieceDefinition.read(json.loads(library.to_str())) == model
    assert library.encode("ab a").tokens == SENTENCE[model.kind, model.dummy_prefix]


@pytest.mark.parametrize(
    "definition", [{}, {"post_processor": None}, {"post_processor": {"special_tokens": {"x": {}}}}]
)
def test_other_tokenizers_have_no_definition(definition: dict[str, Any]) -> None:
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
def test_text_after_a_text_is_not_an_opening(tokens: list[int], cut: int, collapse: bool) -> None:
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
def test_pieces_do_not_cross_word_boundaries(pieces: list[str], text: str) -> None:
    model = replace(UNIGRAM, pieces=[*PIECES, *pieces], scores=[*UNIGRAM.scores, *[-1.0] * len(pieces)])
    before = model.to_dict()["pre_tokenizer"]
    words = re.findall(before["pattern"]["Regex"], text) if before else [text]
    assert "".join(words) == text
    places = {place for n in range(1, len(words)) for place in [len("".join(words[:n]))]}
    for piece in pieces:
        for found in re.finditer(f"(?=({re.escape(piece)}))", text):
            assert places.isdisjoint(range(found.start() + 1, found.start() + len(piece)))


def pieces(model: SentencePieceDefinition, *texts: str) -> list[list[str]]:
    return [[PIECES[token] for token in ids] for ids in SentencePiece(model, "here").encode_batch(list(texts))]


def test_the_best_rank_merges_first_and_of_equal_ones_the_left() -> None:
    assert pieces(BPE, "ab") == [["▁a", "b"]]
    scores = [-1.5 if piece == "▁a" else score for piece, score in zip(PIECES, BPE.scores, strict=True)]
    assert pieces(replace(BPE, scores=scores), "ab") == [["▁", "ab"]]


@pytest.mark.parametrize("model", [BPE, UNIGRAM])
def test_every_kind_of_piece_survives(model: SentencePieceDefinition) -> None:
    """A user-defined piece comes first, an unused one never, bytes for what no piece has; names are text."""
    assert pieces(model, "a[SEP]é", "", " b") == [["▁a", "[SEP]", "<0xC3>", "<0xA9>"], [], ["▁", "b"]]
    assert "abb" not in pieces(model, "b abb")[0]
    assert "</s>" not in pieces(model, "</s>")[0]


def test_without_bytes_there_is_one_unknown_piece() -> None:
    assert pieces(replace(UNIGRAM, byte_fallback=False, reserved=[0, 1], unused=[*range(2, 258)]), "axyzb") == [
        ["▁a", "<unk>", "b"]
    ]


def test_spaces() -> None:
    kept = replace(UNIGRAM, dummy_prefix=False, collapse=False)
    assert pieces(kept, " a  b ") == [["▁a", "▁", "▁", "b", "▁"]]
    assert pieces(UNIGRAM, " a  b ") == [["▁a", "▁", "b"]]


def test_names_of_special_tokens_are_parsed_on_request() -> None:
    pytest.importorskip("sentencepiece")
    tokenizer = Tokenizer(UNIGRAM.to_dict(), "test")
    ids = [1, *tokenizer.encode("ab a"), 1, 1, *tokenizer.encode(" a")]
    assert tokenizer.parsing_special().encode("</s>ab a</s></s> a") == ids != tokenizer.encode("</s>ab a</s></s> a")


@pytest.mark.parametrize("model", DESCRIPTIONS)
def test_tokens_know_their_places_in_the_text(model: SentencePieceDefinition) -> None:
    pytest.importorskip("sentencepiece")
    tokenizer = Tokenizer(model.to_dict(), "test").parsing_special()
    text = "ab  a</s>abb\u2603 \u00e9</s></s> b"
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text) and offsets == sorted(offsets)
    assert [text[slice(*offsets[place])] for place, token in enumerate(ids) if token == 1] == ["</s>"] * 3
    for token, (start, stop) in zip(ids, offsets, strict=True):
        piece, shown = model.pieces[token].replace("\u2581", " "), text[start:stop]
        if model.is_byte(token):
            assert BYTES[model.pieces[token]] in shown.encode()
        elif piece.strip() and token > 1:
            assert shown.strip() == piece.strip()
    covered = {place for start, stop in offsets for place in range(start, stop)}
    assert set(text) - {" "} <= {text[place] for place in covered}
    assert tokenizer.encode_with_offsets("") == ([], [])


@pytest.mark.parametrize("model", [BPE, UNIGRAM], ids=["bpe", "unigram"])
def test_control_tokens_come_behind_the_pieces(model: SentencePieceDefinition) -> None:
    pytest.importorskip("sentencepiece")
    before = Tokenizer(model.to_dict(), "test")
    tokenizer = Tokenizer.parse(json.loads(json.dumps(before.with_special(["<a>", "<b>"], ["<b>"]).definition)), "x")
    assert (tokenizer.vocab_size, tokenizer.end_ids) == (before.vocab_size + 2, (1, 266))
    assert tokenizer.added_to(before) == ("<a>", "<b>") and tokenizer.token_name(265) == "<a>"
    assert tokenizer.encode("a<b>a") == before.encode("a<b>a")
    parsing = tokenizer.parsing_special()
    ids, offsets = parsing.encode_with_offsets("<a>ab<b>a")
    assert ids == [265, *before.encode("ab"), 266, *before.encode("a")] == parsing.encode("<a>ab<b>a")
    assert offsets[0] == (0, 3) and offsets[ids.index(266)] == (5, 8)
    assert tokenizer.decode(ids) == "ab a"


@pytest.mark.parametrize("model", [BPE, UNIGRAM], ids=["bpe", "unigram"])
def test_a_model_learns_to_chat(model: SentencePieceDefinition, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    before = Tokenizer(model.to_dict(), "test")
    before.save(tmp_path / TOKENIZER)
    setup = chat_setup([tmp_path])
    talk = {"messages": [{"role": "user", "content": "ab a"}, {"role": "assistant", "content": "b\u00e9"}] * 2}
    conversation = parse_conversation(json.dumps(talk), "here")
    assert doctor(setup.template, setup.tokenizer, [conversation]) == []
    found = ChatEncoder(setup.template, setup.tokenizer).encode(conversation)
    start, stop = found.spans[0]
    assert found.ids[start:stop] == [*before.encode("b\u00e9"), setup.tokenizer.special_ids["<|im_end|>"]]


def test_a_missing_package_is_named_at_the_first_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    model = SentencePiece(BPE, "here")
    with pytest.raises(UserError, match=r"^here: needs sentencepiece: pip install 'linnet\[sentencepiece\]' \("):
        model.encode_batch(["a"])


def test_a_model_that_the_package_refuses_is_named() -> None:
    with pytest.raises(UserError, match=r"^here: not a SentencePiece model \(.*"):
        pieces(replace(BPE, reserved=list(range(257))), "a")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "KeyError: 'normalizers'"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}]}}, "ValueError: its decoder is another"),
        ("normalizer", "ValueError: its normalizer is another"),
        ("added_tokens", "ValueError: added token '<tool>'"),
    ],
)
def test_a_file_that_was_changed_since_is_refused(change: Any, problem: str) -> None:
    """Its model alone would decide, so what was changed would be ignored."""
    plain = UNIGRAM.to_dict()
    if change == "normalizer":
        plain["normalizer"]["normalizers"].reverse()
    elif change == "added_tokens":
        plain["added_tokens"].append({**plain["added_tokens"][0], "content": "<tool>", "id": 265, "special": False})
    else:
        plain |= change
    with pytest.raises(
        UserError, match=re.escape(f"here: made from a SentencePiece model, but changed since ({problem})")
    ):
        Tokenizer(plain, "here")
