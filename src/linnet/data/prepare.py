"""From text to a data folder: read, hold out, train the tokenizer, encode. Each step is one pass over the text."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linnet.core.atomic import atomic_directory, clean_up
from linnet.core.checksum import CHECKSUM_MISMATCH, MANIFEST, check_files, read_checked_json
from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.data.manifest import (
    Manifest,
    SourceInfo,
    SplitInfo,
    TokenizerInfo,
    holds_only_data,
    read_manifest,
    token_dtype,
    write_manifest,
)
from linnet.data.pairs import Pair, read_pairs
from linnet.data.shards import PAIRS, SHARD_TOKENS, ShardWriter
from linnet.data.source_runs import SourceRuns
from linnet.data.sources import STDIN, Source
from linnet.data.split import Split, Survey, below, check_fraction, content_hash
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.data.tokenizer_training import KINDS, check_vocab_size, cut_before_words
from linnet.present.progress import Advance, progress

TOKENIZER_SAMPLE_BYTES = 50_000_000
_BATCH_CHARACTERS = 1 << 21


class PreparedPart(NamedTuple):
    """A document, or one of its two parts: its side, its text, and the number of the source that it is from."""

    side: Split
    text: str
    source: int = 0


@dataclass(frozen=True)
class _Corpus:
    """Documents with their side, readable several times; so many after each other belong `together`."""

    parts: Callable[[], Iterator[PreparedPart]]
    sources: list[SourceInfo]
    together: int = 1

    @property
    def text_bytes(self) -> int:
        """The UTF-8 size of all documents."""
        return sum(source.bytes for source in self.sources)


def prepare(
    inputs: list[str],
    out: str | Path,
    tokenizer: str = "bpe",
    vocab_size: int | None = None,
    field: str | None = None,
    separator: str | None = None,
    validation: float | None = None,
    overwrite: bool = False,
    shard_tokens: int = SHARD_TOKENS,
) -> Manifest:
    """Turn text files (see `sources.Source`; `-` is the standard input) into a data folder and return its manifest.

    `tokenizer` is bytes, char, bpe, unigram, or the path of a tokenizer.json. `validation` is the fraction of the bytes
    to hold out, as near as whole documents allow (None: 0.05 of a text below 20 MB, else 0.01). The validation side,
    its shards and the tokenizer do not depend on the order of the files. The folder appears complete or not at all; one
    that is there is replaced only with `overwrite`, and only if it holds nothing but prepared data.
    """
    out = _checked_target(out, overwrite)
    check_fraction(validation)
    given = _given_tokenizer(tokenizer, vocab_size)
    with _made(out, overwrite) as folder, ExitStack() as stack:
        corpus, fraction = _corpus_of(_open_sources(stack, inputs, field, separator), validation)
        settings = {
            "tokenizer": tokenizer,
            "vocab_size": vocab_size,
            "field": field,
            "separator": separator,
            "validation": fraction,
        }
        encoder = given or _train(corpus, tokenizer, vocab_size)
        return _write(folder, corpus, encoder, settings, shard_tokens)


def read_split(inputs: list[str]) -> tuple[dict[Split, list[str]], list[SourceInfo]]:
    """The documents of text files, each on the side where `prepare` puts it, in their order; what each file holds."""
    sides: dict[Split, list[str]] = {"train": [], "validation": []}
    with ExitStack() as stack:
        corpus, _ = _corpus_of(_open_sources(stack, inputs, None, None), None)
        for part in corpus.parts():
            sides[part.side].append(part.text)
    return sides, corpus.sources


def prepare_texts(
    train: Iterable[str],
    validation: Iterable[str],
    out: str | Path,
    tokenizer: str = "bpe",
    vocab_size: int | None = None,
    name: str = "texts",
    overwrite: bool = False,
) -> Manifest:
    """`prepare` for documents in memory whose split is given; `name` stands for them in the manifest."""
    out = _checked_target(out, overwrite)
    given = _given_tokenizer(tokenizer, vocab_size)
    sides: dict[Split, list[str]] = {"train": list(filter(None, train)), "validation": list(filter(None, validation))}
    for side, texts in sides.items():
        if not texts:
            raise UserError(f"{name}: no {side} documents")
    documents = [PreparedPart(side, text) for side, texts in sides.items() for text in texts]
    text_bytes = sum(len(part.text.encode()) for part in documents)
    source = SourceInfo(file=name, documents=len(documents), bytes=text_bytes)
    corpus = _Corpus(lambda: iter(documents), [source])
    settings = {"tokenizer": tokenizer, "vocab_size": vocab_size}
    with _made(out, overwrite) as folder:
        encoder = given or _train(corpus, tokenizer, vocab_size)
        return _write(folder, corpus, encoder, settings, SHARD_TOKENS)


def prepare_pairs(
    path: str | Path,
    out: str | Path,
    tokenizer: str = "bpe",
    vocab_size: int | None = None,
    validation: float | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Turn a file of pairs (`data.pairs.read_pairs`) into a data folder; arguments else as those of `prepare`.

    Pairs with the same input are on the same side.
    """
    out = _checked_target(out, overwrite)
    check_fraction(validation)
    given = _given_tokenizer(tokenizer, vocab_size)
    with _made(out, overwrite) as folder:
        corpus, fraction = _corpus_of_pairs(Path(path), validation)
        settings = {PAIRS: sha256_of(path), "tokenizer": tokenizer, "vocab_size": vocab_size, "validation": fraction}
        encoder = given or _train(corpus, tokenizer, vocab_size)
        return _write(folder, corpus, encoder, settings, SHARD_TOKENS)


def _corpus_of_pairs(path: Path, validation: float | None) -> tuple[_Corpus, float]:
    """Inputs and targets in turn, and the fraction of the inputs that is held out."""
    found, inputs, text_bytes = 0, Survey(), 0
    with progress("reading", path.stat().st_size if path.is_file() else 0, "bytes") as advance:
        for pair in read_pairs(path, advance):
            inputs.add(pair.input)
            found += 1
            text_bytes += sum(len(text.encode()) for text in pair)
    holdout = inputs.holdout(validation)
    if holdout.held_out is None:
        raise UserError(f"{path}: all pairs have the same input; expected others to hold out")

    def parts() -> Iterator[PreparedPart]:
        for pair in read_pairs(path):
            ((side, _),) = holdout.parts(pair.input)
            yield from (PreparedPart(side, text) for text in pair)

    source = SourceInfo(file=str(path), documents=2 * found, bytes=text_bytes)
    return _Corpus(parts, [source], together=len(Pair._fields)), holdout.fraction


def _checked_target(out: str | Path, overwrite: bool) -> Path:
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
def _made(out: Path, overwrite: bool) -> Iterator[Path]:
    """The folder to write into, which becomes `out` when all is there; of several processes one has it."""
    with atomic_directory(out) as folder:
        _checked_target(out, overwrite)  # another process may have been faster
        yield folder


def _open_sources(stack: ExitStack, inputs: list[str], field: str | None, separator: str | None) -> list[Source]:
    if not inputs:
        raise UserError("no files given; expected text, .jsonl or .parquet files, or - for the standard input")
    if inputs.count(STDIN) > 1:
        raise UserError("-: the standard input can be read only once")
    sources = [Source(path, "text" if field is None else field, separator) for path in inputs]
    kinds = {source.kind for source in sources}
    if separator is not None and "text" not in kinds:
        raise UserError(f"only text files are split, {inputs[0]} has rows", field="separator", value=repr(separator))
    if field is not None and kinds == {"text"}:
        raise UserError(f"only .jsonl and .parquet have fields, {inputs[0]} is text", field="field", value=field)
    return [stack.enter_context(source) for source in sources]


def _survey(sources: list[Source]) -> tuple[list[SourceInfo], Survey]:
    """First pass: count, and find what decides the split."""
    total, found = Survey(), []
    with progress("reading", sum(source.size_bytes for source in sources), "bytes") as advance:
        for source in sources:
            before = total.documents, total.text_bytes
            for text in source.documents(advance):
                total.add(text)
            documents, text_bytes = total.documents - before[0], total.text_bytes - before[1]
            found.append(SourceInfo(file=source.name, documents=documents, bytes=text_bytes))
    return found, total


def _corpus_of(sources: list[Source], validation: float | None) -> tuple[_Corpus, float]:
    """The documents with their side, and the fraction that is held out."""
    found, total = _survey(sources)
    holdout = total.holdout(validation)

    def parts() -> Iterator[PreparedPart]:
        for number, source in enumerate(sources):
            for text in source.documents():
                yield from (PreparedPart(*part, number) for part in holdout.parts(text))

    return _Corpus(parts, found), holdout.fraction


def _given_tokenizer(name: str, vocab_size: int | None) -> Tokenizer | None:
    """The tokenizer at a path, or None for a kind that has to be trained."""
    check_vocab_size(name, vocab_size)
    if name in KINDS:
        return None
    if not Path(name).exists():
        raise UserError(
            field="tokenizer", value=name, accepted=f"one of {', '.join(KINDS)}, or the path of a tokenizer.json"
        )
    given = Tokenizer.load(name)
    _check_unchanged(Path(name), given)
    given.encode("")  # a package that it needs is missed now, not after a pass over the text
    return given


def _check_unchanged(path: Path, tokenizer: Tokenizer) -> None:
    """`UserError` where a tokenizer of a model's or a data folder is not what the manifest beside it says."""
    folder = path if path.is_dir() else path.parent
    if not (folder / MANIFEST).is_file() or path.name not in (folder.name, TOKENIZER):
        return
    plain = read_checked_json(folder / MANIFEST)
    if isinstance(plain, dict) and "files" in plain:
        check_files(folder, (TOKENIZER,))
    elif isinstance(plain, dict) and "splits" in plain and read_manifest(folder).tokenizer.hash != tokenizer.hash:
        raise UserError(f"{folder / TOKENIZER}: {CHECKSUM_MISMATCH} from that in {MANIFEST}")


def _train(corpus: _Corpus, kind: str, vocab_size: int | None) -> Tokenizer:
    """Second pass: the tokenizer, from the training side alone."""
    if kind == "bytes":
        return Tokenizer.train(kind, [], vocab_size)
    share = 1.0 if kind == "char" else TOKENIZER_SAMPLE_BYTES / corpus.text_bytes
    with progress("tokenizer", corpus.text_bytes, "bytes") as advance:
        return Tokenizer.train(kind, _training_sample(corpus, share, advance), vocab_size)


def _training_sample(corpus: _Corpus, share: float, advance: Advance) -> Iterator[str]:
    """About `share` of the training side, in parts chosen by content: the same ones whatever the order of files."""
    for side, text, _ in corpus.parts():
        for part in cut_before_words(text):
            if side == "train" and (share >= 1 or below(content_hash(part, b"tokenizer"), share)):
                yield part
            advance(len(part.encode()))


def _write(
    folder: Path, corpus: _Corpus, tokenizer: Tokenizer, settings: Mapping[str, object], shard_tokens: int
) -> Manifest:
    """Last pass: the shards, and what describes them."""
    splits = _write_splits(folder, corpus, tokenizer, shard_tokens)
    if sum(split.bytes for split in splits.values()) != corpus.text_bytes:
        names = ", ".join(source.file for source in corpus.sources)
        raise UserError(f"{names}: changed while being read")
    manifest = Manifest(
        tokenizer=TokenizerInfo(kind=tokenizer.kind, vocab_size=tokenizer.vocab_size, hash=tokenizer.hash),
        dtype=token_dtype(tokenizer.vocab_size),
        splits=splits,
        sources=corpus.sources,
        settings=dict(settings),
    )
    tokenizer.save(folder / TOKENIZER)
    write_manifest(folder, manifest)
    return manifest


def _write_splits(folder: Path, corpus: _Corpus, tokenizer: Tokenizer, shard_tokens: int) -> dict[Split, SplitInfo]:
    """Encode the training side as it is read; the validation side is kept and written in the order of its hashes."""
    held_out: list[PreparedPart] = []

    def training() -> Iterator[PreparedPart]:
        for part in corpus.parts():
            if part.side == "train":
                yield part
            else:
                held_out.append(part)

    with progress("encoding", corpus.text_bytes, "bytes") as advance:

        def write(split: Split, parts: Iterable[PreparedPart]) -> SplitInfo:
            runs = SourceRuns()
            with ShardWriter(folder, split, tokenizer.vocab_size, shard_tokens) as writer:
                info = _write_split(writer, runs.follow(parts), tokenizer, advance)
            return info.model_copy(update={"sources": runs.packed() if len(corpus.sources) > 1 else None})

        train = write("train", training())
        grouped = [held_out[first : first + corpus.together] for first in range(0, len(held_out), corpus.together)]
        grouped.sort(key=lambda parts: [content_hash(part.text) for part in parts])
        return {"train": train, "validation": write("validation", chain.from_iterable(grouped))}


def _write_split(writer: ShardWriter, texts: Iterable[str], tokenizer: Tokenizer, advance: Advance) -> SplitInfo:
    documents = text_bytes = token_bytes = 0
    bytes_of_token = tokenizer.token_bytes()
    end = np.array([tokenizer.end_id])
    for batch in _batches(texts, tokenizer):
        encoded = tokenizer.encode_batch([text for _, text in batch])
        for (starts, text), tokens in zip(batch, encoded, strict=True):
            ids = np.array(tokens, dtype=np.int64)
            writer.write(np.concatenate([end, ids]) if starts else ids)
            size_bytes = len(text.encode())
            documents += starts
            text_bytes += size_bytes
            token_bytes += int(bytes_of_token[ids].sum())
            advance(size_bytes)
    writer.write(end)
    assert tokenizer.kind == "imported" or token_bytes == text_bytes, (token_bytes, text_bytes)
    return writer.info(documents, text_bytes)


def _batches(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[tuple[bool, str]]]:
    """Lists of (starts a document?, part of its text), about as many characters each as are encoded at once."""
    batch: list[tuple[bool, str]] = []
    characters = 0
    for text in texts:
        for number, part in enumerate(tokenizer.cut(text)):
            batch.append((number == 0, part))
            characters += len(part)
            if characters >= _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    yield batch
