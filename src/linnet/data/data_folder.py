"""The data folder that is made: where it may stand, what describes it, and its rows of tokens if it has any."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from linnet.core.atomic import atomic_directory, clean_up
from linnet.core.errors import UserError
from linnet.data.shards import (
    Layout,
    Manifest,
    Part,
    ShardWriter,
    SourceInfo,
    SplitInfo,
    TokenizerInfo,
    describe_runs,
    holds_only_data,
    token_dtype,
    write_manifest,
)
from linnet.data.split import Split
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.ops.cross_entropy import IGNORE_INDEX


class TokenRow(NamedTuple):
    """Token ids, the end token first, and the token expected after each: `IGNORE_INDEX` where none is expected."""

    tokens: list[int]
    targets: list[int]


class EncodedRow(NamedTuple):
    """A row that asks for an answer or has one: token ids, what stands beside each, and the number of its file."""

    ids: Sequence[int]
    columns: Mapping[Part, Any] = MappingProxyType({})
    source: int = 0


def checked_target(out: str | Path, overwrite: bool) -> Path:
    """The absolute path of the folder to write, or a `UserError` before any work is done."""
    target = Path(out).resolve()
    if target.exists() and not target.is_dir():
        raise UserError("is a file", field="out", value=out, accepted="a folder")
    if target.is_dir() and any(target.iterdir()):
        if not holds_only_data(target):
            raise UserError(
                "holds other files", field="out", value=out, accepted="a new folder or one with prepared data only"
            )
        if not overwrite:
            clean_up(target)
            raise UserError("holds prepared data already; `overwrite` replaces it", field="out", value=out)
    parent = next(folder for folder in target.parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{parent} is not a folder that can be written to", field="out", value=out)
    return target


@contextmanager
def new_folder(out: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write into, which becomes `out` when it is complete. Of several processes one gets it."""
    with atomic_directory(out) as folder:
        checked_target(out, overwrite)  # another process may have been faster
        yield folder


def describe_folder(
    folder: Path,
    tokenizer: Tokenizer,
    splits: dict[Split, SplitInfo],
    sources: list[SourceInfo],
    settings: Mapping[str, Any],
    layout: Layout,
) -> Manifest:
    """Write tokenizer and manifest of a data folder."""
    manifest = Manifest(
        layout=layout,
        tokenizer=TokenizerInfo(kind=tokenizer.kind, vocab_size=tokenizer.vocab_size, hash=tokenizer.hash),
        dtype=token_dtype(tokenizer.vocab_size),
        splits=splits,
        sources=sources,
        settings=dict(settings),
    )
    tokenizer.save(folder / TOKENIZER)
    write_manifest(folder, manifest)
    return manifest


def prepare_rows(
    train: Iterable[TokenRow], validation: Iterable[TokenRow], out: Path, tokenizer: Tokenizer, name: str
) -> Manifest:
    """Make a data folder of rows of tokens, or replace it; `name` stands for their source in the manifest."""
    with atomic_directory(out) as folder:
        splits: dict[Split, SplitInfo] = {
            "train": _write_rows(folder, "train", train, tokenizer),
            "validation": _write_rows(folder, "validation", validation, tokenizer),
        }
        documents, text_bytes = (sum(getattr(info, of) for info in splits.values()) for of in ("documents", "bytes"))
        source = SourceInfo(file=name, documents=documents, bytes=text_bytes)
        return describe_folder(folder, tokenizer, splits, [source], {}, layout="rows")


def _write_rows(folder: Path, split: Split, rows: Iterable[TokenRow], tokenizer: Tokenizer) -> SplitInfo:
    byte_counts, text_bytes, last_target = tokenizer.byte_counts(), 0, IGNORE_INDEX
    with ShardWriter(folder, split, tokenizer.vocab_size, parts=("mask", "targets")) as writer:

        def write(tokens: list[int], expected: list[int], begins: bool) -> None:
            counts = np.array(expected) != IGNORE_INDEX
            targets = np.where(counts, expected, tokenizer.end_id)
            writer.write(np.array(tokens), {"mask": counts, "targets": targets}, begins)

        for tokens, targets in rows:
            assert tokens[0] == tokenizer.end_id and tokenizer.end_id not in tokens[1:]
            # The target after a row's last token belongs to the position of the next end token.
            write(tokens, [last_target, *targets[:-1]], begins=True)
            last_target = targets[-1]
            text_bytes += int(byte_counts.of(np.array(tokens[1:]), np.array(tokens[:-1])).sum())
        write([tokenizer.end_id], [last_target], begins=False)
        return writer.info(text_bytes)


def write_side(
    folder: Path,
    split: Split,
    tokenizer: Tokenizer,
    rows: Iterable[EncodedRow],
    last: Mapping[Part, Any] = MappingProxyType({}),
    sources: int = 1,
) -> SplitInfo:
    """Write the rows of a split, one after the other, and the end token behind them.

    last: what stands beside that end token, and by that what stands beside each token of a row. sources: of more than
    one it is noted which rows each has.
    """
    byte_counts, text_bytes, numbers = tokenizer.byte_counts(), 0, list[int]()
    with ShardWriter(folder, split, tokenizer.vocab_size, parts=tuple(last)) as writer:
        for row in rows:
            ids_T = np.array(row.ids)
            writer.write(ids_T, {name: np.array(column) for name, column in row.columns.items()}, begins=True)
            text_bytes += int(byte_counts.of(ids_T[1:], ids_T[:-1]).sum())
            numbers.append(row.source)
        writer.write(np.array([tokenizer.end_id]), {name: np.array([value]) for name, value in last.items()})
        runs = [(number, len(list(each))) for number, each in groupby(numbers)]
        return writer.info(text_bytes, describe_runs(runs) if sources > 1 else None)
