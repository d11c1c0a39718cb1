import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data.loader import (
    Batch,
    Batches,
    Spans,
    check_row_lengths,
    distinct_bounds,
    document_rows,
    document_windows,
    evenly_spaced_batches,
    validation_batches,
)
from linnet.data.shards import CheckedArray, TokenSequence
from linnet.ops.cross_entropy import IGNORE_INDEX


def counting(length: int, shards: int = 3) -> TokenSequence:
    """Tokens 0, 1, 2, ...: a token is its own place; every seventh begins a document."""
    parts = np.array_split(np.arange(length, dtype=np.uint16), shards)
    return TokenSequence("count", 0, [CheckedArray(part) for part in parts], lambda: np.arange(0, length - 1, 7))


def spans_of(starts: list[int], length: int) -> Spans:
    lengths = np.full(len(starts), length)
    return Spans(np.array(starts), lengths, lengths)


def epoch_starts(batches: Batches, epoch: int) -> list[int]:
    """First positions of the windows of an epoch, in the order in which they come; batches of one window."""
    n = batches.examples_per_epoch
    return [int(batches.batch(epoch * n + place).tokens[0, 0]) for place in range(n)]


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
    one, other = forward.batch(number), jumping.batch(number)
    for name in ("tokens", "targets"):
        found = getattr(one, name)
        assert found.shape == (batch_size, context) and found.dtype == torch.int64 and found.is_contiguous()
        assert torch.equal(found, getattr(other, name))
    assert one.weights is None and one.document_starts is None and one.prefix_lengths is None


@given(length=lengths, context=contexts, epoch=st.integers(0, 3), seed=st.integers(0, 5))
def test_epoch_sees_every_window_once(length: int, context: int, epoch: int, seed: int) -> None:
    if length <= context:
        return
    batches = Batches(counting(length), 1, context, seed)
    starts = sorted(epoch_starts(batches, epoch))
    offset = starts[0]
    assert 0 <= offset < context
    assert starts == [offset + place * context for place in range(batches.examples_per_epoch)]
    assert starts[-1] + context < length
    # Less than two contexts are left out, at the two ends together.
    assert length - 1 - len(starts) * context < 2 * context


def test_windows_continue_across_batches_and_epochs() -> None:
    single = Batches(counting(100), 1, 10, seed=0)
    several = Batches(counting(100), 4, 10, seed=0)
    assert single.examples_per_epoch == 9
    for number in range(10):
        rows = torch.cat([single.batch(4 * number + row).tokens for row in range(4)])
        assert torch.equal(several.batch(number).tokens, rows)


def test_targets_are_the_inputs_one_later() -> None:
    batch = Batches(counting(100), 4, 10, seed=0).batch(5)
    assert torch.equal(batch.targets, batch.tokens + 1)


def test_epochs_and_seeds_differ_and_offsets_cover_the_context() -> None:
    batches = Batches(counting(1000), 1, 8, seed=0)
    orders = [epoch_starts(batches, epoch) for epoch in range(60)]
    assert len({tuple(np.argsort(order)) for order in orders}) == 60
    assert {min(order) for order in orders} == set(range(8))
    assert epoch_starts(Batches(counting(1000), 1, 8, seed=1), 0) != orders[0]


def test_the_content_of_batches_is_fixed() -> None:
    """A run is resumed from a batch number, perhaps years later: these numbers must not change."""
    batch = Batches(counting(1000), 4, 8, seed=7).batch(40)
    assert batch.tokens[:, 0].tolist() == [550, 398, 742, 374]


def test_exactly_one_window_is_enough_and_one_token_less_is_not() -> None:
    batch = Batches(counting(11), 2, 10, seed=0).batch(3)
    assert batch.tokens.tolist() == [list(range(10))] * 2 and batch.targets[0, -1] == 10
    with pytest.raises(UserError, match="count: 10 tokens; a context of 10 needs at least 11"):
        Batches(counting(10), 1, 10, seed=0)


def test_tokens_per_batch() -> None:
    assert Batches(counting(100), 4, 10, seed=0).tokens_per_batch == 40


def test_given_starts_are_the_windows_of_every_epoch_each_in_its_own_order() -> None:
    batches = Batches(counting(100), 1, 10, seed=0, spans=spans_of([3, 20, 41, 77], 10))
    orders = {tuple(epoch_starts(batches, epoch)) for epoch in range(20)}
    assert {tuple(sorted(order)) for order in orders} == {(3, 20, 41, 77)} and len(orders) > 5


END = 0
documents = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def with_ends(lengths: list[int]) -> TokenSequence:
    """Documents of these lengths between ends; a token that is no end is its own position."""
    ends = np.cumsum([0, *(length + 1 for length in lengths)])
    tokens = np.arange(ends[-1] + 1)
    tokens[ends] = END
    return TokenSequence.in_memory("documents", END, tokens)


def validation(sequence: TokenSequence, context: int, batch_size: int, limit: int | None = None) -> list[Batch]:
    return list(validation_batches(sequence, document_windows(sequence, context), batch_size, limit))


def targets_of(batches: list[Batch]) -> list[int]:
    return [token for batch in batches for token in batch.labels.flatten().tolist() if token != IGNORE_INDEX]


@given(lengths=documents, context=contexts, batch_size=st.integers(1, 5))
def test_validation_predicts_every_token_but_the_first_once_in_order(
    lengths: list[int], context: int, batch_size: int
) -> None:
    sequence = with_ends(lengths)
    windows = validation(sequence, context, batch_size)
    assert targets_of(windows) == sequence.read(1, len(sequence) - 1).tolist()
    assert all(batch.tokens.shape == batch.targets.shape and batch.tokens.shape[1] <= context for batch in windows)
    assert all(len(batch) == batch_size for batch in windows[:-1])


@given(lengths=documents, context=contexts, batch_size=st.integers(1, 5))
def test_validation_inputs_are_the_text_before_their_targets(lengths: list[int], context: int, batch_size: int) -> None:
    sequence = with_ends(lengths)
    position = 0
    for batch in validation(sequence, context, batch_size):
        for row, row_targets in zip(batch.tokens, batch.labels, strict=True):
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
    starts = document_windows(sequence, context)
    count = max(1, int(limit / len(whole) * len(starts)))
    assert len(validation(sequence, context, 1, limit)) == count
    assert len(validation(sequence, context, batch_size, limit)) == -(-count // batch_size)


def test_validation_limit_is_spread_over_the_whole() -> None:
    sequence = TokenSequence.in_memory("count", 2000, np.arange(1001))
    (batch,) = validation(sequence, 10, 100, limit=40)
    assert batch.tokens[:, 0].tolist() == [0, 250, 500, 750]


def test_validation_needs_two_tokens() -> None:
    with pytest.raises(UserError, match="count: 1 tokens; expected at least 2"):
        validation(counting(1), 4, 1)


@given(lengths=documents, context=contexts, count=st.integers(1, 30))
def test_a_number_of_windows_is_spread_over_the_text(lengths: list[int], context: int, count: int) -> None:
    sequence = with_ends(lengths)
    cut = document_windows(sequence, context)
    found = list(evenly_spaced_batches(sequence, cut, 4, count))
    rows = [row[row != IGNORE_INDEX].tolist() for batch in found for row in batch.labels]
    every = [row[row != IGNORE_INDEX].tolist() for batch in validation(sequence, context, 1) for row in batch.labels]
    assert len(rows) == min(count, len(cut))
    assert rows == [every[number * len(cut) // len(rows)] for number in range(len(rows))]


STOP = 9


def sequence_of(text: str) -> TokenSequence:
    """Each character a token; a full stop is the end between documents."""
    tokens = np.array([STOP if character == "." else 1 for character in text], dtype=np.uint16)
    return TokenSequence.in_memory("text", STOP, tokens)


def cut(text: str, context: int) -> list[tuple[int, int]]:
    windows = document_windows(sequence_of(text), context)
    return list(zip(windows.starts_N.tolist(), windows.lengths_N.tolist(), strict=True))


def test_a_window_ends_with_the_last_document_that_fits() -> None:
    #    0   4   8   12
    assert cut(".aaa.bbb.ccc.", 9) == [(0, 8), (8, 4)]
    assert cut(".aaa.bbb.ccc.", 8) == [(0, 8), (8, 4)]
    assert cut(".aaa.bbb.ccc.", 7) == [(0, 4), (4, 4), (8, 4)]


def test_a_long_document_fills_windows_and_its_rest_shares_one() -> None:
    assert cut(".aaaaaaaaaa.b.cccccc.", 5) == [(0, 5), (5, 5), (10, 3), (13, 5), (18, 2)]


def test_a_text_without_ends_is_cut_evenly() -> None:
    assert cut("aaaaaaaaaaaa", 5) == [(0, 5), (5, 5), (10, 1)]
    assert cut("a", 5) == []


@given(text=st.text(alphabet="ab.", max_size=80), context=st.integers(1, 20))
def test_windows_join_documents_and_cut_only_those_that_do_not_fit(text: str, context: int) -> None:
    windows = cut(text, context)
    assert sum(fresh for _, fresh in windows) == max(0, len(text) - 1)
    for (start, fresh), (following, _) in itertools.pairwise(windows):
        assert following == start + fresh and 1 <= fresh <= context
        assert text[following] == "." or (fresh == context and "." not in text[start + 1 : following + 1])


@given(text=st.text(alphabet="ab.", max_size=120), context=st.integers(1, 9), chunk=st.integers(1, 7))
def test_documents_are_joined_alike_whatever_is_computed_at_once(text: str, context: int, chunk: int) -> None:
    expected = cut(text, context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linnet.data.loader._CHUNK_DOCUMENTS", chunk)
        assert cut(text, context) == expected


@given(tokens=st.integers(0, 12), context=st.integers(1, 12))
def test_a_sequence_no_longer_than_a_window_is_refused_alike(tokens: int, context: int) -> None:
    """`windows: stream` and `windows: documents` accept the same texts and refuse the others with the same line."""
    messages = []
    for read in (
        lambda: Batches(counting(tokens), 1, context, seed=0),
        lambda: document_windows(counting(tokens), context).whole_windows(counting(tokens), context),
    ):
        try:
            read()
        except UserError as error:
            messages.append(str(error))
    assert len(messages) == (2 if tokens <= context else 0)
    assert len(set(messages)) <= 1


def test_whole_windows_have_room_for_their_last_target() -> None:
    sequence = sequence_of(".aaa.bbb.ccc.")
    windows = document_windows(sequence, 8)
    assert windows.whole_windows(sequence, 8).starts_N.tolist() == [0, 4]  # [8] has no room: the end is read from 4
    assert windows.whole_windows(sequence, 4).starts_N.tolist() == [0, 8]
    assert windows.whole_windows(sequence, 11).starts_N.tolist() == [0, 1]


ROWS = TokenSequence.in_memory(
    "rows", END, np.array([0, 5, 6, 0, 7, 0, 1, 0, 2, 3, 4, 0]), np.array([0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1]),
    starts=np.array([0, 5]),
)  # fmt: skip
"""Two pairs: 5 6 and 7, 1 and 2 3 4."""


def test_rows_are_padded_and_weighted() -> None:
    rows = document_rows(ROWS)
    assert rows.lengths_N.tolist() == [5, 6] and rows.counts_N.tolist() == [2, 4]
    batch = rows.read(ROWS, [0, 1])
    assert batch.tokens.tolist() == [[0, 5, 6, 0, 7, 0], [0, 1, 0, 2, 3, 4]]
    assert batch.labels.tolist() == [[-100, -100, -100, 7, 0, -100], [-100, -100, 2, 3, 4, 0]]
    assert batch.prefix_lengths == (4, 3) and batch.count == 6
    mean = Batches(ROWS, 2, 100, 0, rows).mean_lengths
    assert mean == (2.5, 3.0)


def test_what_fills_a_row_up_may_begin_like_a_document() -> None:
    batch = Batches(ROWS, 2, 100, 0, document_rows(ROWS), document_starts=True).batch(0)
    lengths = [int(row[1]) == 5 for row in batch.tokens]
    assert batch.document_starts == tuple((0, 5) if shorter else (0,) for shorter in lengths)


def test_a_row_that_is_too_long_is_named() -> None:
    rows = document_rows(ROWS)
    check_row_lengths(ROWS, rows, 6, separate_prefix=False)
    check_row_lengths(ROWS, rows, 4, separate_prefix=True)
    with pytest.raises(UserError, match=r"rows: row 2: input and target of 6 tokens: more .*context_length=6"):
        check_row_lengths(ROWS, rows, 5, separate_prefix=False)
    with pytest.raises(UserError, match="row 1: input or target of 4 tokens"):
        check_row_lengths(ROWS, rows, 3, separate_prefix=True)


def test_an_epoch_of_rows_has_each_once() -> None:
    batches = Batches(ROWS, 1, 100, 7, document_rows(ROWS))
    for epoch in range(9):
        firsts = {int(batches.batch(2 * epoch + number).tokens[0, 1]) for number in range(2)}
        assert firsts == {5, 1}
    longer = [batches.batch(number).tokens.shape[1] for number in range(40)]
    assert longer[::2] != [5] * 20 and longer[::2] != [6] * 20, "in an order of its own"


def test_targets_may_differ_from_the_next_tokens() -> None:
    targets = np.array([0, 0, 8, 0, 0, 9])
    sequence = TokenSequence.in_memory("rows", END, np.array([0, 1, 2, 0, 3, 0]), targets > 0, targets)
    batch = document_rows(sequence).read(sequence, [0, 1])
    assert batch.tokens.tolist() == [[0, 1, 2], [0, 3, 0]]
    assert batch.labels.tolist() == [[-100, 8, -100], [-100, 9, -100]]


@given(lengths=documents, context=contexts, seed=st.integers(0, 3))
def test_batches_have_document_starts(lengths: list[int], context: int, seed: int) -> None:
    sequence = with_ends(lengths)
    if len(sequence) <= context:
        return
    batch = Batches(sequence, 3, context, seed, document_starts=True).batch(2)
    assert batch.document_starts == tuple(tuple((row == END).nonzero().flatten().tolist()) for row in batch.tokens)


def test_some_rows_of_a_batch_are_a_batch() -> None:
    whole = document_rows(ROWS).read(ROWS, [0, 1])
    part = whole.part(1, 2)
    assert len(part) == 1 and part.prefix_lengths == (3,) and torch.equal(part.labels, whole.labels[1:])


def test_weights_other_than_one_add_up_to_what_a_loss_is_divided_by() -> None:
    tokens = torch.ones(1, 3, dtype=torch.int64)
    batch = Batch(tokens, tokens, torch.tensor([[0.5, 0.0, 2.0]]))
    assert batch.count == 2 and batch.total_weight == 2.5 and batch.loss_weights is batch.weights
    assert batch.labels.tolist() == [[1, IGNORE_INDEX, 1]]
    plain = Batch(tokens, tokens, torch.tensor([[True, False, True]]))
    assert plain.total_weight == 2 and plain.loss_weights is None and Batch(tokens, tokens).total_weight == 3


def test_labels_make_weights() -> None:
    labels = torch.tensor([[4, IGNORE_INDEX], [IGNORE_INDEX, 0]])
    batch = Batch.from_labels(torch.zeros(2, 2, dtype=torch.int64), labels)
    assert torch.equal(batch.labels, labels) and batch.count == 2


def test_extras_of_a_batch_follow_its_rows():
    tokens = torch.arange(6).view(3, 2)
    batch = Batch(tokens, tokens, extras={"score": torch.tensor([1.0, 2.0, 3.0])})
    part = batch.part(1, 3).to(torch.device("cpu"))
    assert part.extras["score"].tolist() == [2.0, 3.0]
    assert batch.to(torch.device("meta")).extras["score"].is_meta


def test_rows_of_an_example_stay_together():
    tokens = torch.arange(12).view(6, 2)
    batch = Batch(tokens, tokens, extras={"score": torch.arange(6)}, rows_per_example=2, mean_over_examples=True)
    assert (batch.examples, batch.total_weight) == (3, 3.0)
    part = batch.part(1, 3)
    assert (part.examples, part.tokens[:, 0].tolist(), part.extras["score"].tolist()) == (
        2,
        [4, 6, 8, 10],
        [2, 3, 4, 5],
    )


@pytest.mark.parametrize(
    ("starts", "expected"),
    [([0, 3, 7], [0, 3, 7, 9]), ([2], [0, 2, 9]), ([], [0, 9]), ([0, 9], [0, 9]), ([0, 3, 3, 7], [0, 3, 7, 9])],
)
def test_bounds_are_the_places_of_documents_each_once(starts, expected):
    sequence = TokenSequence.in_memory("text", 0, np.arange(10), starts=np.array(starts, dtype=np.int64))
    assert distinct_bounds(sequence).tolist() == expected
