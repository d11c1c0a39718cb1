"""A folder of .jsonl files with documents, and a report: what cleaning and deduplication write, and `prepare` reads."""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from linnet.core.errors import UserError
from linnet.data.sources import REPORT

SHARD_BYTES = 256 << 20
EXAMPLES = 3
"""How many documents a report shows for each reason."""


@dataclass
class Amount:
    """Documents, and the bytes of their text in UTF-8."""

    documents: int = 0
    bytes: int = 0

    def add(self, text: str) -> None:
        """Count a document."""
        self.documents += 1
        self.bytes += len(text.encode())


def check_target(target: Path, overwrite: bool, holds: str) -> None:
    """`UserError` unless the folder is new or empty, or has earlier results that may be replaced.

    holds: what such a folder has, in words.
    """
    if target.exists() and not target.is_dir():
        raise UserError("is a file", field="out", value=target, accepted="a folder")
    found = [path.name for path in target.iterdir()] if target.is_dir() else []
    if [name for name in found if name != REPORT and not (name.startswith("part-") and name.endswith(".jsonl"))]:
        accepted = f"a new folder, or one with {holds} only"
        raise UserError("holds other files", field="out", value=target, accepted=accepted)
    if found and not overwrite:
        raise UserError(f"holds {holds} already; `overwrite` replaces it", field="out", value=target)


class TextFolderWriter:
    """Writes documents into files of about `shard_bytes`; `files` are their names. A context that closes them."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self.files: list[str] = []
        self._folder, self._shard_bytes = folder, shard_bytes
        self._opened, self._written = ExitStack(), 0
        self._shard: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def write(self, row: dict[str, str]) -> None:
        """Write a document with its fields as one line."""
        if self._shard is None or self._written >= self._shard_bytes:
            self._opened.close()
            self.files.append(f"part-{len(self.files):05}.jsonl")
            self._shard = self._opened.enter_context((self._folder / self.files[-1]).open("wb"))
            self._written = 0
        line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
        self._shard.write(line)
        self._written += len(line)
