from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.training.ngram.model import NONE, count_ngrams, max_lengths, narrow

DOCUMENTS = st.lists(st.lists(st.integers(1, 3), max_size=9), min_size=1, max_size=9)


def tokens_of(documents):
    return np.array([token for document in documents for token in (0, *document)] + [0])


def spelled(tables, vocab_size):
    """The tokens of every n-gram of each length."""
    found = [[(token,) for token in range(vocab_size)]]
    for table in tables[1:]:
        found.append([(*found[-1][key // vocab_size], key % vocab_size) for key in table.keys.tolist()])
    return found


@settings(max_examples=50)
@given(documents=DOCUMENTS, order=st.integers(2, 5))
def test_the_longest_ngrams_are_counted_with_their_suffixes(documents, order):
    tables = count_ngrams(tokens_of(documents), 0, 5, order)
    grams = spelled(tables, 5)
    texts = [(0, *document, 0) for document in documents]
    expected = Counter(text[n : n + order] for text in texts for n in range(len(text) - order + 1))
    assert dict(zip(grams[-1], tables[-1].counts.tolist(), strict=True)) == expected
    for length in range(1, order):
        for gram, suffix in zip(grams[length], tables[length].suffixes, strict=True):
            assert grams[length - 1][suffix] == gram[1:]
        assert grams[length] == sorted(grams[length]) and (np.diff(tables[length].keys) > 0).all()


def test_lower_orders_count_different_preceding_tokens():
    tables = count_ngrams(tokens_of([[1, 2], [1, 2], [3, 2], [1, 2]]), 0, 4, 2)
    assert tables[0].counts.tolist() == [1, 1, 2, 1]  # 2 behind 1 and 3, all others behind one token alone
    tables = count_ngrams(tokens_of([[1, 2], [1, 2], [3, 1, 2]]), 0, 4, 3)
    counts = dict(zip(spelled(tables, 4)[1], tables[1].counts.tolist(), strict=True))
    assert counts[1, 2] == 2 and counts[0, 1] == 2 and counts[2, 0] == 1  # behind the start and 3; raw at a start


def test_no_ngram_crosses_an_end_token():
    assert max_lengths(np.array([0, 1, 2, 0, 0, 3, 0]), 0).tolist() == [0, 2, 3, 4, 2, 2, 3]


def test_a_missing_folder_has_no_runs():
    table = count_ngrams(tokens_of([[1, 2]]), 0, 4, 2)[1]
    found = table.find(np.array([0, 0, NONE, 3]), np.array([1, 2, 1, 3]))
    assert found.tolist() == [0, NONE, NONE, NONE]
    empty = count_ngrams(tokens_of([[]]), 0, 4, 3)[2]
    assert empty.find(np.array([0]), np.array([1])).tolist() == [NONE] and len(empty) == 0


@pytest.mark.parametrize(("most", "dtype"), [(2**31 - 1, np.int32), (2**31, np.int64)])
def test_numbers_have_the_smallest_sufficient_dtype(most, dtype):
    assert narrow(np.array([0, most])).dtype == dtype


def test_the_same_text_gives_the_same_tables():
    tokens = np.random.default_rng(0).integers(0, 50, 5000)
    tokens[0] = 0
    one, other = (count_ngrams(tokens, 0, 50, 4) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        assert all(np.array_equal(getattr(a, part), getattr(b, part)) for part in ("keys", "counts", "suffixes"))
