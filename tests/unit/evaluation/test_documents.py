"""Documents that are measured: how few are enough for a limit, and where the longest of them are cut."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from measured_models import TEXTS

from linnet.data.loader import document_windows, validation_batches
from linnet.data.prepare import prepare_texts
from linnet.data.shards import TokenSequence
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.documents import (
    Window,
    batches,
    documents_of_split,
    documents_of_texts,
    max_tokens_each,
    packed,
    sliding,
    sliding_bounds,
    take_excerpts,
)
from linnet.ops.cross_entropy import IGNORE_INDEX

BYTES = Tokenizer.train("bytes", [])
lengths = st.lists(st.integers(1, 200), min_size=1, max_size=20).map(np.array)


@given(lengths_N=lengths, limit=st.integers(1, 2000))
def test_the_longest_are_truncated_as_little_as_possible(lengths_N, limit):
    most = max_tokens_each(lengths_N, limit)

    def kept(most):
        return int(np.minimum(lengths_N, most).sum())

    assert kept(most) <= max(limit, len(lengths_N))
    assert most == lengths_N.max() or most == 1 or kept(most + 1) > limit
    assert max_tokens_each(lengths_N, None) == lengths_N.max() and max_tokens_each(lengths_N[:0], None) == 0


@pytest.mark.parametrize("documents", [TEXTS, [" ".join(TEXTS)], ["a", " ".join(TEXTS), "b c"]])
def test_a_split_gives_at_most_as_many_targets_as_the_limit(documents, tmp_path):
    prepare_texts(["some other text"], documents, tmp_path / "data", "bytes")
    found = documents_of_split(TokenData.open(tmp_path / "data"), "validation")
    for limit in (1, 7, 60, 100, 10_000, None):
        for stride in (8, 3):
            windows = list(sliding(found.sample(limit), 8, stride, found.max_tokens(limit)))
            targets = sum(len(window) - window.first for window in windows)
            assert 0 < targets <= found.count_targets(limit)
            assert limit is None or targets <= limit
            counted = [(w.documents[0], token) for w in windows for token in w.tokens[w.first + 1 :]]
            assert len(counted) == targets
    assert found.count_targets(None) == found.count_targets(10_000) == found.lengths_N.sum()


@pytest.mark.parametrize("stride", [8, 3])
def test_windows_of_a_document_that_is_too_long_are_spread_over_it(stride):
    tokens = np.arange(1001)
    found = list(sliding([(5, tokens)], 8, stride, 80))
    counted = np.concatenate([window.tokens[window.first + 1 :] for window in found])
    assert len(found) == 80 // stride and 80 - stride < len(counted) <= 80
    assert len(set(counted.tolist())) == len(counted) and (np.diff(counted) > 0).all()
    assert counted.mean() == pytest.approx(500, abs=30) and counted[0] < 60 and counted[-1] > 940
    assert all(window.first >= 8 - stride for window in found), "with the tokens before them"
    (short,) = sliding([(5, tokens)], 8, 8, 3)
    assert short.tokens.tolist() == [496, 497, 498, 499]


def test_excerpts_are_spans_of_whole_words():
    long = "one two  three\nfour " * 20
    for limit in range(1, 500, 7):
        some = take_excerpts(["first", long, "last"], [BYTES], limit, span_tokens=40)
        for number, spans, whole in zip(some.numbers, some.texts, some.whole, strict=True):
            document = ["first", long, "last"][number]
            assert whole == (spans == [document]) and all(span and span in document for span in spans)
            for span in spans:
                words = span.split()
                assert whole or len(span) <= 5 or {words[0], words[-1]} <= set(long.split())
        tokens = documents_of_texts(some.texts, BYTES, some.whole).lengths_N.sum()
        assert tokens <= max(limit, len(some.texts))
        assert some.coverage.documents == 3 and list(some.coverage.shares) == some.numbers


def test_spans_are_spread_over_their_document():
    long = " ".join(f"{number:03}" for number in range(1000))
    some = take_excerpts([long], [BYTES], 800, span_tokens=80)
    (spans,) = some.texts
    read = [int(word) for span in spans for word in span.split()]
    assert len(spans) == 10 and read == sorted(set(read)) and np.mean(read) == pytest.approx(500, abs=5)
    assert read[0] < 50 and read[-1] > 950
    assert 0.15 < some.coverage.share < 0.2 and some.coverage.shares[0] == some.coverage.share
    line = some.coverage.describe()
    assert line.startswith("of the text: 1 of 1 documents, of these document 1 (19.") and line.endswith("spread evenly")


def test_excerpts_are_those_of_the_tokenizer_that_makes_the_most_tokens():
    pieces = Tokenizer.train("bpe", TEXTS * 3, 290)
    both = take_excerpts(TEXTS, [pieces, BYTES], 100)
    assert both == take_excerpts(TEXTS, [BYTES], 100) != take_excerpts(TEXTS, [pieces], 100)
    assert take_excerpts(TEXTS, [], None).texts == [[text] for text in TEXTS]


def test_the_end_of_a_truncated_document_is_not_predicted():
    found = documents_of_texts([["ab"], ["ab"], [""], ["a", "b"]], BYTES, [True, False, False, False])
    end = BYTES.end_id
    read = [[span.tolist() for span in found.read(number)] for number in range(4)]
    assert read == [[[end, 97, 98, end]], [[end, 97, 98]], [[end, end]], [[end, 97], [end, 98]]]
    assert found.lengths_N.tolist() == [3, 2, 1, 2] and found.bytes_N.tolist() == [2, 2, 0, 2]


END = 0
DOCUMENTS = st.lists(st.lists(st.integers(1, 9), max_size=25), min_size=1, max_size=8)


def _sequence(documents):
    tokens = np.array([token for document in documents for token in (END, *document)] + [END])
    return TokenSequence.in_memory("text", END, tokens)


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_every_target_counts_once_with_enough_tokens_before_it(targets, context_length, data):
    stride = data.draw(st.integers(1, context_length))
    counted = []
    for begin, end, first in sliding_bounds(targets, context_length, stride):
        assert 0 <= begin <= first < end <= targets and end - begin <= context_length
        for target in range(first, end):
            assert target - begin >= min(target, context_length - stride)
            counted.append(target)
    assert counted == list(range(targets))


def test_windows_by_hand():
    """Seven targets, windows of four, two new ones in each: the last has one alone."""
    assert list(sliding_bounds(7, 4, 2)) == [(0, 4, 0), (2, 6, 4), (4, 7, 6)]
    assert list(sliding_bounds(3, 4, 2)) == [(0, 3, 0)]


@given(DOCUMENTS, st.integers(1, 10), st.data())
def test_sliding_windows_hold_one_documents_tokens(documents, context_length, data):
    stride = data.draw(st.integers(1, context_length))
    whole = [np.array([END, *document, END]) for document in documents]
    found = [[] for _ in documents]
    for window in sliding(enumerate(whole), context_length, stride):
        (number,) = set(window.documents.tolist())
        found[number] += window.tokens[1 + window.first :].tolist()
    assert found == [[*document, END] for document in documents]


@given(DOCUMENTS, st.integers(1, 10), st.one_of(st.none(), st.integers(1, 60)))
def test_packed_windows_are_those_of_an_evaluation_and_know_their_documents(documents, context_length, limit):
    sequence = _sequence(documents)
    cut = document_windows(sequence, context_length)
    expected = [
        (batch.tokens[batch.labels != IGNORE_INDEX].tolist(), batch.labels[batch.labels != IGNORE_INDEX].tolist())
        for batch in validation_batches(sequence, cut, 1, limit)
    ]
    found = list(packed(sequence, context_length, limit))
    assert [(w.tokens[:-1].tolist(), w.tokens[1:].tolist()) for w in found] == expected
    if limit is None:
        numbers = [n for window in found for n in window.documents.tolist()]
        assert numbers == [n for n, document in enumerate(documents) for _ in (*document, END)]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 64), st.data())
def test_batches_hold_every_target_once_and_no_more_than_asked(lengths, tokens_at_once, data):
    windows = [
        Window(np.arange(1, n + 2), data.draw(st.integers(0, n - 1)), np.full(n, number))
        for number, n in enumerate(lengths)
    ]
    seen = {}
    for batch in batches(windows, tokens_at_once):
        rows, width = batch.inputs_BT.shape
        assert rows == 1 or rows * width <= tokens_at_once
        for row, length in enumerate(batch.lengths_B.tolist()):
            number = int(batch.documents_BT[row, length - 1])
            counted = batch.targets_BT[row] != IGNORE_INDEX
            seen[number] = (batch.inputs_BT[row, :length].tolist(), batch.targets_BT[row][counted].tolist())
    expected = {n: (w.tokens[:-1].tolist(), w.tokens[1 + w.first :].tolist()) for n, w in enumerate(windows)}
    assert seen == expected


def test_windows_of_similar_length_are_read_together():
    windows = [Window(np.arange(n + 1), 0, np.zeros(n, np.int64)) for n in (2, 9, 2, 9, 3)]
    assert [tuple(batch.inputs_BT.shape) for batch in batches(windows, 18)] == [(3, 3), (2, 9)]


@pytest.mark.parametrize("first", [0, 3])
def test_a_windows_length_ends_with_its_last_target(first):
    (batch,) = batches([Window(np.arange(6), first, np.zeros(5, np.int64)), Window(np.arange(8), 6, np.zeros(7))], 99)
    assert torch.equal(batch.lengths_B, torch.tensor([5, 7]))
