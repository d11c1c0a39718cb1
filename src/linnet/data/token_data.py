"""A data folder, opened: its manifest, its tokenizer, and its splits as token sequences."""

import hashlib
import json
from pathlib import Path

import numpy as np

from linnet.core.atomic import restore
from linnet.core.checksum import MANIFEST, without_checksum
from linnet.core.errors import UserError, note
from linnet.core.files import read_json
from linnet.data import legacy
from linnet.data.loader import Spans, check_row_lengths, document_rows, document_windows
from linnet.data.shards import (
    VERSION,
    CheckedArray,
    Manifest,
    Part,
    Tokens,
    TokenSequence,
    check_shard,
    parse_runs,
    read_starts,
)
from linnet.data.split import Split
from linnet.data.tokenizer import TOKENIZER, Tokenizer


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a data folder; `UserError` if there is none, or its version is unknown."""
    return _read_manifest(folder)[0]


def _read_manifest(folder: Path) -> tuple[Manifest, legacy.Kind | None]:
    """The manifest; of a folder written by linnet 0.1 converted, and how its documents are to be read."""
    restore(folder)
    path = folder / MANIFEST
    if not path.is_file():
        parts = sorted(str(manifest.parent) for manifest in folder.glob(f"*/{MANIFEST}"))
        if not folder.exists():
            raise UserError(f"{folder}: no such file or folder; `linnet prepare` makes a data folder of text")
        instead = f"expected one of {', '.join(parts)}" if parts else "make one with `linnet prepare`"
        raise UserError(f"{folder}: not a data folder (no {MANIFEST}); {instead}")
    plain = without_checksum(read_json(path), str(path))
    version = plain.get("version") if isinstance(plain, dict) else None
    if version == legacy.VERSION:
        return legacy.upgrade_manifest(plain, str(path))
    if version != VERSION:
        raise UserError(f"{path}: version: {version!r}: expected {VERSION}; prepare the text again")
    return Manifest.parse(plain, str(path)), None


class TokenData:
    """A data folder whose files have been found and fit its manifest."""

    def __init__(
        self, folder: Path, manifest: Manifest, tokenizer: Tokenizer, legacy_kind: legacy.Kind | None = None
    ) -> None:
        self.folder, self.manifest, self.tokenizer, self._legacy = folder, manifest, tokenizer, legacy_kind

    @classmethod
    def open(cls, folder: str | Path) -> "TokenData":
        """Open a folder made by `linnet prepare`; `UserError` names the file that is missing or does not fit."""
        folder = Path(folder)
        manifest, kind = _read_manifest(folder)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        if tokenizer.hash != manifest.tokenizer.hash:
            raise UserError(
                f"{folder / TOKENIZER}: not the tokenizer that the tokens were made with "
                f"(hash {tokenizer.hash[:12]}, {MANIFEST} says {manifest.tokenizer.hash[:12]})"
            )
        for split in manifest.splits.values():
            for shard in split.shards:
                check_shard(folder, shard, manifest.dtype)
                if shard.blocks["tokens"] is None:
                    note(f"{folder}: made by an earlier linnet: its shards have no checksums and are read unchecked")
        return cls(folder, manifest, tokenizer, kind)

    @property
    def is_rows(self) -> bool:
        """True if each document is one example, False if examples are windows of the stream."""
        return self.manifest.layout != "stream"

    @property
    def is_preferences(self) -> bool:
        """True if two documents are one example: a preferred answer, then another one."""
        return self.manifest.layout == "preferences"

    @property
    def is_prompts(self) -> bool:
        """True if documents ask for answers, which the model draws and something judges."""
        return self.manifest.layout == "prompts"

    @property
    def hash(self) -> str:
        """SHA-256 of the manifest: it identifies tokenizer, tokens and sources. A 0.1 folder keeps the one it had."""
        plain = self.manifest.model_dump() if self._legacy is None else self._legacy.manifest
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def check_tokenizer(self, path: Path, may_have_more: bool = False) -> None:
        """`UserError` unless the tokenizer of a model, `path`, is the one that the tokens were made with.

        may_have_more: special tokens may have been added to it since, as for conversations; the ids here are the same.
        """
        own = Tokenizer.load(path)
        if own.hash != self.tokenizer.hash and not (may_have_more and own.added_to(self.tokenizer)):
            raise UserError(
                f"{self.folder}: its tokens were made with another tokenizer (hash {self.tokenizer.hash[:12]}) than"
                f" {path.parent}'s ({own.hash[:12]}); `linnet prepare --tokenizer {path}` takes it"
            )

    def added_tokens(self, path: Path) -> tuple[str, ...]:
        """The names of the control tokens that were added to the tokenizer of a model, `path`, for the tokens here.

        `UserError` as from `check_tokenizer` if it is another tokenizer.
        """
        added = self.tokenizer.added_to(Tokenizer.load(path))
        if added is None:
            self.check_tokenizer(path)
        return added or ()

    def check_prefixes(self, field: str | None) -> None:
        """`UserError` if a model reads prefixes, as `field` of its description says, and the rows here have none."""
        if field is not None and not (self.is_rows and self.split("train").targets is None):
            raise UserError(f"{field}: reads pairs of an input and a target; {self.folder} holds text; give `pairs`")

    def split(self, name: Split) -> TokenSequence:
        """The tokens of `train` or `validation`."""
        shards, label = self.manifest.splits[name].shards, f"{self.folder}: {name}"
        vocab_size, dtype = self.manifest.tokenizer.vocab_size, self.manifest.dtype

        def column(part: Part) -> list[CheckedArray] | None:
            if part not in shards[0].blocks:
                return None
            return [CheckedArray.open(self.folder, shard, part, dtype, vocab_size) for shard in shards]

        tokens, end_id = column("tokens"), self.tokenizer.end_id
        assert tokens is not None, "a shard without tokens"
        if self._legacy is not None:
            return self._legacy.sequence(label, end_id, tokens)
        return TokenSequence(
            label,
            end_id,
            tokens,
            lambda: read_starts(self.folder, shards, dtype, vocab_size),
            column("mask"),
            column("targets"),
            column("roles"),
        )

    def spans(self, sequence: TokenSequence, context_length: int, separate_prefix: bool = False) -> Spans:
        """The examples of a split: its documents, or windows that begin with documents where they can.

        `UserError` if a row is longer than the context (separate_prefix: see `check_row_lengths`).
        """
        if not self.is_rows:
            return document_windows(sequence, context_length)
        rows = document_rows(sequence)
        of_chat = "chat_template" in self.manifest.settings
        remedy = ", and `linnet prepare --long-conversations drop` leaves such rows out" if of_chat else ""
        check_row_lengths(sequence, rows, context_length, separate_prefix, remedy)
        return rows

    def measured_spans(self, sequence: TokenSequence, context_length: int, separate_prefix: bool = False) -> Spans:
        """The examples of a split whose likelihood is measured: as `spans`, of preferences the preferred answers alone.

        The likelihood of an answer that is to become unlikely says nothing.
        """
        found = self.spans(sequence, context_length, separate_prefix)
        return found.every_second() if self.is_preferences else found

    def row_reading(self, sequence: TokenSequence) -> str:
        """How the rows of a split are measured, in words."""
        if self.is_prompts:
            return "each prompt is read by itself"
        if self.is_preferences:
            return "each conversation is read by itself, and only its chosen answer counts"
        if sequence.roles is not None:
            return "each conversation is read by itself, and only its answers count"
        return "each pair is read by itself, and only its target counts"

    @property
    def source_names(self) -> list[str]:
        """The sources of the text, in order: those of the mixture that it was prepared from, else its files."""
        return list(dict.fromkeys(source.source_name for source in self.manifest.sources))

    def sources(self, name: Split) -> Tokens | None:
        """The place of each document's source in `source_names`, `[D]`; None if the folder does not tell.

        `UserError` if what the manifest says does not fit the documents.
        """
        info, sources = self.manifest.splits[name], len(self.manifest.sources)
        if info.sources is None:
            return np.zeros(info.documents, dtype=np.int64) if sources == 1 else None
        try:
            files_D = parse_runs(info.sources, info.documents, sources)
        except ValueError as error:
            raise UserError(f"{self.folder / MANIFEST}: splits.{name}.{error}; prepare the text again") from None
        place_of = {name: place for place, name in enumerate(self.source_names)}
        places: Tokens = np.array([place_of[source.source_name] for source in self.manifest.sources])
        return places[files_D]
