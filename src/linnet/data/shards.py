"""Token shards on disk: written as a stream, read through memory maps.

A data folder holds `manifest.json`, `tokenizer.json`, and per split `train-00000.bin`, ...: little-endian token ids and
nothing else. A block of them is checked against the manifest's hash when it is first read. Every document is stored as
the end token and then its tokens, and one end token closes the split: so each document begins after an end token, and
each end is predicted once.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from linnet.core.checksum import CHECKSUM_MISMATCH, MANIFEST, digest
from linnet.core.errors import UserError, note
from linnet.data.manifest import Manifest, ShardInfo, SplitInfo, read_manifest, token_dtype
from linnet.data.source_runs import unpacked
from linnet.data.split import Split
from linnet.data.tokenizer import TOKENIZER, Tokenizer

SHARD_TOKENS = 100_000_000
PAIRS = "pairs"
"""Among the settings in a manifest, of a folder of pairs: the hash of the file that they came from."""
LABELS = "labels"
"""Among them, of a folder of rows with answers (`data.labels`): the token that stands where none is wanted."""
BLOCK_BYTES = 1 << 20
"""Of a shard, under one hash: small, for a window that is read alone; large, for few hashes."""


class ShardWriter:
    """Writes one split into files of at most `shard_tokens` tokens. Use as a context manager."""

    def __init__(self, folder: Path, split: Split, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self._folder = folder
        self._split = split
        self._dtype = np.dtype(token_dtype(vocab_size)).newbyteorder("<")
        self._shard_tokens = shard_tokens
        self._handle: BinaryIO | None = None
        self._counts: list[int] = []
        self._hashes: list[BlockHashes] = []

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
            content = part.astype(self._dtype).tobytes()
            self._handle.write(content)
            self._hashes[-1].add(content)
            self._counts[-1] += len(part)
            tokens = tokens[len(part) :]

    def info(self, documents: int, text_bytes: int) -> SplitInfo:
        """The manifest's entry for what was written."""
        shards = [
            ShardInfo(file=self._file(number), tokens=count, blocks=hashes.all())
            for number, (count, hashes) in enumerate(zip(self._counts, self._hashes, strict=True))
        ]
        return SplitInfo(tokens=sum(self._counts), documents=documents, bytes=text_bytes, shards=shards)

    def _open_next(self) -> None:
        if self._handle:
            self._handle.close()
        self._handle = (self._folder / self._file(len(self._counts))).open("wb")
        self._counts.append(0)
        self._hashes.append(BlockHashes())

    def _file(self, number: int) -> str:
        return f"{self._split}-{number:05d}.bin"


class BlockHashes:
    """The hashes of a file's blocks, as it is written."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._rest = bytearray()

    def add(self, content: bytes) -> None:
        """What was written next."""
        self._rest += content
        while len(self._rest) >= BLOCK_BYTES:
            self._done.append(digest(bytes(self._rest[:BLOCK_BYTES])))
            del self._rest[:BLOCK_BYTES]

    def all(self) -> list[str]:
        """Those of all that was written, the last of what is left."""
        return [*self._done, digest(bytes(self._rest))] if self._rest else list(self._done)


class Shard:
    """The token ids of a file, `[N]`, mapped. A block is checked when it is first read: its hash, where `blocks` has
    it, and that every id is below `vocab_size`, where that is given.
    """

    def __init__(
        self, tokens: NDArray[Any], name: str = "", vocab_size: int | None = None, blocks: list[str] | None = None
    ) -> None:
        self._tokens, self._name, self._vocab_size, self._blocks = tokens, name, vocab_size, blocks
        self._checked: set[int] = set()

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Tokens `[stop - start]`, as far as there are any. `UserError` names the file and what is wrong in it."""
        part = self._tokens[start:stop]
        size = self._tokens.itemsize
        for block in range(start * size // BLOCK_BYTES, -(-(start + len(part)) * size // BLOCK_BYTES)):
            if block not in self._checked:
                self._check(block)
                self._checked.add(block)
        return part

    def _check(self, block: int) -> None:
        width = BLOCK_BYTES // self._tokens.itemsize
        part = self._tokens[block * width : (block + 1) * width]
        if self._blocks is not None and digest(part.tobytes()) != self._blocks[block]:
            place = f"tokens {block * width:,} to {block * width + len(part):,}"
            raise UserError(f"{self._name}, {place}: {CHECKSUM_MISMATCH}; prepare the text again")
        if self._vocab_size is not None and int(part.max()) >= self._vocab_size:
            accepted = f"below {self._vocab_size:,}, the size of the vocabulary"
            raise UserError(f"{self._name}: token {part.max()}: expected one {accepted}")


class TokenSequence:
    """The tokens of one split as one long sequence over memory-mapped shards."""

    def __init__(self, name: str, shards: Sequence[Shard]) -> None:
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
            part = self._shards[number].read(offset, offset + count - filled)
            tokens[filled : filled + len(part)] = part
            filled += len(part)
        return tokens

    def positions(self, token: int) -> NDArray[np.int64]:
        """Where a token stands, ascending."""
        found = [
            start + np.flatnonzero(shard.read(0, len(shard)) == token)
            for start, shard in zip(self._starts, self._shards, strict=False)
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
                _check_shard(folder / shard.file, shard, np.dtype(manifest.dtype).itemsize)
        return cls(folder, manifest, tokenizer)

    @property
    def holds_pairs(self) -> bool:
        """Whether its documents are inputs and targets in turn (`data.pairs`)."""
        return PAIRS in self.manifest.settings

    @property
    def holds_rows(self) -> bool:
        """Whether it has rows that say themselves what is wanted: pairs, or answers (`data.labels`)."""
        return self.holds_pairs or LABELS in self.manifest.settings

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
        return TokenSequence(f"{self.folder}: {name}", [self._shard(shard) for shard in info.shards])

    def sources(self, name: Split) -> NDArray[np.int64] | None:
        """The number of each document's source in the manifest, `[N]`; None where the folder does not say.

        `UserError` where what it says does not fit the documents.
        """
        info, sources = self.manifest.splits[name], len(self.manifest.sources)
        if info.sources is None:
            return np.zeros(info.documents, dtype=np.int64) if sources == 1 else None
        try:
            return unpacked(info.sources, info.documents, sources)
        except ValueError as error:
            raise UserError(f"{self.folder / MANIFEST}: splits.{name}.{error}; prepare the text again") from None

    def _shard(self, info: ShardInfo) -> Shard:
        path = self.folder / info.file
        tokens = np.memmap(path, dtype=np.dtype(self.manifest.dtype).newbyteorder("<"), mode="r")
        return Shard(tokens, str(path), self.tokenizer.vocab_size, info.blocks)


def _check_shard(path: Path, info: ShardInfo, token_bytes: int) -> None:
    expected_bytes = info.tokens * token_bytes
    if not path.is_file():
        raise UserError(f"{path}: missing, {MANIFEST} lists it")
    size_bytes = path.stat().st_size
    if size_bytes != expected_bytes:
        raise UserError(f"{path}: {size_bytes} bytes, {MANIFEST} says {expected_bytes}")
    if info.blocks is None:
        note(f"{path.parent}: made by an earlier linnet: its shards have no hashes, and are taken as they are")
    elif len(info.blocks) != -(-expected_bytes // BLOCK_BYTES):
        raise UserError(f"{path.parent / MANIFEST}: {len(info.blocks)} blocks of {path.name}; prepare it again")
