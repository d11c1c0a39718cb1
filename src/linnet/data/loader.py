"""Batches of token windows. A batch's number and the seed decide its content, so a position is one integer.

Shapes: `B` sequences in a batch, `T` context length in tokens.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.epochs import Epochs
from linnet.data.shards import TokenSequence
from linnet.data.windows import DocumentWindows, evenly_spaced
from linnet.ops.cross_entropy import IGNORE_INDEX


class Batches:
    """An endless sequence of training batches, each computed from its number alone.

    An epoch is cut into windows of `T + 1` tokens, which come in a random order; windows run on from one epoch to the
    next, across batches. The order is drawn anew for each epoch from (seed, epoch). Without `starts` so is an offset
    below `T`, where the first window starts; the others follow `T` apart, so that no token is predicted twice. With
    `starts` windows may overlap: what follows a document's end in its window is predicted again where it begins one.
    """

    def __init__(
        self,
        sequence: TokenSequence,
        batch_size: int,
        context_length: int,
        seed: int,
        starts: NDArray[np.int64] | None = None,
    ) -> None:
        """`seed` is not negative; `starts` are the positions of all windows (`DocumentWindows.whole`).

        `UserError` if the sequence is shorter than one window.
        """
        if len(sequence) <= context_length:
            raise UserError(
                f"{sequence.name}: {len(sequence)} tokens; a context of {context_length} needs at least "
                f"{context_length + 1}: prepare more text or choose a shorter context"
            )
        self.sequence = sequence
        self.batch_size = batch_size
        self.context_length = context_length
        self._starts, self._epochs = starts, Epochs(seed)
        # As many as fit after the largest offset, so that an epoch has the same length whatever its offset.
        evenly = max(1, (len(sequence) - context_length) // context_length)
        self.windows_per_epoch = evenly if starts is None else len(starts)

    @property
    def tokens_per_batch(self) -> int:
        """Tokens predicted in a batch: `B * T`."""
        return self.batch_size * self.context_length

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[B, T]`, int64, of batch `number` (from 0); targets are the inputs one token later."""
        first = number * self.batch_size
        return self.windows(range(first, first + self.batch_size))

    def windows(self, indices: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of windows by their numbers, counted from the first one of the first epoch."""
        return inputs_and_targets([self._window(index) for index in indices])

    def _window(self, index: int) -> NDArray[np.int64]:
        epoch, place = divmod(index, self.windows_per_epoch)
        return self.sequence.read(int(self.starts(epoch)[place]), self.context_length + 1)

    def starts(self, epoch: int) -> NDArray[np.int64]:
        """Where the windows of an epoch start, in their order."""
        return self._epochs.drawn(epoch, self._shuffled_starts)

    def _shuffled_starts(self, random: np.random.Generator) -> NDArray[np.int64]:
        starts = self._even_starts(random) if self._starts is None else self._starts
        return starts[random.permutation(len(starts))]

    def _even_starts(self, random: np.random.Generator) -> NDArray[np.int64]:
        spare = len(self.sequence) - 1 - self.windows_per_epoch * self.context_length
        offset = int(random.integers(min(self.context_length, spare + 1)))
        return offset + self.context_length * np.arange(self.windows_per_epoch)


def validation_windows(
    sequence: TokenSequence, windows: DocumentWindows, end_id: int, batch_size: int, limit_tokens: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets `[b, t <= T]`, int64, always the same, in order.

    `windows` are the sequence's (`document_windows`), and begin with a document where they can: every token but the
    first is a target exactly once, the other targets are `IGNORE_INDEX`. With a limit of fewer tokens than that,
    windows of about as many tokens (at least one window) are spread evenly over the sequence.
    """
    predicted = len(sequence) - 1
    if predicted < 1:
        raise UserError(f"{sequence.name}: {len(sequence)} tokens; expected at least 2")
    share = 1.0 if limit_tokens is None else min(1.0, limit_tokens / predicted)
    yield from spread_batches(sequence, windows, end_id, batch_size, max(1, int(share * len(windows))))


def spread_batches(
    sequence: TokenSequence, windows: DocumentWindows, end_id: int, batch_size: int, count: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets as `validation_windows`, of so many windows, at most all, spread evenly."""
    chosen = evenly_spaced(len(windows), count)
    for first in range(0, len(chosen), batch_size):
        part = chosen[first : first + batch_size]
        yield _fresh_targets(sequence, windows.starts[part], windows.fresh[part], end_id)


def _fresh_targets(
    sequence: TokenSequence, starts: NDArray[np.int64], fresh: NDArray[np.int64], end_id: int
) -> tuple[Tensor, Tensor]:
    """Windows as wide as the most that one of them has to predict; ends stand where the sequence is over."""
    width = int(fresh.max())
    windows = []
    for start in starts.tolist():
        tokens = sequence.read(start, min(width + 1, len(sequence) - start))
        windows.append(np.pad(tokens, (0, width + 1 - len(tokens)), constant_values=end_id))
    inputs, targets = inputs_and_targets(windows)
    targets[torch.arange(width) >= torch.from_numpy(fresh)[:, None]] = IGNORE_INDEX
    return inputs, targets


def inputs_and_targets(windows: list[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
    """`[B, T]` each, of windows of `T + 1` tokens: targets are the inputs one token later."""
    tokens = torch.from_numpy(np.stack(windows))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
