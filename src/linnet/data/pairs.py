"""Pairs of an input and a target: read from JSON lines, and in batches from a data folder that holds them.

A folder of pairs is like any other (`data.shards`), but that its documents are an input, its target, the next input,
and so on. A row is an end token, the input, an end token, the target; predicted are the target and the end behind it.
Shapes: `B` pairs in a batch, `T` tokens of its longest row.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.epochs import Epochs
from linnet.data.shards import TokenData, TokenSequence
from linnet.data.sources import json_field, lines_of, open_source
from linnet.model.spec import ModelSpec
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.present.progress import Advance

INPUT, TARGET = "input", "target"
"""The fields of a pair."""


class Pair(NamedTuple):
    """An input and what is to follow from it."""

    input: str
    target: str


def read_pairs(path: str | Path, advance: Advance = lambda *_: None) -> Iterator[Pair]:
    """The pairs of a file of JSON lines, `{"input": ..., "target": ...}` each; other fields are left alone.

    `UserError` names the file, the line and the field of what is no pair. `advance` is told the bytes that were read.
    """
    found = False
    with open_source(Path(path)) as handle:
        for place, line in lines_of(handle, str(path), advance):
            pair = Pair(*(json_field(line, field, place) for field in (INPUT, TARGET)))
            for field, text in zip((INPUT, TARGET), pair, strict=True):
                if not text:
                    raise UserError(f"{place}: field {field!r}: empty; expected some text")
            found = True
            yield pair
    if not found:
        raise UserError(f'{path}: no pairs; expected lines like {{"{INPUT}": "...", "{TARGET}": "..."}}')


class Rows(Protocol):
    """Rows by number, which say themselves what is to be predicted in them."""

    def __len__(self) -> int: ...

    @property
    def input_lengths(self) -> NDArray[np.int64]:
        """Tokens of each row that are read for the sake of the others."""

    @property
    def target_lengths(self) -> NDArray[np.int64]:
        """Tokens that each row has to predict."""

    def check_lengths(self, context_length: int, apart: bool) -> None:
        """`UserError` where a row is longer than a context; `apart`: its two parts are read one by one."""

    def rows(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens and targets `[B, T]`, int64, of rows by number; targets that do not count are `IGNORE_INDEX`."""


class Pairs:
    """The pairs of one split, by number."""

    def __init__(self, sequence: TokenSequence, end_id: int) -> None:
        """`UserError` where it holds none, or its documents do not come in twos."""
        ends = sequence.positions(end_id)
        if len(ends) < 3 or len(ends) % 2 == 0:
            raise UserError(
                f"{sequence.name}: {max(0, len(ends) - 1)} documents; expected pairs of an input and a target"
            )
        self.sequence, self.end_id = sequence, end_id
        self.starts, self._middles, self._ends = ends[:-1:2], ends[1::2], ends[2::2]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def input_lengths(self) -> NDArray[np.int64]:
        """Tokens of each input, the end before it included."""
        return self._middles - self.starts

    @property
    def target_lengths(self) -> NDArray[np.int64]:
        """Tokens that each pair has to predict: the target and the end behind it."""
        return self._ends - self._middles

    def check_lengths(self, context_length: int, apart: bool) -> None:
        """`UserError` where a pair is longer than a context, or, `apart`, its input or its target is."""
        inputs, targets = self.input_lengths + apart, self.target_lengths  # an encoder reads both of an input's ends
        lengths = np.maximum(inputs, targets) if apart else inputs + targets
        longest = int(lengths.argmax())
        if lengths[longest] > context_length:
            what = f"{'input or target' if apart else 'input and target'} of {lengths[longest]} tokens"
            raise UserError(
                f"{self.sequence.name}: pair {longest + 1}: {what}: more than the context of {context_length};"
                f" `set` model.context_length={lengths[longest]} makes a model for it"
            )

    def rows(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens and targets `[B, T]`, int64, of pairs by number; targets in inputs and behind rows are
        `IGNORE_INDEX`.
        """
        lengths = (self.input_lengths + self.target_lengths)[list(numbers)]
        tokens = torch.full((len(lengths), int(lengths.max())), self.end_id)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        for row, (number, length) in enumerate(zip(numbers, lengths.tolist(), strict=True)):
            read = torch.from_numpy(self.sequence.read(int(self.starts[number]), length + 1))
            first = int(self.input_lengths[number])
            tokens[row, :length], targets[row, first:length] = read[:-1], read[first + 1 :]
        return tokens, targets


def check_reads(model: ModelSpec, data: TokenData) -> None:
    """`UserError` where a model for pairs is to read text."""
    if model.reads_pairs and not data.holds_pairs:
        field = "model.encoder" if model.encoder is not None else "model.prefix: true"
        raise UserError(f"{field}: reads pairs of an input and a target; {data.folder} holds text; give `pairs`")


class PairBatches:
    """An endless sequence of training batches, each computed from its number and the seed alone (`loader.Batches`)."""

    def __init__(self, pairs: Rows, batch_size: int, seed: int) -> None:
        self._pairs, self._batch_size, self._epochs = pairs, batch_size, Epochs(seed)

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Tokens of an input and of a target, with the ends before and behind it, on average."""
        return float(self._pairs.input_lengths.mean()), float(self._pairs.target_lengths.mean())

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of batch `number` (from 0)."""
        first = number * self._batch_size
        places = (divmod(index, len(self._pairs)) for index in range(first, first + self._batch_size))
        return self._pairs.rows([int(self._order(epoch)[place]) for epoch, place in places])

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return self._epochs.drawn(epoch, lambda random: random.permutation(len(self._pairs)))


def validation_pairs(pairs: Rows, batch_size: int, limit_tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens and targets `[b, t]` of all pairs in order, or of some, spread evenly, with about so many to predict."""
    predicted = int(pairs.target_lengths.sum())
    share = 1.0 if limit_tokens is None else min(1.0, limit_tokens / predicted)
    count = max(1, int(share * len(pairs)))
    chosen = [number * len(pairs) // count for number in range(count)]
    for first in range(0, count, batch_size):
        yield pairs.rows(chosen[first : first + batch_size])
