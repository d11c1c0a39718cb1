"""Batches of token windows. A batch's number and the seed decide its content, so a position is one integer.

Shapes: `B` sequences in a batch, `T` context length in tokens.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linnet.data.shards import TokenSequence
from linnet.errors import UserError


class Batches:
    """An endless sequence of training batches, each computed from its number alone.

    An epoch is cut into windows of `T + 1` tokens that start `T` apart, so that no token is predicted twice; the
    first starts at a random offset below `T`, and the windows come in a random order. Offset and order are drawn
    anew for each epoch from (seed, epoch). Windows run on from one epoch to the next, across batches.
    """

    def __init__(self, sequence: TokenSequence, batch_size: int, context_length: int, seed: int) -> None:
        """`seed` is not negative. `UserError` if the sequence is shorter than one window."""
        if len(sequence) <= context_length:
            raise UserError(
                f"{sequence.name}: {len(sequence)} tokens; a context of {context_length} needs at least "
                f"{context_length + 1}: prepare more text or choose a shorter context"
            )
        self._sequence = sequence
        self._batch_size = batch_size
        self._context_length = context_length
        self._seed = seed
        # As many as fit after the largest offset, so that an epoch has the same length whatever its offset.
        self.windows_per_epoch = max(1, (len(sequence) - context_length) // context_length)
        self._epochs: dict[int, tuple[int, NDArray[np.int64]]] = {}

    @property
    def tokens_per_batch(self) -> int:
        """Tokens predicted in a batch: `B * T`."""
        return self._batch_size * self._context_length

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[B, T]`, int64, of batch `number` (from 0); targets are the inputs one token later."""
        first = number * self._batch_size
        windows = [self._window(index) for index in range(first, first + self._batch_size)]
        return _inputs_and_targets(windows)

    def _window(self, index: int) -> NDArray[np.int64]:
        epoch, place = divmod(index, self.windows_per_epoch)
        offset, order = self._epoch(epoch)
        start = offset + int(order[place]) * self._context_length
        return self._sequence.read(start, self._context_length + 1)

    def _epoch(self, epoch: int) -> tuple[int, NDArray[np.int64]]:
        """Offset and order of an epoch's windows; the last two are kept, a batch may need both."""
        if epoch not in self._epochs:
            if len(self._epochs) == 2:
                del self._epochs[next(iter(self._epochs))]
            random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, epoch])))
            spare = len(self._sequence) - 1 - self.windows_per_epoch * self._context_length
            offset = int(random.integers(min(self._context_length, spare + 1)))
            self._epochs[epoch] = offset, random.permutation(self.windows_per_epoch)
        return self._epochs[epoch]


def validation_windows(
    sequence: TokenSequence, context_length: int, batch_size: int, limit_tokens: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets `[b, t]`, int64, always the same, in order, without overlap.

    Without a limit every token but the first is a target exactly once: `b` is `batch_size` but in the last batch
    of full windows, and what is left of the sequence is a batch of its own, `[1, t < T]`. With a limit of fewer
    tokens than that, as many full windows as fit in it (at least one) are spread evenly over the sequence.
    """
    predicted = len(sequence) - 1
    if predicted < 1:
        raise UserError(f"{sequence.name}: {len(sequence)} tokens; expected at least 2")
    full, left_over = divmod(predicted, context_length)
    limited = limit_tokens is not None and limit_tokens < predicted
    count = min(full, max(1, (limit_tokens or 0) // context_length)) if limited else full
    for first in range(0, count, batch_size):
        numbers = range(first, min(first + batch_size, count))
        starts = [number * full // count * context_length for number in numbers]
        yield _inputs_and_targets([sequence.read(start, context_length + 1) for start in starts])
    if left_over and not (limited and full):
        yield _inputs_and_targets([sequence.read(full * context_length, left_over + 1)])


def _inputs_and_targets(windows: list[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
    tokens = torch.from_numpy(np.stack(windows))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
