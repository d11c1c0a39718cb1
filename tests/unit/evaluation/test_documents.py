"""Documents that are measured: how few are enough for a limit, and where the longest of them are cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_models import TEXTS

from linnet.data.prepare import prepare_texts
from linnet.data.shards import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.documents import documents_of_split, documents_of_texts, max_tokens_each, take_excerpts

BYTES = Tokenizer.train("bytes", [])
lengths = st.lists(st.integers(1, 200), min_size=1, max_size=20).map(np.array)


@given(lengths_N=lengths, limit=st.integers(1, 2000))
def test_the_longest_are_cut_and_no_more_than_needed(lengths_N, limit):
    most = max_tokens_each(lengths_N, limit)

    def kept(most):
        return int(np.minimum(lengths_N, most).sum())

    assert kept(most) <= max(limit, len(lengths_N))
    assert most == lengths_N.max() or most == 1 or kept(most + 1) > limit
    assert max_tokens_each(lengths_N, None) == lengths_N.max() and max_tokens_each(lengths_N[:0], None) == 0


@pytest.mark.parametrize("documents", [TEXTS, [" ".join(TEXTS)], ["a", " ".join(TEXTS), "b c"]])
def test_a_side_gives_no_more_targets_than_the_limit(documents, tmp_path):
    prepare_texts(["some other text"], documents, tmp_path / "data", "bytes")
    found = documents_of_split(TokenData.open(tmp_path / "data"), "validation")
    for limit in (1, 7, 60, 100, 10_000, None):
        read = list(found.some(limit))
        targets = sum(len(tokens) - 1 for _, tokens in read)
        assert targets == found.targets(limit) and read
        assert limit is None or targets <= limit
        for number, tokens in read:
            assert tokens.tolist() == found.read(number)[: len(tokens)].tolist()
    assert found.targets(None) == found.targets(10_000) == found.lengths_N.sum()


def test_excerpts_begin_their_documents_and_end_with_a_word():
    long = "one two  three\nfour " * 20
    for limit in range(1, 500, 7):
        some = take_excerpts(["first", long, "last"], [BYTES], limit)
        for number, text, whole in zip(some.numbers, some.texts, some.whole, strict=True):
            document = ["first", long, "last"][number]
            assert document.startswith(text) and text and whole == (text == document)
            assert whole or len(text) <= 5 or text.split()[-1] in long.split()
        tokens = documents_of_texts(some.texts, BYTES, some.whole).lengths_N.sum()
        assert tokens <= max(limit, len(some.texts))


def test_excerpts_are_those_of_the_tokenizer_that_makes_the_most_tokens():
    pieces = Tokenizer.train("bpe", TEXTS * 3, 290)
    both = take_excerpts(TEXTS, [pieces, BYTES], 100)
    assert both == take_excerpts(TEXTS, [BYTES], 100) != take_excerpts(TEXTS, [pieces], 100)
    assert take_excerpts(TEXTS, [], None).texts == TEXTS


def test_no_end_is_predicted_behind_a_beginning():
    found = documents_of_texts(["ab", "ab", ""], BYTES, [True, False, False])
    end = BYTES.end_id
    assert [found.read(number).tolist() for number in range(3)] == [[end, 97, 98, end], [end, 97, 98], [end, end]]
    assert found.lengths_N.tolist() == [3, 2, 1] and found.bytes_N.tolist() == [2, 2, 0]
