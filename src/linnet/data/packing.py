"""Best-fit packing: windows that are filled with whole documents, and batches of them.

A document that is longer than a window is cut into full windows and a rest. Pieces are placed from the longest to the
shortest, each into the window with the least room that still holds it (best-fit decreasing; Ding et al. 2024, "Fewer
Truncations Improve Language Modeling"); what stays empty is padding, whose targets do not count. So each epoch predicts
every token of the sequence but its first exactly once.

Legend: `P` pieces, `N` windows, `T` tokens of a window.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.data.loader import Batch, Indices, distinct_bounds
from linnet.data.shards import TokenSequence


class Pieces(NamedTuple):
    """Documents, or parts of them: the places of their first tokens, and how many targets they have, `[P]` each."""

    starts_P: Indices
    lengths_P: Indices


@dataclass(frozen=True)
class PackedWindows:
    """Windows in their order. Window `n` has the pieces from `bounds_N[n]` to before `bounds_N[n + 1]`."""

    pieces: Pieces
    bounds_N: Indices

    def __len__(self) -> int:
        return len(self.bounds_N) - 1

    def of_window(self, number: int) -> Pieces:
        """The pieces of one window, in their order."""
        return self.of_windows(number, number + 1)

    def of_windows(self, first: int, last: int) -> Pieces:
        """The pieces of the windows from `first` to before `last`."""
        part = slice(self.bounds_N[first], self.bounds_N[last])
        return Pieces(self.pieces.starts_P[part], self.pieces.lengths_P[part])

    @cached_property
    def targets_before_N(self) -> Indices:
        """How many targets the windows before each bound have, `[N + 1]`."""
        return np.append(0, np.cumsum(self.pieces.lengths_P))[self.bounds_N]


def cut_documents(sequence: TokenSequence, context_length: int) -> Pieces:
    """The documents of a sequence, those longer than `context_length` cut into pieces of it and a rest."""
    bounds = distinct_bounds(sequence)
    return cut_pieces(Pieces(bounds[:-1], np.diff(bounds)), context_length)


def cut_pieces(pieces: Pieces, context_length: int) -> Pieces:
    """Pieces of at most `context_length` targets; those that were longer come last."""
    is_long = pieces.lengths_P > context_length
    if not is_long.any():
        return pieces
    (long_starts, lengths), short = (Pieces(*(part[which] for part in pieces)) for which in (is_long, ~is_long))
    counts = -(-lengths // context_length)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(long_starts, counts) + within * context_length
    cut_lengths = np.minimum(np.repeat(long_starts + lengths, counts) - starts, context_length)
    return Pieces(np.append(short.starts_P, starts), np.append(short.lengths_P, cut_lengths))


def _stable_order(keys_P: Indices) -> Indices:
    """The stable order of numbers below 2^32, by their 16-bit halves: NumPy sorts only such small ones by radix."""
    order = np.argsort(keys_P.astype(np.uint16), kind="stable")
    if keys_P.max(initial=0) >> 16:
        order = order[np.argsort((keys_P[order] >> 16).astype(np.uint16), kind="stable")]
    return order


def best_fit(lengths_P: Indices, capacity: int) -> Indices:
    """The window of each piece, numbered from 0, by best-fit decreasing; no length is above `capacity`.

    Pieces of one length are placed together, into all windows of the least room that holds them, so the time does not
    depend on how many windows are open.
    """
    order = _stable_order(capacity - lengths_P)
    falling = lengths_P[order]
    firsts = np.append(0, np.flatnonzero(np.diff(falling)) + 1)
    windows_P, made = np.empty(len(lengths_P), dtype=np.int64), 0
    rooms: list[int] = []  # ascending
    open_windows: dict[int, Indices] = {}  # by room
    for length, alike in zip(falling[firsts].tolist(), np.split(order, firsts[1:]), strict=True):
        waiting = alike
        while len(waiting):
            place = bisect_left(rooms, length)
            room = rooms.pop(place) if place < len(rooms) else capacity
            # A window that holds one more piece of this length has the least room for it again: so it is filled up.
            in_each = room // length
            needed = -(-len(waiting) // in_each)
            found = open_windows.pop(room) if room in open_windows else np.arange(made, made + needed)
            made = max(made, int(found.max()) + 1)
            chosen = found[:needed]
            placed = min(len(waiting), len(chosen) * in_each)
            windows_P[waiting[:placed]] = np.repeat(chosen, in_each)[:placed]
            in_last = placed - (len(chosen) - 1) * in_each
            left = [
                (room, found[needed:]),
                (room - in_each * length, chosen[:-1]),
                (room - in_last * length, chosen[-1:]),
            ]
            for rest, windows in left:
                if rest and len(windows):
                    if rest not in open_windows:
                        insort(rooms, rest)
                    open_windows[rest] = np.append(open_windows.get(rest, windows[:0]), windows)
            waiting = waiting[placed:]
    return windows_P


def packed(pieces: Pieces, context_length: int, random: np.random.Generator) -> PackedWindows:
    """Windows of the pieces. Random: which of equal length share a window, their order in it, and that of windows."""
    shuffled = random.permutation(len(pieces.starts_P))
    windows_P = best_fit(pieces.lengths_P[shuffled], context_length)
    count = int(windows_P.max()) + 1
    windows_P = random.permutation(count)[windows_P]
    order = _stable_order(windows_P)  # within a window as they were shuffled
    chosen = shuffled[order]
    bounds = np.append(0, np.cumsum(np.bincount(windows_P, minlength=count)))
    return PackedWindows(Pieces(pieces.starts_P[chosen], pieces.lengths_P[chosen]), bounds)


def read_packed(
    sequence: TokenSequence, windows: Sequence[Pieces], context_length: int, document_starts: bool
) -> Batch:
    """Windows as a batch `[B, T]`, padded with end tokens. document_starts: padding begins like a document too."""
    shape = len(windows), context_length
    tokens, targets = (np.full(shape, sequence.end_id, dtype=np.int64) for _ in range(2))
    weights: NDArray[Any] = np.zeros(shape, dtype=sequence.weights_dtype)
    begins = list[tuple[int, ...]]()
    for row, pieces in enumerate(windows):
        ends = np.cumsum(pieces.lengths_P).tolist()
        for start, length, end in zip(pieces.starts_P.tolist(), pieces.lengths_P.tolist(), ends, strict=True):
            read, place = sequence.read(start, length + 1), slice(end - length, end)
            others = sequence.targets
            tokens[row, place] = read[:-1]
            targets[row, place] = read[1:] if others is None else others.read(start + 1, length)
            weights[row, place] = sequence.read_weights(start + 1, length)
        begins.append((0, *(end for end in ends if end < context_length)))
    read_tokens, read_targets = torch.from_numpy(tokens), torch.from_numpy(targets)
    return Batch(read_tokens, read_targets, torch.from_numpy(weights), tuple(begins) if document_starts else None)


class PackedBatches:
    """An endless sequence of batches of packed windows, each computed from its number and the seed alone.

    An epoch is all documents, packed anew; its windows come in a random order. Windows run on from one epoch to the
    next, across batches, as those of `loader.Batches` do.
    """

    mean_lengths = None  # as `Batches.mean_lengths` of windows

    def __init__(
        self, sequence: TokenSequence, batch_size: int, context_length: int, seed: int, document_starts: bool = False
    ) -> None:
        """`seed` is not negative. document_starts: batches say where documents begin. `UserError` without targets."""
        if len(sequence) < 2:
            raise UserError(f"{sequence.name}: {len(sequence)} tokens; expected at least 2")
        self.sequence, self.batch_size, self.context_length = sequence, batch_size, context_length
        self.document_starts, self._seed, self._latest = document_starts, seed, dict[int, PackedWindows]()
        self._pieces = cut_documents(sequence, context_length)
        # The number depends on the lengths alone, so all epochs have as many windows.
        self.examples_per_epoch = len(self.epoch(0))

    @property
    def tokens_per_batch(self) -> int:
        """Places of a batch, padding included: `B * T`."""
        return self.batch_size * self.context_length

    @property
    def mean_targets(self) -> float:
        """Targets of a window, without padding."""
        return (len(self.sequence) - 1) / self.examples_per_epoch

    @cached_property
    def counted_share(self) -> float:
        """The share of the places of all windows whose targets count in the loss."""
        sequence, places = self.sequence, self.examples_per_epoch * self.context_length
        targets = len(sequence) - 1
        counted = targets if sequence.all_count else np.count_nonzero(sequence.read_weights(1, targets))
        return int(counted) / places

    def describe(self) -> str:
        """The fill rate of the windows, how many documents are cut and what share counts, in one line."""
        documents, fill = len(self.sequence.document_starts), self.mean_targets / self.context_length
        cut = int((np.diff(self.sequence.document_bounds) > self.context_length).sum())
        return (
            f"{documents:,} documents in {self.examples_per_epoch:,} windows of {self.context_length:,} tokens, filled"
            f" to {fill:.2%}; {cut:,} of them are longer than a window and cut"
        ) + ("" if self.sequence.all_count else f"; {self.counted_share:.1%} of all places count in the loss")

    def batch(self, number: int) -> Batch:
        """Batch `number`, from 0."""
        first = number * self.batch_size
        return self.examples(range(first, first + self.batch_size))

    def examples(self, numbers: Sequence[int]) -> Batch:
        """The windows of these numbers, counted from the first one of the first epoch, as a batch."""
        places = [divmod(number, self.examples_per_epoch) for number in numbers]
        windows = [self.epoch(epoch).of_window(place) for epoch, place in places]
        return read_packed(self.sequence, windows, self.context_length, self.document_starts)

    def epoch(self, number: int) -> PackedWindows:
        """The windows of an epoch, in their order."""
        # A batch may need two epochs; an earlier one is packed again when it is asked for.
        if number not in self._latest:
            if len(self._latest) == 2:
                del self._latest[next(iter(self._latest))]
            random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, number])))
            self._latest[number] = packed(self._pieces, self.context_length, random)
        return self._latest[number]
