"""Rows with an answer wanted at some of their tokens, which need not be the next one: written to a data folder, read.

A folder of such rows is like any other (`data.shards`), but that its documents are the tokens of a row behind its end
token, what is wanted behind each of these and behind the end token (`BLANK` where nothing is), the next row's tokens,
and so on. Shapes: `R` rows, `B` of them, `T` tokens of the longest row.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError
from linnet.data.manifest import Manifest, SourceInfo, SplitInfo, TokenizerInfo, token_dtype, write_manifest
from linnet.data.pairs import Pairs, Rows
from linnet.data.shards import LABELS, ShardWriter, TokenData, TokenSequence
from linnet.data.split import Split
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.ops.cross_entropy import IGNORE_INDEX

BLANK = "\0"
"""The text whose token stands where nothing is wanted; none that is wanted is this."""


class LabeledRow(NamedTuple):
    """Tokens, the end token first, and what is wanted behind each: `IGNORE_INDEX` where nothing is."""

    tokens: list[int]
    targets: list[int]


def blank_id(tokenizer: Tokenizer) -> int:
    """The token that stands for no answer; `UserError` where the tokenizer has none for it alone."""
    ids = tokenizer.encode(BLANK)
    if len(ids) != 1:
        raise UserError("tokenizer: has no token for the character U+0000, which stands where no answer is wanted")
    return ids[0]


def prepare_labels(
    train: Iterable[LabeledRow], validation: Iterable[LabeledRow], out: Path, tokenizer: Tokenizer, name: str
) -> Manifest:
    """Make a data folder of rows, or replace it; `name` stands for their source in the manifest. `UserError`."""
    blank = blank_id(tokenizer)
    with atomic_directory(out) as folder:
        splits: dict[Split, SplitInfo] = {
            "train": _write(folder, "train", train, tokenizer, blank),
            "validation": _write(folder, "validation", validation, tokenizer, blank),
        }
        documents, text_bytes = (sum(getattr(info, of) for info in splits.values()) for of in ("documents", "bytes"))
        manifest = Manifest(
            tokenizer=TokenizerInfo(kind=tokenizer.kind, vocab_size=tokenizer.vocab_size, hash=tokenizer.hash),
            dtype=token_dtype(tokenizer.vocab_size),
            splits=splits,
            sources=[SourceInfo(file=name, documents=documents, bytes=text_bytes)],
            settings={LABELS: blank},
        )
        tokenizer.save(folder / TOKENIZER)
        write_manifest(folder, manifest)
    return manifest


def _write(folder: Path, split: Split, rows: Iterable[LabeledRow], tokenizer: Tokenizer, blank: int) -> SplitInfo:
    end, token_bytes, documents, text_bytes = tokenizer.end_id, tokenizer.token_bytes(), 0, 0
    with ShardWriter(folder, split, tokenizer.vocab_size) as writer:
        for tokens, targets in rows:
            assert tokens[0] == end and end not in [*tokens[1:], *targets] and blank not in targets
            ids = np.array([*tokens, end, *(blank if target == IGNORE_INDEX else target for target in targets)])
            writer.write(ids)
            documents += 2
            text_bytes += int(token_bytes[ids].sum())
        writer.write(np.array([end]))
        return writer.info(documents, text_bytes)


class LabeledRows:
    """The rows of one split, by number."""

    def __init__(self, sequence: TokenSequence, end_id: int, blank: int) -> None:
        """`UserError` where its documents are no rows and what is wanted in them."""
        ends = sequence.positions(end_id)
        self._sequence, self._end_id, self._blank = sequence, end_id, blank
        self._starts, self._middles, stops = ends[:-1:2], ends[1::2], ends[2::2]
        self._lengths = self._middles - self._starts
        if len(ends) < 3 or len(ends) % 2 == 0 or (self._lengths != stops - self._middles - 1).any():
            raise UserError(f"{sequence.name}: its documents are not rows, each with as many answers or blanks")
        wanted = sequence.read(0, len(sequence)) != blank
        before = np.concatenate([[0], np.cumsum(wanted)])
        self.target_lengths: NDArray[np.int64] = before[stops] - before[self._middles + 1]

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def input_lengths(self) -> NDArray[np.int64]:
        """Tokens of each row behind which nothing is wanted."""
        return self._lengths - self.target_lengths

    def check_lengths(self, context_length: int, apart: bool) -> None:
        """`UserError` where a row is longer than a context; `apart` is for pairs."""
        assert not apart, "an encoder reads pairs (`check_reads`)"
        longest = int(self._lengths.argmax())
        if self._lengths[longest] > context_length:
            length = int(self._lengths[longest])
            raise UserError(
                f"{self._sequence.name}: row {longest + 1}: {length} tokens: more than the context of {context_length};"
                f" `set` model.context_length={length} makes a model for it"
            )

    def rows(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens and targets `[B, T]`, int64, of rows by number; what is not wanted is `IGNORE_INDEX`."""
        lengths = self._lengths[list(numbers)]
        tokens = torch.full((len(lengths), int(lengths.max())), self._end_id)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        for row, (number, length) in enumerate(zip(numbers, lengths.tolist(), strict=True)):
            read = torch.from_numpy(self._sequence.read(int(self._starts[number]), 2 * length + 1))
            tokens[row, :length], targets[row, :length] = read[:length], read[length + 1 :]
        targets[targets == self._blank] = IGNORE_INDEX
        return tokens, targets


def rows_of(data: TokenData, split: Split) -> Rows:
    """The rows of a folder that holds rows (`TokenData.holds_rows`): pairs, or labeled ones."""
    sequence, end_id = data.split(split), data.tokenizer.end_id
    if data.holds_pairs:
        return Pairs(sequence, end_id)
    blank = data.manifest.settings[LABELS]
    if not isinstance(blank, int):
        raise UserError(f"{data.folder}: settings: {LABELS}: {blank!r}: expected a token's number")
    return LabeledRows(sequence, end_id, blank)
