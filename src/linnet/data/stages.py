"""Batches that grow: stages of shorter windows and smaller batches, which together read the text as one.

The windows of the last stage, the long ones, come in the order of `Batches`. An earlier stage takes so many of them as
its tokens need, cuts them, and reads the pieces in an order of its own; the next stage goes on behind them. So within
an epoch no token is predicted twice, whatever the stages, and a batch's number and the seed decide its content.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from linnet.data.loader import Batches, inputs_and_targets


class BatchStage(NamedTuple):
    """So many `batches` of `batch_size` windows of `context_length` tokens.

    starts: of all windows of that length that begin with documents, ascending; None: long windows are cut evenly.
    """

    batches: int
    batch_size: int
    context_length: int
    starts: NDArray[np.int64] | None = None


class _Segment(NamedTuple):
    """The long windows of an epoch, from place `first` to `last` of its order, that a stage cuts into `windows`."""

    epoch: int
    first: int
    last: int
    windows: int


class StagedBatches:
    """The batches of all `stages`, then, without end, those of `full`; see above.

    A long window that is cut last in a stage, or in an epoch of it, may have pieces left: nobody reads them.
    """

    def __init__(self, full: Batches, stages: Sequence[BatchStage], seed: int) -> None:
        """Without `starts` the context length of a stage has to divide that of `full`."""
        self._full, self._stages, self._seed = full, tuple(stages), seed
        self._ends = list(accumulate(stage.batches for stage in stages))
        self._segments: list[list[_Segment]] = []
        self._begins = 0
        for stage in stages:
            self._segments.append(self._taken(stage, self._begins))
            last = self._segments[-1][-1]
            self._begins = last.epoch * full.windows_per_epoch + last.last
        self._latest: dict[tuple[int, int], NDArray[np.int64]] = {}

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[b, t]`, int64, of batch `number` (from 0); targets are the inputs one token later."""
        index = bisect_right(self._ends, number)
        place = number - (self._ends[index - 1] if index else 0)
        if index == len(self._stages):
            first = self._begins + place * self._full.batch_size
            return self._full.windows(range(first, first + self._full.batch_size))
        stage = self._stages[index]
        places = range(place * stage.batch_size, (place + 1) * stage.batch_size)
        length = stage.context_length + 1
        return inputs_and_targets([self._full.sequence.read(self._start(index, at), length) for at in places])

    def _taken(self, stage: BatchStage, begin: int) -> list[_Segment]:
        """Which long windows a stage takes, from number `begin` of all epochs on."""
        wanted, segments = stage.batches * stage.batch_size, list[_Segment]()
        while wanted > 0:
            epoch, first = divmod(begin, self._full.windows_per_epoch)
            so_far = np.cumsum(self._pieces(stage, epoch)[first:])
            many = min(len(so_far), int(np.searchsorted(so_far, wanted)) + 1)
            windows = min(wanted, int(so_far[many - 1]))
            segments.append(_Segment(epoch, first, first + many, windows))
            wanted, begin = wanted - windows, begin + many
        return segments

    def _pieces(self, stage: BatchStage, epoch: int) -> NDArray[np.int64]:
        """How many windows each long one of an epoch is cut into, in its order."""
        whole = self._full.windows_per_epoch
        if stage.starts is None or stage.context_length == self._full.context_length:
            return np.full(whole, self._full.context_length // stage.context_length)
        return np.bincount(self._owners(stage.starts, epoch), minlength=whole)

    def _owners(self, starts: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """For each short window the place, in the epoch's order, of the long one within which it starts."""
        long_starts = self._full.starts(epoch)
        ascending = np.argsort(long_starts, kind="stable")
        owners: NDArray[np.int64] = ascending[np.searchsorted(long_starts[ascending], starts, side="right") - 1]
        return owners

    def _start(self, index: int, place: int) -> int:
        """Where window `place` of a stage starts."""
        for number, segment in enumerate(self._segments[index]):
            if place < segment.windows:
                return int(self._starts(index, number)[place])
            place -= segment.windows
        raise AssertionError("a window behind its stage")

    def _starts(self, index: int, number: int) -> NDArray[np.int64]:
        """Where the windows of a segment start, in their order; the last two segments are kept."""
        if (index, number) not in self._latest:
            if len(self._latest) == 2:
                del self._latest[next(iter(self._latest))]
            self._latest[index, number] = self._ordered(self._stages[index], self._segments[index][number])
        return self._latest[index, number]

    def _ordered(self, stage: BatchStage, segment: _Segment) -> NDArray[np.int64]:
        long_starts = self._full.starts(segment.epoch)[segment.first : segment.last]
        if stage.context_length == self._full.context_length:
            return long_starts
        if stage.starts is None:
            found = long_starts[:, None] + np.arange(0, self._full.context_length, stage.context_length)
        else:
            owners = self._owners(stage.starts, segment.epoch)
            found = stage.starts[(owners >= segment.first) & (owners < segment.last)]
        drawn_from = [self._seed, segment.epoch, stage.context_length, segment.first]
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(drawn_from)))
        return random.permutation(found.reshape(-1))
