"""The choice of documents for validation: by their contents, not by their positions.

Documents are taken in the order of their hashes, which is random, until their bytes reach the requested share.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError

Split = Literal["train", "validation"]

SMALL_TEXT_BYTES = 20_000_000
_HASH_BYTES = 16
CELL_BITS = 20


def content_hash(text: str, purpose: bytes = b"") -> bytes:
    """16 bytes of BLAKE2b of the text, which depend on nothing else.

    Choices for different purposes (at most 16 bytes) are independent of each other.
    """
    return blake2b(text.encode(), digest_size=_HASH_BYTES, person=purpose).digest()


def below(identity: bytes, fraction: float) -> bool:
    """True if a hash is among the lowest `fraction` of all hashes."""
    return bool(int.from_bytes(identity) < fraction * 256**_HASH_BYTES)


def check_fraction(fraction: float | None) -> None:
    """`UserError` unless the fraction to hold out is None or between 0 and one half."""
    if fraction is not None and not 0 < fraction < 0.5:
        raise UserError(field="validation", value=fraction, accepted="a fraction above 0 and below 0.5")


def cell(identity: bytes) -> int:
    """A hash's first `CELL_BITS`: documents that share them are held out together, or not."""
    return int.from_bytes(identity) >> (8 * _HASH_BYTES - CELL_BITS)


@dataclass
class Survey:
    """The figures of all documents that the split needs, in memory that does not grow.

    bytes_of_cell: the text's bytes by the cell of their hashes. Few documents have a cell each; of millions some share
    one, but then a cell is far smaller than any fraction that can be requested.
    """

    documents: int = 0
    text_bytes: int = 0
    bytes_of_cell: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1 << CELL_BITS, dtype=np.int64))

    def add(self, text: str) -> None:
        """Count one document."""
        self.count(content_hash(text), len(text.encode()))

    def count(self, identity: bytes, size_bytes: int) -> None:
        """Count a document with this hash and this many bytes of text."""
        self.documents += 1
        self.text_bytes += size_bytes
        self.bytes_of_cell[cell(identity)] += size_bytes

    def holdout(self, fraction: float | None) -> "Holdout":
        """The rule for these documents; a fraction of None is 0.05 of a small text and 0.01 of a large one."""
        if fraction is None:
            fraction = 0.05 if self.text_bytes < SMALL_TEXT_BYTES else 0.01
        occupied = np.flatnonzero(self.bytes_of_cell)
        if len(occupied) <= 1:
            return Holdout(fraction, None)
        sizes = dict(zip(occupied.tolist(), self.bytes_of_cell[occupied].tolist(), strict=True))
        return Holdout(fraction, choose_cells(sizes, fraction * self.text_bytes))


def choose_cells(bytes_of_cell: Mapping[int, int], target_bytes: float) -> frozenset[int]:
    """Cells whose sizes add up to nearly `target_bytes`, less than half of all: at least one, never all.

    In ascending order each cell is taken that still fits. Where the cells are large, so that little fits, one more or a
    single other one may come nearer; then that is taken.
    """
    fitting: set[int] = set()
    missing = target_bytes
    for number in sorted(bytes_of_cell):
        if bytes_of_cell[number] <= missing:
            fitting.add(number)
            missing -= bytes_of_cell[number]
    smallest_left = min(bytes_of_cell.keys() - fitting, key=lambda number: (bytes_of_cell[number], number))
    nearest = min(bytes_of_cell, key=lambda number: (abs(bytes_of_cell[number] - target_bytes), number))
    choices = [chosen for chosen in (fitting, fitting | {smallest_left}, {nearest}) if chosen]
    return frozenset(min(choices, key=lambda chosen: abs(sum(map(bytes_of_cell.__getitem__, chosen)) - target_bytes)))


@dataclass(frozen=True)
class Holdout:
    """Validation holds the documents that hash into the chosen cells, so order and number of files do not matter.

    held_out: None if all documents are equal (or share a cell); then the last part of each is held out.
    """

    fraction: float
    held_out: frozenset[int] | None

    def parts(self, text: str) -> Iterator[tuple[Split, str]]:
        """Yield the document as (`train` or `validation`, text), or its two parts if there is only one document."""
        if self.held_out is None:
            head, tail = cut_last_part(text, self.fraction)
            yield "train", head
            yield "validation", tail
        else:
            yield self.side(content_hash(text)), text

    def side(self, identity: bytes) -> Split:
        """Where the document with this hash is, one of several."""
        assert self.held_out is not None, "one document, which is cut"
        return "validation" if cell(identity) in self.held_out else "train"

    def holds(self, side: Split, identity: bytes) -> bool:
        """True if the document with this hash is on a side."""
        return self.side(identity) == side


def cut_last_part(text: str, fraction: float) -> tuple[str, str]:
    """Cut about `fraction` of the characters off the end, after a line if one ends nearby, else after a word."""
    if len(text) < 2:
        raise UserError("the text is one document of one character; nothing would be left to hold out")
    cut = min(len(text) - 1, max(1, round(len(text) * (1 - fraction))))
    nearest = max(0, cut - (len(text) - cut))
    for boundary in ("\n", " "):
        place = text.rfind(boundary, nearest, cut) + 1
        if place:
            return text[:place], text[place:]
    return text[:cut], text[cut:]
