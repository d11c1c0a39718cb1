"""Tokenizers as their own libraries read them, and texts on which an import is held to them."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError, first_line
from linnet.core.files import read_bytes
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_report import HARD_TEXTS, Difference, first_difference
from linnet.interop.tiktoken import find_encoding, read_ranks
from linnet.interop.tokenizer_folder import PIECES
from linnet.interop.tokenizer_import import SourceKind, find_source

PROOF_TEXTS = {
    "code": "def f(x: int) -> str:\n    if x >= 10**3:\n\t\treturn f'{x!r}'  # a comment\n\n\n    return ''\n",
    "contractions": "I'm sure it's DON'T, we'LL, they'Ve, o'clock 'tis ''d 'ſ",
    "numbers": "7 42 123 1234 12345 1,234.5e-10 0x1F ½ ² Ⅷ ١٢٣٤٥",
    "spaces and line ends": "a  b   c    d\n \n  \n\t\n x\r\n\r\n  y \u3000z\u00a0 \u2003",
    "runs": "aaaaaaaaaaaaa !!!!!!!! ======== -------- 000000000 ......... hahahahahaha",
    "letters and accents": "naïve CAFÉ Zoë Việt ﬁancé e\u0301e\u0301 ÅÅ İstanbul straße ΑΒΓας ǅ",
    "bytes as characters": "".join(map(chr, range(1, 256))),
}
"""Texts beside `HARD_TEXTS`, by what they are about."""

MOST_DIFFERENCES = 5
"""Texts with other ids that are shown."""

_RANDOM_TEXTS, _PIECES = 40, 4000


@dataclass(frozen=True)
class LibraryReader:
    """A tokenizer read by its own library. name: that library with its version. encode: text to ids."""

    name: str
    encode: Callable[[str], list[int]]


@dataclass(frozen=True)
class Proof:
    """A tokenizer held to another reader.

    by: the library; None: it is not installed (`missing` says so), and nothing was compared. texts: how many were
    compared. differing: how many of them have other ids. differences: the first of these.
    """

    by: str | None
    texts: int
    differing: int = 0
    differences: tuple[Difference, ...] = ()
    missing: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {**asdict(self), "differences": [difference._asdict() for difference in self.differences]}


def open_reader(source: str | Path, pattern: str | None = None) -> LibraryReader:
    """Read a tokenizer by its own library, in which the names of special tokens in a text are ordinary text.

    pattern: of tiktoken's ranks. `UserError` for a source that is none, and where the library is missing: it names it.
    """
    kind, file = find_source(source)
    if file.name in PIECES and kind == "Transformers folder":  # Transformers 5 has another reading of such a model
        kind = "SentencePiece model"
    return _READERS[kind](Path(source), file, pattern)


def prove(tokenizer: Tokenizer, source: str | Path, pattern: str | None = None) -> Proof:
    """Compare the ids of an imported tokenizer with those of its source's own library on hard texts."""
    try:
        reader = open_reader(source, pattern)
    except MissingLibraryError as error:
        return Proof(None, 0, missing=str(error))
    return hold_to(reader, tokenizer, proof_texts(tokenizer))


def hold_to(
    reader: LibraryReader, tokenizer: Tokenizer, texts: Iterable[tuple[str, str]], most: int = MOST_DIFFERENCES
) -> Proof:
    """Compare the ids of texts, each with a name, with another reader's. most: how many differences are returned."""
    compared, differing, first = 0, 0, list[Difference]()
    for name, text in texts:
        compared += 1
        if difference := first_difference(tokenizer, name, text, reader.encode(text)):
            differing += 1
            first.extend([difference][: most - len(first)])
    return Proof(reader.name, compared, differing, tuple(first))


def proof_texts(tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """Texts by name: hard ones, the names of special tokens, pieces of the vocabulary, random characters.

    The same ones for the same tokenizer. Pieces are evenly spread over the vocabulary, joined in lists of 100.
    """
    yield from HARD_TEXTS.items()
    yield from PROOF_TEXTS.items()
    names = list(tokenizer.special_ids)[:200]
    yield "its special tokens", "a" + " ".join(names) + "b".join(names)
    pieces = [piece for piece in tokenizer.texts() if piece]
    chosen = pieces[:: max(1, len(pieces) // _PIECES)]
    for first in range(0, len(chosen), 100):
        yield f"pieces {first:,} to {first + 99:,}", "".join(chosen[first : first + 100])
        yield f"pieces {first:,} to {first + 99:,}, apart", " ".join(chosen[first : first + 100])
    source = random.Random(0)
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x4E00, 0x4F00), (0x1F300, 0x1F650), (0x09, 0x0E)]
    for number in range(_RANDOM_TEXTS):
        drawn = (source.choice([ranges[0], source.choice(ranges)]) for _ in range(200))
        yield f"random characters {number}", "".join(chr(source.randrange(*bounds)) for bounds in drawn)


class MissingLibraryError(UserError):
    """The library that reads a kind of tokenizer is not installed."""


def _missing(source: Path, library: str, error: ImportError) -> MissingLibraryError:
    return MissingLibraryError(f"{source}: needs {library}: pip install 'linnet[{library}]' ({error})")


def _by_tokenizers(source: Path, file: Path, pattern: str | None) -> LibraryReader:
    import tokenizers

    try:
        library = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{file}: not a tokenizer that the tokenizers library can read ({error})") from None
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    name = f"tokenizers {tokenizers.__version__}"
    return LibraryReader(name, lambda text: list(library.encode(text, add_special_tokens=False).ids))


def _by_sentencepiece(source: Path, file: Path, pattern: str | None) -> LibraryReader:
    try:
        import sentencepiece
    except ImportError as error:
        raise _missing(source, "sentencepiece", error) from None
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=read_bytes(file))
    except RuntimeError as error:
        raise UserError(f"{file}: not a SentencePiece model ({first_line(error)})") from None
    return LibraryReader(f"sentencepiece {sentencepiece.__version__}", lambda text: list(processor.encode(text)))


def _by_tiktoken(source: Path, file: Path, pattern: str | None) -> LibraryReader:
    try:
        import tiktoken
    except ImportError as error:
        raise _missing(source, "tiktoken", error) from None
    ranks = read_ranks(file)
    found = find_encoding(pattern, ranks, file)
    try:
        library = tiktoken.Encoding(
            "ranks", pat_str=found.pattern, mergeable_ranks=ranks, special_tokens=dict(found.special)
        )
    except ValueError as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"not an expression of tiktoken ({reason})", field="pattern", value=pattern) from None
    return LibraryReader(f"tiktoken {version('tiktoken')}", library.encode_ordinary)


def _by_transformers(source: Path, file: Path, pattern: str | None) -> LibraryReader:
    try:
        import transformers
    except ImportError as error:
        raise _missing(source, "transformers", error) from None
    try:
        library = transformers.AutoTokenizer.from_pretrained(str(source), local_files_only=True)
    except Exception as error:  # of many types
        reason = first_line(error)
        raise UserError(f"{source}: Transformers cannot read its tokenizer ({reason})") from None

    def encode(text: str) -> list[int]:
        found: Any = library.encode(text, add_special_tokens=False, split_special_tokens=True)
        return list(found)

    return LibraryReader(f"transformers {transformers.__version__}", encode)


_READERS: dict[SourceKind, Callable[[Path, Path, str | None], LibraryReader]] = {
    "tokenizer.json": _by_tokenizers,
    "SentencePiece model": _by_sentencepiece,
    "tiktoken ranks": _by_tiktoken,
    "Transformers folder": _by_transformers,
}
