"""MinHash with locality-sensitive hashing: near-duplicates among many documents, from a few bytes of each.

A document becomes the set of its word n-grams (shingles). For each of `bands x rows` hash functions its signature has
the least hash of a shingle; two documents agree in one value with the probability of their Jaccard similarity s. They
are candidates if they agree in all rows of a band, which happens with probability 1 - (1 - s^rows)^bands (Leskovec,
Rajaraman, Ullman: Mining of Massive Datasets, 3.4). All hash functions are fixed, so that results depend on the texts
alone, not on processes or shards.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from pydantic import Field

from linnet.core.errors import UserError
from linnet.core.spec import Spec

Hashes = NDArray[np.uint64]

_BLOCK_SHINGLES = 1 << 15
"""Shingles whose hashes fit into a core's cache."""

_SPACE_OTHERS = "".join(c if c.isalnum() or c == "_" else " " for c in map(chr, range(128))).lower().encode() + bytes(
    range(128, 256)
)
"""ASCII letters in lower case, everything that is in no word a space; the other bytes of UTF-8 as they are."""

_ASCII_SPACE = b" \t\n\r\f\v"
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
"""Letters of scripts that put no space between words: each counts as a word."""


class MinHashSpec(Spec):
    """How documents are compared.

    shingle_words: words of a shingle. bands, rows: see `candidate_probability`; the defaults find half of the pairs of
    similarity 0.685, and 0.99 of those of 0.85.
    """

    shingle_words: int = Field(default=5, ge=1, le=100)
    bands: int = Field(default=14, ge=1, le=1000)
    rows: int = Field(default=8, ge=1, le=1000)


def candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """The probability that two documents of a Jaccard similarity become candidates."""
    return 1.0 - (1.0 - similarity**rows) ** bands


def split_words(text: str) -> list[bytes]:
    r"""The words of a text in lower case, as `\w+` finds them; each Chinese or Japanese character is one."""
    if text.isascii():
        return text.encode().translate(_SPACE_OTHERS).split()
    lower = unicodedata.normalize("NFC", text).lower()
    lower = lower.encode(errors="surrogatepass").translate(_SPACE_OTHERS).decode(errors="surrogatepass")
    for character in set(lower):
        if character > "\x7f" and not character.isalnum():
            lower = lower.replace(character, " ")
    return _UNSPACED.sub(r" \g<0> ", lower).encode(errors="surrogatepass").split()


def content_digest(text: str) -> bytes:
    """16 bytes of BLAKE3 of a text without ASCII white space, in lower case and in Unicode's form NFC."""
    plain = text if text.isascii() else unicodedata.normalize("NFC", text)
    return blake3(plain.lower().encode(errors="surrogatepass").translate(None, _ASCII_SPACE)).digest(16)


def hash_words(texts: Sequence[str]) -> tuple[Hashes, NDArray[np.int64]]:
    """The hashes of the words of all texts, one text after the other, and the number of words of each."""
    xxhash = _xxhash()
    words: list[bytes] = []
    lengths = np.zeros(len(texts), dtype=np.int64)
    for number, text in enumerate(texts):
        found = split_words(text)
        lengths[number] = len(found)
        words.extend(found)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, words), dtype=np.uint64, count=len(words)), lengths


def _xxhash() -> Any:
    try:
        import xxhash
    except ImportError:
        raise UserError("comparing documents by their words needs xxhash: pip install 'linnet[data]'") from None
    return xxhash


def hash_shingles(words: Hashes, lengths: NDArray[np.int64], shingle_words: int) -> tuple[Hashes, NDArray[np.int64]]:
    """The hashes of all n-grams of words within each text, and how many each text has.

    A text with fewer words than an n-gram has one of all its words; one without words has none.
    """
    short = (lengths > 0) & (lengths < shingle_words)
    if short.any():
        ends = np.cumsum(lengths)[short]
        words = np.insert(words, np.repeat(ends, shingle_words - lengths[short]), np.uint64(0))
        lengths = np.where(short, shingle_words, lengths)
    counts = np.maximum(lengths - shingle_words + 1, 0)
    if not counts.any():
        return np.zeros(0, dtype=np.uint64), counts
    windows = len(words) - shingle_words + 1
    total = np.zeros(windows, dtype=np.uint64)
    for place, factor in enumerate(_constants("shingle", shingle_words)):
        total += words[place : place + windows] * factor
    total ^= total >> np.uint64(32)
    total *= _constants("mix", 1)[0]
    total ^= total >> np.uint64(29)
    place_in_text = np.arange(len(words)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    is_inside = place_in_text < np.repeat(counts, lengths)
    return total[is_inside[:windows]], counts


def minhash(shingles: Hashes, counts: NDArray[np.int64], values: int) -> NDArray[np.uint32]:
    """The signatures of texts (texts, values); all zeros for a text without shingles.

    shingles, counts: as `hash_shingles` returns them.
    """
    signatures = np.zeros((len(counts), values), dtype=np.uint32)
    filled = np.flatnonzero(counts)
    ends = np.cumsum(counts[filled])
    small = (shingles >> np.uint64(32)).astype(np.uint32)
    first = 0
    while first < len(filled):
        begin = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, begin + _BLOCK_SHINGLES, side="right")))
        starts = np.concatenate([[0], ends[first : last - 1] - begin]).astype(np.int64)
        signatures[filled[first:last]] = _least_hashes(small[begin : ends[last - 1]], starts, values)
        first = last
    return signatures


def _least_hashes(block: NDArray[np.uint32], starts: NDArray[np.int64], values: int) -> NDArray[np.uint32]:
    """The least value of each hash function a x + b (mod 2^32) over the parts of a block (parts, values)."""
    factors, offsets = (_constants(name, values).astype(np.uint32) for name in ("factor", "offset"))
    least, hashes = np.empty((len(starts), values), dtype=np.uint32), np.empty_like(block)
    for number in range(values):
        np.multiply(block, factors[number] | np.uint32(1), out=hashes)
        np.add(hashes, offsets[number], out=hashes)
        least[:, number] = np.minimum.reduceat(hashes, starts)
    return least


def band_hashes(signatures: NDArray[np.uint32], bands: int, rows: int) -> Hashes:
    """One hash of the `rows` values of each band (texts, bands). Bands are runs of neighboring values."""
    assert signatures.shape[1] == bands * rows, "a signature has bands x rows values"
    parts = signatures.reshape(len(signatures), bands, rows).astype(np.uint64)
    hashes: Hashes = (parts * _constants("band", rows)).sum(axis=2, dtype=np.uint64)
    return hashes ^ (hashes >> np.uint64(31))


@cache
def _constants(purpose: str, count: int) -> Hashes:
    """Fixed random odd numbers."""
    content = blake3(f"linnet minhash {purpose}".encode()).digest(8 * count)
    return np.frombuffer(content, dtype="<u8").astype(np.uint64) | np.uint64(1)


class Clusters:
    """Sets of documents that are joined one group of pairs after the other; each is named by its first document.

    first: (documents,) the number of the first document of each one's cluster. Memory: 8 bytes a document.
    """

    def __init__(self, documents: int) -> None:
        self.first = np.arange(documents, dtype=np.int64)

    def join_equal(self, keys: NDArray[Any], rows: NDArray[np.int64], first_below: int | None = None) -> None:
        """Join the documents `rows` (ascending) that have the same key: keys (rows,) or (rows, parts of a key).

        first_below: only where the first document with a key has a number below this.
        """
        members, leaders = equal_pairs(keys)
        if first_below is not None:
            is_below = rows[leaders] < first_below
            members, leaders = members[is_below], leaders[is_below]
        self.join(rows[leaders], rows[members])

    def join(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> None:
        """Join the clusters of each pair. Afterwards `first` names clusters directly."""
        while len(left):
            roots, others = self.first[left], self.first[right]
            apart = roots != others
            left, right, roots, others = left[apart], right[apart], roots[apart], others[apart]
            np.minimum.at(self.first, np.maximum(roots, others), np.minimum(roots, others))
            while not np.array_equal(above := self.first[self.first], self.first):
                self.first = above


def equal_pairs(keys: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows whose key an earlier row has, and the first row with that key: two arrays of the same length."""
    parts = keys[:, None] if keys.ndim == 1 else keys
    order = np.lexsort(parts.T[::-1])  # stable: rows with one key stay in order
    changes = np.any(parts[order[1:]] != parts[order[:-1]], axis=1)
    starts = np.concatenate([[True], changes])[: len(order)]
    leaders = order[np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))]
    return order[~starts], leaders[~starts]
