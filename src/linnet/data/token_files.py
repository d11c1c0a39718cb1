"""Files of token ids as other programs write them: read as documents; and written as datatrove reads them.

Formats, all little-endian:

    FILE.bin                 nanoGPT: ids and nothing else, uint16 or uint32
    FILE.bin                 llm.c: 256 int32 (magic, version, count of ids, zeros), then ids (`_LLM_C`)
    FILE.bin, FILE.idx       Megatron: ids; the type of ids, the length of each sequence, the sequences of each document
    FILE.ds, FILE.ds.index   datatrove: ids, uint16 or uint32; where each document ends (uint64)
    FILE.ds.metadata         three lines of text: tokenizer|bytes of an id, the count of ids, the count for readers

End tokens divide documents in all of them, and so does an index. Sources: Megatron-LM `indexed_dataset.py`, llm.c
`dev/data/data_common.py`, nanoGPT `data/openwebtext/prepare.py`, datatrove `pipeline/tokens/tokenizer.py`.
"""

import glob
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.core.atomic import atomic_directory
from linnet.core.checksum import MANIFEST
from linnet.core.errors import UserError, note
from linnet.core.files import read_text, write_text
from linnet.data.readers import format_of
from linnet.data.shards import token_dtype
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import TOKENIZER
from linnet.present.numbers import metric
from linnet.present.progress import progress

SUFFIXES = (".bin", ".idx", ".ds")
CHUNK_TOKENS = 1 << 20

_LLM_C = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""By the magic number of llm.c's headers: version and type of ids (of GPT-2's tokenizer, of Llama 3's)."""

_LLM_C_BYTES = 4 * 256
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_HEADER = struct.Struct("<9sQBQQ")
_MEGATRON_TYPES = {1: "uint8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


@dataclass(frozen=True)
class TokenFile:
    """A file of ids, mapped into memory. ends: where documents end, ascending, the end of the file the last; or None.

    kind: `nanogpt`, `llm.c`, `megatron` or `datatrove`.
    """

    path: Path
    kind: str
    tokens: NDArray[Any]
    ends: NDArray[np.int64] | None = None

    def spans(self, end_id: int, vocab_size: int, advance: Callable[[int], None]) -> Iterator[tuple[int, int]]:
        """Yield where each document begins and ends, without end tokens; empty ones are left out.

        advance: gets the numbers of tokens that were read. `UserError` for an id that is not below `vocab_size`.
        """
        start, ends = 0, np.empty(0, np.int64) if self.ends is None else self.ends
        for first in range(0, len(self.tokens), CHUNK_TOKENS):
            part = self.tokens[first : first + CHUNK_TOKENS]
            if int(part.max()) >= vocab_size or int(part.min()) < 0:
                wrong = int(np.flatnonzero((part < 0) | (part >= vocab_size))[0])
                raise UserError(
                    f"{self.path}: token {first + wrong:,} is {int(part[wrong]):,}, and the tokenizer has"
                    f" {vocab_size:,} tokens: another tokenizer made the file"
                )
            marks = first + np.flatnonzero(part == end_id)
            bounds = ends[np.searchsorted(ends, first, "right") : np.searchsorted(ends, first + len(part), "right")]
            stops, following = np.concatenate([marks, bounds]), np.concatenate([marks + 1, bounds])
            order = np.lexsort((following, stops))
            for stop, next_start in zip(stops[order].tolist(), following[order].tolist(), strict=True):
                if stop > start:
                    yield start, stop
                start = next_start
            advance(len(part))
        if start < len(self.tokens):
            yield start, len(self.tokens)


def is_token_file(name: str) -> bool:
    """True for a path with the suffix of a token file."""
    return Path(name).suffix in SUFFIXES


def expand_token_files(inputs: Sequence[str]) -> list[str]:
    """Replace folders that hold token files and no text, and patterns that match token files, by those files.

    Others stay as they are. What else such a folder holds is not read; a .idx goes with the .bin beside it.
    """
    paths: list[str] = []
    for given in inputs:
        found: list[Path] = []
        if Path(given).is_dir() and not (Path(given) / MANIFEST).is_file():
            every = [path for path in sorted(Path(given).rglob("*")) if path.is_file()]
            found = [] if any(format_of(path)[0] for path in every) else every
        elif glob.has_magic(given) and not Path(given).exists():
            found = [Path(match) for match in sorted(glob.glob(given, recursive=True))]  # noqa: PTH207 - absolute patterns too
        tokens = [str(path) for path in found if path.suffix in (".bin", ".ds")]
        paths += tokens or [given]
    return paths


def open_token_file(path: Path, vocab_size: int) -> TokenFile:
    """Map a token file; a .idx stands for the .bin beside it. `UserError` for one that is truncated or not valid.

    vocab_size: of the tokenizer, which says the type of ids where the file does not.
    """
    if path.suffix == ".idx":
        path = path.with_suffix(".bin")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if not path.stat().st_size:
        raise UserError(f"{path}: empty; expected token ids")
    if path.suffix == ".ds":
        return _open_datatrove(path, vocab_size)
    index = path.with_suffix(".idx")
    if index.is_file():
        return _open_megatron(path, index)
    with path.open("rb") as handle:
        head = np.frombuffer(handle.read(12), "<i4" if path.stat().st_size >= 12 else "u1")
    version, dtype = _LLM_C.get(int(head[0]), (None, ""))
    if version is not None and head[1] == version:
        return _open_llm_c(path, int(head[2]), dtype)
    return TokenFile(path, "nanogpt", _mapped(path, _plain_type(path, vocab_size)))


def _mapped(path: Path, dtype: str, offset: int = 0) -> NDArray[Any]:
    """The numbers of a file; `UserError` for a size that is no multiple of theirs."""
    number, size_bytes = np.dtype(dtype).newbyteorder("<"), path.stat().st_size - offset
    if size_bytes % number.itemsize:
        raise UserError(f"{path}: {size_bytes:,} bytes of {dtype}: no multiple of {number.itemsize}; it is truncated")
    return np.memmap(path, number, "r", offset=offset) if size_bytes else np.empty(0, number)


def _plain_type(path: Path, vocab_size: int) -> str:
    """The type of ids without a header: what the vocabulary needs, or uint32 if every second uint16 is 0."""
    dtype = token_dtype(vocab_size)
    if dtype == "uint16" and path.stat().st_size % 4 == 0:
        with path.open("rb") as handle:
            pairs = np.frombuffer(handle.read(4 * CHUNK_TOKENS), "<u2").reshape(-1, 2)
        if len(pairs) > 8 and not pairs[:, 1].any() and pairs[:, 0].any():
            note(f"{path}: every second uint16 is 0: it is read as uint32")
            return "uint32"
    return dtype


def _open_llm_c(path: Path, count: int, dtype: str) -> TokenFile:
    expected_bytes = _LLM_C_BYTES + count * np.dtype(dtype).itemsize
    size_bytes = path.stat().st_size
    if size_bytes != expected_bytes:
        raise UserError(
            f"{path}: {size_bytes:,} bytes; its header says {count:,} tokens of {dtype}, {expected_bytes:,} bytes"
        )
    return TokenFile(path, "llm.c", _mapped(path, dtype, _LLM_C_BYTES))


def _open_megatron(path: Path, index: Path) -> TokenFile:
    """A .bin and its .idx, whose sequences lie one after the other; each document is one or several of them."""
    with index.open("rb") as handle:
        head = handle.read(_MEGATRON_HEADER.size)
    if len(head) < _MEGATRON_HEADER.size or not head.startswith(_MEGATRON_MAGIC):
        raise UserError(f"{index}: not an index of Megatron; expected {_MEGATRON_MAGIC[:7].decode()} at its start")
    _, version, code, sequences, bounds = _MEGATRON_HEADER.unpack(head)
    if version != 1 or code not in _MEGATRON_TYPES:
        accepted = "version 1 and ids of " + ", ".join(_MEGATRON_TYPES.values())
        raise UserError(f"{index}: version {version}, type {code}; expected {accepted}")
    expected_bytes, size_bytes = _MEGATRON_HEADER.size + 12 * sequences + 8 * bounds, index.stat().st_size
    if size_bytes != expected_bytes:
        has = f"{sequences:,} sequences and {bounds:,} bounds of documents, {expected_bytes:,} bytes"
        raise UserError(f"{index}: {size_bytes:,} bytes; its header says {has} (one of several modes is not read)")
    with index.open("rb") as handle:
        handle.seek(_MEGATRON_HEADER.size)
        lengths = np.frombuffer(handle.read(4 * sequences), "<i4").astype(np.int64)
        places = np.frombuffer(handle.read(8 * sequences), "<i8")
        of_documents = np.frombuffer(handle.read(8 * bounds), "<i8")
    tokens, ends = _mapped(path, _MEGATRON_TYPES[code]), np.append(0, np.cumsum(lengths))
    if (lengths < 0).any() or not np.array_equal(places, ends[:-1] * tokens.itemsize):
        raise UserError(f"{index}: its sequences do not lie one after the other")
    if ends[-1] != len(tokens):
        raise UserError(f"{path}: {len(tokens):,} tokens; {index.name} says {ends[-1]:,}")
    if not bounds or of_documents[-1] != sequences or of_documents[0] or (np.diff(of_documents) < 0).any():
        raise UserError(f"{index}: the bounds of its documents do not ascend from 0 to its {sequences:,} sequences")
    return TokenFile(path, "megatron", tokens, ends[of_documents[1:]])


def _open_datatrove(path: Path, vocab_size: int) -> TokenFile:
    """A .ds; its index says the type of ids, or else its metadata, or else the vocabulary."""
    index, metadata = (path.with_name(path.name + suffix) for suffix in (".index", ".metadata"))
    if path.with_name(path.name + ".loss").is_file():
        note(f"{path}.loss: is not read: all tokens count in the loss")
    size_bytes, ends = path.stat().st_size, None
    dtype, count = token_dtype(vocab_size), None
    if metadata.is_file():
        lines = read_text(metadata).splitlines()
        width = lines[0].rpartition("|")[2] if lines else ""
        if width not in ("2", "4") or len(lines) < 2 or not lines[1].isdecimal():
            raise UserError(f"{metadata}: expected the lines TOKENIZER|2 (or 4) and the number of tokens")
        dtype, count = "uint16" if width == "2" else "uint32", int(lines[1])
    if index.is_file():
        ends = _mapped(index, "uint64").astype(np.int64)
        if not len(ends) or (np.diff(ends, prepend=0) < 0).any():
            raise UserError(f"{index}: the ends of documents do not ascend")
        count = int(ends[-1])
        if count and size_bytes in (2 * count, 4 * count):
            dtype = "uint16" if size_bytes == 2 * count else "uint32"
    tokens = _mapped(path, dtype)
    if count is not None and count != len(tokens):
        told = index if index.is_file() else metadata
        raise UserError(f"{path}: {size_bytes:,} bytes; {told.name} says {count:,} tokens: one of the two is truncated")
    return TokenFile(path, "datatrove", tokens, ends)


def write_datatrove(data: TokenData, out: Path) -> dict[str, int]:
    """Write a data folder as a folder of datatrove's files, `train.ds` and `validation.ds`; returns their tokens.

    An end token ends each document there. The tokenizer is written beside them. `UserError` for a folder of rows.
    """
    if data.is_rows:
        raise UserError(f"{data.folder}: holds rows with targets of their own; expected text")
    width = np.dtype(token_dtype(data.manifest.tokenizer.vocab_size)).itemsize
    counts: dict[str, int] = {name: len(data.split(name)) - 1 for name in data.manifest.splits}
    with atomic_directory(out) as folder, progress("writing", sum(counts.values()), "tokens") as advance:
        data.tokenizer.save(folder / TOKENIZER)
        for name in data.manifest.splits:
            sequence, count = data.split(name), counts[name]
            with (folder / f"{name}.ds").open("wb") as handle:
                # The end token of the first document is left out; that behind the last one ends it.
                for first in range(0, count, CHUNK_TOKENS):
                    part = sequence.read(1 + first, min(CHUNK_TOKENS, count - first))
                    handle.write(part.astype(f"<u{width}").tobytes())
                    advance(len(part))
            (folder / f"{name}.ds.index").write_bytes(sequence.document_bounds[1:].astype("<u8").tobytes())
            write_text(folder / f"{name}.ds.metadata", f"{TOKENIZER}|{width}\n{count}\n{metric(count)}T")
    return counts
