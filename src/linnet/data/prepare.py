"""From text to a data folder: read, hold out, train the tokenizer, encode.

Each step is one pass over the text, which is never held in memory as a whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from linnet.core.errors import UserError, note
from linnet.core.spec import read_yaml
from linnet.data.clean import cleaned_text, read_cleaning
from linnet.data.cleaning_steps import CleaningSpec
from linnet.data.corpus import Corpus, Document, read_corpus, undivided_note
from linnet.data.corpus_tokenizer import Trainer, load_tokenizer, train_on_corpus
from linnet.data.data_folder import checked_target, new_folder
from linnet.data.encoding import write_corpus
from linnet.data.fill_in_the_middle import FillInTheMiddle, Rearranger
from linnet.data.mixture import MixtureSpec, SourceSpec, open_each_source
from linnet.data.shards import SHARD_TOKENS, Manifest, SourceInfo
from linnet.data.sources import Source, describe_reading, open_sources
from linnet.data.split import Split, check_fraction
from linnet.data.tokenizer_training import check_digits

TEXT = "text"
"""In the settings of a manifest: the hash of the files of text that a run was given."""


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
    steps = None if clean is None else _cleaning_beside(clean, mixture)
    mixed = None if mixture is None else mixture_to_prepare(mixture, inputs, field, separator)
    out = checked_target(out, overwrite)
    check_fraction(validation)
    ready = None
    if train is None:
        check_digits(tokenizer, split_digits)
        ready = load_tokenizer(tokenizer, vocab_size, end)
    with new_folder(out, overwrite) as folder, ExitStack() as stack:
        if mixed is None:
            opened = _open_inputs(stack, inputs, out, steps, field, separator, skip_invalid)
        else:
            opened = _open_mixture(stack, mixed, skip_invalid)
        corpus, fraction = _read_opened(opened, validation)
        encoder = ready or train_on_corpus(corpus, tokenizer, vocab_size, split_digits, train)
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
            **({} if opened.cleaning is None else {"clean": opened.cleaning}),
            **recorded,
        }
        if fill_in_the_middle is None:
            return write_corpus(folder, corpus, encoder, settings, shard_tokens)
        settings["fill_in_the_middle"] = fill_in_the_middle.model_dump(mode="json")
        encoder = ready or encoder.with_special(fill_in_the_middle.tokens)
        rearranger = Rearranger(fill_in_the_middle, encoder)
        manifest = write_corpus(folder, corpus, encoder, settings, shard_tokens, rearranger)
        if fill_in_the_middle.rate:
            note(rearranger.describe())
        return manifest


class _Opened(NamedTuple):
    """The files that are read, the source of a mixture that each belongs to, and what cleaning removed before."""

    sources: list[Source]
    names: list[str] | None = None
    cleaning: dict[str, Any] | None = None


def _cleaning_beside(clean: str | Path | CleaningSpec, mixture: object) -> CleaningSpec:
    """The steps of `clean`; `UserError` beside a mixture, whose sources may need other ones."""
    steps = read_cleaning(clean)
    if mixture is not None:
        accepted = "inputs beside it; linnet data clean cleans each source of a mixture"
        raise UserError(field="clean", value=clean if isinstance(clean, str | Path) else "steps", accepted=accepted)
    return steps


def _open_inputs(
    stack: ExitStack,
    inputs: Sequence[str],
    out: Path,
    steps: CleaningSpec | None,
    field: str | None,
    separator: str | None,
    skip_invalid: bool,
) -> _Opened:
    """The files of the inputs, or what stays of them after cleaning."""
    if steps is None:
        return _Opened(open_sources(stack, inputs, field, separator, skip_invalid))
    cleaned, cleaning = stack.enter_context(cleaned_text(inputs, out, steps, field, separator, skip_invalid))
    return _Opened(open_sources(stack, [cleaned]), cleaning=cleaning)


def _read_opened(opened: _Opened, validation: float | None) -> tuple[Corpus, float]:
    """The documents of opened files, and the fraction that is held out; tells what the reading met besides."""
    corpus, fraction = read_corpus(opened.sources, validation, opened.names)
    for line in describe_reading(opened.sources):
        note(line)
    if undivided := undivided_note(opened.sources, corpus, fraction):
        note(undivided)
    if opened.cleaning is None:
        return corpus, fraction
    # The files will be gone.
    of_text = [one.model_copy(update={"file": f"cleaned/{Path(one.file).name}"}) for one in corpus.sources]
    return replace(corpus, sources=of_text), fraction


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
    corpus = Corpus(lambda: iter(documents), [source])
    settings = {"tokenizer": tokenizer, "vocab_size": vocab_size}
    with new_folder(out, overwrite) as folder:
        encoder = ready or train_on_corpus(corpus, tokenizer, vocab_size)
        return write_corpus(folder, corpus, encoder, settings, SHARD_TOKENS)


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


def _open_mixture(stack: ExitStack, mixture: MixtureSpec, skip_invalid: bool) -> _Opened:
    """The files of a mixture's sources, one source after the other."""

    def read(spec: SourceSpec) -> list[Source]:
        return open_sources(stack, spec.inputs, spec.field, spec.separator, skip_invalid)

    found = open_each_source(mixture, "files, folders or patterns of text", read, lambda source: source.name)
    return _Opened(*found)
