"""The text that models are evaluated on: documents, and the windows of tokens in which they are read.

Every target token counts in exactly one window. A window is read without anything before it; tokens at its beginning
may serve as context only. Shapes: `N` documents, `P` targets of a document (its tokens and the end token after it),
`B` windows of a batch, `T` tokens of the longest of them, `t` tokens of a window.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linnet.core.errors import UserError, note
from linnet.data.loader import document_windows, evenly_spaced
from linnet.data.shards import TokenSequence
from linnet.data.sources import Source, describe_reading
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.likelihood import Tokens
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.present import numbers
from linnet.present.progress import progress

SPAN_TOKENS = 512
"""Tokens of a span of a document that is too long to be read whole, unless a model reads more at once."""

MAX_NAMED = 3
"""Documents that are read in part and are named with their shares."""

SORTED_AT_ONCE = 2048
"""Windows among which those of similar length are batched."""


@dataclass(frozen=True)
class Documents:
    """Documents by number. read: the tokens `[P + 1]` of one, with the end token before and after it; or of its spans.

    lengths_N: targets of each. bytes_N: bytes of each text; None if the tokens determine them. sources_N: index of each
    document's source in `source_names`; None if unknown.
    """

    read: Callable[[int], list[Tokens]]
    lengths_N: Tokens
    bytes_N: Tokens | None = None
    sources_N: Tokens | None = None
    source_names: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.lengths_N)

    def sample(self, limit_tokens: int | None) -> Iterator[tuple[int, Tokens]]:
        """Numbers and tokens of all documents, or of evenly spaced ones, at least one, for about `limit_tokens`.

        The longest ones have too many, of which `sliding` reads `max_tokens`.
        """
        for number in sample_numbers(self.lengths_N, limit_tokens):
            for tokens in self.read(number):
                yield number, tokens

    def max_tokens(self, limit_tokens: int | None) -> int:
        """The maximum of targets of each document in `sample`."""
        return max_tokens_each(self.lengths_N[sample_numbers(self.lengths_N, limit_tokens)], limit_tokens)

    def count_targets(self, limit_tokens: int | None) -> int:
        """About the number of targets that are read."""
        lengths_N = self.lengths_N[sample_numbers(self.lengths_N, limit_tokens)]
        return int(np.minimum(lengths_N, self.max_tokens(limit_tokens)).sum())


def sample_numbers(lengths_N: Tokens, limit_tokens: int | None) -> list[int]:
    """The numbers of all documents, or of evenly spaced ones with about `limit_tokens` tokens, at least one."""
    share = 1.0 if limit_tokens is None else min(1.0, limit_tokens / int(lengths_N.sum()))
    return evenly_spaced(len(lengths_N), max(1, int(share * len(lengths_N))))


def max_tokens_each(lengths_N: Tokens, limit_tokens: int | None) -> int:
    """The maximum of tokens per document with which all together have at most `limit_tokens`, and each at least one.

    Shorter documents are not truncated: what they leave of their share goes to the longer ones.
    """
    ascending = np.sort(lengths_N).tolist()
    remaining = sum(ascending) if limit_tokens is None else limit_tokens
    for place, length in enumerate(ascending):
        if length * (len(ascending) - place) > remaining:
            return int(max(1, remaining // (len(ascending) - place)))
        remaining -= length
    return max(ascending, default=0)


@dataclass(frozen=True)
class Coverage:
    """What was read of a text. documents: of the whole text. shares: of each document that was read, by its number."""

    documents: int
    share: float
    shares: dict[int, float]

    @classmethod
    def of(cls, read_N: Tokens, lengths_N: Tokens) -> Self:
        """Of documents with so many tokens, or characters, of which so many were read."""
        shares = {int(number): float(read_N[number] / lengths_N[number]) for number in np.flatnonzero(read_N)}
        return cls(len(lengths_N), float(read_N.sum() / max(1, lengths_N.sum())), shares)

    @property
    def parts(self) -> dict[int, float]:
        """The shares of the documents that were not read whole."""
        return {number: share for number, share in self.shares.items() if share < 1}

    def describe(self) -> str:
        """`of the text: 3 of 40 documents, of these document 7 (12 %) in part, in spans that are spread evenly`."""
        found = f"of the text: {numbers.grouped(len(self.shares))} of {numbers.grouped(self.documents)} documents"
        if not (parts := self.parts):
            return f"{found}, spread evenly"
        if len(parts) <= MAX_NAMED:
            named = ", ".join(f"document {number + 1} ({share:.1%})" for number, share in parts.items())
        else:
            named = f"{numbers.grouped(len(parts))} ({min(parts.values()):.1%} to {max(parts.values()):.1%} of each)"
        return f"{found}, of these {named} in part, in spans that are spread evenly"

    def to_dict(self) -> dict[str, Any]:
        parts = self.parts
        shares = {"lowest_share": min(parts.values()), "highest_share": max(parts.values())} if parts else {}
        return {
            "documents": self.documents,
            "documents_read": len(self.shares),
            "share": self.share,
            "documents_read_in_part": len(parts),
            **shares,
        }


@dataclass(frozen=True)
class Excerpts:
    """Some documents as text, by number: each whole, or spans of it."""

    numbers: list[int]
    texts: list[list[str]]
    whole: list[bool]
    coverage: Coverage


def take_excerpts(
    texts: Sequence[str], tokenizers: Sequence[Tokenizer], limit_tokens: int | None, span_tokens: int = SPAN_TOKENS
) -> Excerpts:
    """All documents, or evenly spaced ones with about `limit_tokens` tokens at most for every tokenizer, at least one.

    Of the longest, spans of about `span_tokens` tokens are taken, spread evenly, from one word to another. The lengths
    of spans are estimated from their characters, so the number of their tokens is approximate.
    """
    sizes_N = np.array([len(text) for text in texts], dtype=np.int64)
    if limit_tokens is None:
        every = list(range(len(texts)))
        return Excerpts(every, [[text] for text in texts], [True] * len(texts), Coverage.of(sizes_N, sizes_N))
    whole_texts = [[text] for text in texts]
    lengths_N = np.max([documents_of_texts(whole_texts, tokenizer).lengths_N for tokenizer in tokenizers], axis=0)
    chosen = sample_numbers(lengths_N, limit_tokens)
    max_tokens = max_tokens_each(lengths_N[chosen], limit_tokens)
    parts, read_N = [], np.zeros_like(sizes_N)
    for number in chosen:
        text, share = texts[number], max_tokens / int(lengths_N[number])
        count = max(1, max_tokens // span_tokens)
        parts.append([text] if share >= 1 else _spans(text, count, max(1, int(share * len(text)) // count)))
        read_N[number] = sum(map(len, parts[-1]))
    whole = [part == [texts[number]] for number, part in zip(chosen, parts, strict=True)]
    return Excerpts(chosen, parts, whole, Coverage.of(read_N, sizes_N))


def _spans(text: str, count: int, size: int) -> list[str]:
    """`count` spans of at most `size` characters at even distances, without words that they would split."""
    found = []
    for number in range(count):
        begin = (2 * number + 1) * len(text) // (2 * count) - size // 2
        part, after = text[begin : begin + size], text[begin + size : begin + size + 1]
        if begin > 0 and not text[begin - 1].isspace():
            part = re.sub(r"\A\S*\s+(?=\S)", "", part)
        if after and not after.isspace():
            part = re.sub(r"(?<=\S)\s+\S*\Z", "", part)
        found.append(part)
    return found


def documents_of_split(data: TokenData, split: Split) -> Documents:
    """The documents of a split of a data folder."""
    sequence = data.split(split)
    ends = sequence.document_bounds
    lengths_N = np.diff(ends)

    def read(number: int) -> list[Tokens]:
        return [sequence.read(int(ends[number]), int(lengths_N[number]) + 1)]

    return Documents(read, lengths_N, None, data.sources(split), data.source_names)


def documents_of_texts(
    texts: Sequence[Sequence[str]], tokenizer: Tokenizer, whole: Sequence[bool] | None = None
) -> Documents:
    """Texts, each in one or several spans, encoded with a tokenizer.

    whole: which of them are complete; None: all. Others have no end to predict.
    """
    end = np.array([tokenizer.end_id])
    bytes_N = np.array([sum(len(span.encode()) for span in spans) for spans in texts], dtype=np.int64)
    tokens: list[list[NDArray[np.int32]]] = []
    with progress("tokens", int(bytes_N.sum()), "bytes") as advance:
        complete = [True] * len(texts) if whole is None else whole
        for spans, size_bytes, ends in zip(texts, bytes_N.tolist(), complete, strict=True):
            tokens.append([])
            for ids in map(tokenizer.encode, spans):
                last = end if ends or not ids else end[:0]
                tokens[-1].append(np.concatenate([end, np.array(ids, dtype=np.int64), last]).astype(np.int32))
            advance(size_bytes)
    lengths_N = np.array([sum(len(ids) - 1 for ids in spans) for spans in tokens], dtype=np.int64)
    return Documents(lambda number: [ids.astype(np.int64) for ids in tokens[number]], lengths_N, bytes_N)


def texts_of_file(path: str | Path) -> list[str]:
    """The documents of an input of text; see `data.sources.Source` for its formats."""
    with Source(path, has_choice=False) as source, progress("reading", source.size_bytes, "bytes") as advance:
        texts = list(source.documents(advance))
        for line in describe_reading([source]):
            note(line)
    return texts


def texts_of_split(data: TokenData, split: Split) -> list[str]:
    """The documents of a split as text, for models with other tokenizers; `UserError` if decoding loses something."""
    documents, tokenizer = documents_of_split(data, split), data.tokenizer
    texts = [tokenizer.decode(tokens[1:-1].tolist()) for _, tokens in documents.sample(None)]
    expected = data.manifest.splits[split].bytes
    if sum(len(text.encode()) for text in texts) != expected:
        raise UserError(
            f"{data.folder}: decoding its tokens does not restore its text (a {tokenizer.kind} tokenizer); expected a"
            " text file"
        )
    return texts


@dataclass(frozen=True)
class Window:
    """Tokens `[t + 1]`: the last `t` are targets, which count from index `first` on. documents: of each target."""

    tokens: Tokens
    first: int
    documents: Tokens

    def __len__(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True)
class WindowBatch:
    """Inputs, targets (`IGNORE_INDEX` where they do not count) and the targets' documents, int64 `[B, T]` each.

    The padding after a shorter window is arbitrary; none of its targets counts. prefix_lengths: as in `loader.Batch`.
    """

    inputs_BT: Tensor
    targets_BT: Tensor
    documents_BT: Tensor
    prefix_lengths: tuple[int, ...] | None = None

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each window, up to its last target that counts."""
        width = self.targets_BT.shape[1]
        return width - (self.targets_BT != IGNORE_INDEX).flip(1).int().argmax(dim=1)

    def to(self, device: torch.device) -> "WindowBatch":
        """The batch with inputs and targets on a device; the documents stay."""
        return WindowBatch(self.inputs_BT.to(device), self.targets_BT.to(device), self.documents_BT)

    def left_padded(self) -> "tuple[WindowBatch, Tensor]":
        """The same windows with the padding before shorter ones, and its lengths, int64 `[B]`.

        Then every step of a stream is a token of its window.
        """
        length = self.inputs_BT.shape[1]
        padding_B = length - self.lengths_B
        shift_BT = right_shift(length, padding_B)
        targets_BT = self.targets_BT.gather(1, shift_BT)
        documents_BT = self.documents_BT.gather(1, shift_BT.cpu())
        return WindowBatch(self.inputs_BT.gather(1, shift_BT), targets_BT, documents_BT), padding_B


def right_shift(length: int, by_B: Tensor) -> Tensor:
    """Indices for `gather` that rotate rows to the right, int64 `[B, T]`."""
    return (torch.arange(length, device=by_B.device) - by_B[:, None]) % length


def sliding_bounds(targets: int, context_length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Begin, end and first counted target of each window over a document of `P` targets, all from its start.

    All targets of the first window count. Each later window has `stride` new ones after as much context as fits: at
    least `context_length - stride` tokens.
    """
    assert 1 <= stride <= context_length, (stride, context_length)
    done = min(targets, context_length)
    yield 0, done, 0
    while done < targets:
        end = min(done + stride, targets)
        yield done - (context_length - stride), end, done
        done = end


def sliding(
    documents: Iterable[tuple[int, Tokens]], context_length: int, stride: int, max_tokens: int | None = None
) -> Iterator[Window]:
    """Windows over separate documents, each given by its number and its tokens `[P + 1]` with the end token first.

    Of a document with more targets than `max_tokens`, as many windows as it allows, at even distances.
    """
    for number, tokens in documents:
        bounds = list(sliding_bounds(targets := len(tokens) - 1, context_length, stride))
        if max_tokens is not None and targets > max_tokens:
            count = min(max(1, max_tokens // stride), len(bounds))
            chosen = (bounds[(2 * place + 1) * len(bounds) // (2 * count)] for place in range(count))
            bounds = [(begin, min(end, first + min(stride, max_tokens)), first) for begin, end, first in chosen]
        for begin, end, first in bounds:
            yield Window(tokens[begin : end + 1], first - begin, np.full(end - begin, number))


def packed(sequence: TokenSequence, context_length: int, limit_tokens: int | None = None) -> Iterator[Window]:
    """The windows of `loader.document_windows`: they begin with a document if possible, and contain several."""
    windows, ends = document_windows(sequence, context_length), sequence.document_bounds
    share = 1.0 if limit_tokens is None else min(1.0, limit_tokens / (len(sequence) - 1))
    for number in evenly_spaced(len(windows), max(1, int(share * len(windows)))):
        start, fresh = int(windows.starts_N[number]), int(windows.lengths_N[number])
        places = np.arange(start + 1, start + fresh + 1)
        documents = np.maximum(np.searchsorted(ends, places) - 1, 0)
        yield Window(sequence.read(start, fresh + 1), 0, documents)


def batches(windows: Iterable[Window], tokens_at_once: int) -> Iterator[WindowBatch]:
    """Batches of windows of similar length with at most `tokens_at_once` tokens, padding included, or one window."""
    windows = iter(windows)
    while part := list(islice(windows, SORTED_AT_ONCE)):
        part.sort(key=len)
        chosen: list[Window] = []
        for window in part:
            if chosen and (len(chosen) + 1) * len(window) > tokens_at_once:
                yield _batch(chosen)
                chosen = []
            chosen.append(window)
        yield _batch(chosen)


def _batch(windows: Sequence[Window]) -> WindowBatch:
    shape = len(windows), max(map(len, windows))
    inputs, targets, documents = np.zeros(shape, np.int64), np.full(shape, IGNORE_INDEX), np.zeros(shape, np.int64)
    for row, window in enumerate(windows):
        length, first = len(window), window.first
        inputs[row, :length] = window.tokens[:-1]
        targets[row, first:length] = window.tokens[first + 1 :]
        documents[row, :length] = window.documents
    return WindowBatch(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(documents))
