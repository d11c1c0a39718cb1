"""Data folders that linnet 0.1 wrote, read in the format of today. Nothing is written.

0.1 had neither a document index nor loss masks. Its settings named two kinds of folders besides text:

- `pairs`: inputs and targets were documents in turn. Here a pair is one document whose mask counts the target.
- `labels`: every second document held the answers expected after the tokens of the previous document, or a blank
  token where none was expected. Here the answers are targets, and the mask counts them.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from linnet.core.errors import UserError
from linnet.data.shards import CheckedArray, Column, Manifest, Tokens, TokenSequence

VERSION = 1


@dataclass(frozen=True)
class Kind:
    """How the documents of a folder are read. manifest: as it was written. blank: the token for "no answer"."""

    name: Literal["text", "pairs", "labels"]
    manifest: Mapping[str, Any]
    blank: int = -1

    def sequence(self, label: str, end_id: int, tokens: list[CheckedArray]) -> TokenSequence:
        """A split as a sequence of today; the end tokens of text are looked for when they are first needed."""
        column = Column(tokens)

        def ends() -> Tokens:
            return np.concatenate(
                [
                    np.flatnonzero(array.read(0, len(array)) == end_id) + offset
                    for array, offset in zip(tokens, column.offsets, strict=False)
                ]
            )

        if self.name == "text":
            return TokenSequence(label, end_id, tokens, lambda: ends()[:-1])
        bounds, whole = ends(), column.read(0, len(column))
        starts, middles, stops = bounds[:-1:2], bounds[1::2], bounds[2::2]
        if len(bounds) < 3 or len(bounds) % 2 == 0:
            raise UserError(f"{label}: {max(0, len(bounds) - 1)} documents; expected pairs of them")
        if self.name == "pairs":
            # A target counts, and the end token after it.
            mask = np.zeros(len(whole), dtype=np.int64)
            mask[middles + 1] = 1
            mask[stops[:-1] + 1] -= 1
            counted = np.cumsum(mask).astype(bool)
            return TokenSequence.in_memory(label, end_id, whole, counted, starts=starts)
        lengths = middles - starts
        if (lengths != stops - middles - 1).any():
            raise UserError(f"{label}: its documents are not pairs of rows and equally many answers or blanks")
        places = np.concatenate([np.arange(start, stop) for start, stop in zip(starts, middles, strict=True)])
        rows = np.append(whole[places], end_id)
        # The answer to a token is the target at the next position.
        answers = np.concatenate([[self.blank], *(whole[a + 1 : b] for a, b in zip(middles, stops, strict=True))])
        new_starts = np.cumsum(lengths) - lengths
        return TokenSequence.in_memory(label, end_id, rows, answers != self.blank, answers, new_starts)


def upgrade_manifest(plain: Any, path: str) -> tuple[Manifest, Kind]:
    """The manifest in the format of today, and the kind of folder that it describes."""
    before, settings = copy.deepcopy(plain), plain.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    kind: Literal["text", "pairs", "labels"] = next((k for k in ("pairs", "labels") if k in settings), "text")
    blank = settings.get("labels", -1)
    if not isinstance(blank, int):
        raise UserError(f"{path}: settings: labels: {blank!r}: expected a token's number")
    after = {**plain, "version": 2, "layout": "stream" if kind == "text" else "rows"}
    try:
        after["splits"] = {name: _upgrade_split(split, kind) for name, split in plain["splits"].items()}
        for split in before["splits"].values():
            split.setdefault("sources", None)
            for shard in split["shards"]:
                if shard.get("blocks") is None:
                    shard.pop("blocks", None)
        if kind != "text":
            after["sources"] = [{**source, "documents": source["documents"] // 2} for source in plain["sources"]]
    except (KeyError, TypeError, AttributeError):
        pass  # missing fields and wrong types are named below
    return Manifest.parse(after, path), Kind(kind, before, blank)


def _upgrade_split(split: Mapping[str, Any], kind: str) -> dict[str, Any]:
    documents, tokens = split["documents"], split["tokens"]
    if kind != "text":
        documents //= 2
    if kind == "labels":  # a row of L tokens took 2 L + 1
        tokens = (tokens - 1 - documents) // 2 + 1
    shards = [{**shard, "blocks": {"tokens": shard.get("blocks")}} for shard in split["shards"]]
    return {**split, "documents": documents, "tokens": tokens, "targets": tokens - 1, "shards": shards}
