import math

from hypothesis import given
from hypothesis import strategies as st

from linnet.data.sentencepiece.unigram import Unigram

SCORES = {"▁": -3.1, "a": -2.3, "aa": -3.7, "aaa": -6.0, "b": -2.9, "ab": -4.4, "ba": -4.4, "▁a": -4.6, "aab": -7.01}
PIECES = {piece: (token, score) for token, (piece, score) in enumerate(SCORES.items())}
words = st.lists(st.text("aabbc", max_size=7).map("▁".__add__), min_size=1)


def unigram() -> Unigram:
    return Unigram(PIECES, min(SCORES.values()), lambda text: [100 + byte for byte in text.encode()])


def score(ids: list[int]) -> float:
    scores = [score for _, score in PIECES.values()]
    return math.fsum(scores[token] for token in ids)


@given(words=words)
def test_word_by_word_is_as_at_once(words: list[str]) -> None:
    """A text in one part, if it is long, is searched as a whole, without anything that was found out about words."""
    padding = ["▁aaaaaaaaaa"] * 6 + words * 30
    assert unigram().encode(padding) == unigram().encode(["".join(padding)])


@given(word=st.text("ab", min_size=1, max_size=8).map("▁".__add__))
def test_no_other_segmentation_is_better(word: str) -> None:
    def ways(text: str) -> list[list[int]]:
        beginnings = [piece for piece in PIECES if text.startswith(piece)]
        return [[PIECES[p][0], *rest] for p in beginnings for rest in ways(text[len(p) :])] if text else [[]]

    ids = unigram().encode([word])
    assert ids in ways(word)
    assert score(ids) >= max(map(score, ways(word))) - 1e-5


def test_unknown_characters_are_spelled() -> None:
    assert unigram().encode(["▁aé"]) == [PIECES["▁a"][0], 100 + 0xC3, 100 + 0xA9]
