"""From text, pairs or rows of tokens to a data folder: read, hold out, train the tokenizer, encode.

Each step is one pass over the text, which is never held in memory as a whole.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnet.core.atomic import atomic_directory, clean_up
from linnet.core.checksum import CHECKSUM_MISMATCH, MANIFEST, check_files, read_checked_json
from linnet.core.errors import UserError, note
from linnet.core.files import sha256_of
from linnet.core.spec import read_yaml
from linnet.data.clean import cleaned_text, read_cleaning
from linnet.data.cleaning_steps import CleaningSpec
from linnet.data.fill_in_the_middle import FillInTheMiddle, Rearranger, Section
from linnet.data.mixture import MixtureSpec, SourceSpec, open_each_source
from linnet.data.readers import json_field, lines_of, valid
from linnet.data.shards import (
    SHARD_TOKENS,
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
from linnet.data.sources import Source, describe_reading, open_source, open_sources
from linnet.data.split import Split, Survey, below, check_fraction, content_hash, cut_last_part
from linnet.data.token_data import read_manifest
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.data.tokenizer_training import KINDS, check_digits, check_vocab_size, cut_before_words
from linnet.data.workers import computed_ahead
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.present.progress import Advance, progress

TOKENIZER_SAMPLE_BYTES = 50_000_000
PAIRS = "pairs"
"""In the settings of a manifest: the hash of the file of pairs that the folder was made of."""

TEXT = "text"
"""The same of the files of text that a run was given."""

INPUT, TARGET = "input", "target"
"""The fields of a pair."""

Trainer = Callable[[Iterable[str]], Tokenizer]
"""Makes a tokenizer of texts."""

_BATCH_CHARACTERS = 1 << 21
_FREQUENT = 10


class Document(NamedTuple):
    """A document as it is written: its side, its texts, and the number of its source.

    texts: one; or two, of which only the second, the target of the first, counts in the loss.
    """

    side: Split
    texts: tuple[str, ...]
    source: int = 0


class Pair(NamedTuple):
    """An input and the text that follows it."""

    input: str
    target: str


class TokenRow(NamedTuple):
    """Token ids, the end token first, and the token expected after each: `IGNORE_INDEX` where none is expected."""

    tokens: list[int]
    targets: list[int]


@dataclass(frozen=True)
class _Corpus:
    """Documents with their side, which can be read several times. pairs: each is an input and a target."""

    documents: Callable[[], Iterator[Document]]
    sources: list[SourceInfo]
    pairs: bool = False

    @property
    def text_bytes(self) -> int:
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
    end: Sequence[str] = (),
    skip_invalid: bool = False,
    mixture: str | Path | MixtureSpec | None = None,
    fill_in_the_middle: FillInTheMiddle | None = None,
    split_digits: str | None = None,
    clean: str | Path | CleaningSpec | None = None,
    recorded: Mapping[str, Any] = MappingProxyType({}),
    train: Trainer | None = None,
) -> Manifest:
    """Turn text (see `sources.Source`; also folders and patterns) into a data folder and return its manifest.

    `tokenizer` is bytes, char, bpe, unigram, or the path of a tokenizer.json. `validation` is the fraction of the bytes
    to hold out, as near as whole documents allow (None: 0.05 of a text below 20 MB, else 0.01). The validation side,
    its shards and the tokenizer do not depend on the order of the files. The folder appears complete or not at all; one
    that is there is replaced only with `overwrite`, and only if it holds nothing but prepared data. `end`: the end
    tokens of a tokenizer.json, that between documents first; none: those that it or the files beside it name.
    `skip_invalid` leaves out documents that cannot be read, and counts them. `mixture`, or the path of its YAML, names
    the inputs instead, by source; each source has its own field and separator. `fill_in_the_middle` rearranges
    documents to train on; a tokenizer that is trained here gets its control tokens, another has to have them.
    `split_digits`: of a tokenizer that is trained here, see `Tokenizer.train`. `clean`, or the path of its YAML: the
    steps of `clean.clean` that the documents go through first; what these removed is in the manifest. `recorded`: more
    settings, for the manifest alone. `train` makes a tokenizer of another kind, which `tokenizer` names.
    """
    steps = None if clean is None else read_cleaning(clean)
    if steps is not None and mixture is not None:
        accepted = "inputs beside it; linnet data clean cleans each source of a mixture"
        raise UserError(field="clean", value=clean if isinstance(clean, str | Path) else "steps", accepted=accepted)
    mixed = None if mixture is None else mixture_to_prepare(mixture, inputs, field, separator)
    out = checked_target(out, overwrite)
    check_fraction(validation)
    ready = None
    if train is None:
        check_digits(tokenizer, split_digits)
        ready = load_tokenizer(tokenizer, vocab_size, end)
    with new_folder(out, overwrite) as folder, ExitStack() as stack:
        names, cleaning = None, None
        if steps is not None:
            text = cleaned_text(inputs, out, steps, field, separator, skip_invalid)
            cleaned, cleaning = stack.enter_context(text)
            sources = open_sources(stack, [cleaned])
        elif mixed is None:
            sources = open_sources(stack, inputs, field, separator, skip_invalid)
        else:
            sources, names = _open_mixture(stack, mixed, skip_invalid)
        corpus, fraction = _corpus_of(sources, validation, names)
        for line in describe_reading(sources):
            note(line)
        if undivided := _undivided_note(sources, corpus, fraction):
            note(undivided)
        if cleaning is not None:  # its files will be gone
            of_text = [one.model_copy(update={"file": f"cleaned/{Path(one.file).name}"}) for one in corpus.sources]
            corpus = replace(corpus, sources=of_text)
        settings = {
            "tokenizer": tokenizer,
            "vocab_size": vocab_size,
            "field": field,
            "separator": separator,
            "validation": fraction,
            "end": list(end),
            "skip_invalid": skip_invalid,
            **({} if split_digits is None else {"split_digits": split_digits}),
            **({} if mixed is None else {"mixture": mixed.model_dump(mode="json")}),
            **({} if cleaning is None else {"clean": cleaning}),
            **recorded,
        }
        encoder, rearranger = ready or _train(corpus, tokenizer, vocab_size, split_digits, train), None
        if fill_in_the_middle is not None:
            settings["fill_in_the_middle"] = fill_in_the_middle.model_dump(mode="json")
            encoder = ready or encoder.with_special(fill_in_the_middle.tokens)
            rearranger = Rearranger(fill_in_the_middle, encoder)
        manifest = _write(folder, corpus, encoder, settings, shard_tokens, rearranger)
        if fill_in_the_middle is not None and rearranger is not None and fill_in_the_middle.rate:
            note(rearranger.describe())
        return manifest


def mixture_to_prepare(
    mixture: str | Path | MixtureSpec, inputs: Sequence[str], field: str | None, separator: str | None
) -> MixtureSpec:
    """The mixture; `UserError` for what it says itself."""
    for name, value in (("inputs", inputs), ("field", field), ("separator", separator)):
        if value:
            accepted = f"nothing beside mixture, whose sources have {name} of their own"
            raise UserError(field=name, value=value if isinstance(value, str) else ", ".join(value), accepted=accepted)
    if isinstance(mixture, MixtureSpec):
        return mixture
    return MixtureSpec.parse(read_yaml(mixture), str(mixture))


def read_split(inputs: list[str]) -> tuple[dict[Split, list[str]], list[SourceInfo]]:
    """The documents of text files, each on the side where `prepare` puts it, in order; what each file holds."""
    sides: dict[Split, list[str]] = {"train": [], "validation": []}
    with ExitStack() as stack:
        corpus, _ = _corpus_of(open_sources(stack, inputs), None)
        for document in corpus.documents():
            sides[document.side].append(document.texts[0])
    return sides, corpus.sources


def single_document_note(sources: Sequence[SourceInfo]) -> str | None:
    """A note on files that are a single document among others, and so lie on one side of the split; None if none is."""
    files = [source.file for source in sources if source.documents == 1]
    if not files or len(sources) == 1:
        return None
    others = f" and {len(files) - 3:,} others" if len(files) > 3 else ""
    names = f"{files[0]} is" if len(files) == 1 else f"{', '.join(files[:3])}{others} are each"
    cure = "a text file is cut at <|endoftext|>, a .jsonl file has a document in each line"
    return f"{names} one document, which is trained on or held out as a whole: {cure}"


def _undivided_note(sources: Sequence[Source], corpus: _Corpus, fraction: float) -> str | None:
    """A note on files that are one document each: what becomes of them, and what could divide them."""
    pairs = zip(sources, corpus.sources, strict=True)
    # A web page is one document, however it is written.
    single = next((source for source, found in pairs if found.documents == 1 and source.kind != "html"), None)
    if single is None:
        return None
    text, name = next(single.documents()), single.name
    if len(sources) == 1:
        cut = len(cut_last_part(text, fraction)[0].encode())
        line = f"{name} is one document, cut at byte {cut:,}: it is trained on up to there, the rest is held out"
    else:
        line = f"{single_document_note(corpus.sources)}; or give --document-separator"
    blank = [mark for mark in ("\r\n\r\n", "\n\n") if text.count(mark) >= _FREQUENT]
    return f"{line}; blank lines are frequent in {name}: --document-separator {blank[0]!r}?" if blank else line


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
    out = checked_target(out, overwrite)
    ready = load_tokenizer(tokenizer, vocab_size)
    sides: dict[Split, list[str]] = {"train": list(filter(None, train)), "validation": list(filter(None, validation))}
    for side, texts in sides.items():
        if not texts:
            raise UserError(f"{name}: no {side} documents")
    documents = [Document(side, (text,)) for side, texts in sides.items() for text in texts]
    text_bytes = sum(len(document.texts[0].encode()) for document in documents)
    source = SourceInfo(file=name, documents=len(documents), bytes=text_bytes)
    corpus = _Corpus(lambda: iter(documents), [source])
    settings = {"tokenizer": tokenizer, "vocab_size": vocab_size}
    with new_folder(out, overwrite) as folder:
        encoder = ready or _train(corpus, tokenizer, vocab_size)
        return _write(folder, corpus, encoder, settings, SHARD_TOKENS)


def prepare_pairs(
    path: str | Path,
    out: str | Path,
    tokenizer: str = "bpe",
    vocab_size: int | None = None,
    validation: float | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Turn a file of pairs (`read_pairs`) into a data folder of rows; the other arguments are those of `prepare`.

    A row is an end token, the input, an end token, the target; the target and the end token after it count in the
    loss. Pairs with the same input are on the same side.
    """
    out = checked_target(out, overwrite)
    check_fraction(validation)
    ready = load_tokenizer(tokenizer, vocab_size)
    with new_folder(out, overwrite) as folder:
        corpus, fraction = _corpus_of_pairs(Path(path), validation)
        settings = {PAIRS: sha256_of(path), "tokenizer": tokenizer, "vocab_size": vocab_size, "validation": fraction}
        encoder = ready or _train(corpus, tokenizer, vocab_size)
        return _write(folder, corpus, encoder, settings, SHARD_TOKENS)


def read_pairs(path: str | Path, advance: Advance = lambda *_: None) -> Iterator[Pair]:
    """The pairs of a file of JSON lines, `{"input": ..., "target": ...}` each; other fields are ignored.

    `UserError` names the file, the line and the field of an invalid pair. advance: gets the bytes that were read.
    """
    found = False
    with open_source(Path(path)) as handle:
        position = 0
        for place, line in lines_of(handle, str(path)):
            advance(handle.tell() - position)
            position = handle.tell()
            pair = Pair(*(valid(json_field(valid(line), field, place)) for field in (INPUT, TARGET)))
            for field, text in zip((INPUT, TARGET), pair, strict=True):
                if not text:
                    raise UserError(f"{place}: field {field!r}: empty; expected some text")
            found = True
            yield pair
    if not found:
        example = json.dumps({INPUT: "...", TARGET: "..."})
        raise UserError(f"{path}: no pairs; expected lines like {example}")


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


def _corpus_of_pairs(path: Path, validation: float | None) -> tuple[_Corpus, float]:
    """The pairs, and the fraction of the inputs that is held out."""
    found, inputs, text_bytes = 0, Survey(), 0
    with progress("reading", path.stat().st_size if path.is_file() else 0, "bytes") as advance:
        for pair in read_pairs(path, advance):
            inputs.add(pair.input)
            found += 1
            text_bytes += sum(len(text.encode()) for text in pair)
    holdout = inputs.holdout(validation)
    if holdout.held_out is None:
        raise UserError(f"{path}: all pairs have the same input; expected others to hold out")

    def documents() -> Iterator[Document]:
        for pair in read_pairs(path):
            ((side, _),) = holdout.parts(pair.input)
            yield Document(side, pair)

    return _Corpus(documents, [SourceInfo(file=str(path), documents=found, bytes=text_bytes)], True), holdout.fraction


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


def _open_mixture(stack: ExitStack, mixture: MixtureSpec, skip_invalid: bool) -> tuple[list[Source], list[str]]:
    """The files of a mixture's sources, one source after the other, and the name of each file's source."""

    def read(spec: SourceSpec) -> list[Source]:
        return open_sources(stack, spec.inputs, spec.field, spec.separator, skip_invalid)

    return open_each_source(mixture, "files, folders or patterns of text", read, lambda source: source.name)


def _corpus_of(
    sources: list[Source], validation: float | None, names: Sequence[str] | None = None
) -> tuple[_Corpus, float]:
    """First pass: count, and decide the split. Returns the documents and the fraction that is held out.

    names: of the sources of a mixture, for each file.
    """
    total, found = Survey(), []
    with progress("reading", sum(source.size_bytes for source in sources), "bytes") as advance:
        for source, name in zip(sources, names or repeat(None, len(sources)), strict=True):
            before = total.documents, total.text_bytes
            for text in source.documents(advance):
                total.add(text)
            documents, text_bytes = total.documents - before[0], total.text_bytes - before[1]
            found.append(SourceInfo(file=source.name, documents=documents, bytes=text_bytes, name=name))
    if not total.documents:
        raise UserError(f"{sources[0].name} and {len(sources) - 1:,} other files: no documents, every one is empty")
    holdout = total.holdout(validation)

    def documents_of_all() -> Iterator[Document]:
        for number, source in enumerate(sources):
            for text in source.documents():
                yield from (Document(side, (part,), number) for side, part in holdout.parts(text))

    return _Corpus(documents_of_all, found), holdout.fraction


def load_tokenizer(name: str, vocab_size: int | None, end: Sequence[str] = ()) -> Tokenizer | None:
    """The tokenizer at a path, or None for a kind that has to be trained."""
    check_vocab_size(name, vocab_size)
    if name in KINDS:
        if end:
            raise UserError(field="end", value=", ".join(end), accepted="the path of a tokenizer.json as `tokenizer`")
        return None
    if not Path(name).exists():
        raise UserError(
            field="tokenizer", value=name, accepted=f"one of {', '.join(KINDS)}, or the path of a tokenizer.json"
        )
    loaded = Tokenizer.load(name, end)
    _check_unchanged(Path(name))
    loaded.encode("")  # a package that it needs is missed now, not after a pass over the text
    return loaded


def _check_unchanged(path: Path) -> None:
    """`UserError` where a tokenizer of a model's or a data folder is not what the manifest beside it says."""
    folder = path if path.is_dir() else path.parent
    if not (folder / MANIFEST).is_file() or path.name not in (folder.name, TOKENIZER):
        return
    plain = read_checked_json(folder / MANIFEST)
    if isinstance(plain, dict) and "files" in plain:
        check_files(folder, (TOKENIZER,))
    elif (
        isinstance(plain, dict)
        and "splits" in plain
        and read_manifest(folder).tokenizer.hash != Tokenizer.load(path).hash
    ):
        raise UserError(f"{folder / TOKENIZER}: {CHECKSUM_MISMATCH} from that in {MANIFEST}")


def train_tokenizer(
    inputs: Sequence[str],
    kind: str,
    vocab_size: int | None = None,
    field: str | None = None,
    separator: str | None = None,
    split_digits: str | None = None,
) -> Tokenizer:
    """Train a tokenizer on all documents of files and folders; what the reading met besides is noted.

    The arguments are those of `prepare`; of large texts a sample is read. `UserError` as from `prepare`.
    """
    if kind not in KINDS:
        raise UserError(field="kind", value=kind, accepted=f"one of {', '.join(KINDS)}")
    check_vocab_size(kind, vocab_size)
    check_digits(kind, split_digits)

    def train(texts: Iterable[str]) -> Tokenizer:
        return Tokenizer.train(kind, texts, vocab_size, split_digits)

    return train_on_files(inputs, train, field, separator, TOKENIZER_SAMPLE_BYTES if kind != "char" else None)


def train_on_files(
    inputs: Sequence[str],
    train: Trainer,
    field: str | None = None,
    separator: str | None = None,
    sample_bytes: int | None = TOKENIZER_SAMPLE_BYTES,
) -> Tokenizer:
    """Apply `train` to all documents of files and folders in parts, of more than `sample_bytes` to a sample."""
    with ExitStack() as stack:
        sources = open_sources(stack, inputs, field, separator)
        divided, _ = _corpus_of(sources, None)

        def documents() -> Iterator[Document]:  # nothing is held out
            return (document._replace(side="train") for document in divided.documents())

        with progress("tokenizer", divided.text_bytes, "bytes") as advance:
            trained = train(_sample(_Corpus(documents, divided.sources), sample_bytes, advance))
        for line in describe_reading(sources):
            note(line)
    return trained


def _train(
    corpus: _Corpus,
    kind: str,
    vocab_size: int | None,
    split_digits: str | None = None,
    train: Trainer | None = None,
) -> Tokenizer:
    """Second pass: the tokenizer, from the training side alone. train: of a kind that is not one of `KINDS`."""
    if kind == "bytes":
        return Tokenizer.train(kind, [], vocab_size)
    with progress("tokenizer", corpus.text_bytes, "bytes") as advance:
        sample = _sample(corpus, None if kind == "char" else TOKENIZER_SAMPLE_BYTES, advance)
        return Tokenizer.train(kind, sample, vocab_size, split_digits) if train is None else train(sample)


def _sample(corpus: _Corpus, sample_bytes: int | None, advance: Advance) -> Iterator[str]:
    """Parts of the training side, chosen by content: the same ones whatever the order of files. None: all of them."""
    share = 1.0 if sample_bytes is None else sample_bytes / corpus.text_bytes
    for document in corpus.documents():
        for part in (part for text in document.texts for part in cut_before_words(text)):
            if document.side == "train" and (share >= 1 or below(content_hash(part, b"tokenizer"), share)):
                yield part
            advance(len(part.encode()))


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


def _write(
    folder: Path,
    corpus: _Corpus,
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
    corpus: _Corpus,
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
