"""Examples: where they lie in a split, and the batches made of them.

An example is a span of a split's tokens, read as one row: a window of the stream, or a whole document. A batch's number
and the seed determine its content, so the position in the data is one integer.

Legend: `B` rows of a batch, `T` tokens of the longest row, `N` examples, `D` documents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.shards import TokenSequence
from linnet.ops.cross_entropy import IGNORE_INDEX

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and what to predict in them.

    tokens, targets: int64 `[B, T]`; a target is what follows the tokens up to its place.
    weights: bool `[B, T]`, True where a target counts in the loss, or float32, how much it does (0: not at all); None:
        all count.
    document_starts: for each row the places at which documents begin, ascending; None: not asked for.
    prefix_lengths: for each row the number of tokens before the first target that counts, which a model with a prefix
        or an encoder reads as a whole; None: the rows are windows, which have no prefix.
    extras: what an objective reads besides, by name, `[B, ...]` each, such as what another model thinks of a row.
    rows_per_example: so many rows, one after the other, are one example and stay together: a pair, or a group.
    mean_over_examples: the loss of a step is the mean over its examples; else over the targets that count.

    Document starts and prefix lengths are plain numbers, so that their use never waits for a device.
    """

    tokens: Tensor
    targets: Tensor
    weights: Tensor | None = None
    document_starts: tuple[tuple[int, ...], ...] | None = None
    prefix_lengths: tuple[int, ...] | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    rows_per_example: int = 1
    mean_over_examples: bool = False

    @classmethod
    def from_labels(cls, tokens: Tensor, labels: Tensor, prefix_lengths: tuple[int, ...] | None = None) -> "Batch":
        """A batch whose targets do not count where they are `IGNORE_INDEX`."""
        weights = labels != IGNORE_INDEX
        return cls(tokens, labels.masked_fill(~weights, 0), weights, prefix_lengths=prefix_lengths)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def labels(self) -> Tensor:
        """The targets, `IGNORE_INDEX` where they do not count: what a cross-entropy reads."""
        return self.targets if self.weights is None else self.targets.masked_fill(self.weights == 0, IGNORE_INDEX)

    @property
    def count(self) -> int:
        """The number of targets that count, however much."""
        return self.targets.numel() if self.weights is None else int(self.weights.count_nonzero())

    @property
    def loss_weights(self) -> Tensor | None:
        """The weights if they are other than 0 and 1, which the labels tell; else None."""
        return None if self.weights is None or self.weights.dtype == torch.bool else self.weights

    @property
    def examples(self) -> int:
        """The number of examples: of rows, or of pairs or groups of them."""
        return len(self) // self.rows_per_example

    @property
    def total_weight(self) -> float:
        """What the loss of the batch is divided by for its mean.

        The number of targets that count, or their weights; or the number of examples (`mean_over_examples`).
        """
        if self.mean_over_examples:
            return float(self.examples)
        weights = self.loss_weights
        return float(self.count) if weights is None else float(weights.sum(dtype=torch.float64))

    def part(self, first: int, last: int) -> "Batch":
        """The examples from number `first` to before `last`."""
        rows = slice(first * self.rows_per_example, last * self.rows_per_example)
        return replace(
            self,
            tokens=self.tokens[rows],
            targets=self.targets[rows],
            weights=None if self.weights is None else self.weights[rows],
            document_starts=None if self.document_starts is None else self.document_starts[rows],
            prefix_lengths=None if self.prefix_lengths is None else self.prefix_lengths[rows],
            extras={name: tensor[rows] for name, tensor in self.extras.items()},
        )

    def to(self, device: torch.device) -> "Batch":
        """The same batch with its tensors on a device; copies need not be finished."""
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        tokens, targets = (tensor.to(device, non_blocking=True) for tensor in (self.tokens, self.targets))
        extras = {name: tensor.to(device, non_blocking=True) for name, tensor in self.extras.items()}
        return replace(self, tokens=tokens, targets=targets, weights=weights, extras=extras)


@dataclass(frozen=True)
class Spans:
    """Examples of a sequence: `starts_N` are the places of their first tokens, `lengths_N` how many targets they have.

    counts_N: how many of the targets count. rows: True: a shorter example of a batch is padded with end tokens; False:
    it is filled up with the tokens that follow in the sequence, whose targets do not count.
    """

    starts_N: Indices
    lengths_N: Indices
    counts_N: Indices
    rows: bool = False

    def __len__(self) -> int:
        return len(self.starts_N)

    def read(self, sequence: TokenSequence, numbers: Sequence[int], document_starts: bool = False) -> Batch:
        """The examples of these numbers as a batch. document_starts: it says where documents begin."""
        chosen = list(numbers)
        return read_batch(sequence, self.starts_N[chosen], self.lengths_N[chosen], self.rows, document_starts)

    def every_second(self) -> "Spans":
        """The first example, the third, and so on: of preferences those that are preferred."""
        return replace(self, starts_N=self.starts_N[::2], lengths_N=self.lengths_N[::2], counts_N=self.counts_N[::2])

    def whole_windows(self, sequence: TokenSequence, context_length: int) -> "Spans":
        """The windows as training reads them: each has `context_length` targets, so windows may overlap.

        A window that would pass the end of the sequence is left out, and one that ends there is added if need be.
        `UserError` if the sequence is not longer than a window.
        """
        if len(sequence) <= context_length:
            raise _too_short(sequence, context_length)
        starts = self.starts_N[self.starts_N + context_length < len(sequence)]
        last = len(sequence) - 1 - context_length
        return _windows(starts if starts[-1] == last else np.append(starts, last), context_length)


def _too_short(sequence: TokenSequence, context_length: int) -> UserError:
    return UserError(
        f"{sequence.name}: {len(sequence)} tokens; a context of {context_length} needs at least "
        f"{context_length + 1}: prepare more text or choose a shorter context"
    )


def _windows(starts_N: Indices, context_length: int) -> Spans:
    lengths_N = np.full(len(starts_N), context_length)
    return Spans(starts_N, lengths_N, lengths_N)


def distinct_bounds(sequence: TokenSequence) -> Indices:
    """Where documents begin, with the first place and the last, each once, ascending."""
    starts_D, last = sequence.document_starts, len(sequence) - 1
    first: list[int] = [] if len(starts_D) and starts_D[0] == 0 else [0]
    end: list[int] = [] if len(starts_D) and starts_D[-1] == last else [last]
    bounds: Indices = np.concatenate([np.array(first, np.int64), starts_D, np.array(end, np.int64)])
    # They are sorted; `np.unique` would sort them, for half a minute where there are twenty million.
    ascends = bounds[1:] > bounds[:-1]
    return bounds if ascends.all() else bounds[np.append(True, ascends)]


_CHUNK_DOCUMENTS = 1 << 16
"""Documents of which all that is computed fits into the cache of a processor: three times as fast as all at once."""


def _first_documents(bounds: Indices, context_length: int) -> Indices:
    """The documents with which windows begin that take as many whole documents as fit, or one that is longer."""
    document, found = 0, [np.empty(0, dtype=np.int64)]
    for first in range(0, len(bounds) - 1, _CHUNK_DOCUMENTS):
        # A window ends at most so many documents, of a token each, behind the one that it begins with.
        part = bounds[first : first + _CHUNK_DOCUMENTS + context_length]
        begins = part[:-1][:_CHUNK_DOCUMENTS]
        targets = begins + _windows_filled(np.diff(part[: len(begins) + 1]), context_length) * context_length
        ends: Indices = np.searchsorted(part, targets, side="right") - 1
        following, chosen, place = ends.data, list[int](), document - first
        while place < len(begins):
            chosen.append(place)
            place = following[place]
        document = first + place
        found.append(np.array(chosen, dtype=np.int64) + first)
    return np.concatenate(found)


def _windows_filled(lengths_D: Indices, context_length: int) -> Indices:
    """How many windows each document fills, the last of them in part: at least one."""
    filled: Indices = np.maximum(1, -(-lengths_D // context_length))
    return filled


def document_windows(sequence: TokenSequence, context_length: int) -> Spans:
    """Cut a sequence into windows that begin with documents and together predict every token but the first once.

    A window takes as many whole documents as fit and ends with the last of them. A document that is longer than a
    window fills several, and the last of these continues with the documents that fit after it. The last window ends
    with the sequence.
    """
    last = len(sequence) - 1
    if last < 1:
        empty = np.empty(0, dtype=np.int64)
        return Spans(empty, empty, empty)
    bounds = distinct_bounds(sequence)
    chosen_N = _first_documents(bounds, context_length)
    starts_N = bounds[chosen_N]
    counts = _windows_filled(bounds[chosen_N + 1] - starts_N, context_length)
    if (counts > 1).any():
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts_N = np.repeat(starts_N, counts) + within * context_length
    lengths_N = np.diff(np.append(starts_N, last))
    return Spans(starts_N, lengths_N, lengths_N)


def document_rows(sequence: TokenSequence) -> Spans:
    """Each document as one example, whatever its length; what counts in it is what the sequence's weights say."""
    starts_D, lengths_D = sequence.document_starts, np.diff(sequence.document_bounds)
    counts_D = lengths_D
    if not sequence.all_count and len(starts_D):
        counted = sequence.read_weights(1, len(sequence) - 1) != 0
        counts_D = np.add.reduceat(counted, starts_D, dtype=np.int64)
    return Spans(starts_D, lengths_D, counts_D, rows=True)


def check_row_lengths(
    sequence: TokenSequence, rows: Spans, context_length: int, separate_prefix: bool, remedy: str = ""
) -> None:
    """`UserError` for the longest row if it is longer than a context.

    separate_prefix: prefix and targets are read by an encoder and a decoder, each with its own context. remedy: what
    helps besides a longer context.
    """
    lengths_D = rows.lengths_N
    what = "input and target of " if sequence.mask is not None and sequence.targets is None else ""
    if separate_prefix and sequence.mask is not None:
        # A prefix ends at the first token that counts.
        counted = np.flatnonzero(sequence.mask.read(0, len(sequence)))
        prefixes_D = counted[np.searchsorted(counted, rows.starts_N + 1)] - rows.starts_N
        lengths_D, what = np.maximum(prefixes_D, rows.lengths_N - prefixes_D + 1), "input or target of "
    longest = int(lengths_D.argmax())
    if lengths_D[longest] > context_length:
        raise UserError(
            f"{sequence.name}: row {longest + 1}: {what}{lengths_D[longest]} tokens: more than the context of"
            f" {context_length}; `set` model.context_length={lengths_D[longest]} makes a model for it{remedy}"
        )


def read_batch(
    sequence: TokenSequence, starts: Indices, lengths: Indices, rows: bool, document_starts: bool = False
) -> Batch:
    """The examples with these starts and lengths (`Spans`) as a batch, as wide as the longest."""
    width = int(lengths.max())
    tokens = np.full((len(starts), width + 1), sequence.end_id)
    targets = tokens[:, 1:] if sequence.targets is None else np.full((len(starts), width), sequence.end_id)
    partial = bool((lengths < width).any())
    weights: NDArray[Any] | None = None
    if partial or not sequence.all_count:
        weights = (np.arange(width) < lengths[:, None]).astype(sequence.weights_dtype)
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        count = length if rows else min(width, len(sequence) - 1 - start)
        tokens[row, : count + 1] = sequence.read(start, count + 1)
        if sequence.targets is not None:
            targets[row, :count] = sequence.targets.read(start + 1, count)
        if not sequence.all_count and weights is not None:
            weights[row, :count] *= sequence.read_weights(start + 1, count)
    begins = None
    if document_starts and rows:  # what fills a row up is read apart
        begins = tuple((0, length) if length < width else (0,) for length in lengths.tolist())
    elif document_starts:
        bounds = np.searchsorted(sequence.document_starts, [starts, starts + width]).T.tolist()
        parts = (sequence.document_starts[low:high] for low, high in bounds)
        begins = tuple(tuple((part - start).tolist()) for part, start in zip(parts, starts.tolist(), strict=True))
    return Batch(
        torch.from_numpy(tokens)[:, :-1].contiguous(),
        torch.from_numpy(targets).contiguous(),
        None if weights is None else torch.from_numpy(weights),
        begins,
        tuple(((weights != 0).argmax(axis=1) + 1).tolist()) if rows and weights is not None else None,
    )


class Batches:
    """An endless sequence of training batches, each computed from its number alone.

    An epoch is all examples in a random order, which is drawn for each epoch from (seed, epoch). Examples run on from
    one epoch to the next, across batches. Without `spans` the examples are windows of `context_length` targets, side by
    side from an offset that is drawn for each epoch too, so that no token is predicted twice in an epoch.
    """

    counted_share = 1.0
    """The share of the places of windows whose targets count in the loss."""

    def __init__(
        self,
        sequence: TokenSequence,
        batch_size: int,
        context_length: int,
        seed: int,
        spans: Spans | None = None,
        document_starts: bool = False,
    ) -> None:
        """`seed` is not negative. document_starts: batches say where documents begin.

        `UserError` if windows are longer than the sequence.
        """
        if (spans is None or not spans.rows) and len(sequence) <= context_length:
            raise _too_short(sequence, context_length)
        self.sequence, self.batch_size, self.context_length = sequence, batch_size, context_length
        self.document_starts = document_starts
        self._seed, self._spans, self._latest = seed, spans, dict[int, tuple[Indices, Indices]]()
        # The windows that fit after the largest offset, so that epochs have the same length whatever their offset.
        evenly = max(1, (len(sequence) - context_length) // context_length)
        self.examples_per_epoch = evenly if spans is None else len(spans)

    @property
    def tokens_per_batch(self) -> int:
        """Targets of a batch of windows: `B * T`."""
        return self.batch_size * self.context_length

    @property
    def mean_targets(self) -> float:
        """The mean number of targets of an example."""
        return float(self.context_length if self._spans is None else self._spans.lengths_N.mean())

    @property
    def mean_lengths(self) -> tuple[float, float] | None:
        """The mean number of targets of a row that do not count, and that count; None for windows."""
        if self._spans is None or not self._spans.rows:
            return None
        counts = self._spans.counts_N
        return float((self._spans.lengths_N - counts).mean()), float(counts.mean())

    def batch(self, number: int) -> Batch:
        """Batch `number`, from 0."""
        first = number * self.batch_size
        return self.examples(range(first, first + self.batch_size))

    def examples(self, numbers: Sequence[int]) -> Batch:
        """The examples of these numbers, counted from the first one of the first epoch, as a batch."""
        places = [divmod(number, self.examples_per_epoch) for number in numbers]
        starts, lengths = np.array([[of_epoch[place] for of_epoch in self.epoch(epoch)] for epoch, place in places]).T
        return read_batch(
            self.sequence, starts, lengths, self._spans is not None and self._spans.rows, self.document_starts
        )

    def epoch(self, number: int) -> tuple[Indices, Indices]:
        """Starts and lengths of the examples of an epoch, `[N]` each, in their order."""
        # A batch may need two epochs; an earlier one is drawn again when it is asked for.
        if number not in self._latest:
            if len(self._latest) == 2:
                del self._latest[next(iter(self._latest))]
            random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, number])))
            spans = self._spans
            if spans is None:
                spare = len(self.sequence) - 1 - self.examples_per_epoch * self.context_length
                offset = int(random.integers(min(self.context_length, spare + 1)))
                places = offset + self.context_length * np.arange(self.examples_per_epoch)
                spans = _windows(places, self.context_length)
            order = random.permutation(len(spans))
            self._latest[number] = spans.starts_N[order], spans.lengths_N[order]
        return self._latest[number]


def validation_batches(
    sequence: TokenSequence, spans: Spans, batch_size: int, limit_tokens: int | None = None
) -> Iterator[Batch]:
    """Yield all examples in order, always the same.

    limit_tokens: if fewer targets than there are, examples with about as many (at least one) are spread evenly.
    """
    total = int(spans.counts_N.sum())
    if total < 1:
        raise UserError(f"{sequence.name}: {len(sequence)} tokens; expected at least 2")
    share = 1.0 if limit_tokens is None else min(1.0, limit_tokens / total)
    yield from evenly_spaced_batches(sequence, spans, batch_size, max(1, int(share * len(spans))))


def evenly_spaced_batches(sequence: TokenSequence, spans: Spans, batch_size: int, count: int) -> Iterator[Batch]:
    """Yield `count` examples, at most all, spread evenly, in batches."""
    chosen = evenly_spaced(len(spans), count)
    for first in range(0, len(chosen), batch_size):
        yield spans.read(sequence, chosen[first : first + batch_size])


def evenly_spaced(total: int, count: int) -> list[int]:
    """`count` of the numbers below `total`, at most all, evenly spaced and ascending."""
    count = min(count, total)
    return [number * total // count for number in range(count)]
