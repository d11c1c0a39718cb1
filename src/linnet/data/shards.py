"""Token shards on disk: written as a stream, read through memory maps.

A data folder holds `manifest.json`, `tokenizer.json`, and per split `train-00000.bin`, ...: little-endian token ids and
nothing else. Every document is stored as the end token and then its tokens, and one end token closes the split: so
each document begins after an end token, and each end is predicted once.
"""

import re
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from linnet.core.errors import UserError
from linnet.core.files import read_json, write_json
from linnet.core.spec import Spec
from linnet.data.split import Split
from linnet.data.tokenizer import TOKENIZER, Tokenizer

VERSION = 1
MANIFEST = "manifest.json"
SHARD_TOKENS = 100_000_000
_OWN_FILE = re.compile(r"manifest\.json|tokenizer\.json|(train|validation)-\d{5,}\.bin")


class ShardInfo(Spec):
    """One file of token ids."""

    file: str = Field(pattern=r"^(train|validation)-\d{5,}\.bin$")
    tokens: int = Field(gt=0)


class SplitInfo(Spec):
    """One side of the data. `tokens` counts the end tokens; `bytes` is the UTF-8 size of the documents' text."""

    tokens: int
    documents: int
    bytes: int
    shards: list[ShardInfo]


class SourceInfo(Spec):
    """One input, as it was named, with what was found in it."""

    file: str
    documents: int
    bytes: int


class TokenizerInfo(Spec):
    """Which tokenizer the ids belong to."""

    kind: str
    vocab_size: int
    hash: str


class Manifest(Spec):
    """What a data folder holds and how it was made."""

    version: Literal[1] = 1
    tokenizer: TokenizerInfo
    dtype: Literal["uint16", "uint32"]
    splits: dict[Split, SplitInfo]
    sources: list[SourceInfo]
    settings: dict[str, Any]

    @field_validator("splits")
    @classmethod
    def _both(cls, splits: dict[Split, SplitInfo]) -> dict[Split, SplitInfo]:
        if len(splits) != 2:
            raise ValueError("expected both train and validation")
        return splits


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smallest unsigned type that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class ShardWriter:
    """Writes one split into files of at most `shard_tokens` tokens. Use as a context manager."""

    def __init__(self, folder: Path, split: Split, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self._folder = folder
        self._split = split
        self._dtype = np.dtype(token_dtype(vocab_size)).newbyteorder("<")
        self._shard_tokens = shard_tokens
        self._handle: BinaryIO | None = None
        self._counts: list[int] = []

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *error: object) -> None:
        if self._handle:
            self._handle.close()

    def write(self, tokens: NDArray[np.int64]) -> None:
        """Append token ids `[N]`."""
        while len(tokens):
            if not self._counts or self._counts[-1] == self._shard_tokens:
                self._open_next()
            assert self._handle is not None
            part = tokens[: self._shard_tokens - self._counts[-1]]
            self._handle.write(part.astype(self._dtype).tobytes())
            self._counts[-1] += len(part)
            tokens = tokens[len(part) :]

    def info(self, documents: int, text_bytes: int) -> SplitInfo:
        """The manifest's entry for what was written."""
        shards = [ShardInfo(file=self._file(n), tokens=count) for n, count in enumerate(self._counts)]
        return SplitInfo(tokens=sum(self._counts), documents=documents, bytes=text_bytes, shards=shards)

    def _open_next(self) -> None:
        if self._handle:
            self._handle.close()
        self._handle = (self._folder / self._file(len(self._counts))).open("wb")
        self._counts.append(0)

    def _file(self, number: int) -> str:
        return f"{self._split}-{number:05d}.bin"


class TokenSequence:
    """The tokens of one split as one long sequence over memory-mapped shards."""

    def __init__(self, name: str, shards: list[NDArray[Any]]) -> None:
        self.name = name
        self._shards = shards
        self._starts = [0, *accumulate(len(shard) for shard in shards)]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Tokens `[count]` from position `start`; they must exist."""
        assert start >= 0 and start + count <= len(self), (start, count, len(self))
        tokens = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            number = bisect_right(self._starts, start + filled) - 1
            offset = start + filled - self._starts[number]
            part = self._shards[number][offset : offset + count - filled]
            tokens[filled : filled + len(part)] = part
            filled += len(part)
        return tokens

    def positions(self, token: int) -> NDArray[np.int64]:
        """Where a token stands, ascending."""
        found = [
            start + np.flatnonzero(shard == token) for start, shard in zip(self._starts, self._shards, strict=False)
        ]
        return np.concatenate(found, dtype=np.int64) if found else np.empty(0, dtype=np.int64)


class TokenData:
    """A data folder, checked: its manifest, its tokenizer, and its splits as token sequences."""

    def __init__(self, folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokenizer = tokenizer

    @classmethod
    def open(cls, folder: str | Path) -> "TokenData":
        """Open a folder made by `linnet prepare`; `UserError` names the file that is missing or does not fit."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        if tokenizer.hash != manifest.tokenizer.hash:
            raise UserError(
                f"{folder / TOKENIZER}: not the tokenizer that the tokens were made with "
                f"(hash {tokenizer.hash[:12]}, {MANIFEST} says {manifest.tokenizer.hash[:12]})"
            )
        for split in manifest.splits.values():
            for shard in split.shards:
                _check_size(folder / shard.file, shard.tokens * np.dtype(manifest.dtype).itemsize)
        return cls(folder, manifest, tokenizer)

    def check_tokenizer(self, path: Path) -> None:
        """`UserError` unless the tokenizer of a model, `path`, is the one that the tokens were made with."""
        own = Tokenizer.load(path).hash
        if own != self.tokenizer.hash:
            raise UserError(
                f"{self.folder}: its tokens were made with another tokenizer (hash {self.tokenizer.hash[:12]}) than"
                f" {path.parent}'s ({own[:12]}); `linnet prepare --tokenizer {path}` takes it"
            )

    def split(self, name: Split) -> TokenSequence:
        """The tokens of `train` or `validation`."""
        info = self.manifest.splits[name]
        dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
        shards = [np.memmap(self.folder / shard.file, dtype=dtype, mode="r") for shard in info.shards]
        return TokenSequence(f"{self.folder}: {name}", list(shards))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a data folder; `UserError` where there is none, or of a version that is not known."""
    path = folder / MANIFEST
    if not path.is_file():
        parts = sorted(str(manifest.parent) for manifest in folder.glob(f"*/{MANIFEST}"))
        instead = f"expected one of {', '.join(parts)}" if parts else "make one with `linnet prepare`"
        raise UserError(f"{folder}: not a data folder (no {MANIFEST}); {instead}")
    data = read_json(path)
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise UserError(f"{path}: version: {version!r}: expected {VERSION}; prepare the text again")
    return Manifest.parse(data, str(path))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`."""
    write_json(folder / MANIFEST, manifest.model_dump())


def holds_only_data(folder: Path) -> bool:
    """Whether a folder is a data folder with nothing else in it, so that replacing it loses nothing else."""
    names = [path.name for path in folder.iterdir()]
    return MANIFEST in names and all(_OWN_FILE.fullmatch(name) for name in names)


def _check_size(path: Path, expected_bytes: int) -> None:
    if not path.is_file():
        raise UserError(f"{path}: missing, {MANIFEST} lists it")
    size_bytes = path.stat().st_size
    if size_bytes != expected_bytes:
        raise UserError(f"{path}: {size_bytes} bytes, {MANIFEST} says {expected_bytes}")
