"""The file of what deduplication knows of each document: records of a fixed size, whatever the length of the text.

A header of `HEADER_BYTES`, one line of JSON, names the settings, the number of records and the hash of their bytes. It
is written last, so a file whose writing was broken off, or that lost its end in a copy, is refused.
"""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from linnet.core.checksum import digest, hex_digest
from linnet.core.errors import UserError
from linnet.core.files import open_file
from linnet.data.minhash import MinHashSpec

HEADER_BYTES = 1024
FORMAT = "linnet signatures 1"
_BLOCK_BYTES = 1 << 20

Records = NDArray[Any]
"""A structured array of `record_type`."""


def record_type(spec: MinHashSpec) -> np.dtype[Any]:
    """The fields of a record.

    digest: of the whole text (`minhash.content_digest`). shingles: the number of n-grams of words. match: the number of
    the evaluation document that the text overlaps, -1 for none. bands: the hashes of the signature's bands.
    """
    return np.dtype([("digest", "<u8", 2), ("shingles", "<u4"), ("match", "<i4"), ("bands", "<u8", spec.bands)])


class SignatureWriter:
    """Writes records as they come. Use as a context manager; the file is valid once the block ended without error.

    records: how many were written; so many of a file that is there stay, and others are written behind them.
    """

    def __init__(self, path: Path, spec: MinHashSpec, records: int = 0) -> None:
        self._spec, self._dtype = spec, record_type(spec)
        self.records, self._hash = records, blake3()
        self._file = path.open("r+b" if records else "w+b")
        self._file.write(b" " * HEADER_BYTES)
        left = records * self._dtype.itemsize
        while left:
            block = self._file.read(min(left, _BLOCK_BYTES))
            assert block, "the file has so many records"
            self._hash.update(block)
            left -= len(block)
        self._file.truncate(self._file.tell())

    def flushed(self) -> int:
        """The size of the file, all of which is on the disk now."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def write(self, records: Records) -> None:
        """Append records."""
        assert records.dtype == self._dtype
        content = records.tobytes()
        self._hash.update(content)
        self._file.write(content)
        self.records += len(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)
                header = _header(self._spec, self.records, hex_digest(self._hash))
                self._file.write(header)


def _header(spec: MinHashSpec, records: int, checksum: str) -> bytes:
    fields = {"format": FORMAT, "spec": spec.model_dump(), "records": records, "checksum": checksum}
    return json.dumps(fields).encode().ljust(HEADER_BYTES - 1) + b"\n"


def read_signatures(path: Path, spec: MinHashSpec) -> Records:
    """Open a file's records, memory-mapped.

    `UserError` for a file that is not complete, was changed, or whose records were made with another `spec`.
    """
    with open_file(path) as handle:
        try:
            header = json.loads(handle.read(HEADER_BYTES))
            form, made_with, count, checksum = (header[key] for key in ("format", "spec", "records", "checksum"))
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: not a complete file of signatures; remove it and make it again") from None
    if form != FORMAT:
        raise UserError(f"{path}: format {form!r}; expected {FORMAT!r}")
    for name, value in spec.model_dump().items():
        if made_with.get(name) != value:
            raise UserError(f"{path}: made with {name} {made_with.get(name)}; expected {value}")
    dtype = record_type(spec)
    expected, found = HEADER_BYTES + count * dtype.itemsize, path.stat().st_size
    if found != expected:
        raise UserError(f"{path}: cut off: {found:,} bytes; expected {expected:,} for {count:,} documents")
    if not count:
        return np.zeros(0, dtype)
    records = np.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES, shape=(count,))
    if digest(records.view(np.uint8).data) != checksum:
        raise UserError(f"{path}: its records are not those that were written; remove it and make it again")
    return records
