"""Windows that are spread over a text."""

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.shards import TokenSequence
from linnet.inspection.windows import spread_windows


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
