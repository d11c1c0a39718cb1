"""Files to documents: text with separators, JSON lines, Parquet, or the standard input, read as a stream."""

import codecs
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from linnet.core.atomic import errors_naming
from linnet.core.errors import UserError
from linnet.core.files import open_file, standard_input
from linnet.present.progress import Advance

DEFAULT_SEPARATOR = "<|endoftext|>"
STDIN = "-"

_TEXT = (".txt", ".text", ".md", "")
_JSON_LINES = (".jsonl", ".ndjson")
_PARQUET = (".parquet",)
_BLOCK_BYTES = 1 << 20
_ROWS_PER_READ = 1024
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[nrtf0\\])")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "0": "\0", "\\": "\\"}


class Source:
    r"""One input that can be read several times; the content of a pipe is kept in a nameless temporary file.

    Text (.txt, .text, .md, no suffix, or `-` for the standard input) is split at `separator` (None: at
    `<|endoftext|>`, if there is any; `\n` and the like are understood), and newlines next to a separator are
    dropped. A .jsonl or .ndjson file has one document per line, a .parquet file one per row, in `field`.

    Use as a context manager. size_bytes: the sum that a whole reading passes to `advance`. `UserError` names the file
    and the line of what cannot be read.
    """

    def __init__(self, path: str | Path, field: str = "text", separator: str | None = None) -> None:
        self.name = "<stdin>" if str(path) == STDIN else str(path)
        suffix = Path(path).suffix.lower() if str(path) != STDIN else ""
        kinds = (("text", _TEXT), ("jsonl", _JSON_LINES), ("parquet", _PARQUET))
        found = next((kind for kind, suffixes in kinds if suffix in suffixes), None)
        if found is None:
            accepted = ", ".join(filter(None, _TEXT + _JSON_LINES + _PARQUET))
            raise UserError(f"{path}: unknown kind of file {suffix!r}; expected one of {accepted}, or - for stdin")
        self.kind: str = found
        self._path = Path(path)
        self._field = field
        self._separator = DEFAULT_SEPARATOR if separator is None else unescape(separator)
        if not self._separator:
            raise UserError("empty", field="separator", accepted="the text between two documents")
        self._kept: BinaryIO | None = None

    def __enter__(self) -> "Source":
        if str(self._path) == STDIN:
            self._kept = _keep(standard_input())
        elif not self._path.is_file():
            with open_source(self._path) as pipe:
                self._kept = _keep(pipe)
        self.size_bytes = self._kept.tell() if self._kept else self._path.stat().st_size
        if not self.size_bytes:
            raise UserError(f"{self.name}: empty file, expected text")
        return self

    def __exit__(self, *error: object) -> None:
        if self._kept:
            self._kept.close()

    def documents(self, advance: Advance = lambda *_: None) -> Iterator[str]:
        """Read the documents that are not empty once. advance: gets the number of bytes that were read."""
        found = False
        if self._kept is not None:
            self._kept.seek(0)
        reader: AbstractContextManager[BinaryIO] = nullcontext(self._kept) if self._kept else open_source(self._path)
        with reader as handle:
            documents: Iterator[str]
            if self.kind == "jsonl":
                lines = lines_of(handle, self.name, advance)
                documents = (json_field(line, self._field, place) for place, line in lines)
            elif self.kind == "parquet":
                documents = _read_parquet(handle, self.name, self._field, self.size_bytes, advance)
            else:
                documents = split_text(_decode(handle, self.name, advance), self._separator)
            for document in documents:
                if document:
                    found = True
                    yield document
        if not found:
            raise UserError(f"{self.name}: no documents, every one is empty")


def unescape(separator: str) -> str:
    r"""Read `\n`, `\r`, `\t`, `\f`, `\0`, `\x1e` and `\\` as typed in a shell; the rest stays as it is."""

    def character(match: re.Match[str]) -> str:
        name = match[1]
        return chr(int(name[1:], 16)) if len(name) > 1 else _ESCAPED[name]

    return _ESCAPE.sub(character, separator)


def split_text(blocks: Iterator[str], separator: str) -> Iterator[str]:
    """Split text that comes in blocks; newlines next to a separator are dropped, those at both ends of the text stay.

    Work and memory grow with the length of a document, not with its square: only a tail that could be the start of
    a separator is looked at twice.
    """
    held: list[str] = []
    rest, first = "", True
    for block in blocks:
        head, *tail = (rest + block).split(separator)
        for following in tail:
            document = "".join([*held, head]).rstrip("\r\n")
            yield document if first else document.lstrip("\r\n")
            held, head, first = [], following, False
        keep = max(0, len(head) - len(separator) + 1)
        held.append(head[:keep])
        rest = head[keep:]
    document = "".join([*held, rest])
    yield document if first else document.lstrip("\r\n")


def open_source(path: Path) -> BinaryIO:
    """Open a file or a named pipe; `UserError` if that is not possible."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected files (for example {path}/*.txt)")
    return open_file(path, pipes=True)


def _keep(pipe: BinaryIO) -> BinaryIO:
    """Copy a pipe into a temporary file that has no name, so that even a killed process leaves nothing."""
    folder = Path(tempfile.gettempdir())
    with errors_naming(folder):  # there may be less room than beside the data
        kept = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by Source
    while block := pipe.read(_BLOCK_BYTES):
        with errors_naming(folder):
            kept.write(block)
            kept.flush()
    return kept


def _decode(handle: BinaryIO, name: str, advance: Advance) -> Iterator[str]:
    """Blocks of UTF-8 text as it stands, line endings untouched, without a byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = 1
    while True:
        block = handle.read(_BLOCK_BYTES)
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise _not_utf8(name, line + error.object.count(b"\n", 0, error.start), error) from None
        if not block:
            return
        line += block.count(b"\n")
        advance(len(block))


def _not_utf8(name: str, line: int, error: UnicodeDecodeError) -> UserError:
    byte = error.object[error.start]
    return UserError(f"{name}, line {line}: not UTF-8 text (byte 0x{byte:02X}); save the file as UTF-8")


def lines_of(handle: BinaryIO, name: str, advance: Advance) -> Iterator[tuple[str, str]]:
    """The lines that are not empty, and what to call their place in messages."""
    for number, line in enumerate(handle, start=1):
        advance(len(line))
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(name, number, error) from None
        if text.strip():
            yield f"{name}, line {number}", text


def json_field(line: str, field: str, place: str) -> str:
    """The text in a field of a line's object; `UserError` that begins with `place` where there is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "numbers or nesting beyond limits")
        raise UserError(f"{place}: not valid JSON ({reason})") from None
    if not isinstance(row, dict):
        raise UserError(f"{place}: expected a JSON object with a field {field!r}, found {_json_type(row)}")
    if field not in row:
        raise UserError(f"{place}: no field {field!r}; this line has {_names(row)}")
    return _string(row[field], f"{place}: field {field!r}")


def _read_parquet(handle: BinaryIO, name: str, field: str, size_bytes: int, advance: Advance) -> Iterator[str]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{name}: reading Parquet needs pyarrow: pip install 'linnet[parquet]'") from None
    try:
        table = pyarrow.parquet.ParquetFile(handle)
        if field not in table.schema_arrow.names:
            raise UserError(f"{name}: no column {field!r}; the file has {_names(table.schema_arrow.names)}")
        row, rows = 0, table.metadata.num_rows
        for batch in table.iter_batches(batch_size=_ROWS_PER_READ, columns=[field]):
            for value in batch.column(0):
                row += 1
                place = f"{name}, row {row}: column {field!r}"
                try:
                    text = value.as_py()
                except UnicodeDecodeError:
                    raise UserError(f"{place}: not UTF-8 text") from None
                yield _string(text, place)
            advance(size_bytes * row // rows - size_bytes * (row - batch.num_rows) // rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{name}: not a readable Parquet file ({error})") from None


def _string(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place}: expected a string, found {_json_type(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place}: holds half of a surrogate pair, which is not Unicode text") from None
    return value


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, dict) else f"a {type(value).__name__}")


def _names(names: Any) -> str:
    return ", ".join(map(repr, names)) or "no fields"
