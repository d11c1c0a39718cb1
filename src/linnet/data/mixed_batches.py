"""Batches of several sources in the shares that a mixture describes.

Legend: `S` sources, `I` stages of a curriculum.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.data.loader import Batch, Batches
from linnet.data.mixture import MixtureSpec
from linnet.data.packing import PackedBatches
from linnet.data.shards import TokenSequence
from linnet.data.token_data import TokenData

Floats = NDArray[np.float64]


class SourcePart(NamedTuple):
    """The training text of one source: its tokens, and the mean bytes of text that one of them stands for."""

    name: str
    sequence: TokenSequence
    bytes_per_token: float


def source_parts(data: TokenData, mixture: MixtureSpec) -> list[SourcePart]:
    """The training text of the sources that a mixture names, in the order of the data folder.

    `UserError` if the folder does not say where each source lies, lacks one, or has none of its text to train on.
    """
    sequence, sources_D, names = data.split("train"), data.sources("train"), data.source_names
    for name in mixture.sources:
        if name not in names:
            raise UserError(field=f"mixture.sources.{name}", accepted=f"sources of {data.folder}: {', '.join(names)}")
    if data.is_rows or sources_D is None:
        raise UserError(f"{data.folder}: does not say of which source each document is; expected text, prepared again")
    firsts_D = np.concatenate([[0], np.flatnonzero(np.diff(sources_D)) + 1])
    owners = sources_D[firsts_D].tolist()
    assert len(set(owners)) == len(owners), "prepare writes one source after the other"
    bounds = [*sequence.document_starts[firsts_D].tolist(), len(sequence) - 1]
    tokens, sizes_bytes = _tokens_by_source(data), Counter[str]()
    for source in data.manifest.sources:
        sizes_bytes[source.source_name] += source.bytes
    parts = []
    for number, name in enumerate(names):
        if name not in mixture.sources:
            continue
        if number not in owners:
            raise UserError(f"{data.folder}: source {name!r} has no text to train on; it is held out or empty")
        begin, end = bounds[owners.index(number)], bounds[owners.index(number) + 1]
        # The end token behind the last document is that with which the next source begins.
        part = sequence.part(f"{sequence.name}: {name}", begin, end + 1)
        parts.append(SourcePart(name, part, sizes_bytes[name] / tokens[number]))
    return parts


@dataclass(frozen=True)
class SourceDescription:
    """One source of a mixture in a data folder: its documents and tokens to train on, its share of these tokens, the
    share that the mixture gives it, and its held-out documents.
    """

    source: str
    documents: int
    tokens: int
    share: float
    given: float
    held_out: int


def given_shares(mixture: MixtureSpec, parts: Sequence[SourcePart]) -> Floats:
    """The share of each source before any curriculum, `[S]`, of bytes or tokens as the mixture counts them."""
    shares_S = _shares(mixture, None, parts)  # of tokens
    if mixture.by == "bytes":
        shares_S = shares_S * [part.bytes_per_token for part in parts]
    return np.asarray(shares_S / shares_S.sum(), dtype=np.float64)


def describe_sources(data: TokenData, mixture: MixtureSpec) -> list[SourceDescription]:
    """What a data folder has of each source of a mixture; `UserError` as from `source_parts`."""
    parts = source_parts(data, mixture)
    tokens = sum(len(part.sequence) for part in parts)
    counts = {}
    for split in ("train", "validation"):
        sources_D = data.sources(split)
        assert sources_D is not None, "source_parts has checked it"
        counts[split] = Counter(data.source_names[place] for place in sources_D.tolist())
    return [
        SourceDescription(
            part.name,
            counts["train"][part.name],
            len(part.sequence),
            len(part.sequence) / tokens,
            float(share),
            counts["validation"][part.name],
        )
        for part, share in zip(parts, given_shares(mixture, parts), strict=True)
    ]


def _tokens_by_source(data: TokenData) -> NDArray[np.int64]:
    """Tokens of each source in both splits, `[S]`."""
    totals = np.zeros(len(data.source_names))
    for split in data.manifest.splits:
        sources_D, bounds = data.sources(split), data.split(split).document_bounds
        assert sources_D is not None, "the splits of a folder are described alike"
        totals += np.bincount(sources_D, weights=np.diff(bounds), minlength=len(totals))
    return totals.astype(np.int64)


class Interleaving:
    """An endless sequence of sources in given shares, as evenly as possible (the method of Webster and Sainte-Lague).

    Example `j` of a source with share `w` comes at the time `(j + 1/2) / w`; the examples of all sources are taken in
    the order of time. So the counts in any beginning of the sequence follow the shares to within about one, and can be
    computed without going through it. Shares are whole parts of `_WHOLE`, and comparisons exact.
    """

    _WHOLE = 1 << 30

    def __init__(self, shares_S: Floats) -> None:
        parts = np.floor(shares_S / shares_S.sum() * self._WHOLE).astype(np.int64)
        parts[parts.argmax()] += self._WHOLE - parts.sum()
        self._parts: list[int] = parts.tolist()

    def counts(self, length: int) -> list[int]:
        """How many of the first `length` are of each source, `[S]`."""
        return self._from(length)[0]

    def order(self, first: int, last: int) -> list[tuple[int, int]]:
        """The source, and the number within it, of the examples from `first` to before `last`."""
        counts, times = self._from(first)
        return [self._take(counts, times) for _ in range(first, last)]

    def _from(self, length: int) -> tuple[list[int], list[tuple[Fraction, int]]]:
        """The counts of the first `length`, and a heap of the times at which the next of each source comes."""
        # Up to this time there are at most `length` examples: each source is off by at most one half.
        time, whole = max(0, length - len(self._parts)), self._WHOLE
        counts = [(2 * time * part + whole) // (2 * whole) if part else 0 for part in self._parts]
        sources = enumerate(zip(counts, self._parts, strict=True))
        times = [(Fraction(2 * count + 1, part), source) for source, (count, part) in sources if part]
        heapify(times)
        for _ in range(length - sum(counts)):
            self._take(counts, times)
        return counts, times

    def _take(self, counts: list[int], times: list[tuple[Fraction, int]]) -> tuple[int, int]:
        source, number = times[0][1], counts[times[0][1]]
        counts[source] += 1
        heapreplace(times, (Fraction(2 * number + 3, self._parts[source]), source))
        return source, number


@dataclass(frozen=True)
class SourceShare:
    """What was drawn of one source. tokens: targets. share, share_of_bytes: of those of all sources."""

    source: str
    tokens: int
    share: float
    share_of_bytes: float
    epochs: float

    def describe(self) -> str:
        shares = f"{self.share:.1%} of the tokens, {self.share_of_bytes:.1%} of the bytes"
        return f"{self.source} {shares}, {self.epochs:.2f} epochs"


class MixedBatches:
    """Batches of windows of several sources in given shares; the number of a batch and the seed determine its content.

    Each source has epochs of its own, as `Batches` has.
    """

    mean_lengths, counted_share = None, 1.0  # as those of `Batches` of windows

    def __init__(
        self,
        parts: Sequence[SourcePart],
        batches: Sequence[Batches | PackedBatches],
        lengths: Sequence[int],
        shares_IS: Floats,
    ) -> None:
        """lengths: the number of batches of each stage; the last stage goes on without end. shares_IS: of windows."""
        self._parts, self._batches = parts, batches
        self._size = batches[0].batch_size
        self._ends = list(accumulate(lengths[:-1]))
        self._stages = [Interleaving(shares_S) for shares_S in shares_IS]
        of_stages = [stage.counts(length * self._size) for stage, length in zip(self._stages, lengths, strict=True)]
        self._before = np.cumsum([[0] * len(parts), *of_stages[:-1]], axis=0)

    def windows_of(self, number: int) -> list[tuple[int, int]]:
        """The source of each window of a batch, and its number within that source."""
        index = bisect_right(self._ends, number)
        first = (number - (self._ends[index - 1] if index else 0)) * self._size
        before = self._before[index].tolist()
        return [(source, before[source] + at) for source, at in self._stages[index].order(first, first + self._size)]

    def batch(self, number: int) -> Batch:
        """Batch `number`, from 0."""
        windows = self.windows_of(number)
        # Rows are read by source, and put into the order of the windows.
        by_source = sorted(range(len(windows)), key=lambda row: windows[row][0])
        read, order = list[Batch](), torch.tensor(by_source).argsort()
        for source in sorted({source for source, _ in windows}):
            read.append(self._batches[source].examples([at for of, at in windows if of == source]))
        starts = [row for batch in read for row in batch.document_starts or ()]
        tokens, targets = (torch.cat([getattr(batch, name) for batch in read])[order] for name in ("tokens", "targets"))
        weights = [batch.weights for batch in read if batch.weights is not None]
        begins = tuple(starts[row] for row in order.tolist()) if starts else None
        return Batch(tokens, targets, torch.cat(weights)[order] if weights else None, begins)

    def shares(self, count: int) -> list[SourceShare]:
        """What the first `count` batches read. Bytes are those of the mean token of a source."""
        index = bisect_right(self._ends, count)
        within = count - (self._ends[index - 1] if index else 0)
        windows_S = self._before[index] + self._stages[index].counts(within * self._size)
        tokens_S = [float(n * batches.mean_targets) for n, batches in zip(windows_S, self._batches, strict=True)]
        bytes_S = [n * part.bytes_per_token for n, part in zip(tokens_S, self._parts, strict=True)]
        total, total_bytes = max(1.0, sum(tokens_S)), max(1.0, float(sum(bytes_S)))
        return [
            SourceShare(part.name, round(n), n / total, size / total_bytes, windows / batches.examples_per_epoch)
            for part, batches, windows, n, size in zip(
                self._parts, self._batches, windows_S.tolist(), tokens_S, bytes_S, strict=True
            )
        ]


def mixed_batches(
    mixture: MixtureSpec,
    parts: Sequence[SourcePart],
    batches: Sequence[Batches | PackedBatches],
    batches_per_step: int,
    steps: int,
) -> MixedBatches:
    """The batches of a run of so many steps; `batches` are those of each source alone.

    `UserError` if the mixture's bounds leave too little text.
    """
    starts = [0, *(stage.after_step for stage in mixture.curriculum if stage.after_step < steps), steps]
    lengths = (np.diff(starts) * batches_per_step).tolist()
    chosen = [None, *(stage.weights for stage in mixture.curriculum)][: len(lengths)]
    shares_IS = np.stack([_shares(mixture, weights, parts) for weights in chosen])
    pairs = zip(parts, batches, strict=True)
    limits_S = np.array([_limit(mixture, part.name) * each.examples_per_epoch for part, each in pairs])
    windows_I = np.array(lengths) * batches[0].batch_size
    bounded_IS = within_limits(shares_IS * windows_I[:, None], limits_S, batches[0].context_length)
    return MixedBatches(parts, batches, lengths, bounded_IS / windows_I[:, None])


def _limit(mixture: MixtureSpec, name: str) -> float:
    """The epochs that a source is read at most."""
    own = mixture.sources[name].max_epochs if name in mixture.sources else None
    return own or mixture.max_epochs or float("inf")


def _shares(mixture: MixtureSpec, weights: Mapping[str, float] | None, parts: Sequence[SourcePart]) -> Floats:
    """The share of each source in the windows, `[S]`; all windows have the same number of tokens."""
    weights = mixture.own_weights if weights is None else weights
    if weights is None:  # so often as `epochs` says
        sources = {name: source.epochs for name, source in mixture.sources.items()}
        epochs = [1.0 if sources.get(part.name, 0.0) is None else sources.get(part.name, 0.0) for part in parts]
        shares_S = np.array([of or 0.0 for of in epochs]) * [len(part.sequence) for part in parts]
    else:
        shares_S = np.array([weights.get(part.name, 0.0) for part in parts])
        if mixture.by == "bytes":
            shares_S = shares_S / [part.bytes_per_token for part in parts]
    return np.asarray(shares_S / shares_S.sum(), dtype=np.float64)


def within_limits(windows_IS: Floats, limits_S: Floats, context_length: int) -> Floats:
    """Numbers of windows of which no source has more than its limit in all stages together.

    A source above its limit has less in every stage, in proportion; the others get what it leaves, in proportion to
    their weights in that stage. `UserError` if there are no others.
    """
    wanted_IS, bounded_S = windows_IS, np.zeros(len(limits_S), dtype=np.bool_)
    totals_I = windows_IS.sum(1)
    while (over_S := ~bounded_S & (windows_IS.sum(0) > limits_S * (1 + 1e-9))).any():
        bounded_S |= over_S
        windows_IS = wanted_IS.copy()
        windows_IS[:, bounded_S] *= limits_S[bounded_S] / wanted_IS[:, bounded_S].sum(0)
        left_I, free_I = totals_I - windows_IS[:, bounded_S].sum(1), wanted_IS[:, ~bounded_S].sum(1)
        if (free_I <= 0).any():
            have, need = int(limits_S[bounded_S].sum() * context_length), int(totals_I.sum() * context_length)
            raise UserError(
                f"training.mixture: max_epochs: the run reads {need:,} tokens, and its sources have {have:,} within"
                " these bounds; expected fewer steps, more text or higher bounds"
            )
        windows_IS[:, ~bounded_S] *= (left_I / free_I)[:, None]
    return windows_IS
