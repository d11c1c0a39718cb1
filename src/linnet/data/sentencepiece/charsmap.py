"""SentencePiece's table of replacements: which characters of a text become which others.

A model holds it as four bytes of length, a double array (Aoe, 1989, in the layout of Darts-clone) over the UTF-8 bytes
of the keys, and the replacements, each ended by a zero byte. A key's value is where its replacement begins.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_LABEL = 0x800000FF  # a unit's own byte; the top bit is set in a unit that holds a value
_LEAD_BITS = np.array([0x7F, 0x1F, 0x0F, 0x07])  # of the first byte of a character, by the number of bytes that follow


class Charsmap:
    """The rules of one `precompiled_charsmap`. SentencePiece replaces the longest key at each place of a text."""

    def __init__(self, blob: bytes) -> None:
        size_bytes = int.from_bytes(blob[:4], "little")
        self._units = np.frombuffer(blob, "<u4", size_bytes // 4, offset=4).astype(np.int64)
        self._walked = self._units.tolist()
        self._replacements = blob[4 + size_bytes :]

    def longest(self, text: str, start: int) -> tuple[int, str] | None:
        """Where the longest key that begins at `start` ends, and what it becomes; None if there is no key."""
        node, found = _children(0, self._walked[0]), None
        for end in range(start + 1, len(text) + 1):
            unit = 0
            for byte in text[end - 1].encode():
                node ^= byte
                unit = self._walked[node]
                if unit & _LABEL != byte:
                    return self._replaced(found)
                node = _children(node, unit)
            if unit >> 8 & 1:
                found = end, self._walked[node] & 0x7FFFFFFF
        return self._replaced(found)

    def _replaced(self, found: tuple[int, int] | None) -> tuple[int, str] | None:
        if found is None:
            return None
        end, at = found
        return end, self._replacements[at : self._replacements.index(b"\0", at)].decode()

    @property
    def singles(self) -> frozenset[str]:
        """The characters that are keys by themselves."""
        return self._sets[0]

    @property
    def followers(self) -> frozenset[str]:
        """The characters that stand in some key behind its first one: accents, mostly."""
        return self._sets[1]

    @property
    def has_double_space(self) -> bool:
        """Whether some replacement has two spaces in a row."""
        return b"  " in self._replacements

    @cached_property
    def _sets(self) -> tuple[frozenset[str], frozenset[str]]:
        codes, units = self._characters(np.array([_children(0, self._walked[0])]))
        singles = codes[self._units[units] >> 8 & 1 == 1]
        followers: set[int] = set()
        while len(units):
            codes, units = self._characters(np.unique(self._inside(units)))
            followers.update(codes.tolist())
        return frozenset(map(chr, singles.tolist())), frozenset(map(chr, followers))

    def _characters(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every character that goes on from one of the nodes, and the unit of its last byte."""
        codes, missing = np.zeros(len(nodes), np.int64), np.full(len(nodes), -1)
        complete = []
        while len(nodes):
            children = nodes[:, None] ^ np.arange(1, 256)
            row, column = np.nonzero(self._units[children] & _LABEL == np.arange(1, 256))
            units, byte = children[row, column], column + 1
            more = np.searchsorted([0x80, 0xE0, 0xF0], byte, side="right")
            is_first = missing[row] < 0
            codes = codes[row] << 6 | np.where(is_first, byte & _LEAD_BITS[more], byte & 0x3F)
            missing = np.where(is_first, more, missing[row] - 1)
            done = missing == 0
            complete.append((codes[done], units[done]))
            nodes, codes, missing = self._inside(units[~done]), codes[~done], missing[~done]
        return np.concatenate([codes for codes, _ in complete]), np.concatenate([units for _, units in complete])

    def _inside(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        unit = self._units[units]
        return units ^ (unit >> 10 << ((unit & 0x200) >> 6))


def _children(node: int, unit: int) -> int:
    """Where the children of a unit are found: the child for a byte lies at this place XOR the byte."""
    return int(node ^ (unit >> 10 << ((unit & 0x200) >> 6)))
