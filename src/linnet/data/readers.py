"""The formats of text: an open file to documents, read as a stream."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple

from linnet.core.errors import UserError

BLOCK_BYTES = 1 << 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ROWS_PER_READ = 1024
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
"""What a byte that is not UTF-8 becomes (PEP 383); UTF-8 itself never gives these code points."""

FORMATS: dict[str, tuple[str, ...]] = {
    "text": (".txt", ".text", ".md", ""),
    "jsonl": (".jsonl", ".ndjson"),
    "csv": (".csv", ".tsv"),
    "parquet": (".parquet",),
    "html": (".html", ".htm"),
    "warc": (".warc", ".wet"),
}
"""The suffixes of each format. Other files are text, such as code, if their first bytes are."""

_CODE = """
.bat .c .cc .clj .cmake .cpp .cs .css .cu .cuh .cxx .dart .ex .exs .f90 .fs .go .h .hpp .hs .java .jl .js .jsx .kt .lean
.lua .m .ml .mjs .mm .php .pl .pm .ps1 .py .pyi .pyx .r .rb .rs .rst .scala .sh .sql .swift .tcl .tex .ts .tsx .vue .zig
"""
CODE_SUFFIXES = frozenset(_CODE.split())
"""The suffixes of code and markup that a folder is searched for besides those of `FORMATS`."""

ROW_FORMATS = ("jsonl", "csv", "parquet")
"""Formats whose documents stand in a field."""

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")


class Invalid(NamedTuple):
    """A document that cannot be read: where it stands, and why."""

    place: str
    reason: str


class Located(NamedTuple):
    """A text, and the address (URL) of the page that it is from."""

    text: str
    url: str


Item = str | Invalid


def valid(item: Item) -> str:
    """Return the text; `UserError` for one that is invalid."""
    if isinstance(item, Invalid):
        raise UserError(f"{item.place}: {item.reason}")
    return item


@dataclass
class ReadingCounts:
    """What one reading of an input met besides its documents.

    located: documents with an address. empty, blank: what is left out, without text or with white space alone. lines:
    line ends of a text, or within the texts of rows; crlf_lines: those that are CRLF. has_json_lines: the first
    document of a text is rows of JSON. position: bytes read so far, for formats that are not read from front to back.
    """

    documents: int = 0
    located: int = 0
    empty: int = 0
    blank: int = 0
    invalid: int = 0
    first_invalid: Invalid | None = None
    lines: int = 0
    crlf_lines: int = 0
    has_byte_order_mark: bool = False
    has_json_lines: bool = False
    position: int | None = None


def format_of(path: PurePath) -> tuple[str | None, str]:
    """Return the format and the compression of a file by its name; None and "" for unknown and none."""
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    suffix = (path.with_suffix("") if compression else path).suffix.lower()
    return next((name for name, suffixes in FORMATS.items() if suffix in suffixes), None), compression


def looks_like_text(head: bytes) -> bool:
    """Return True if the first bytes of a file have no zero byte and hardly any control characters."""
    return b"\0" not in head and sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head) <= len(head) // 100


@contextmanager
def decompressed(handle: BinaryIO, compression: str, name: str) -> Iterator[BinaryIO]:
    """Yield the content of a compressed file as a stream; `UserError` for one that is damaged or cut off."""
    openers: dict[str, Callable[[], Any]] = {
        "": lambda: handle,
        ".gz": lambda: gzip.GzipFile(fileobj=handle),
        ".bz2": lambda: bz2.BZ2File(handle),
        ".xz": lambda: lzma.LZMAFile(handle),  # noqa: SIM115 - the file beneath belongs to the caller
        ".zst": lambda: _open_zstd(handle, name),
    }
    broken: tuple[type[Exception], ...] = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
    if compression == ".zst":
        broken = (*broken, zstd_library(name).ZstdError)
    stream = openers[compression]()
    try:
        yield stream
    except broken as error:
        raise UserError(f"{name}: not a whole {compression} file ({str(error).rstrip('.')})") from None
    except OSError as error:
        if error.errno is not None or not compression:  # bz2 reports damage without a number
            raise
        raise UserError(f"{name}: not a whole {compression} file ({error})") from None


def zstd_library(name: str) -> Any:
    """Return Python's module for Zstandard, or that of a package; `UserError` with `name` where both are missing."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise UserError(f"{name}: .zst needs backports.zstd: pip install 'linnet[data]'") from None
    return zstd


def _open_zstd(handle: BinaryIO, name: str) -> Any:
    return zstd_library(name).ZstdFile(handle)


def read_text_documents(handle: BinaryIO, name: str, separator: str, counts: ReadingCounts) -> Iterator[Item]:
    """Split a text at `separator`; a document with bytes that are not UTF-8 is invalid."""
    bad: list[Invalid] = []
    for document in split_text(_decode(handle, name, counts, bad), separator):
        if bad and _ESCAPED_BYTE.search(document):
            yield bad[0]
        else:
            yield document


def _decode(handle: BinaryIO, name: str, counts: ReadingCounts, bad: list[Invalid]) -> Iterator[str]:
    """Blocks of text as it stands, line endings untouched, without a byte order mark.

    bad: gets the place of the first byte that is not UTF-8; such bytes are escaped.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape")
    line, held = 1, ""
    block = handle.read(BLOCK_BYTES)
    counts.has_byte_order_mark = block.startswith(codecs.BOM_UTF8)
    is_utf16 = block.startswith(_UTF16)
    while True:
        text = decoder.decode(block, final=not block)
        if not bad and (found := _ESCAPED_BYTE.search(text)):
            place = f"{name}, line {line + text.count(chr(10), 0, found.start())}"
            bad.append(Invalid(place, _not_utf8(ord(found[0]) - 0xDC00, is_utf16)))
        line += text.count("\n")
        # A line ending may lie across two blocks.
        counts.crlf_lines += text.count("\r\n") + (held == "\r" and text.startswith("\n"))
        held = text[-1:] or held
        yield text
        if not block:
            break
        block = handle.read(BLOCK_BYTES)
    counts.lines += line - 1


def _not_utf8(byte: int, is_utf16: bool = False) -> str:
    other = "UTF-16, as its first bytes say; " if is_utf16 else ""
    return f"not UTF-8 text (byte 0x{byte:02X}); {other}save the file as UTF-8"


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


def lines_of(handle: BinaryIO, name: str, counts: ReadingCounts | None = None) -> Iterator[tuple[str, Item]]:
    """The lines that are not empty, as text or why they are not, each behind what to call its place in messages."""
    for number, line in enumerate(handle, start=1):
        place = f"{name}, line {number}"
        if counts is not None and number == 1:
            counts.has_byte_order_mark = line.startswith(codecs.BOM_UTF8)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield place, Invalid(place, _not_utf8(line[error.start], number == 1 and line.startswith(_UTF16)))
            continue
        if text.strip():
            yield place, text


def read_json_lines(
    handle: BinaryIO, name: str, field: str, counts: ReadingCounts, url_field: str | None = None, hint: str = ""
) -> Iterator[Item | Located]:
    """Read the text in a field of the object in each line, and in another one its address, if there is one.

    hint: behind the message of a line without the field.
    """
    for place, line in lines_of(handle, name, counts):
        row = line if isinstance(line, Invalid) else _json_row(line, field, place)
        yield row if isinstance(row, Invalid) else _located(_json_text(row, field, place, hint), row, url_field)


def json_field(line: str, field: str, place: str) -> Item:
    """Return the text in a field of a line's object, or why there is none."""
    row = _json_row(line, field, place)
    return row if isinstance(row, Invalid) else _json_text(row, field, place)


def _json_row(line: str, field: str, place: str) -> dict[str, Any] | Invalid:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "numbers or nesting beyond limits")
        return Invalid(place, f"not valid JSON ({reason})")
    if not isinstance(row, dict):
        return Invalid(place, f"expected a JSON object with a field {field!r}, found {_json_type(row)}")
    return row


def _json_text(row: dict[str, Any], field: str, place: str, hint: str = "") -> Item:
    try:
        value = field_value(row, field)
    except KeyError:
        return Invalid(place, f"no field {field!r}; this line has {_names(row)}{hint}")
    return _text_or_invalid(value, place, f"field {field!r}: ")


def _located(item: Item, row: dict[str, Any], url_field: str | None) -> Item | Located:
    """The text with what a field of its row says of its address, if that is text."""
    if url_field is None or isinstance(item, Invalid):
        return item
    try:
        url = field_value(row, url_field)
        return Located(item, url) if isinstance(url, str) and url.encode() else item
    except (KeyError, UnicodeError):
        return item


def field_value(row: Any, field: str) -> Any:
    """Return the value of a field of a row; `KeyError` if there is none.

    A field of a nested object is a path with dots, `meta.text`, and an element of a list its number, `messages.0.text`.
    """
    if isinstance(row, dict) and field in row:
        return row[field]
    head, dot, rest = field.partition(".")
    if isinstance(row, list) and head.isdecimal() and int(head) < len(row):
        return field_value(row[int(head)], rest) if dot else row[int(head)]
    while dot:  # a name may have dots too
        if isinstance(row, dict) and head in row:
            return field_value(row[head], rest)
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    raise KeyError(field)


def column_of(names: Sequence[str], field: str) -> str | None:
    """Return the column that a field is, or that its path begins with; None if there is none."""
    return field if field in names else next((name for name in names if field.startswith(f"{name}.")), None)


def read_csv(
    handle: BinaryIO,
    name: str,
    field: str,
    delimiter: str,
    counts: ReadingCounts,
    url_field: str | None = None,
    hint: str = "",
) -> Iterator[Item | Located]:
    """Read the column `field` of a table whose first line names the columns, and that of addresses if it has one.

    hint: behind the message of a table without the column.
    """
    head = handle.read(len(codecs.BOM_UTF8))
    counts.has_byte_order_mark = head == codecs.BOM_UTF8
    handle.seek(0)
    csv.field_size_limit(sys.maxsize if sys.maxsize < 2**32 else 2**31 - 1)
    lines = io.TextIOWrapper(handle, "utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 1
    try:
        header = next(rows, [])
        if bad := _ESCAPED_BYTE.search("".join(header)):
            raise UserError(f"{name}, line 1: {_not_utf8(ord(bad[0]) - 0xDC00, head.startswith(_UTF16))}")
        if field not in header:
            others = [other for other in ",;\t|" if other != delimiter and field in "".join(header).split(other)]
            divided = f", divided by {others[0]!r}; expected {delimiter!r}" if others else hint
            raise UserError(f"{name}: no column {field!r}; the file has {_names(header)}{divided}")
        column = header.index(field)
        line = rows.line_num + 1
        for row in rows:
            place = f"{name}, line {line}"
            line = rows.line_num + 1
            if not row:
                continue
            if len(row) != len(header):
                yield Invalid(place, f"{len(row)} columns; expected {len(header)}, as in the first line")
            elif bad := _ESCAPED_BYTE.search(row[column]):
                yield Invalid(place, _not_utf8(ord(bad[0]) - 0xDC00))
            else:
                fields = {} if url_field is None else dict(zip(header, row, strict=True))
                yield _located(row[column], fields, url_field)
    except csv.Error as error:
        raise UserError(f"{name}, line {line}: not a valid table ({error})") from None
    finally:
        lines.detach()  # the file belongs to the caller


def read_parquet(
    handle: BinaryIO,
    name: str,
    field: str,
    counts: ReadingCounts,
    size_bytes: int,
    url_field: str | None = None,
    hint: str = "",
) -> Iterator[Item | Located]:
    """Read a column of strings, and one of their addresses if there is one; `counts.position` follows the rows.

    hint: behind the message of a table without the column.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{name}: reading Parquet needs pyarrow: pip install 'linnet[parquet]'") from None
    try:
        table = pyarrow.parquet.ParquetFile(handle)
        names = table.schema_arrow.names
        column = column_of(names, field)
        if column is None:
            raise UserError(f"{name}: no column {field!r}; the file has {_names(names)}{hint}")
        of_url = None if url_field is None else column_of(names, url_field)
        columns = [column] if of_url in (None, column) else [column, of_url]
        row, rows = 0, table.metadata.num_rows
        for batch in table.iter_batches(batch_size=_ROWS_PER_READ, columns=columns):
            for values in zip(*(batch.column(one) for one in columns), strict=True):
                row += 1
                counts.position = size_bytes * row // rows
                text = _parquet_text(values[0], column, field, f"{name}, row {row}")
                yield text if of_url is None else _located(text, {of_url: values[-1].as_py()}, url_field)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{name}: not a readable Parquet file ({error})") from None


def _parquet_text(value: Any, column: str, field: str, place: str) -> Item:
    try:
        text = field_value({column: value.as_py()}, field)
    except UnicodeDecodeError:
        return Invalid(place, f"column {field!r}: not UTF-8 text")
    except KeyError:
        return Invalid(place, f"column {column!r}: no field {field.removeprefix(column + '.')!r}")
    return _text_or_invalid(text, place, f"column {field!r}: ")


def read_html(handle: BinaryIO, name: str) -> Iterator[Item]:
    """Read the main text of one web page."""
    yield _main_text(handle.read(), name)


def read_warc(handle: BinaryIO, name: str) -> Iterator[Item | Located]:
    """Read the main text of each page of a web archive (`response`), or its texts (`conversion`, as in WET files)."""
    try:
        from warcio.archiveiterator import ArchiveIterator
        from warcio.exceptions import ArchiveLoadFailed
    except ImportError:
        raise UserError(f"{name}: reading WARC needs warcio: pip install 'linnet[data]'") from None
    try:
        for number, record in enumerate(ArchiveIterator(handle), start=1):
            place = f"{name}, record {number}"
            headers = record.http_headers
            content_type = (headers.get_header("Content-Type") if headers else None) or ""
            read: Callable[[bytes, str], str | Invalid]
            if record.rec_type == "conversion":
                read = _decoded
            elif record.rec_type == "response" and "html" in content_type and headers.get_statuscode() == "200":
                read = _main_text
            else:
                continue
            content = record.content_stream().read()
            if record.raw_stream.limit > 0:
                yield Invalid(place, "the archive ends inside this record")
                continue
            yield _located(read(content, place), {"url": record.rec_headers.get_header("WARC-Target-URI")}, "url")
    except ArchiveLoadFailed as error:
        raise UserError(f"{name}: not a readable web archive ({one_line_of(error)})") from None


def _decoded(content: bytes, place: str) -> Item:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        return Invalid(place, _not_utf8(content[error.start]))


def one_line_of(error: Exception) -> str:
    """Return an error's message in one line."""
    return " ".join(str(error).split())


def _main_text(page: bytes, place: str) -> Item:
    """Extract a page's text without menus and comments; "" if it has none."""
    try:
        import trafilatura
    except ImportError:
        raise UserError(f"{place}: reading HTML needs trafilatura: pip install 'linnet[data]'") from None
    try:
        return trafilatura.extract(page, favor_precision=True, include_comments=False) or ""
    except Exception as error:  # a page may break the parser in any way
        return Invalid(place, f"no text can be extracted ({one_line_of(error)})")


def _text_or_invalid(value: Any, place: str, what: str) -> Item:
    if not isinstance(value, str):
        return Invalid(place, f"{what}expected a string, found {_json_type(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        return Invalid(place, f"{what}holds half of a surrogate pair, which is not Unicode text")
    return value


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, dict) else f"a {type(value).__name__}")


def _names(names: Any) -> str:
    return ", ".join(map(repr, names)) or "no fields"
