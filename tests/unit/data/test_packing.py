"""Packed windows: best fit, every token once in an epoch, and documents that do not see each other."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.data.packing import PackedBatches, best_fit
from linnet.data.shards import TokenSequence
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_loss
from linnet.model.spec import ModelSpec

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=40)
"""Targets of documents."""


def places(lengths: list[int]) -> TokenSequence:
    """Documents of these lengths whose tokens are their own places, from 0."""
    starts = np.cumsum([0, *lengths[:-1]])
    return TokenSequence.in_memory("places", 0, np.arange(sum(lengths) + 1), starts=starts)


def counted(batch: Batch) -> list[int]:
    """The targets that count."""
    assert batch.weights is not None
    return batch.targets[batch.weights].tolist()


def epoch_of(batches: PackedBatches, number: int) -> list[Batch]:
    """The windows of an epoch, each as a batch."""
    first = number * batches.examples_per_epoch
    return [batches.examples([first + place]) for place in range(batches.examples_per_epoch)]


def one_by_one(lengths: list[int], capacity: int) -> list[int]:
    """The room that best-fit decreasing leaves in each window, placed piece by piece."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else capacity) - length)
    return sorted(rooms)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(30, 50))
def test_pieces_are_placed_by_best_fit_decreasing(lengths: list[int], capacity: int) -> None:
    windows = best_fit(np.array(lengths), capacity)
    filled = np.bincount(windows, weights=lengths)
    assert sorted((capacity - filled).tolist()) == one_by_one(lengths, capacity)


@settings(max_examples=80, deadline=None)
@given(LENGTHS, st.integers(1, 20), st.integers(0, 3), st.integers(0, 5))
def test_each_epoch_predicts_every_token_but_the_first_once(lengths, context, epoch, seed) -> None:
    batches = PackedBatches(places(lengths), 3, context, seed)
    found = sorted(target for batch in epoch_of(batches, epoch) for target in counted(batch))
    assert found == list(range(1, sum(lengths) + 1))


@settings(max_examples=80, deadline=None)
@given(LENGTHS, st.integers(1, 20))
def test_only_documents_longer_than_a_window_are_cut_and_each_piece_is_contiguous(lengths, context) -> None:
    sequence = places(lengths)
    for batch in epoch_of(PackedBatches(sequence, 1, context, 0, document_starts=True), 1):
        assert batch.document_starts is not None and batch.weights is not None
        begins, size = batch.document_starts[0], int(batch.weights.sum())
        assert begins[0] == 0 and (size == context or begins[-1] == size), "padding begins like a document"
        bounds = [begin for begin in (*begins, context) if begin <= size]
        for begin, end in pairwise(bounds):
            tokens, targets = batch.tokens[0, begin:end], batch.targets[0, begin:end]
            assert torch.equal(targets, tokens + 1)
            document = np.searchsorted(sequence.document_starts, int(tokens[0]), side="right") - 1
            first, last = sequence.document_bounds[document : document + 2].tolist()
            assert first <= tokens[0] and targets[-1] <= last
            if last - first <= context:
                assert (tokens[0], targets[-1]) == (first, last)
            else:
                assert end - begin in (context, (last - first) % context)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 20), st.integers(1, 5))
def test_the_number_of_a_batch_decides_its_content(lengths, context, batch_size) -> None:
    one, other = (PackedBatches(places(lengths), batch_size, context, 3, True) for _ in range(2))
    backwards = {number: one.batch(number) for number in reversed(range(12))}
    for number in range(12):
        batch, again = other.batch(number), backwards[number]
        assert batch.tokens.shape == (batch_size, context) and batch.tokens.dtype == torch.int64
        assert torch.equal(batch.tokens, again.tokens) and torch.equal(batch.labels, again.labels)
        assert batch.document_starts == again.document_starts


def test_epochs_and_seeds_pack_differently() -> None:
    sequence = places([3, 5, 2, 7, 3, 5, 4, 1, 6, 3] * 4)
    packed = [
        {tuple(sorted(counted(batch))) for batch in epoch_of(PackedBatches(sequence, 1, 10, seed), epoch)}
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert packed[0] != packed[1] != packed[2] != packed[0]


def test_the_fill_is_told() -> None:
    batches = PackedBatches(places([6, 4, 5, 5, 13, 6]), 2, 10, 0)
    assert batches.describe() == (
        "6 documents in 4 windows of 10 tokens, filled to 97.50%; 1 of them are longer than a window and cut"
    )
    assert batches.mean_targets == 39 / 4 and batches.tokens_per_batch == 20
    with pytest.raises(UserError, match="places: 1 tokens; expected at least 2"):
        PackedBatches(TokenSequence.in_memory("places", 0, np.array([0])), 1, 4, 0)


def test_rows_are_packed_with_their_mask_and_their_own_targets() -> None:
    tokens, mask = np.array([0, 5, 6, 0, 7, 0, 1, 0, 2, 0]), np.array([0, 0, 0, 0, 1, 1, 0, 0, 1, 1])
    targets, starts = np.arange(20, 30), np.array([0, 5])
    for own in (None, targets):
        rows = TokenSequence.in_memory("pairs", 0, tokens, mask, own, starts)
        batches = PackedBatches(rows, 1, 6, 0, document_starts=True)
        found = {batch.tokens[0, 1].item(): batch.labels[0].tolist() for batch in epoch_of(batches, 0)}
        first, second = ([24, 25], [28, 29]) if own is not None else ([7, 0], [2, 0])
        assert found == {5: [-100, -100, -100, *first, -100], 1: [-100, -100, *second, -100, -100]}
        assert batches.counted_share == 4 / 12 and batches.describe().endswith(
            "; 33.3% of all places count in the loss"
        )


MIXERS = {
    "attention": {"kind": "attention", "heads": 2},
    "recurrent": {"kind": "mamba2", "head_dim": 8, "state": 4},
}


def decoder_with(mixer: dict) -> Decoder:
    block = {"repeat": 2, "mixer": mixer, "feed_forward": {"kind": "glu", "hidden": 16}}
    plain = {"name": "packed", "vocab_size": 20, "d_model": 16, "context_length": 16, "blocks": [block]}
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse(plain, "test")).eval()
    with torch.no_grad():  # mixers that matter
        for parameter in decoder.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    return decoder


@pytest.mark.parametrize("mixer", list(MIXERS))
def test_the_loss_of_packed_windows_is_the_sum_of_the_documents_own_losses(mixer: str) -> None:
    decoder, random = decoder_with(MIXERS[mixer]), np.random.default_rng(0)
    lengths = [6, 4, 5, 3, 3, 9, 7, 5, 16]
    tokens = random.integers(1, 20, sum(lengths) + 1)
    starts = np.cumsum([0, *lengths[:-1]])
    tokens[[*starts, -1]] = 0
    sequence = TokenSequence.in_memory("text", 0, tokens, starts=starts)

    def packed_loss(masked: bool) -> float:
        batches = PackedBatches(sequence, 1, 16, 0, document_starts=masked)
        rows = [batches.examples([number]) for number in range(batches.examples_per_epoch)]
        assert any(not bool(row.weights.all()) for row in rows) and len(rows) < len(lengths)
        return sum(
            float(example_loss(decoder, row.tokens, row.labels, document_starts=row.document_starts).total)
            for row in rows
        )

    with torch.no_grad():
        own = 0.0
        for start, length in zip(starts.tolist(), lengths, strict=True):
            document = torch.from_numpy(tokens[start : start + length + 1])[None]
            own += float(example_loss(decoder, document[:, :-1], document[:, 1:]).total)
        assert packed_loss(masked=True) == pytest.approx(own, rel=1e-5)
        assert packed_loss(masked=False) != pytest.approx(own, rel=1e-4), "without a mask documents see each other"
