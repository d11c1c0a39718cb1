"""From a file of pairs, an input and the target that follows from it, to a data folder of rows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.data.corpus import Corpus, Document
from linnet.data.corpus_tokenizer import load_tokenizer, train_on_corpus
from linnet.data.data_folder import checked_target, new_folder
from linnet.data.encoding import write_corpus
from linnet.data.readers import json_field, lines_of, valid
from linnet.data.shards import SHARD_TOKENS, Manifest, SourceInfo
from linnet.data.sources import open_source
from linnet.data.split import Survey, check_fraction
from linnet.present.progress import Advance, progress

PAIRS = "pairs"
"""In the settings of a manifest: the hash of the file of pairs that the folder was made of."""

INPUT, TARGET = "input", "target"
"""The fields of a pair."""


class Pair(NamedTuple):
    """An input and the text that follows it."""

    input: str
    target: str


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
        encoder = ready or train_on_corpus(corpus, tokenizer, vocab_size)
        return write_corpus(folder, corpus, encoder, settings, SHARD_TOKENS)


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


def _corpus_of_pairs(path: Path, validation: float | None) -> tuple[Corpus, float]:
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

    return Corpus(documents, [SourceInfo(file=str(path), documents=found, bytes=text_bytes)], True), holdout.fraction
