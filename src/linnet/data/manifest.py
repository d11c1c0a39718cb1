"""The manifest of a data folder: what it holds, how it was made, and the hashes of all of it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from linnet.core.atomic import restore
from linnet.core.checksum import MANIFEST, read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.data.split import Split

VERSION = 1
_OWN_FILE = re.compile(r"manifest\.json|tokenizer\.json|(train|validation)-\d{5,}\.bin")


class ShardInfo(Spec):
    """One file of token ids. `blocks`: the hash (`checksum.digest`) of each `BLOCK_BYTES`; earlier folders have
    none.
    """

    file: str = Field(pattern=r"^(train|validation)-\d{5,}\.bin$")
    tokens: int = Field(gt=0)
    blocks: list[str] | None = None


class SplitInfo(Spec):
    """One side of the data. `tokens` counts the end tokens; `bytes` is the UTF-8 size of the documents' text.

    sources: of each document the number of its source (`data.source_runs`); None where there is one source, and in
    earlier folders.
    """

    tokens: int
    documents: int
    bytes: int
    shards: list[ShardInfo]
    sources: str | None = None


class SourceInfo(Spec):
    """One input, as it was named, with what was found in it."""

    file: str
    documents: int
    bytes: int


def single_document_note(sources: Sequence[SourceInfo]) -> str | None:
    """What is to be said of files that are one document beside others, so on one side of the split; None: nothing."""
    files = [source.file for source in sources if source.documents == 1]
    if not files or len(sources) == 1:
        return None
    names = f"{files[0]} is" if len(files) == 1 else f"{', '.join(files)} are each"
    cure = "a text file is cut at <|endoftext|>, a .jsonl file has a document in each line"
    return f"{names} one document, which is trained on or held out as a whole: {cure}"


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


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a data folder; `UserError` where there is none, or of a version that is not known."""
    restore(folder)
    path = folder / MANIFEST
    if not path.is_file():
        parts = sorted(str(manifest.parent) for manifest in folder.glob(f"*/{MANIFEST}"))
        instead = f"expected one of {', '.join(parts)}" if parts else "make one with `linnet prepare`"
        raise UserError(f"{folder}: not a data folder (no {MANIFEST}); {instead}")
    data = read_checked_json(path)
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise UserError(f"{path}: version: {version!r}: expected {VERSION}; prepare the text again")
    return Manifest.parse(data, str(path))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`."""
    write_checked_json(folder / MANIFEST, manifest.model_dump())


def holds_only_data(folder: Path) -> bool:
    """Whether a folder is a data folder with nothing else in it, so that replacing it loses nothing else."""
    names = [path.name for path in folder.iterdir()]
    return MANIFEST in names and all(_OWN_FILE.fullmatch(name) for name in names)
