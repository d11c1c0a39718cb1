"""Which source each document of a split is from, as short text: `0x120 1 0x3` is 120 documents of source 0, one of
source 1, and three of source 0. The training side of a folder is one run for each source.

Legend: `N` documents.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_RUN = re.compile(r"(\d{1,9})(?:x([1-9]\d{0,15}))?")


class FromSource(Protocol):
    """A document as it is written: its text, and the number of its source."""

    @property
    def text(self) -> str: ...

    @property
    def source(self) -> int: ...


class SourceRuns:
    """The numbers of documents' sources, gathered while these are written."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []

    def follow(self, parts: Iterable[FromSource]) -> Iterator[str]:
        """The texts, each source noted as its document passes."""
        for part in parts:
            last, count = self._runs[-1] if self._runs else (None, 0)
            if last == part.source:
                self._runs[-1] = part.source, count + 1
            else:
                self._runs.append((part.source, 1))
            yield part.text

    def packed(self) -> str:
        """As text."""
        return " ".join(str(source) if count == 1 else f"{source}x{count}" for source, count in self._runs)


def unpacked(runs: str, documents: int, sources: int) -> NDArray[np.int64]:
    """The number of each document's source, `[N]`; `ValueError` where the text does not say it for so many."""
    found = [_RUN.fullmatch(run) for run in runs.split(" ")]
    pairs = [(int(run[1]), int(run[2] or 1)) for run in found if run is not None]
    counts = [count for _, count in pairs]
    if len(pairs) < len(found) or sum(counts) != documents or any(source >= sources for source, _ in pairs):
        raise ValueError(f"sources: expected the numbers of {documents:,} documents' sources, each below {sources}")
    return np.repeat([source for source, _ in pairs], counts).astype(np.int64)
