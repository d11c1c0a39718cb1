"""Stages of shorter windows and smaller batches: cut windows, and packed ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.data.batch_stages import BatchStage, StagedBatches, StagedPackedBatches
from linnet.data.loader import Batch, Batches, document_windows
from linnet.data.packing import PackedBatches
from linnet.data.shards import TokenSequence


def counting(length: int) -> TokenSequence:
    """Tokens 0, 1, 2, ...: a token is its own place; every seventh begins a document."""
    return TokenSequence.in_memory("count", 0, np.arange(length), starts=np.arange(0, length - 1, 7))


def places(lengths: list[int]) -> TokenSequence:
    """Documents of these lengths whose tokens are their own places, from 0."""
    starts = np.cumsum([0, *lengths[:-1]])
    return TokenSequence.in_memory("places", 0, np.arange(sum(lengths) + 1), starts=starts)


def counted(batch: Batch) -> list[int]:
    """The targets that count."""
    assert batch.weights is not None
    return batch.targets[batch.weights].tolist()


LONG = 8


def cut_in_stages(length, stages, documents=False, seed=3, rows=4):
    sequence = counting(length)

    def windows(context):
        return document_windows(sequence, context).whole_windows(sequence, context) if documents else None

    full = Batches(sequence, rows, LONG, seed, windows(LONG))
    cut = [windows(context) for _, _, context in stages]
    made = [BatchStage(*stage, own and own.starts_N) for stage, own in zip(stages, cut, strict=True)]
    return full, StagedBatches(full, made, seed)


STAGES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), st.sampled_from([1, 2, 4, 8])), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.integers(60, 400), STAGES, st.booleans(), st.integers(0, 5))
def test_each_batch_has_its_shape_and_its_targets_follow(length, stages, documents, seed):
    _, batches = cut_in_stages(length, stages, documents, seed)
    shapes = [shape[1:] for shape in stages for _ in range(shape[0])] + [(4, LONG)] * 3
    for number, shape in enumerate(shapes):
        batch = batches.batch(number)
        assert batch.tokens.shape == batch.targets.shape == shape
        assert torch.equal(batch.targets, batch.tokens + 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(400, 900), STAGES, st.integers(0, 5))
def test_within_an_epoch_no_token_is_predicted_twice(length, stages, seed):
    full, batches = cut_in_stages(length, stages, seed=seed)
    epoch = full.examples_per_epoch * LONG
    left_out = (len(stages) + 1) * LONG
    seen = []
    for number in range(1000):
        targets = batches.batch(number).targets.flatten().tolist()
        if len(seen) + len(targets) > epoch - left_out:
            break
        seen += targets
    assert len(set(seen)) == len(seen) > 0


@settings(max_examples=30, deadline=None)
@given(st.integers(60, 200), STAGES, st.booleans())
def test_the_number_of_a_batch_decides_its_content(length, stages, documents):
    _, one = cut_in_stages(length, stages, documents)
    _, other = cut_in_stages(length, stages, documents)
    count = sum(stage[0] for stage in stages) + 5
    backwards = {number: one.batch(number) for number in reversed(range(count))}
    for number in range(count):
        assert torch.equal(other.batch(number).tokens, backwards[number].tokens)


def test_larger_batches_alone_leave_the_order_as_it_is():
    full, batches = cut_in_stages(500, [(3, 1, LONG), (4, 2, LONG)])
    rows = torch.cat([batches.batch(number).tokens for number in range(12)])
    assert torch.equal(rows, torch.cat([full.batch(number).tokens for number in range(8)])[: len(rows)])
    assert rows.shape == (3 + 8 + 5 * 4, LONG)


def test_each_stage_continues_after_the_previous_one():
    full, batches = cut_in_stages(500, [(4, 4, 2)])  # 16 windows of 2: four long ones
    taken, following = full.examples(range(4)), full.examples(range(4, 8))
    read = torch.cat([batches.batch(number).targets.flatten() for number in range(4)])
    assert sorted(read.tolist()) == sorted(taken.targets.flatten().tolist())
    assert read.tolist() != taken.targets.flatten().tolist(), "in an order of its own"
    assert torch.equal(batches.batch(4).tokens, following.tokens)


def test_windows_begin_with_documents_in_every_stage():
    _, batches = cut_in_stages(400, [(6, 3, 4)], documents=True)
    starts = {int(row[0]) for number in range(6) for row in batches.batch(number).tokens}
    short = document_windows(counting(400), 4).whole_windows(counting(400), 4).starts_N
    assert starts <= set(short.tolist())
    assert any(start % 7 == 0 for start in starts)


def test_another_seed_is_another_order():
    one, other = (cut_in_stages(500, [(6, 3, 4)], seed=seed)[1].batch(0).tokens for seed in (1, 2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("documents", [False, True])
def test_stages_continue_over_epochs(documents):
    _, batches = cut_in_stages(60, [(40, 3, 2)], documents=documents)  # 240 tokens of 59
    counts = np.bincount(torch.cat([batches.batch(n).targets.flatten() for n in range(40)]).numpy(), minlength=60)
    assert counts[LONG:-LONG].min() >= 2


PACKED_STAGES = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 4), st.sampled_from([2, 4, 8, 16])), min_size=1, max_size=3
)


def packed_in_stages(lengths: list[int], stages, seed: int = 1) -> StagedPackedBatches:
    return StagedPackedBatches(
        PackedBatches(places(lengths), 3, 16, seed), [BatchStage(*each) for each in stages], seed
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=30, max_size=60), PACKED_STAGES, st.integers(0, 3))
def test_packed_stages_have_their_shapes_and_read_no_token_twice_in_an_epoch(lengths, stages, seed) -> None:
    batches, seen = packed_in_stages(lengths, stages, seed), list[int]()
    for number, shape in enumerate(each[1:] for each in stages for _ in range(each[0])):
        batch = batches.batch(number)
        assert batch.tokens.shape == shape
        seen += counted(batch)
    assert seen
    if all(part.epoch == 0 for parts in batches._parts for part in parts):
        assert len(set(seen)) == len(seen)
    later = sum(stage[0] for stage in stages)
    first = batches._begins
    assert torch.equal(batches.batch(later).tokens, batches.full.examples(range(first, first + 3)).tokens)
    backwards = packed_in_stages(lengths, stages, seed)
    for number in reversed(range(later)):
        assert torch.equal(backwards.batch(number).tokens, batches.batch(number).tokens)


def test_a_stage_packs_the_documents_of_the_long_windows_anew() -> None:
    batches = packed_in_stages([8] * 8, [(2, 4, 8)])  # 8 windows of 8: four of 16
    found = sorted(target for number in range(2) for target in counted(batches.batch(number)))
    assert found == list(range(1, 65))
    assert all(bool(batches.batch(number).weights.all()) for number in range(2))


def test_stages_of_packed_windows_continue_over_epochs() -> None:
    batches = packed_in_stages([5, 7, 3, 9, 4], [(30, 2, 4)])  # 240 places for 28 targets
    counts = np.bincount([target for number in range(30) for target in counted(batches.batch(number))])
    assert counts[1:].min() >= 5
    (parts,) = batches._parts
    assert [part.epoch for part in parts] == list(range(len(parts))) and len(parts) > 5, "one part of each epoch"
    assert all((part.first, part.last) == (0, batches.full.examples_per_epoch) for part in parts[:-1])
