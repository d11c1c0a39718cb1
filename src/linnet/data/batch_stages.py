"""Batches that grow: stages of shorter windows and smaller batches, then, without end, the batches of the full size.

Together the stages read the text once. The long windows of the full size come in its order; a stage takes as many of
them as it needs, makes short windows of them, and reads these in an order of its own; the next stage continues after
them. So within an epoch no token is predicted twice, and a batch's number and the seed determine its content. Of the
short windows that are made in an epoch, some of the last may not be read.

Legend: `N` windows.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from linnet.data.loader import Batch, Batches, Indices, read_batch
from linnet.data.packing import PackedBatches, PackedWindows, cut_pieces, packed, read_packed

Full = TypeVar("Full", Batches, PackedBatches)
Windows = TypeVar("Windows", Indices, PackedWindows)


class BatchStage(NamedTuple):
    """A number of batches of `batch_size` windows of `context_length` targets.

    starts: of all windows of that length that begin with documents, ascending; None: long windows are cut evenly.
    """

    batches: int
    batch_size: int
    context_length: int
    starts: Indices | None = None


class StagePart(NamedTuple):
    """The long windows from place `first` to before `last` of an epoch's order, of which a stage reads `windows` short
    ones.
    """

    epoch: int
    first: int
    last: int
    windows: int


class BatchStages(ABC, Generic[Full, Windows]):
    """What all kinds of windows have in common: which long windows a stage takes, and which short one is where."""

    mean_lengths = None  # as `Batches.mean_lengths` of windows

    def __init__(self, full: Full, stages: Sequence[BatchStage], seed: int) -> None:
        """Without `starts` the context length of a stage must divide that of `full`."""
        self.full: Full = full
        self.counted_share = full.counted_share
        self._stages, self._seed = tuple(stages), seed
        self._ends = list(accumulate(stage.batches for stage in stages))
        self._latest: dict[tuple[int, int], Windows] = {}
        self._parts: list[list[StagePart]] = []
        self._begins = 0
        for stage in stages:
            self._parts.append(self._taken(stage, self._begins))
            last = self._parts[-1][-1]
            self._begins = last.epoch * full.examples_per_epoch + last.last

    def batch(self, number: int) -> Batch:
        """Batch `number`, from 0."""
        full, index = self.full, bisect_right(self._ends, number)
        place = number - (self._ends[index - 1] if index else 0)
        if index == len(self._stages):
            first = self._begins + place * full.batch_size
            return full.examples(range(first, first + full.batch_size))
        stage = self._stages[index]
        places = range(place * stage.batch_size, (place + 1) * stage.batch_size)
        return self._read(stage, [self._window(index, at) for at in places])

    def _taken(self, stage: BatchStage, begin: int) -> list[StagePart]:
        """The long windows that a stage takes, from number `begin` of all epochs on."""
        missing, parts, whole = stage.batches * stage.batch_size, list[StagePart](), self.full.examples_per_epoch
        while missing > 0:
            epoch, first = divmod(begin, whole)
            parts.append(self._next_part(stage, epoch, first, missing))
            missing, begin = missing - parts[-1].windows, epoch * whole + parts[-1].last
        return parts

    def _window(self, index: int, place: int) -> tuple[Windows, int]:
        """The windows of the part that has window `place` of a stage, and its place in them."""
        number = 0
        while place >= self._parts[index][number].windows:
            place -= self._parts[index][number].windows
            number += 1
        # Those of the last two parts are kept.
        if (index, number) not in self._latest:
            if len(self._latest) == 2:
                del self._latest[next(iter(self._latest))]
            self._latest[index, number] = self._windows_of(self._stages[index], self._parts[index][number])
        return self._latest[index, number], place

    def _random(self, stage: BatchStage, part: StagePart) -> np.random.Generator:
        drawn_from = [self._seed, part.epoch, stage.context_length, part.first]
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(drawn_from)))

    @abstractmethod
    def _next_part(self, stage: BatchStage, epoch: int, first: int, missing: int) -> StagePart:
        """The long windows from place `first` of an epoch that make `missing` short ones, or as many as it has."""

    @abstractmethod
    def _windows_of(self, stage: BatchStage, part: StagePart) -> Windows:
        """The short windows of a part in their order."""

    @abstractmethod
    def _read(self, stage: BatchStage, windows: Sequence[tuple[Windows, int]]) -> Batch:
        """Windows, each given by those of its part and its place in them, as a batch."""


class StagedBatches(BatchStages[Batches, Indices]):
    """Stages of windows of a stream, which are given by their starts: long windows are cut."""

    def _next_part(self, stage: BatchStage, epoch: int, first: int, missing: int) -> StagePart:
        whole = self.full.examples_per_epoch
        # How many short windows each long one of the epoch is cut into, in its order.
        if stage.starts is None or stage.context_length == self.full.context_length:
            pieces_N = np.full(whole, self.full.context_length // stage.context_length)
        else:
            pieces_N = np.bincount(self._owners(stage.starts, epoch), minlength=whole)
        totals_N = np.cumsum(pieces_N[first:])
        count = min(len(totals_N), int(np.searchsorted(totals_N, missing)) + 1)
        return StagePart(epoch, first, first + count, min(missing, int(totals_N[count - 1])))

    def _owners(self, starts: Indices, epoch: int) -> Indices:
        """For each short window the place, in the epoch's order, of the long one within which it starts."""
        long_starts, _ = self.full.epoch(epoch)
        ascending = np.argsort(long_starts, kind="stable")
        owners: Indices = ascending[np.searchsorted(long_starts[ascending], starts, side="right") - 1]
        return owners

    def _windows_of(self, stage: BatchStage, part: StagePart) -> Indices:
        long_starts = self.full.epoch(part.epoch)[0][part.first : part.last]
        if stage.context_length == self.full.context_length:
            return long_starts
        if stage.starts is None:
            starts = long_starts[:, None] + np.arange(0, self.full.context_length, stage.context_length)
        else:
            owners = self._owners(stage.starts, part.epoch)
            starts = stage.starts[(owners >= part.first) & (owners < part.last)]
        return self._random(stage, part).permutation(starts.reshape(-1))

    def _read(self, stage: BatchStage, windows: Sequence[tuple[Indices, int]]) -> Batch:
        starts_N, full = np.array([of_part[place] for of_part, place in windows]), self.full
        lengths_N = np.full(len(starts_N), stage.context_length)
        return read_batch(full.sequence, starts_N, lengths_N, False, full.document_starts)


class StagedPackedBatches(BatchStages[PackedBatches, PackedWindows]):
    """Stages of packed windows: a stage packs the pieces of the long windows that it takes anew."""

    def _next_part(self, stage: BatchStage, epoch: int, first: int, missing: int) -> StagePart:
        if stage.context_length == self.full.context_length:
            last = min(self.full.examples_per_epoch, first + missing)
        else:
            before_N = self.full.epoch(epoch).targets_before_N
            # More targets than all short windows but one hold need all of them.
            needed = (missing - 1) * stage.context_length + 1
            last = min(len(before_N) - 1, int(np.searchsorted(before_N, before_N[first] + needed)))
        part = StagePart(epoch, first, last, missing)
        return part._replace(windows=min(missing, len(self._windows_of(stage, part))))

    def _windows_of(self, stage: BatchStage, part: StagePart) -> PackedWindows:
        long_windows = self.full.epoch(part.epoch)
        pieces = long_windows.of_windows(part.first, part.last)
        if stage.context_length == self.full.context_length:
            bounds_N = long_windows.bounds_N[part.first : part.last + 1]
            return PackedWindows(pieces, bounds_N - bounds_N[0])
        return packed(cut_pieces(pieces, stage.context_length), stage.context_length, self._random(stage, part))

    def _read(self, stage: BatchStage, windows: Sequence[tuple[PackedWindows, int]]) -> Batch:
        found, full = [of_part.of_window(place) for of_part, place in windows], self.full
        return read_packed(full.sequence, found, stage.context_length, full.document_starts)
