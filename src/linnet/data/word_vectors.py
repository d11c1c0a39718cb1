"""Files of static word vectors (word2vec, GloVe), and the vectors of a tokenizer's tokens in them.

There are three formats. Text as GloVe writes it: each line is a word and its numbers, separated by single spaces. Text
as word2vec writes it: the same after a line `count width`. word2vec's binary: that line, then for each word its bytes,
a space, `width` little-endian float32, and perhaps a newline. The format is recognized by the beginning of the file;
only compression is recognized by the name, `.gz`.

Legend: `E` width of a vector, `F` tokens that are found.
"""

import gzip
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Collection, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import takewhile
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.core.files import open_file
from linnet.data.tokenizer import Tokenizer
from linnet.present.progress import progress

MAX_LINE_BYTES = 1 << 20
"""Longest line of a word and its numbers; in a binary file, the longest word."""

Vector = NDArray[np.float32]
_Placed = Iterator[tuple[str, bytes, Vector | None]]
"""The place of a word in the file, the word, and its numbers; None for a word that was not asked for."""

_BLOCK_BYTES = 1 << 20
_HEADER = re.compile(rb"([0-9]{1,18}) ([0-9]{1,9})\s*")
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")


def read_vectors(path: str | Path, words: Collection[str], width: int) -> dict[str, Vector]:
    """The vectors `[E]` of these words, as far as the file has them; the first one of a word that is there twice.

    A word may contain spaces (some of GloVe's do). The numbers of other words are counted, not read. `UserError` names
    file, line or word, what was found, and what is expected: vectors of `width` finite numbers, as many as the header
    says.
    """
    asked, vectors, read = {word.encode() for word in words}, dict[str, Vector](), 0
    with open_file(path) as file, progress("read vectors", Path(path).stat().st_size) as advance:
        handle = _content(file, path)
        with _whole_gzip(path):
            for number, (place, word, vector) in enumerate(_words(handle, str(path), asked, width)):
                if vector is not None and (name := word.decode()) not in vectors:
                    _check_finite(vector, place)
                    vectors[name] = vector
                if number % 1000 == 0:
                    advance(file.tell() - read)
                    read = file.tell()
    return vectors


class _EveryWord(Container[bytes]):
    """Contains whatever it is asked for."""

    def __contains__(self, word: object) -> bool:
        return True


def read_all_vectors(path: str | Path, most_words: int | None = None) -> tuple[list[str], NDArray[np.float32]]:
    """All words of a file, or the first `most_words`, and their vectors `[W, E]`; the first of a word that is there
    twice.

    The width is that of the header, or else of the first line. `UserError` as from `read_vectors`.
    """
    vectors = dict[str, Vector]()
    with open_file(path) as file, progress("read vectors", Path(path).stat().st_size) as advance:
        handle = _content(file, path)
        read = 0
        with _whole_gzip(path):
            width = _width_of(path)
            for place, word, vector in _words(handle, str(path), _EveryWord(), width):
                assert vector is not None
                _check_finite(vector, place)
                vectors.setdefault(word.decode(errors="replace"), vector)
                if len(vectors) % 1000 == 0:
                    advance(file.tell() - read)
                    read = file.tell()
                if len(vectors) == most_words:
                    break
    return list(vectors), np.stack(list(vectors.values()))


def _width_of(path: str | Path) -> int:
    """The width that the first line of a file tells: that of the header, or the numbers behind the first word."""
    with open_file(path) as file:
        handle = _content(file, path)
        first = _line(handle, f"{path}, line 1").removeprefix(BOM_UTF8).rstrip()
    if header := _HEADER.fullmatch(first):
        return int(header[2])
    numbers = list(takewhile(_is_number, reversed(first.split(b" ")[1:])))
    return max(1, len(numbers))


def _content(file: BufferedReader, path: str | Path) -> BufferedReader:
    return cast(BufferedReader, gzip.GzipFile(fileobj=file)) if str(path).endswith(".gz") else file


@contextmanager
def _whole_gzip(path: str | Path) -> Iterator[None]:
    """`UserError` for a compressed file that is damaged or cut off."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: not a whole gzip file ({error})") from None


def _check_finite(vector: Vector, place: str) -> None:
    infinite = np.flatnonzero(~np.isfinite(vector))
    if len(infinite):
        value = f"number {infinite[0] + 1} is {vector[infinite[0]]}"
        raise UserError(f"{place}: {value}; expected finite numbers of float32")


def _words(handle: BufferedReader, name: str, asked: Container[bytes], width: int) -> _Placed:
    """Recognize the format of a file by its beginning, and read its words."""
    first = _line(handle, f"{name}, line 1").removeprefix(BOM_UTF8)
    header = _HEADER.fullmatch(first)
    if header is None:
        return _of_text(handle, name, asked, width, first)
    count = int(header[1])
    _check_width(int(header[2]), width, f"{name}, line 1: a header of {count:,} words with")
    if _is_binary(handle.peek(_BLOCK_BYTES), name, width):
        return _of_binary(handle, name, asked, width, count)
    return _of_text(handle, name, asked, width, None, count)


def _line(handle: BufferedReader, place: str) -> bytes:
    line = handle.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{place}: more than {MAX_LINE_BYTES:,} bytes; expected a word and its numbers")
    return line


def _check_width(found: int, width: int, what: str) -> None:
    if found != width:
        raise UserError(
            f"{what} {found} numbers; expected {width}, the width of the model's token embedding"
            f" (`set` model.embedding.width={found} makes it that of the file)"
        )


def _is_binary(beginning: bytes, name: str, width: int) -> bool:
    """Whether what follows the header is binary: no line of a word and its numbers, and bytes that no text has.

    In few bytes these may be missing; then the name decides, `.bin`. Of a long line there is only the beginning.
    """
    line, newline, _ = beginning.partition(b"\n")
    fields = line.split()[1:] if newline else line.split()[1:-1]
    if fields and (len(fields) == width or not newline) and all(map(_is_number, fields)):
        return False
    vector = beginning.partition(b" ")[2][: 4 * width]
    try:
        line.decode()
        is_utf8 = True
    except UnicodeDecodeError as error:  # a beginning may end within a character
        is_utf8 = error.end == len(line) and error.reason == "unexpected end of data"
    return name.removesuffix(".gz").endswith(".bin") or bool(_NO_TEXT.search(vector)) or not is_utf8


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _of_text(
    handle: BufferedReader,
    name: str,
    asked: Container[bytes],
    width: int,
    first: bytes | None,
    count: int | None = None,
) -> _Placed:
    """Line by line. first: the line that was read already; None: a header of `count` words stood there."""
    number, words = 1, 0
    line = _line(handle, f"{name}, line 2") if first is None else first
    number += first is None
    while line:
        place = f"{name}, line {number}"
        line = line.rstrip()
        if line:
            words += 1
            _check_count(words, count, place)
            word, numbers = _split(line, width, place, is_first=first is not None and words == 1)
            vector = None
            if word in asked:
                fields = numbers.split(b" ")
                try:
                    with np.errstate(over="ignore"):  # reported as not finite
                        vector = np.array([float(field) for field in fields], dtype=np.float32)
                except ValueError:
                    wrong = next(field for field in fields if not _is_number(field))
                    raise UserError(f"{place}: {_shown(wrong)}: expected a number") from None
            yield place, word, vector
        number += 1
        line = _line(handle, f"{name}, line {number}")
    if count is not None and words < count:
        raise UserError(f"{name}: ends after {words:,} words; expected {count:,}, as its header says")
    if not words:
        raise UserError(f"{name}: no words; expected lines of a word and its numbers")


def _split(line: bytes, width: int, place: str, is_first: bool) -> tuple[bytes, bytes]:
    """A word and its numbers. is_first: the first line of a file without a header, which decides the width."""
    spaces = line.count(b" ")
    if spaces == width:
        word, _, numbers = line.partition(b" ")
        return word, numbers
    if is_first:
        if not spaces or not all(map(_is_number, line.split(b" ")[1:])):
            raise UserError(
                f"{place}: {_shown(line)}: expected a word and {width} numbers, with single spaces between,"
                " or word2vec's header (the name of a file that is compressed ends in .gz)"
            )
        _check_width(spaces, width, f"{place}: a word with")
    word, *fields = line.rsplit(b" ", width)
    if spaces < width or _is_number(word.rpartition(b" ")[2]):
        raise UserError(f"{place}: a word with {spaces} numbers; expected {width}, as in the first line")
    return word, b" ".join(fields)


def _shown(field: bytes) -> str:
    text = field.decode(errors="replace")
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _of_binary(handle: BufferedReader, name: str, asked: Container[bytes], width: int, count: int) -> _Placed:
    """Word by word, out of blocks."""
    size, buffer, at = 4 * width, b"", 0
    for number in range(1, count + 1):
        place = f"{name}, word {number:,}"
        while (space := buffer.find(b" ", at)) < 0 or len(buffer) < space + 1 + size:
            if space < 0 and len(buffer) - at > MAX_LINE_BYTES:
                raise UserError(f"{place}: no space in {MAX_LINE_BYTES:,} bytes; expected a word, a space, numbers")
            block = handle.read(_BLOCK_BYTES)
            if not block:
                raise UserError(f"{place}: the file ends in it; expected {count:,} words, as its header says")
            buffer, at = buffer[at:] + block, 0
        word, end = buffer[at:space].lstrip(b"\n"), space + 1 + size
        yield place, word, np.frombuffer(buffer[space + 1 : end], "<f4").astype(np.float32) if word in asked else None
        at = end
    if (buffer[at:] + handle.read(2)).strip():
        _check_count(count + 1, count, f"{name}, word {count + 1:,}")


def _check_count(words: int, count: int | None, place: str) -> None:
    if count is not None and words > count:
        raise UserError(f"{place}: one word more than the {count:,} that the header says")


@dataclass(frozen=True)
class TokenVectors:
    """The tokens that a file has a word for (`tokens_F`, ascending), and their vectors (`vectors_FE`, float32)."""

    tokens_F: NDArray[np.int64]
    vectors_FE: NDArray[np.float32]


def token_vectors(path: str | Path, tokenizer: Tokenizer, width: int) -> TokenVectors:
    """The vectors of a tokenizer's tokens in a file of word vectors; `UserError` where there are none, or as from
    `read_vectors`.
    """
    spelled = {token: list(words_for(text)) for token, text in enumerate(tokenizer.texts())}
    found = read_vectors(path, {word for words in spelled.values() for word in words}, width)
    chosen = {token: next((word for word in words if word in found), None) for token, words in spelled.items()}
    known = {token: word for token, word in chosen.items() if word is not None}
    if not known:
        raise UserError(
            f"{path}: has a word for none of the tokenizer's {tokenizer.vocab_size:,} tokens; expected word vectors of"
            " the text's language, and a tokenizer with words among its tokens"
        )
    vectors_FE = np.stack([found[word] for word in known.values()])
    if not vectors_FE.any():
        raise UserError(f"{path}: all vectors of the tokens' words are zero; expected vectors with a length")
    return TokenVectors(np.array(list(known)), vectors_FE)


def words_for(text: str | None) -> Iterator[str]:
    """The words that a token's text may be in a file, the nearest first: unchanged, without a leading space, in lower
    case.
    """
    if text is None:
        return
    bare = text.removeprefix(" ")
    yield from (word for word in dict.fromkeys((text, bare, bare.lower())) if word)
