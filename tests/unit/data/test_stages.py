"""Stages of shorter windows and smaller batches read the text as one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.data.loader import Batches
from linnet.data.stages import BatchStage, StagedBatches
from linnet.data.windows import document_windows

LONG = 8


class Counting:
    """A sequence in which each token is its position; every seventh is an end."""

    name = "counting"

    def __init__(self, length):
        self._length = length

    def __len__(self):
        return self._length

    def read(self, start, count):
        assert start >= 0 and start + count <= self._length
        return np.arange(start, start + count)

    def positions(self, token):
        return np.arange(0, self._length, 7)


def _staged(length, stages, documents=False, seed=3, rows=4):
    sequence = Counting(length)

    def starts(context):
        return document_windows(sequence, 0, context).whole(sequence, context) if documents else None

    full = Batches(sequence, rows, LONG, seed, starts(LONG))
    return full, StagedBatches(full, [BatchStage(*stage, starts(stage[2])) for stage in stages], seed)


STAGES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), st.sampled_from([1, 2, 4, 8])), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.integers(60, 400), STAGES, st.booleans(), st.integers(0, 5))
def test_each_batch_has_its_shape_and_its_targets_follow(length, stages, documents, seed):
    _, batches = _staged(length, stages, documents, seed)
    shapes = [shape[1:] for shape in stages for _ in range(shape[0])] + [(4, LONG)] * 3
    for number, shape in enumerate(shapes):
        inputs, targets = batches.batch(number)
        assert inputs.shape == targets.shape == shape
        assert torch.equal(targets, inputs + 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(400, 900), STAGES, st.integers(0, 5))
def test_within_an_epoch_no_token_is_predicted_twice(length, stages, seed):
    full, batches = _staged(length, stages, seed=seed)
    epoch = full.windows_per_epoch * LONG
    left_out = (len(stages) + 1) * LONG
    seen = []
    for number in range(1000):
        targets = batches.batch(number)[1].flatten().tolist()
        if len(seen) + len(targets) > epoch - left_out:
            break
        seen += targets
    assert len(set(seen)) == len(seen) > 0


@settings(max_examples=30, deadline=None)
@given(st.integers(60, 200), STAGES, st.booleans())
def test_the_number_of_a_batch_decides_its_content(length, stages, documents):
    _, one = _staged(length, stages, documents)
    _, other = _staged(length, stages, documents)
    count = sum(stage[0] for stage in stages) + 5
    backwards = {number: one.batch(number) for number in reversed(range(count))}
    for number in range(count):
        assert all(torch.equal(a, b) for a, b in zip(other.batch(number), backwards[number], strict=True))


def test_larger_batches_alone_leave_the_order_as_it_is():
    full, batches = _staged(500, [(3, 1, LONG), (4, 2, LONG)])
    rows = torch.cat([batches.batch(number)[0] for number in range(12)])
    assert torch.equal(rows, torch.cat([full.batch(number)[0] for number in range(8)])[: len(rows)])
    assert rows.shape == (3 + 8 + 5 * 4, LONG)


def test_a_stage_reads_the_long_windows_that_it_takes_and_the_next_goes_on_behind_them():
    full, batches = _staged(500, [(4, 4, 2)])  # 16 windows of 2: four long ones
    taken, following = full.windows(range(4)), full.windows(range(4, 8))
    read = torch.cat([batches.batch(number)[1].flatten() for number in range(4)])
    assert sorted(read.tolist()) == sorted(taken[1].flatten().tolist())
    assert read.tolist() != taken[1].flatten().tolist(), "in an order of its own"
    assert torch.equal(batches.batch(4)[0], following[0])


def test_windows_begin_with_documents_in_every_stage():
    _, batches = _staged(400, [(6, 3, 4)], documents=True)
    starts = {int(row[0]) for number in range(6) for row in batches.batch(number)[0]}
    short = document_windows(Counting(400), 0, 4).whole(Counting(400), 4)
    assert starts <= set(short.tolist())
    assert any(start % 7 == 0 for start in starts)


def test_another_seed_is_another_order():
    one, other = (_staged(500, [(6, 3, 4)], seed=seed)[1].batch(0)[0] for seed in (1, 2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("documents", [False, True])
def test_stages_run_on_over_epochs(documents):
    _, batches = _staged(60, [(40, 3, 2)], documents=documents)  # 240 tokens of 59
    counts = np.bincount(torch.cat([batches.batch(n)[1].flatten() for n in range(40)]).numpy(), minlength=60)
    assert counts[LONG:-LONG].min() >= 2
