"""The tokenizer of a corpus: one that is there, or one that is trained on the documents to train on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from linnet.core.checksum import CHECKSUM_MISMATCH, MANIFEST, check_files, read_checked_json
from linnet.core.errors import UserError, note
from linnet.data.corpus import Corpus, Document, read_corpus
from linnet.data.sources import describe_reading, open_sources
from linnet.data.split import below, content_hash
from linnet.data.token_data import read_manifest
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.data.tokenizer_training import KINDS, check_digits, check_vocab_size, cut_before_words
from linnet.present.progress import Advance, progress

TOKENIZER_SAMPLE_BYTES = 50_000_000

Trainer = Callable[[Iterable[str]], Tokenizer]
"""Makes a tokenizer of texts."""


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
        divided, _ = read_corpus(sources, None)

        def documents() -> Iterator[Document]:  # nothing is held out
            return (document._replace(side="train") for document in divided.documents())

        with progress("tokenizer", divided.text_bytes, "bytes") as advance:
            trained = train(_sample(Corpus(documents, divided.sources), sample_bytes, advance))
        for line in describe_reading(sources):
            note(line)
    return trained


def train_on_corpus(
    corpus: Corpus,
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


def _sample(corpus: Corpus, sample_bytes: int | None, advance: Advance) -> Iterator[str]:
    """Parts of the training side, chosen by content: the same ones whatever the order of files. None: all of them."""
    share = 1.0 if sample_bytes is None else sample_bytes / corpus.text_bytes
    for document in corpus.documents():
        for part in (part for text in document.texts for part in cut_before_words(text)):
            if document.side == "train" and (share >= 1 or below(content_hash(part, b"tokenizer"), share)):
                yield part
            advance(len(part.encode()))
