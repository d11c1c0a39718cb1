"""Which documents are held out for validation: decided by each document's content, not by its place."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from linnet.errors import UserError

Split = Literal["train", "validation"]

SMALL_TEXT_BYTES = 20_000_000
_HASH_BYTES = 16


def content_hash(text: str, purpose: bytes = b"") -> bytes:
    """16 bytes of BLAKE2b of the text: the same wherever and however often the text occurs.

    Choices for different purposes (at most 16 bytes) are independent of each other.
    """
    return blake2b(text.encode(), digest_size=_HASH_BYTES, person=purpose).digest()


def below(identity: bytes, fraction: float) -> bool:
    """Whether a hash is among the lowest `fraction` of all hashes."""
    return bool(int.from_bytes(identity) < fraction * 256**_HASH_BYTES)


def check_fraction(fraction: float | None) -> None:
    """`UserError` unless the fraction to hold out is None or between 0 and one half."""
    if fraction is not None and not 0 < fraction < 0.5:
        raise UserError(f"--validation {fraction}: expected a fraction above 0 and below 0.5")


@dataclass
class Survey:
    """What has to be known of all documents before any of them can be put on a side."""

    documents: int = 0
    text_bytes: int = 0
    smallest: bytes = b"\xff" * (_HASH_BYTES + 1)
    largest: bytes = b""

    def add(self, text: str) -> None:
        """Count one document."""
        identity = content_hash(text)
        self.documents += 1
        self.text_bytes += len(text.encode())
        self.smallest = min(self.smallest, identity)
        self.largest = max(self.largest, identity)

    def holdout(self, fraction: float | None) -> "Holdout":
        """The rule for these documents; a fraction of None is 0.05 of a small text and 0.01 of a large one."""
        check_fraction(fraction)
        default = 0.05 if self.text_bytes < SMALL_TEXT_BYTES else 0.01
        return Holdout(default if fraction is None else fraction, self.smallest, self.largest)


@dataclass(frozen=True)
class Holdout:
    """Validation is what hashes below the fraction, so order and number of files cannot matter.

    The document with the smallest hash is always held out and the one with the largest never, so that neither side
    is empty. When all documents are the same one, its last part is held out instead.
    """

    fraction: float
    smallest: bytes
    largest: bytes

    def parts(self, text: str) -> Iterator[tuple[Split, str]]:
        """Yield the document as (`train` or `validation`, text), or its two parts where there is only one."""
        if self.smallest == self.largest:
            head, tail = cut_last_part(text, self.fraction)
            yield "train", head
            yield "validation", tail
        else:
            yield "validation" if self._holds_out(content_hash(text)) else "train", text

    def _holds_out(self, identity: bytes) -> bool:
        if identity in (self.smallest, self.largest):
            return identity == self.smallest
        return below(identity, self.fraction)


def cut_last_part(text: str, fraction: float) -> tuple[str, str]:
    """Cut about `fraction` of the characters off the end, after a line if one ends nearby, else after a word."""
    if len(text) < 2:
        raise UserError("the text is one document of one character; nothing would be left to hold out")
    wanted = min(len(text) - 1, max(1, round(len(text) * (1 - fraction))))
    nearest = max(0, wanted - (len(text) - wanted))
    for boundary in ("\n", " "):
        place = text.rfind(boundary, nearest, wanted) + 1
        if place:
            return text[:place], text[place:]
    return text[:wanted], text[wanted:]
