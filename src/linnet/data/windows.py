"""Where windows begin that begin with a document. A window of `T` tokens predicts the `T` tokens behind its start."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnet.data.shards import TokenSequence


@dataclass(frozen=True)
class DocumentWindows:
    """Windows that together predict every token but the first once, each from as much of its document as fits.

    `starts` `[W]`: positions of first inputs. `fresh` `[W]`: how many tokens a window predicts before the next one
    takes over, at most `T`; what lies behind them in the window is the beginning of the next.
    """

    starts: NDArray[np.int64]
    fresh: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def whole(self, sequence: TokenSequence, context_length: int) -> NDArray[np.int64]:
        """Starts `[<= W]` behind which a whole window and its last target lie; where the end would be lost, its own.

        The sequence must be longer than a window.
        """
        starts = self.starts[self.starts + context_length < len(sequence)]
        last = len(sequence) - 1 - context_length
        return starts if starts[-1] == last else np.append(starts, last)


def document_windows(sequence: TokenSequence, end_id: int, context_length: int) -> DocumentWindows:
    """Cut a sequence, in which `end_id` stands before, between and after documents, into windows.

    A window takes as many whole documents as fit and ends with the last of them; a document that is longer than a
    window fills some, and the last of these takes what fits behind its end. The last window ends with the sequence.
    """
    ends = sequence.positions(end_id)
    last = len(sequence) - 1
    starts, start = [], 0
    while start < last:
        starts.append(start)
        start = _next_start(ends, start, context_length, last)
    bounds = np.array([*starts, last], dtype=np.int64)
    return DocumentWindows(bounds[:-1], np.diff(bounds))


def _next_start(ends: NDArray[np.int64], start: int, context_length: int, last: int) -> int:
    """The last end of a document that a window from `start` reaches, or where the window is full."""
    reach = start + context_length
    if reach >= last:
        return last
    end = int(ends[np.searchsorted(ends, reach, side="right") - 1]) if len(ends) and ends[0] <= reach else 0
    return end if end > start else reach


def evenly_spaced(total: int, count: int) -> list[int]:
    """So many of the numbers below `total`, at most all, evenly and in order."""
    count = min(count, total)
    return [number * total // count for number in range(count)]
