"""The documents that are drawn."""

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.shards import TokenSequence
from linnet.inspection.text_model import document_prompts, spread_windows

SEQUENCE = TokenSequence.in_memory("text", 0, np.array([0, 1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 9, 0, 1, 1, 1, 0, 2, 2, 0]))


def test_prompts_are_beginnings_of_different_documents():
    found = document_prompts(SEQUENCE, 3, 4, seed=0)
    expected = {(0, 1, 2, 3), (0, 6, 7, 8), (0, 1, 1, 1)}
    assert {tuple(prompt) for prompt in found.tolist()} == expected
    assert len(document_prompts(SEQUENCE, 100, 4, seed=0)) == 3
    assert document_prompts(SEQUENCE, 2, 3, seed=5).equal(document_prompts(SEQUENCE, 2, 3, seed=5))
    drawn = {tuple(map(tuple, document_prompts(SEQUENCE, 2, 3, seed=seed).tolist())) for seed in range(20)}
    assert len(drawn) > 5


def test_documents_that_are_too_short_are_refused():
    with pytest.raises(UserError, match=r"tokens: 5: 1 documents of text .* longest has 5.*at least two"):
        document_prompts(SEQUENCE, 2, 5, seed=0)
    with pytest.raises(UserError, match="tokens: 2: 0 documents"):
        document_prompts(TokenSequence.in_memory("text", 0, np.array([0])), 2, 2, seed=0)


def _sequence(*documents: list[int]) -> TokenSequence:
    tokens = np.array([token for document in documents for token in (0, *document)] + [0])
    return TokenSequence.in_memory("text", 0, tokens)


def test_windows_are_whole_and_begin_with_documents_where_they_can():
    sequence = _sequence([1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 1])
    assert spread_windows(sequence, 3, 4).tolist() == [[0, 1, 2, 3], [0, 4, 5, 6], [0, 1, 1, 1]]
    assert spread_windows(sequence, 1, 4).tolist() == [[0, 1, 2, 3]]
    assert len(spread_windows(sequence, 100, 4)) == 4
    assert len(spread_windows(sequence, 10**40, 4)) == 4


def test_too_little_text_is_refused():
    assert spread_windows(_sequence([1, 2]), 8, 3).tolist() == [[0, 1, 2]]
    with pytest.raises(UserError, match="text: 4 tokens: expected more than a window of 4"):
        spread_windows(_sequence([1, 2]), 8, 4)
