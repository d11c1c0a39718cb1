"""What a model reads at once when it is measured: windows of tokens, in each of which some targets count.

A window is read without anything before it. Over all windows every target counts once, whatever the windows are.

Legend: `B` windows of a batch, `T` tokens of the longest of them, `t` of one, `P` targets of a document.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linnet.data.shards import TokenSequence
from linnet.data.windows import document_windows, evenly_spaced
from linnet.ops.cross_entropy import IGNORE_INDEX

Tokens = NDArray[np.int64]

SORTED_AT_ONCE = 2048
"""Windows among which those of like length are put together."""


@dataclass(frozen=True)
class Window:
    """Tokens `[t + 1]`: of the last `t`, the targets, those from `first` on count. documents: of each target, `[t]`."""

    tokens: Tokens
    first: int
    documents: Tokens

    def __len__(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True)
class WindowBatch:
    """Windows side by side: inputs, targets, which do not count where they are `IGNORE_INDEX`, and the targets'
    documents, int64 `[B, T]` each. Behind a shorter window anything may stand; none of its targets counts.
    """

    inputs_BT: Tensor
    targets_BT: Tensor
    documents_BT: Tensor

    @property
    def lengths_B(self) -> Tensor:
        """Of each window, up to its last target that counts."""
        width = self.targets_BT.shape[1]
        return width - (self.targets_BT != IGNORE_INDEX).flip(1).int().argmax(dim=1)

    def to(self, device: torch.device) -> "WindowBatch":
        """What is read, there; the documents stay."""
        return WindowBatch(self.inputs_BT.to(device), self.targets_BT.to(device), self.documents_BT)


def sliding_bounds(targets: int, context_length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Begin, end and first target that counts of each window over a document of `P` targets.

    The first window's targets all count; each later one has `stride` new ones, and of the tokens before them as many as
    fit: at least `context_length - stride`. All numbers count from the document's start.
    """
    assert 1 <= stride <= context_length, (stride, context_length)
    done = min(targets, context_length)
    yield 0, done, 0
    while done < targets:
        end = min(done + stride, targets)
        yield done - (context_length - stride), end, done
        done = end


def sliding(documents: Iterable[tuple[int, Tokens]], context_length: int, stride: int) -> Iterator[Window]:
    """Windows over documents that do not see each other; each is its number and its tokens `[P + 1]`, which begin with
    the end token before it.
    """
    for number, tokens in documents:
        for begin, end, first in sliding_bounds(len(tokens) - 1, context_length, stride):
            yield Window(tokens[begin : end + 1], first - begin, np.full(end - begin, number))


def packed(
    sequence: TokenSequence, end_id: int, context_length: int, limit_tokens: int | None = None
) -> Iterator[Window]:
    """The windows of `loader.validation_windows`: they begin with a document where they can, and hold several."""
    windows, ends = document_windows(sequence, end_id, context_length), sequence.positions(end_id)
    predicted = len(sequence) - 1
    share = 1.0 if limit_tokens is None else min(1.0, limit_tokens / predicted)
    for number in evenly_spaced(len(windows), max(1, int(share * len(windows)))):
        start, fresh = int(windows.starts[number]), int(windows.fresh[number])
        places = np.arange(start + 1, start + fresh + 1)
        documents = np.maximum(np.searchsorted(ends, places) - 1, 0)
        yield Window(sequence.read(start, fresh + 1), 0, documents)


def batches(windows: Iterable[Window], tokens_at_once: int) -> Iterator[WindowBatch]:
    """Windows of like length together, as many as have `tokens_at_once` tokens with what pads them, at least one."""
    windows = iter(windows)
    while part := list(islice(windows, SORTED_AT_ONCE)):
        part.sort(key=len)
        chosen: list[Window] = []
        for window in part:
            if chosen and (len(chosen) + 1) * len(window) > tokens_at_once:
                yield _side_by_side(chosen)
                chosen = []
            chosen.append(window)
        yield _side_by_side(chosen)


def _side_by_side(windows: Sequence[Window]) -> WindowBatch:
    shape = len(windows), max(map(len, windows))
    inputs, targets, documents = np.zeros(shape, np.int64), np.full(shape, IGNORE_INDEX), np.zeros(shape, np.int64)
    for row, window in enumerate(windows):
        length, first = len(window), window.first
        inputs[row, :length] = window.tokens[:-1]
        targets[row, first:length] = window.tokens[first + 1 :]
        documents[row, :length] = window.documents
    return WindowBatch(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(documents))
