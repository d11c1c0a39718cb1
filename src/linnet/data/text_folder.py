"""A folder of .jsonl files with documents, and a report: what cleaning and deduplication write, and `prepare` reads."""

import gzip
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError
from linnet.core.files import read_json, write_json
from linnet.data.readers import zstd_library
from linnet.data.sources import REPORT
from linnet.present.progress import Advance

SHARD_BYTES = 256 << 20
COMPRESSED = ("gz", "zst")
"""How files can be compressed."""

_PART = re.compile(r"part-\d+\.jsonl(\.gz|\.zst)?")

EXAMPLES = 3
"""How many documents a report shows for each reason."""


@dataclass
class Amount:
    """Documents, and the bytes of their text in UTF-8."""

    documents: int = 0
    bytes: int = 0

    def add(self, text: str) -> None:
        """Count a document."""
        self.count(len(text.encode()))

    def count(self, size_bytes: int) -> None:
        """Count a document whose text has so many bytes."""
        self.documents += 1
        self.bytes += size_bytes

    def plus(self, other: "Amount") -> "Amount":
        """The sum of two amounts."""
        return Amount(self.documents + other.documents, self.bytes + other.bytes)


class TextRow(NamedTuple):
    """A document, the name of the input that it is from, and the address of its page, if there is one."""

    text: str
    source: str
    url: str | None = None


def checked_text_target(out: str | Path, overwrite: bool, holds: str, compress: str | None) -> Path:
    """The absolute path of the folder to write, or a `UserError` before anything is read (`check_target`)."""
    check_compression(compress)
    check_target(Path(out), overwrite, holds)
    return Path(out).resolve()


def check_target(target: Path, overwrite: bool, holds: str) -> None:
    """`UserError` unless the folder is new or empty, or has earlier results that may be replaced.

    holds: what such a folder has, in words.
    """
    if target.exists() and not target.is_dir():
        raise UserError("is a file", field="out", value=target, accepted="a folder")
    found = [path.name for path in target.iterdir()] if target.is_dir() else []
    if [name for name in found if name != REPORT and not _PART.fullmatch(name)]:
        accepted = f"a new folder, or one with {holds} only"
        raise UserError("holds other files", field="out", value=target, accepted=accepted)
    if found and not overwrite:
        raise UserError(f"holds {holds} already; `overwrite` replaces it", field="out", value=target)


def check_compression(compress: str | None) -> None:
    """`UserError` for an unknown compression, and for a package that is missing."""
    if compress not in (None, *COMPRESSED):
        raise UserError(field="compress", value=compress, accepted=f"one of {', '.join(COMPRESSED)}")
    if compress == "zst":
        zstd_library("compress")


@contextmanager
def new_text_folder(
    target: Path, overwrite: bool, holds: str, identity: Any
) -> "Iterator[tuple[Path, UnfinishedFolder]]":
    """A folder to write into, which becomes `target` when it is complete, and the work on it until then.

    identity: plain data that decides what is written; the work of an earlier call with the same one goes on.
    """
    unfinished = UnfinishedFolder(target).of(identity)
    with atomic_directory(target, unfinished.remove) as folder:
        check_target(target, overwrite, holds)  # another process may have been faster
        with unfinished:
            yield folder, unfinished


class TextFolderWriter:
    """Writes documents into files of about `shard_bytes` of lines. A context that closes them. files: their names.

    written: bytes of lines in the last file, which are more than its size where files are compressed.
    """

    def __init__(
        self,
        folder: Path,
        shard_bytes: int,
        files: Sequence[str] = (),
        size: int = 0,
        written: int = 0,
        compress: str | None = None,
    ) -> None:
        """files: those that are there, of which the last one goes on behind its first `size` bytes.

        compress: one of `COMPRESSED`, or None.
        """
        self.files, self.written = list(files), written
        self._folder, self._shard_bytes, self._compress = folder, shard_bytes, compress
        self._opened, self._ended = ExitStack(), ExitStack()
        self._shard: BinaryIO | None = None
        self._lines: BinaryIO | None = None
        if self.files:
            self._shard = self._opened.enter_context((folder / self.files[-1]).open("r+b"))
            self._shard.truncate(size)
            self._shard.seek(size)

    def flushed(self) -> dict[str, int]:
        """The size of each file, all of which is on the disk now."""
        self._flush()
        return {name: (self._folder / name).stat().st_size for name in self.files}

    def _flush(self) -> None:
        """Bring the last file to the disk."""
        if self._shard is not None:
            self._end_lines()
            self._shard.flush()
            os.fsync(self._shard.fileno())

    def _end_lines(self) -> None:
        """End what is compressed together, so that a file can be read up to here; more of the kind may follow."""
        self._ended.close()
        self._lines = None

    def _open_lines(self, shard: BinaryIO) -> BinaryIO:
        if self._compress is None:
            return shard
        opened: Any
        if self._compress == "gz":
            opened = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=shard, mtime=0)
        else:
            opened = zstd_library("compress").ZstdFile(shard, "wb")
        self._ended.callback(opened.close)
        return opened  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end_lines()
        finally:
            self._opened.close()

    def write(self, row: TextRow) -> None:
        """Write a document with its fields as one line."""
        fields = {name: value for name, value in row._asdict().items() if value is not None}
        try:
            line = json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # of a file whose name is not UTF-8
            line = json.dumps(fields).encode()
        self.write_line(line + b"\n")

    def write_line(self, line: bytes) -> None:
        """Write a document that is a line already."""
        if self._shard is None or self.written >= self._shard_bytes:
            self._flush()
            self._opened.close()
            suffix = "" if self._compress is None else f".{self._compress}"
            self.files.append(f"part-{len(self.files):05}.jsonl{suffix}")
            self._shard = self._opened.enter_context((self._folder / self.files[-1]).open("wb"))
            self.written = 0
        if self._lines is None:
            self._lines = self._open_lines(self._shard)
        self._lines.write(line)
        self.written += len(line)


def read_rows(files: Sequence[Path], advance: Advance = lambda *_: None) -> Iterator[TextRow]:
    """Read what `TextFolderWriter` wrote without compression. advance: gets the number of bytes that were read."""
    for file in files:
        with file.open("rb") as handle:
            for line in handle:
                advance(len(line))
                yield TextRow(**json.loads(line))


class UnfinishedFolder:
    """Where the files of a long job are until it ends, beside the folder that they become: so a killed job goes on.

    A context that leaves nothing behind after an error unless something was saved. What it holds is removed when the
    result has its name (`atomic_directory`), and not before.
    """

    def __init__(self, target: Path) -> None:
        self.target, self.path = target, target.with_name(f".{target.name}.unfinished")
        self._state, self._identity = self.path / "state.json", None

    def of(self, identity: Any) -> Self:
        """The folder for a job; the files of one with another identity are removed.

        identity: plain data that decides what is written.
        """
        self._identity = json.loads(json.dumps(identity))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._state.is_file():
            self.remove()

    def begin(self) -> dict[str, Any] | None:
        """What `save` was given last, if the files are as they were then or longer; else None, and an empty folder.

        Files that a result has too (`place_in`) are not written to: after a kill at that moment the job starts again.
        """
        found = read_json(self._state) if self._state.is_file() else None
        if isinstance(found, dict) and found.get("identity") == self._identity and self._is_whole(found):
            return dict(found["state"])
        self.remove()
        self.path.mkdir(parents=True)
        return None

    def _is_whole(self, found: dict[str, Any]) -> bool:
        sizes = [(self.path / name, size) for name, size in found["sizes"].items()]
        found_at = [(file.stat(), size) for file, size in sizes if file.is_file()]
        return len(found_at) == len(sizes) and all(at.st_size >= size and at.st_nlink <= 1 for at, size in found_at)

    def save(self, sizes: Mapping[str, int], state: Mapping[str, Any]) -> None:
        """Note the state behind the first bytes of each file, all of which are on the disk."""
        write_json(self._state, {"identity": self._identity, "sizes": dict(sizes), "state": dict(state)})

    def place_in(self, folder: Path, files: Sequence[str]) -> None:
        """Give files of the job a name in a folder on the same disk too; a job that is killed now still has them."""
        for name in files:
            file, target = self.path / name, folder / Path(name).name
            try:
                os.link(file, target)
            except OSError:  # not every file system has links
                file.replace(target)

    def remove(self) -> None:
        """Remove what is there, first what says that a call can go on."""
        with suppress(OSError):
            self._state.unlink()
        shutil.rmtree(self.path, ignore_errors=True)
