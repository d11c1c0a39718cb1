"""Token shards: written as a stream, read through memory maps.

A data folder holds `manifest.json`, `tokenizer.json` and, for each split, shards of up to five files. Each file is an
array of little-endian numbers and nothing else:

    train-00000.bin            token ids (uint16, or uint32 where the vocabulary has more than 65,536)
    train-00000.starts.bin     the places in the shard where documents begin (uint32)
    train-00000.mask.bin       1 where a token counts as a target, else 0 (uint8); without this file every token counts
    train-00000.targets.bin    the token to predict at each position, if it is not the token at that position
    train-00000.roles.bin      of conversations: the role that wrote each token (uint8, `target_weights.ROLE_NUMBERS`)

A document begins with the end token, and one end token closes the split: so the end of each document is predicted once.
A block of a file is checked against its checksum in the manifest when it is first read.

Legend: `N` tokens, `D` documents.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from linnet.core.checksum import CHECKSUM_MISMATCH, MANIFEST, digest, write_checked_json
from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.data.conversations import ROLES
from linnet.data.split import Split

SHARD_TOKENS = 100_000_000
BLOCK_BYTES = 1 << 20
"""Bytes of a file under one checksum: few enough to check for one window, many enough for a short manifest."""

VERSION = 2
Part = Literal["tokens", "starts", "mask", "targets", "roles"]
Dtype = Literal["uint16", "uint32"]
Tokens = NDArray[np.int64]

_FILE = re.compile(
    r"manifest\.json|tokenizer\.json|(train|validation)-\d{5,}(\.(starts|mask|targets|roles))?\.bin"
    r"|(train|validation)\.prompts\.jsonl"
)


class ShardInfo(Spec):
    """One shard. `file` holds its tokens; `blocks` are the checksums of the blocks of each of its files.

    None for a file means that it is read unchecked.
    """

    file: str = Field(pattern=r"^(train|validation)-\d{5,}\.bin$")
    tokens: int = Field(gt=0)
    documents: int = Field(0, ge=0)
    blocks: dict[Part, list[str] | None]

    def path(self, folder: Path, part: Part) -> Path:
        """The file of one part."""
        return folder / (self.file if part == "tokens" else self.file.replace(".bin", f".{part}.bin"))

    def count(self, part: Part) -> int:
        """How many numbers the file of a part holds."""
        return self.documents if part == "starts" else self.tokens


class SplitInfo(Spec):
    """One side of the data. `tokens` counts end tokens, `targets` the tokens that count in the loss.

    bytes: UTF-8 size of the text. sources: the source of each document (`describe_runs`); None for a single source.
    """

    tokens: int
    documents: int
    targets: int
    bytes: int
    shards: list[ShardInfo]
    sources: str | None = None


class SourceInfo(Spec):
    """One input file, as it was named, and what was found in it. name: of its source in a mixture; None: the file's."""

    file: str
    documents: int
    bytes: int
    name: str | None = None

    @property
    def source_name(self) -> str:
        """The name of its source in a mixture, else the file's."""
        return self.name or self.file

    @model_serializer(mode="wrap")
    def _without_an_absent_name(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As before there were names, so that the hashes of such folders stay what they were."""
        plain: dict[str, Any] = serialize(self)
        return plain if self.name is not None else {key: value for key, value in plain.items() if key != "name"}


class TokenizerInfo(Spec):
    """The tokenizer that made the ids."""

    kind: str
    vocab_size: int
    hash: str


Layout = Literal["stream", "rows", "preferences", "prompts"]


class Manifest(Spec):
    """What a data folder holds and how it was made.

    layout: `stream`: documents follow one another, and examples are windows of the stream; `rows`: each document is one
    example, whatever its length; `preferences`: two documents are one, a preferred answer and another one;
    `prompts`: documents ask for answers.
    """

    version: Literal[2] = 2
    layout: Layout = "stream"
    tokenizer: TokenizerInfo
    dtype: Dtype
    splits: dict[Split, SplitInfo]
    sources: list[SourceInfo]
    settings: dict[str, Any]

    @field_validator("splits")
    @classmethod
    def _both(cls, splits: dict[Split, SplitInfo]) -> dict[Split, SplitInfo]:
        if len(splits) != 2:
            raise ValueError("expected both train and validation")
        return splits


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json` with its checksum."""
    write_checked_json(folder / MANIFEST, manifest.model_dump())


def holds_only_data(folder: Path) -> bool:
    """True if a folder holds a data set and nothing else, so that replacing it loses nothing else."""
    names = [path.name for path in folder.iterdir()]
    return MANIFEST in names and all(_FILE.fullmatch(name) for name in names)


def token_dtype(vocab_size: int) -> Dtype:
    """The smallest unsigned type that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def part_dtype(part: Part, tokens: Dtype) -> np.dtype[Any]:
    """The type of the numbers in the file of a part."""
    return np.dtype({"starts": "uint32", "mask": "uint8", "roles": "uint8"}.get(part, tokens)).newbyteorder("<")


class ShardWriter:
    """Writes one split into shards of at most `shard_tokens` tokens. Use as a context manager.

    parts: what each shard holds besides tokens and document starts.
    """

    def __init__(
        self,
        folder: Path,
        split: Split,
        vocab_size: int,
        shard_tokens: int = SHARD_TOKENS,
        parts: Sequence[Part] = (),
    ) -> None:
        self._folder, self._split, self._shard_tokens = folder, split, shard_tokens
        self._parts: tuple[Part, ...] = ("tokens", "starts", *parts)
        self._dtypes = {part: part_dtype(part, token_dtype(vocab_size)) for part in self._parts}
        self._handles: dict[Part, BinaryIO] = {}
        self._hashes: dict[Part, BlockHashes] = {}
        self._shards: list[ShardInfo] = []
        self._tokens = self._documents = self._targets = 0

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles.values():
            handle.close()

    def write(
        self,
        tokens: Tokens,
        columns: Mapping[Part, NDArray[Any]] = MappingProxyType({}),
        begins: bool | Sequence[int] = False,
    ) -> None:
        """Append token ids `[N]` and as many numbers for each of the writer's `parts`, in `columns`.

        begins: a document begins with the first of them; or the places in `tokens` where one does, ascending.
        """
        starts_D = np.array([0] * begins if isinstance(begins, bool) else begins, dtype=np.int64)
        values: dict[Part, NDArray[Any]] = {"tokens": tokens, **columns}
        self._targets += int(values["mask"].sum()) if "mask" in values else len(tokens)
        done = 0
        while done < len(tokens):
            if not self._handles or self._tokens == self._shard_tokens:
                self._end_shard()
                shard = ShardInfo(file=f"{self._split}-{len(self._shards):05d}.bin", tokens=1, blocks={})
                for part in self._parts:
                    self._handles[part] = shard.path(self._folder, part).open("wb")
                    self._hashes[part] = BlockHashes()
            room = self._shard_tokens - self._tokens
            within_D = starts_D[(starts_D >= done) & (starts_D < done + room)] - done + self._tokens
            self._append("starts", within_D)
            self._documents += len(within_D)
            for part, column in values.items():
                self._append(part, column[done : done + room])
            self._tokens += min(room, len(tokens) - done)
            done += room

    def info(self, text_bytes: int, sources: str | None = None) -> SplitInfo:
        """Finish the last shard; return the manifest's entry of the split."""
        self._end_shard()
        tokens, documents = (sum(getattr(shard, name) for shard in self._shards) for name in ("tokens", "documents"))
        # No prediction is made of the first token.
        targets = self._targets if "mask" in self._parts else self._targets - 1
        return SplitInfo(
            tokens=tokens,
            documents=documents,
            targets=targets,
            bytes=text_bytes,
            shards=self._shards,
            sources=sources,
        )

    def _append(self, part: Part, values: NDArray[Any]) -> None:
        content = values.astype(self._dtypes[part]).tobytes()
        self._handles[part].write(content)
        self._hashes[part].add(content)

    def _end_shard(self) -> None:
        if not self._handles:
            return
        for handle in self._handles.values():
            handle.close()
        self._shards.append(
            ShardInfo(
                file=f"{self._split}-{len(self._shards):05d}.bin",
                tokens=self._tokens,
                documents=self._documents,
                blocks={part: hashes.all() for part, hashes in self._hashes.items()},
            )
        )
        self._handles, self._tokens, self._documents = {}, 0, 0


class BlockHashes:
    """The checksums of a file's blocks, computed while it is written."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._rest = bytearray()

    def add(self, content: bytes) -> None:
        """Take in what was written next."""
        self._rest += content
        while len(self._rest) >= BLOCK_BYTES:
            self._done.append(digest(bytes(self._rest[:BLOCK_BYTES])))
            del self._rest[:BLOCK_BYTES]

    def all(self) -> list[str]:
        """The checksums of everything written, the last one of an incomplete block."""
        return [*self._done, digest(bytes(self._rest))] if self._rest else list(self._done)


class CheckedArray:
    """The numbers of a file, `[N]`, mapped into memory. A block is checked when it is first read.

    blocks: expected checksums; None: unknown. limit: every number must be below it; None: any number is accepted.
    """

    def __init__(
        self, values: NDArray[Any], name: str = "", limit: int | None = None, blocks: list[str] | None = None
    ) -> None:
        self._values, self._name, self._limit, self._blocks = values, name, limit, blocks
        self._checked: set[int] = set()

    @classmethod
    def open(cls, folder: Path, shard: ShardInfo, part: Part, dtype: Dtype, vocab_size: int) -> "CheckedArray":
        """Map the file of one part of a shard."""
        path, count = shard.path(folder, part), shard.count(part)
        number_type = part_dtype(part, dtype)
        # An empty file cannot be mapped.
        values = np.memmap(path, number_type, "r") if count else np.empty(0, number_type)
        limit = {"starts": shard.tokens, "mask": 2, "roles": len(ROLES) + 1}.get(part, vocab_size)
        return cls(values, str(path), limit, shard.blocks[part])

    def __len__(self) -> int:
        return len(self._values)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Numbers `[stop - start]`, or fewer at the end. `UserError` names the file and what is wrong in it."""
        part = self._values[start:stop]
        size = self._values.itemsize
        width = BLOCK_BYTES // size
        for block in range(start * size // BLOCK_BYTES, -(-(start + len(part)) * size // BLOCK_BYTES)):
            if block in self._checked:
                continue
            whole = self._values[block * width : (block + 1) * width]
            if self._blocks is not None and digest(_bytes_of(whole)) != self._blocks[block]:
                place = f"numbers {block * width:,} to {block * width + len(whole):,}"
                raise UserError(f"{self._name}, {place}: {CHECKSUM_MISMATCH}; prepare the text again")
            if self._limit is not None and int(whole.max()) >= self._limit:
                raise UserError(f"{self._name}: number {whole.max()}: expected one below {self._limit:,}")
            self._checked.add(block)
        return part


def _bytes_of(values: NDArray[Any]) -> memoryview:
    """The bytes of numbers that lie one after the other, without a copy."""
    return np.ascontiguousarray(values).view(np.uint8).data


class Column:
    """The arrays of several shards as one long array, or a part of it."""

    def __init__(self, arrays: Sequence[CheckedArray], dtype: type = np.int64) -> None:
        self._arrays, self._dtype = arrays, dtype
        self.offsets = [0, *accumulate(len(array) for array in arrays)]
        self._begin, self._end = 0, self.offsets[-1]

    def part(self, begin: int, end: int) -> "Column":
        """The numbers from place `begin` to before `end`."""
        assert 0 <= begin <= end <= len(self), (begin, end, len(self))
        part = Column(self._arrays, self._dtype)
        part._begin, part._end = self._begin + begin, self._begin + end
        return part

    def __len__(self) -> int:
        return self._end - self._begin

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Numbers `[count]` from place `start`, copied; they must exist."""
        assert start >= 0 and start + count <= len(self), (start, count, len(self))
        start += self._begin
        found: NDArray[Any] = np.empty(count, dtype=self._dtype)
        filled = 0
        while filled < count:
            number = bisect_right(self.offsets, start + filled) - 1
            offset = start + filled - self.offsets[number]
            part = self._arrays[number].read(offset, offset + count - filled)
            found[filled : filled + len(part)] = part
            filled += len(part)
        return found


class TokenSequence:
    """One split as one long sequence: tokens, document starts and, where the data has them, loss mask and targets.

    mask: a `Column` of bool, True where the token at a place counts as a target; None: all count. targets: the token to
    predict at each position; None: the token at that position. roles: of conversations, the number of the role that
    wrote the token at a place (`target_weights`); None: unknown.
    """

    def __init__(
        self,
        name: str,
        end_id: int,
        tokens: Sequence[CheckedArray],
        starts: Callable[[], Tokens],
        mask: Sequence[CheckedArray] | None = None,
        targets: Sequence[CheckedArray] | None = None,
        roles: Sequence[CheckedArray] | None = None,
    ) -> None:
        """starts: returns the places where documents begin, ascending; called when they are first needed."""
        self.name, self.end_id, self._tokens, self._find_starts = name, end_id, Column(tokens), starts
        self.mask = None if mask is None else Column(mask, np.bool_)
        self.targets = None if targets is None else Column(targets)
        self.roles = None if roles is None else Column(roles, np.uint8)
        self._weigh: Weigh | None = None

    @classmethod
    def in_memory(
        cls,
        name: str,
        end_id: int,
        tokens: NDArray[Any],
        mask: NDArray[Any] | None = None,
        targets: NDArray[Any] | None = None,
        starts: Tokens | None = None,
        roles: NDArray[Any] | None = None,
    ) -> "TokenSequence":
        """A sequence of arrays `[N]`. starts: None: a document begins at each end token but a closing one."""

        def find_starts() -> Tokens:
            return np.flatnonzero(tokens[:-1] == end_id) if starts is None else starts

        columns = ([CheckedArray(column)] if column is not None else None for column in (mask, targets, roles))
        return cls(name, end_id, [CheckedArray(tokens)], find_starts, *columns)

    def part(self, name: str, begin: int, end: int) -> "TokenSequence":
        """The tokens from place `begin` to before `end` as a sequence of their own, which has no mask and targets."""
        assert self.mask is None and self.targets is None, "a part of rows"
        starts_D = self.document_starts
        within_D = starts_D[np.searchsorted(starts_D, begin) : np.searchsorted(starts_D, end - 1)] - begin
        part = TokenSequence(name, self.end_id, [], lambda: within_D)
        part._tokens = self._tokens.part(begin, end)
        return part

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, count: int) -> Tokens:
        """Tokens `[count]` from place `start`; they must exist."""
        return self._tokens.read(start, count)

    def read_mask(self, start: int, count: int) -> NDArray[np.bool_]:
        """Which of the tokens from place `start` count as targets, `[count]`."""
        return np.ones(count, dtype=np.bool_) if self.mask is None else self.mask.read(start, count)

    def weighted(self, weigh: "Weigh") -> "TokenSequence":
        """The same rows, whose `read_weights` are those of `weigh`."""
        rows = copy(self)
        rows._weigh = weigh
        return rows

    @property
    def all_count(self) -> bool:
        """True if each token counts as a target as much as any other."""
        return self.mask is None and self._weigh is None

    @property
    def weights_dtype(self) -> type:
        """What `read_weights` returns: bool, or float32."""
        return np.bool_ if self._weigh is None else np.float32

    def read_weights(self, start: int, count: int) -> NDArray[Any]:
        """How much the targets from place `start` count, `[count]`: the mask, or for whole rows their weights."""
        return self.read_mask(start, count) if self._weigh is None else self._weigh(self, start, count)

    @cached_property
    def document_starts(self) -> Tokens:
        """The places of the end tokens with which documents begin, `[D]`, ascending."""
        return self._find_starts()

    @cached_property
    def document_bounds(self) -> Tokens:
        """`[D + 1]`: document `d` reaches from bound `d` to bound `d + 1`, the end token behind it."""
        return np.append(self.document_starts, len(self) - 1)


Weigh = Callable[[TokenSequence, int, int], NDArray[np.float32]]
"""The weights of the targets of one row, `(rows, place of the first target, count) -> [count]`."""


def describe_runs(runs: Sequence[tuple[int, int]]) -> str:
    """The source of each document as text: `0x120 1 0x3` is 120 documents of source 0, one of 1, three of 0."""
    return " ".join(str(source) if count == 1 else f"{source}x{count}" for source, count in runs)


_RUN = re.compile(r"(\d{1,9})(?:x([1-9]\d{0,15}))?")


def parse_runs(runs: str, documents: int, sources: int) -> Tokens:
    """The source of each document, `[D]`; `ValueError` if the text does not name one for each."""
    found = [_RUN.fullmatch(run) for run in runs.split(" ")]
    pairs = [(int(run[1]), int(run[2] or 1)) for run in found if run is not None]
    counts = [count for _, count in pairs]
    if len(pairs) < len(found) or sum(counts) != documents or any(source >= sources for source, _ in pairs):
        raise ValueError(f"sources: expected the sources of {documents:,} documents, each a number below {sources}")
    return np.repeat([source for source, _ in pairs], counts).astype(np.int64)


def check_shard(folder: Path, shard: ShardInfo, dtype: Dtype) -> None:
    """`UserError` for a file of a shard that is missing or has another size than the manifest says."""
    for part, blocks in shard.blocks.items():
        path = shard.path(folder, part)
        expected_bytes = shard.count(part) * part_dtype(part, dtype).itemsize
        if not path.is_file():
            raise UserError(f"{path}: missing, {MANIFEST} lists it")
        size_bytes = path.stat().st_size
        if size_bytes != expected_bytes:
            raise UserError(f"{path}: {size_bytes} bytes, {MANIFEST} says {expected_bytes}")
        if blocks is not None and len(blocks) != -(-expected_bytes // BLOCK_BYTES):
            raise UserError(f"{path.parent / MANIFEST}: {len(blocks)} blocks of {path.name}; prepare it again")


def read_starts(folder: Path, shards: Sequence[ShardInfo], dtype: Dtype, vocab_size: int) -> Tokens:
    """The document index of a split: the starts of all shards, counted from the start of the split."""
    starts_D, filled, offset = np.empty(sum(shard.documents for shard in shards), dtype=np.int64), 0, 0
    for shard in shards:
        part = CheckedArray.open(folder, shard, "starts", dtype, vocab_size).read(0, shard.documents)
        np.add(part, offset, out=starts_D[filled : filled + len(part)], dtype=np.int64)
        filled, offset = filled + len(part), offset + shard.tokens
    return starts_D
