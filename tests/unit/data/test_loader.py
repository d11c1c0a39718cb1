import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.loader import Batches, spread_batches, validation_windows
from linnet.data.shards import Shard, TokenSequence
from linnet.data.windows import document_windows
from linnet.ops.cross_entropy import IGNORE_INDEX


def counting(length: int, shards: int = 3) -> TokenSequence:
    """Tokens 0, 1, 2, ...: a token is its own position."""
    parts = np.array_split(np.arange(length, dtype=np.uint16), shards)
    return TokenSequence("count", [Shard(part) for part in parts])


def epoch_starts(batches: Batches, epoch: int) -> list[int]:
    """First positions of the windows of an epoch, in the order in which they come; batches of one window."""
    n = batches.windows_per_epoch
    return [int(batches.batch(epoch * n + place)[0][0, 0]) for place in range(n)]


lengths = st.integers(2, 200)
contexts = st.integers(1, 20)


@given(length=lengths, context=contexts, batch_size=st.integers(1, 5), number=st.integers(0, 50))
def test_batch_depends_on_its_number_alone(length: int, context: int, batch_size: int, number: int) -> None:
    if length <= context:
        return
    forward, jumping = (Batches(counting(length), batch_size, context, seed=3) for _ in range(2))
    for earlier in range(number):
        forward.batch(earlier)
    jumping.batch(1000)
    for one, other in zip(forward.batch(number), jumping.batch(number), strict=True):
        assert one.shape == (batch_size, context) and one.dtype == torch.int64 and one.is_contiguous()
        assert torch.equal(one, other)


@given(length=lengths, context=contexts, epoch=st.integers(0, 3), seed=st.integers(0, 5))
def test_epoch_sees_every_window_once(length: int, context: int, epoch: int, seed: int) -> None:
    if length <= context:
        return
    batches = Batches(counting(length), 1, context, seed)
    starts = sorted(epoch_starts(batches, epoch))
    offset = starts[0]
    assert 0 <= offset < context
    assert starts == [offset + place * context for place in range(batches.windows_per_epoch)]
    assert starts[-1] + context < length
    # Less than two contexts are left out, at the two ends together.
    assert length - 1 - len(starts) * context < 2 * context


def test_windows_run_on_across_batches_and_epochs() -> None:
    single = Batches(counting(100), 1, 10, seed=0)
    several = Batches(counting(100), 4, 10, seed=0)
    assert single.windows_per_epoch == 9
    for number in range(10):
        rows = torch.cat([single.batch(4 * number + row)[0] for row in range(4)])
        assert torch.equal(several.batch(number)[0], rows)


def test_targets_are_the_inputs_one_later() -> None:
    inputs, targets = Batches(counting(100), 4, 10, seed=0).batch(5)
    assert torch.equal(targets, inputs + 1)


def test_epochs_and_seeds_differ_and_offsets_cover_the_context() -> None:
    batches = Batches(counting(1000), 1, 8, seed=0)
    orders = [epoch_starts(batches, epoch) for epoch in range(60)]
    assert len({tuple(np.argsort(order)) for order in orders}) == 60
    assert {min(order) for order in orders} == set(range(8))
    assert epoch_starts(Batches(counting(1000), 1, 8, seed=1), 0) != orders[0]


def test_content_is_fixed_for_ever() -> None:
    """A run is resumed from a batch number, perhaps years later: these numbers must not change."""
    inputs, _ = Batches(counting(1000), 4, 8, seed=7).batch(40)
    assert inputs[:, 0].tolist() == [550, 398, 742, 374]


def test_exactly_one_window_is_enough_and_one_token_less_is_not() -> None:
    inputs, targets = Batches(counting(11), 2, 10, seed=0).batch(3)
    assert inputs.tolist() == [list(range(10))] * 2 and targets[0, -1] == 10
    with pytest.raises(UserError, match="count: 10 tokens; a context of 10 needs at least 11"):
        Batches(counting(10), 1, 10, seed=0)


def test_tokens_per_batch() -> None:
    assert Batches(counting(100), 4, 10, seed=0).tokens_per_batch == 40


def test_given_starts_are_the_windows_of_every_epoch_each_in_its_own_order() -> None:
    starts = np.array([3, 20, 41, 77])
    batches = Batches(counting(100), 1, 10, seed=0, starts=starts)
    orders = {tuple(epoch_starts(batches, epoch)) for epoch in range(20)}
    assert {tuple(sorted(order)) for order in orders} == {(3, 20, 41, 77)} and len(orders) > 5


END = 0
Windows = list[tuple[Tensor, Tensor]]
documents = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def with_ends(lengths: list[int]) -> TokenSequence:
    """Documents of these lengths between ends; a token that is no end is its own position."""
    ends = np.cumsum([0, *(length + 1 for length in lengths)])
    tokens = np.arange(ends[-1] + 1)
    tokens[ends] = END
    return TokenSequence("documents", [Shard(part) for part in np.array_split(tokens.astype(np.uint16), 3)])


def validation(sequence: TokenSequence, context: int, batch_size: int, limit: int | None = None) -> Windows:
    return list(validation_windows(sequence, document_windows(sequence, END, context), END, batch_size, limit))


def targets_of(windows: Windows) -> list[int]:
    return [token for _, targets in windows for token in targets.flatten().tolist() if token != IGNORE_INDEX]


@given(lengths=documents, context=contexts, batch_size=st.integers(1, 5))
def test_validation_predicts_every_token_but_the_first_once_in_order(
    lengths: list[int], context: int, batch_size: int
) -> None:
    sequence = with_ends(lengths)
    windows = validation(sequence, context, batch_size)
    assert targets_of(windows) == sequence.read(1, len(sequence) - 1).tolist()
    assert all(inputs.shape == targets.shape and inputs.shape[1] <= context for inputs, targets in windows)
    assert all(inputs.shape[0] == batch_size for inputs, _ in windows[:-1])


@given(lengths=documents, context=contexts, batch_size=st.integers(1, 5))
def test_validation_inputs_are_the_text_before_their_targets(lengths: list[int], context: int, batch_size: int) -> None:
    sequence = with_ends(lengths)
    position = 0
    for inputs, targets in validation(sequence, context, batch_size):
        for row, row_targets in zip(inputs, targets, strict=True):
            fresh = int((row_targets != IGNORE_INDEX).sum())
            assert row[:fresh].tolist() == sequence.read(position, fresh).tolist()
            position += fresh


@given(lengths=documents, context=contexts, batch_size=st.integers(1, 5), limit=st.integers(1, 250))
def test_validation_limit_takes_some_of_the_same_windows(
    lengths: list[int], context: int, batch_size: int, limit: int
) -> None:
    sequence = with_ends(lengths)
    whole, some = (targets_of(validation(sequence, context, 1, most)) for most in (None, limit))
    if limit >= len(whole):
        assert some == whole
        return
    starts = document_windows(sequence, END, context)
    count = max(1, int(limit / len(whole) * len(starts)))
    assert len(validation(sequence, context, 1, limit)) == count
    assert len(validation(sequence, context, batch_size, limit)) == -(-count // batch_size)


def test_validation_limit_is_spread_over_the_whole() -> None:
    ((inputs, _),) = validation(counting(1001), 10, 100, limit=40)
    assert inputs[:, 0].tolist() == [0, 250, 500, 750]


def test_validation_needs_two_tokens() -> None:
    with pytest.raises(UserError, match="count: 1 tokens; expected at least 2"):
        validation(counting(1), 4, 1)


@given(lengths=documents, context=contexts, count=st.integers(1, 30))
def test_so_many_windows_are_spread_over_the_text(lengths: list[int], context: int, count: int) -> None:
    sequence = with_ends(lengths)
    cut = document_windows(sequence, END, context)
    found = list(spread_batches(sequence, cut, END, 4, count))
    rows = [row[row != IGNORE_INDEX].tolist() for _, targets in found for row in targets]
    every = [row[row != IGNORE_INDEX].tolist() for _, targets in validation(sequence, context, 1) for row in targets]
    assert len(rows) == min(count, len(cut))
    assert rows == [every[number * len(cut) // len(rows)] for number in range(len(rows))]
