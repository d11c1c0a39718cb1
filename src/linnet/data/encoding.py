"""From a corpus to token shards: documents are encoded in pieces, in parallel, and written with what describes them."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError, note
from linnet.data.corpus import Corpus, Document
from linnet.data.data_folder import describe_folder
from linnet.data.fill_in_the_middle import Rearranger, Section
from linnet.data.shards import Manifest, Part, ShardWriter, SplitInfo, describe_runs
from linnet.data.split import Split, content_hash
from linnet.data.tokenizer import Tokenizer
from linnet.data.workers import computed_ahead
from linnet.present.progress import Advance, progress

_BATCH_CHARACTERS = 1 << 21


class _Totals:
    """What the encoded texts of a folder add up to: bytes of text, bytes that tokens stand for, and uses of each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.text_bytes = self.token_bytes = 0
        self.counts_V = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self._byte_counts, self._end = tokenizer.byte_counts(), tokenizer.end_id

    def add(self, text_bytes: int, ids_T: NDArray[np.int64]) -> None:
        """Add texts and their tokens, behind the token that stands before them; end tokens are no text."""
        self.text_bytes += text_bytes
        self.token_bytes += int(self._byte_counts.of(ids_T[1:], ids_T[:-1]).sum())
        self.counts_V += np.bincount(ids_T[1:], minlength=len(self.counts_V))
        self.counts_V[self._end] = 0


def write_corpus(
    folder: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    settings: Mapping[str, object],
    shard_tokens: int,
    rearranger: Rearranger | None = None,
) -> Manifest:
    """Last pass: the shards, and what describes them. rearranger: of the documents to train on.

    The training side is encoded as it is read; the validation side is collected and written in the order of its hashes.
    """
    held_out: list[Document] = []

    def training() -> Iterator[Document]:
        for document in corpus.documents():
            if document.side == "train":
                yield document
            else:
                held_out.append(document)

    totals = _Totals(tokenizer)
    with progress("encoding", corpus.text_bytes, "bytes") as advance:
        write = partial(_write_split, folder, corpus, tokenizer, shard_tokens, totals, advance)
        splits: dict[Split, SplitInfo] = {"train": write("train", training(), rearranger)}
        held_out.sort(key=lambda document: [content_hash(text) for text in document.texts])
        splits["validation"] = write("validation", held_out)
    if totals.text_bytes != corpus.text_bytes:
        names = ", ".join(source.file for source in corpus.sources)
        raise UserError(f"{names}: changed while being read")
    if lost := tokenizer.loss_note(totals.counts_V, totals.token_bytes, totals.text_bytes):
        note(lost)
    return describe_folder(folder, tokenizer, splits, corpus.sources, settings, "rows" if corpus.pairs else "stream")


def _write_split(
    folder: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    shard_tokens: int,
    totals: _Totals,
    advance: Advance,
    split: Split,
    documents: Iterable[Document],
    rearranger: Rearranger | None = None,
) -> SplitInfo:
    """Write the shards of a side, and add what is in them to `totals`."""
    runs: list[tuple[int, int]] = []  # how many documents of one source follow each other

    def counted() -> Iterator[Document]:
        for document in documents:
            last, count = runs[-1] if runs else (None, 0)
            if last == document.source:
                runs[-1] = document.source, count + 1
            else:
                runs.append((document.source, 1))
            yield document

    parts: tuple[Part, ...] = ("mask",) if corpus.pairs else ()
    before = totals.text_bytes
    with ShardWriter(folder, split, tokenizer.vocab_size, shard_tokens, parts) as writer:
        _write_documents(writer, counted(), tokenizer, corpus.pairs, totals, advance, rearranger)
        described = describe_runs(runs) if len(corpus.sources) > 1 else None
        return writer.info(totals.text_bytes - before, described)


class _Piece(NamedTuple):
    """A part of a document's text that is encoded at once, and where it stands.

    begins: the document begins with it. before: the end token or control tokens that come before it. counts: it counts
    in the loss.
    """

    text: str
    begins: bool
    before: tuple[int, ...]
    counts: bool


def _write_documents(
    writer: ShardWriter,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    pairs: bool,
    totals: _Totals,
    advance: Advance,
    rearranger: Rearranger | None = None,
) -> None:
    """Encode documents and write them."""
    end = np.array([tokenizer.end_id])
    counted = False  # True if the previous text counts: then the end token after it counts, too
    before = end  # the last token

    def encode(batch: list[_Piece]) -> list[list[int]]:
        return tokenizer.encode_batch([piece.text for piece in batch])

    for batch, encoded in computed_ahead(encode, _pieces(documents, tokenizer, rearranger)):
        ids, mask, starts, text_bytes = list[int](), list[bool](), list[int](), 0
        for piece, tokens in zip(batch, encoded, strict=True):
            if piece.begins:
                starts.append(len(ids))
            if pairs:
                mask += [counted] * len(piece.before) + [piece.counts] * len(tokens)
            ids += piece.before
            ids += tokens
            counted = piece.counts
            size_bytes = len(piece.text.encode())
            advance(size_bytes)
            text_bytes += size_bytes
        ids_T = np.array(ids, dtype=np.int64)
        writer.write(ids_T, {"mask": np.array(mask, dtype=bool)} if pairs else {}, starts)
        before_and_ids_T = np.concatenate([before, ids_T])
        totals.add(text_bytes, before_and_ids_T)
        before = before_and_ids_T[-1:]
    writer.write(end, {"mask": np.array([counted])} if pairs else {})
    sizes = totals.token_bytes, totals.text_bytes
    assert tokenizer.kind == "imported" or sizes[0] == sizes[1], sizes


def _pieces(
    documents: Iterable[Document], tokenizer: Tokenizer, rearranger: Rearranger | None
) -> Iterator[list[_Piece]]:
    """The pieces of documents, in lists of about as many characters as are encoded at once."""
    batch: list[_Piece] = []
    characters = 0
    for document in documents:
        if rearranger is None:
            sections = [Section((tokenizer.end_id,), text) for text in document.texts]
        else:
            first, *others = rearranger.sections(document.texts[0])
            sections = [Section((tokenizer.end_id, *first.controls), first.text), *others]
        for number, (before, text) in enumerate(sections):
            for place, part in enumerate(tokenizer.cut(text) or [""]):
                controls = before if place == 0 else ()
                batch.append(_Piece(part, number == place == 0, controls, number == len(sections) - 1))
                characters += len(part)
                if characters >= _BATCH_CHARACTERS:
                    yield batch
                    batch, characters = [], 0
    yield batch
