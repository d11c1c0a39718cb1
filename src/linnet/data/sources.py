"""Inputs to documents: files of many formats, folders, patterns, data sets of Hugging Face, the standard input."""

import glob
import io
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from linnet.core.atomic import errors_naming
from linnet.core.checksum import hex_digest
from linnet.core.errors import UserError, note
from linnet.core.files import open_file, standard_input
from linnet.data.readers import (
    BLOCK_BYTES,
    CODE_SUFFIXES,
    COMPRESSIONS,
    FORMATS,
    ROW_FORMATS,
    Invalid,
    Item,
    Located,
    ReadingCounts,
    column_of,
    decompressed,
    format_of,
    looks_like_text,
    one_line_of,
    read_csv,
    read_html,
    read_json_lines,
    read_parquet,
    read_text_documents,
    read_warc,
)
from linnet.present.numbers import counted
from linnet.present.progress import Advance

DEFAULT_SEPARATOR = "<|endoftext|>"
STDIN = "-"
REPORT = "report.json"
"""What commands that write documents into a folder say of them there; no text, and nothing to be noted."""

HUGGING_FACE = "hf:"
"""The prefix of a data set's name, `hf:NAME[:CONFIG][:SPLIT]`; a folder that `save_to_disk` wrote needs none."""

_KNOWN_SUFFIXES = ", ".join(suffix for suffixes in FORMATS.values() for suffix in suffixes if suffix)

_SAVED_DATA_SETS = (("dataset_dict.json",), ("dataset_info.json", "state.json"))
"""The files by which folders that `save_to_disk` of the library `datasets` wrote are known."""

_JSON_LIST = re.compile(r'\s*\[\s*\{\s*"')
"""How a JSON file of rows begins."""

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[nrtf0\\])")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "0": "\0", "\\": "\\"}


class Source:
    r"""One input that can be read several times; the content of a pipe is kept in a nameless temporary file.

    Text, code, and `-`, the standard input, are split at `separator` (None: at `<|endoftext|>`, if there is any; `\n`
    and the like are understood), and newlines next to a separator are dropped. A .jsonl or .ndjson file has one
    document per line, .csv, .tsv and .parquet one per row, in `field`, which may be a path, `meta.text`. A web page
    (.html) is one document, a web archive (.warc, .wet) has one for each page. Each may be compressed (.gz, .zst,
    .bz2, .xz). `hf:NAME[:CONFIG][:SPLIT]` is a data set of Hugging Face. url_field: the field of a row with the address
    of its page; a page of a web archive has one anyway.

    Use as a context manager. size_bytes: the sum that a whole reading passes to `advance`. `UserError` names the file
    and the line of what cannot be read; with `skip_invalid` it is left out, and counted in `counts`, which describes
    the last whole reading. An input without any document is a `UserError` too unless it `may_be_empty`, as a file of a
    folder may. settings: the arguments besides the path.
    """

    def __init__(
        self,
        path: str | Path,
        field: str = "text",
        separator: str | None = None,
        skip_invalid: bool = False,
        may_be_empty: bool = False,
        url_field: str | None = None,
        has_choice: bool = True,
    ) -> None:
        """has_choice: the user may name another `field`, so an error says so."""
        self._hint = "; `field` names another" if has_choice else ""
        self.settings: dict[str, Any] = {
            "field": field,
            "separator": separator,
            "skip_invalid": skip_invalid,
            "may_be_empty": may_be_empty,
            "url_field": url_field,
        }
        self._may_be_empty, self._url_field = may_be_empty, url_field
        self.name = "<stdin>" if str(path) == STDIN else str(path)
        self._is_file = str(path) != STDIN and not is_data_set(path)
        self._path, self._field, self._skip_invalid = Path(path), field, skip_invalid
        found, self._compression = format_of(self._path) if self._is_file else ("text", "")
        self.kind: str = found or "text"
        if is_data_set(path):
            self.kind = "jsonl"  # its rows are copied as lines
        self._is_known = found is not None
        self._separator = DEFAULT_SEPARATOR if separator is None else unescape(separator)
        if not self._separator:
            raise UserError("empty", field="separator", accepted="the text between two documents")
        self._copy: BinaryIO | None = None
        self.counts = ReadingCounts()

    def __enter__(self) -> "Source":
        if self.name == "<stdin>":
            self._copy = _copy_of(iter(partial(standard_input().read, BLOCK_BYTES), b""))
        elif not self._is_file:
            self._copy = _copy_of(_data_set_lines(self.name, self._field, self._url_field))
        elif not self._path.is_file():
            with open_source(self._path) as pipe:
                self._copy = _copy_of(iter(partial(pipe.read, BLOCK_BYTES), b""))
        self.size_bytes = self._copy.tell() if self._copy else self._path.stat().st_size
        if not self.size_bytes and not self._may_be_empty:
            raise UserError(f"{self.name}: empty file, expected text")
        return self

    def __exit__(self, *error: object) -> None:
        if self._copy:
            self._copy.close()

    @property
    def path(self) -> Path | None:
        """The file, which other processes can read; None for the standard input, a pipe or a data set."""
        return self._path if self._is_file and self._path.is_file() else None

    def identity(self) -> list[Any]:
        """What tells whether the content is that of an earlier call: name, size and time of a file, else its hash."""
        if self._copy is None:
            return [self.name, *size_and_time(self._path)]
        self._copy.seek(0)
        hashed = blake3()
        while block := self._copy.read(BLOCK_BYTES):
            hashed.update(block)
        return [self.name, self.size_bytes, hex_digest(hashed)]

    @property
    def is_empty(self) -> bool:
        """True if the last whole reading met no document, valid or not."""
        return not self.counts.documents and not self.counts.invalid

    @property
    def is_undivided(self) -> bool:
        """True for a text in which the last whole reading did not meet the separator that was given."""
        counts, is_given = self.counts, self.settings["separator"] is not None
        others = counts.empty + counts.blank
        return self.kind == "text" and is_given and (counts.documents + counts.invalid, others) == (1, 0)

    def documents(self, advance: Advance = lambda *_: None) -> Iterator[str]:
        """Read the documents that are more than white space once. advance: gets the number of bytes that were read."""
        blank = 0
        for text, _ in self.pages(advance):
            if text.isspace():
                blank += 1
            else:
                yield text
        self.counts.blank, self.counts.documents = blank, self.counts.documents - blank
        if blank and not self.counts.documents and not self._may_be_empty:
            raise UserError(f"{self.name}: no documents, every one is empty or white space alone")

    def pages(self, advance: Advance = lambda *_: None) -> Iterator[tuple[str, str | None]]:
        """The documents that are not empty, each with its address, or None."""
        counts = ReadingCounts()
        if not self.size_bytes:
            counts.empty = 1
            self.counts = counts
            return
        with self._opened() as handle:
            position = 0
            for item in self._items(handle, counts):
                # Compressed bytes are what has a known sum.
                reached = handle.tell() if counts.position is None else counts.position
                advance(reached - position)
                position = reached
                if isinstance(item, Invalid):
                    counts.invalid += 1
                    counts.first_invalid = counts.first_invalid or item
                    continue
                text, url = item if isinstance(item, Located) else (item, None)
                if not text:
                    counts.empty += 1
                    continue
                counts.documents += 1
                counts.located += url is not None
                if self.kind in ROW_FORMATS:
                    counts.lines += text.count("\n")
                    counts.crlf_lines += text.count("\r\n")
                if counts.documents == 1 and self.kind == "text":
                    second = text.find("\n") + 1
                    has_lines = second > 0 and text[:2] == text[second : second + 2] == '{"'
                    counts.has_json_lines = has_lines or _JSON_LIST.match(text) is not None
                if self._skip_invalid or not counts.invalid:  # else it is read on only to be counted
                    yield text, url
            advance(self.size_bytes - position)
        self._check(counts)
        self.counts = counts

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self._copy is not None:
            self._copy.seek(0)
            yield self._copy
            return
        with open_source(self._path) as handle:
            if not self._is_known:
                with decompressed(handle, self._compression, self.name) as content:
                    head = content.read(8192)
                handle.seek(0)
                if not looks_like_text(head):
                    accepted = (
                        f"text, {_KNOWN_SUFFIXES}, each also {', '.join(COMPRESSIONS)}, or - for the standard input"
                    )
                    raise UserError(f"{self.name}: unknown kind of file {self._path.suffix!r}; expected {accepted}")
            yield handle

    def _items(self, handle: BinaryIO, counts: ReadingCounts) -> Iterator[Item | Located]:
        with decompressed(handle, self._compression, self.name) as content:
            if self.kind == "text":
                yield from read_text_documents(content, self.name, self._separator, counts)
            elif self.kind == "jsonl":
                yield from read_json_lines(content, self.name, self._field, counts, self._url_field, self._hint)
            elif self.kind == "csv":
                delimiter = "\t" if ".tsv" in self._path.name.lower() else ","
                yield from read_csv(content, self.name, self._field, delimiter, counts, self._url_field, self._hint)
            elif self.kind == "html":
                yield from read_html(content, self.name)
            elif self.kind == "warc":
                yield from read_warc(content, self.name)
            elif self._compression:  # its end has to be read first
                with _copy_of(iter(partial(content.read, BLOCK_BYTES), b"")) as copy:
                    yield from read_parquet(
                        copy, self.name, self._field, counts, self.size_bytes, self._url_field, self._hint
                    )
            else:
                yield from read_parquet(
                    handle, self.name, self._field, counts, self.size_bytes, self._url_field, self._hint
                )

    def _check(self, counts: ReadingCounts) -> None:
        """`UserError` for a reading with invalid documents that are not to be skipped, or without any document."""
        first = counts.first_invalid
        if first and not self._skip_invalid:
            total = counts.invalid + counts.documents + counts.empty
            others = f"; {counts.invalid:,} of {total:,} documents are invalid" if counts.invalid > 1 else ""
            raise UserError(f"{first.place}: {first.reason}{others}")
        if not counts.documents and not self._may_be_empty:
            reason = (
                f"the first of {counts.invalid:,} in {first.place}: {first.reason}" if first else "every one is empty"
            )
            raise UserError(f"{self.name}: no documents, {reason}")


def size_and_time(path: Path) -> tuple[int, int]:
    """The size of a file in bytes, and when it was changed last in nanoseconds."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def is_data_set(path: str | Path) -> bool:
    """Return True for the name of a data set of Hugging Face, and for a folder that `save_to_disk` wrote."""
    if str(path).startswith(HUGGING_FACE):
        return True
    return any(all((Path(path) / name).is_file() for name in names) for names in _SAVED_DATA_SETS)


def expand_inputs(inputs: Sequence[str]) -> list[str]:
    """Replace folders by the files of known formats in them, and patterns by what they match, in the order of names.

    `UserError` for one without any file. What a folder holds besides is counted in a note.
    """
    paths: list[str] = []
    for given in inputs:
        if given == STDIN or is_data_set(given):
            paths.append(given)
        elif Path(given).is_dir():
            paths += _files_of_folder(Path(given))
        elif glob.has_magic(given) and not Path(given).exists():
            matches = sorted(match for match in glob.glob(given, recursive=True) if Path(match).is_file())  # noqa: PTH207 - absolute patterns too
            if not matches:
                raise UserError(f"{given}: no file has such a name")
            paths += matches
        else:
            paths.append(given)
    return paths


def _files_of_folder(folder: Path) -> list[str]:
    """The files of known formats in a folder and the folders in it; those whose names begin with a dot are hidden."""
    known: list[str] = []
    others: Counter[str] = Counter()
    for path in sorted(folder.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts) or not path.is_file():
            continue
        if path.name == REPORT:
            continue
        name, compression = format_of(path)
        suffix = (path.with_suffix("") if compression else path).suffix.lower()
        if suffix and (name or suffix in CODE_SUFFIXES):
            known.append(str(path))
        else:
            others[path.suffix or path.name] += 1
    if not known:
        raise UserError(
            f"{folder}: a folder without text; expected files of {_KNOWN_SUFFIXES}, code, or a pattern: {folder}/*.log"
        )
    if others:
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(5))
        unread = "1 file of another kind is" if others.total() == 1 else f"{others.total():,} files of other kinds are"
        note(f"{folder}: {unread} not read ({kinds})")
    return known


def open_sources(
    stack: ExitStack,
    inputs: Sequence[str],
    field: str | None = None,
    separator: str | None = None,
    skip_invalid: bool = False,
    url_field: str | None = None,
    may_repeat: bool = False,
) -> list[Source]:
    """Open files, folders and patterns in order; the stack closes them. The other arguments: as of `Source`.

    A file that several of them name is read once, which is noted, unless it `may_repeat`. `UserError` for no inputs,
    and for a `field` or `separator` that none of them has a use for.
    """
    if not inputs:
        raise UserError("no files given; expected files or folders of text, or - for the standard input")
    if list(inputs).count(STDIN) > 1:
        raise UserError("-: the standard input can be read only once")
    paths = expand_inputs(inputs) if may_repeat else _each_once(expand_inputs(inputs))
    name = "text" if field is None else field
    sources = [
        Source(path, name, separator, skip_invalid, may_be_empty=path not in inputs, url_field=url_field)
        for path in paths
    ]
    kinds = {source.kind for source in sources}
    if separator is not None and "text" not in kinds:
        raise UserError(f"only text files are split, {inputs[0]} has rows", field="separator", value=repr(separator))
    if field is not None and not kinds & set(ROW_FORMATS):
        accepted = "a file of rows (.jsonl, .csv, .parquet)"
        raise UserError(f"{inputs[0]} has no fields", field="field", value=field, accepted=accepted)
    return [stack.enter_context(source) for source in sources]


def _each_once(paths: Sequence[str]) -> list[str]:
    """The paths without those of files that came before under any name; notes on these."""
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(os.path.realpath(path) if Path(path).is_file() else path, path)
    kept = list(found.values())
    if len(kept) < len(paths):
        others = Counter(paths)
        others.subtract(kept)
        first = next(iter(+others))
        note(f"{counted(len(paths) - len(kept), 'repeated file')} left out, among them {first}")
    return kept


def describe_reading(sources: Iterable[Source]) -> list[str]:
    """Describe what the last reading of each source met besides documents: one line for each kind, with counts."""
    lines = []
    read = list(sources)
    if skipped := [source for source in read if source.counts.invalid]:
        first, count = skipped[0].counts.first_invalid, sum(source.counts.invalid for source in skipped)
        assert first is not None
        lines.append(f"{counted(count, 'invalid document')} left out, the first in {first.place}: {first.reason}")
    # A text that ends with a separator has an empty document behind it, which is none.
    if empty := [source for source in read if source.counts.empty and (source.kind != "text" or source.is_empty)]:
        count = sum(source.counts.empty for source in empty)
        lines.append(f"{counted(count, 'empty document')} left out, the first in {empty[0].name}")
    if blank := [source for source in read if source.counts.blank]:
        what = counted(sum(source.counts.blank for source in blank), "document")
        lines.append(f"{what} of white space alone left out, the first in {blank[0].name}")
    if marked := [source.name for source in read if source.counts.has_byte_order_mark]:
        lines.append(f"{_first_of(marked)}: begins with a byte order mark, which is dropped")
    windows = [source for source in read if source.counts.crlf_lines]
    for of_kind, what in (
        ([source for source in windows if source.kind not in ROW_FORMATS], "lines"),
        ([source for source in windows if source.kind in ROW_FORMATS], "lines within texts"),
    ):
        if of_kind:
            ends, of = (sum(getattr(source.counts, name) for source in of_kind) for name in ("crlf_lines", "lines"))
            names = _first_of([source.name for source in of_kind])
            lines.append(f"{names}: {ends:,} of {of:,} {what} end in CRLF, which stays as it is")
    if rows := [source.name for source in read if source.counts.has_json_lines]:
        lines.append(
            f"{_first_of(rows)}: JSON, read as text; rows are read from a file named .jsonl, one object a line"
        )
    if undivided := [source for source in read if source.is_undivided]:
        names = _first_of([source.name for source in undivided])
        lines.append(f"the separator '{undivided[0].settings['separator']}' divides nothing in {names}")
    return lines


def _first_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {counted(len(names) - 1, 'other file')}"


def unescape(separator: str) -> str:
    r"""Read `\n`, `\r`, `\t`, `\f`, `\0`, `\x1e` and `\\` as typed in a shell; the rest stays as it is."""

    def character(match: re.Match[str]) -> str:
        name = match[1]
        return chr(int(name[1:], 16)) if len(name) > 1 else _ESCAPED[name]

    return _ESCAPE.sub(character, separator)


def open_source(path: Path) -> BinaryIO:
    """Open a file or a named pipe; `UserError` if that is not possible."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected files (for example {path}/*.txt)")
    return open_file(path, pipes=True)


def _copy_of(blocks: Iterable[bytes]) -> BinaryIO:
    """Copy blocks into a temporary file that has no name, so that even a killed process leaves nothing."""
    folder = Path(tempfile.gettempdir())
    with errors_naming(folder):  # there may be less room than beside the data
        copy = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by the caller
    for block in blocks:
        with errors_naming(folder):
            copy.write(block)
            copy.flush()
    return copy


def _data_set_lines(name: str, field: str, url_field: str | None) -> Iterator[bytes]:
    """Read the rows of a data set as JSON lines with text and address alone, block by block."""
    buffer = io.BytesIO()
    for row in _rows_of_data_set(name):
        top = column_of(list(row), field)
        of_url = None if url_field is None else column_of(list(row), url_field)
        kept = row if top is None else {one: row[one] for one in (top, of_url) if one is not None}
        buffer.write(json.dumps(kept, ensure_ascii=False, default=str).encode(errors="surrogatepass") + b"\n")
        if buffer.tell() >= BLOCK_BYTES:
            yield buffer.getvalue()
            buffer = io.BytesIO()
    yield buffer.getvalue()


def _rows_of_data_set(name: str) -> Iterator[dict[str, Any]]:
    try:
        yield from _data_set(name)
    except UserError:
        raise
    except Exception as error:  # the library has no common one
        raise UserError(f"{name}: cannot be read ({one_line_of(error)})") from None


def _data_set(name: str) -> Iterable[dict[str, Any]]:
    """Open a data set: from disk, streaming from the hub, or without a network from the copy of an earlier download."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"{name}: reading a data set needs datasets: pip install 'linnet[data]'") from None
    place, *parts = name.removeprefix(HUGGING_FACE).split(":")
    if not place or len(parts) > 2:
        raise UserError(f"{name}: not the name of a data set; expected hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    config, split = (parts[0] if len(parts) > 1 else None), (parts[-1] if parts else "train")
    found: Iterable[dict[str, Any]]
    if Path(place).is_dir() and is_data_set(place):
        saved = datasets.load_from_disk(place)
        found = _split_of(saved, split, name) if isinstance(saved, datasets.DatasetDict) else saved
    else:
        found = datasets.load_dataset(place, config, split=split, streaming=True)  # it falls back to its copy
    return found


def _split_of(saved: Any, split: str, name: str) -> Any:
    if split not in saved:
        raise UserError(f"{name}: no split {split!r}; it has {', '.join(saved)}")
    return saved[split]
