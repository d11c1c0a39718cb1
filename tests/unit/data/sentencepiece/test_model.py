"""A model built from its description encodes by SentencePiece's rules; `tests/unit/interop` compares with originals."""

import sys
from dataclasses import replace

import pytest
from small_descriptions import BPE, PIECES, UNIGRAM

from linnet.core.errors import UserError
from linnet.data.sentencepiece import SentencePiece, SentencePieceDefinition


def pieces(model: SentencePieceDefinition, *texts: str) -> list[list[str]]:
    return [[PIECES[token] for token in ids] for ids in SentencePiece(model, "here").encode_batch(list(texts))]


def test_the_best_rank_merges_first_and_of_equal_ones_the_left() -> None:
    assert pieces(BPE, "ab") == [["▁a", "b"]]
    scores = [-1.5 if piece == "▁a" else score for piece, score in zip(PIECES, BPE.scores, strict=True)]
    assert pieces(replace(BPE, scores=scores), "ab") == [["▁", "ab"]]


@pytest.mark.parametrize("model", [BPE, UNIGRAM])
def test_every_kind_of_piece_is_what_it_was(model: SentencePieceDefinition) -> None:
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


def test_missing_package_is_named_when_a_text_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    model = SentencePiece(BPE, "here")
    with pytest.raises(UserError, match=r"^here: needs sentencepiece: pip install 'linnet\[sentencepiece\]' \("):
        model.encode_batch(["a"])


def test_a_model_that_the_package_refuses_is_named() -> None:
    with pytest.raises(UserError, match=r"^here: not a SentencePiece model \(.*"):
        pieces(replace(BPE, reserved=list(range(257))), "a")
