"""What is read at once: every target counts once, with as much before it as was promised."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.data.loader import validation_windows
from linnet.data.shards import Shard, TokenSequence
from linnet.data.windows import document_windows
from linnet.evaluation.windows import Window, batches, packed, sliding, sliding_bounds
from linnet.ops.cross_entropy import IGNORE_INDEX

END = 0
DOCUMENTS = st.lists(st.lists(st.integers(1, 9), max_size=25), min_size=1, max_size=8)


def _sequence(documents):
    return TokenSequence("text", [Shard(np.array([t for document in documents for t in (END, *document)] + [END]))])


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_every_target_counts_once_with_so_many_tokens_before_it(targets, context_length, data):
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
    cut = document_windows(sequence, END, context_length)
    expected = [
        (inputs[targets != IGNORE_INDEX].tolist(), targets[targets != IGNORE_INDEX].tolist())
        for inputs, targets in validation_windows(sequence, cut, END, 1, limit)
    ]
    found = list(packed(sequence, END, context_length, limit))
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


def test_windows_of_like_length_are_read_together():
    windows = [Window(np.arange(n + 1), 0, np.zeros(n, np.int64)) for n in (2, 9, 2, 9, 3)]
    assert [tuple(batch.inputs_BT.shape) for batch in batches(windows, 18)] == [(3, 3), (2, 9)]


@pytest.mark.parametrize("first", [0, 3])
def test_a_windows_length_ends_with_its_last_target(first):
    (batch,) = batches([Window(np.arange(6), first, np.zeros(5, np.int64)), Window(np.arange(8), 6, np.zeros(7))], 99)
    assert torch.equal(batch.lengths_B, torch.tensor([5, 7]))
