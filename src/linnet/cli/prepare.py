"""`linnet prepare`: turn text into a data folder."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.cli.console import note
from linnet.cli.options import AsJson, ChatTemplateFile, LongConversationsChoice, SplitDigits, option
from linnet.core.errors import UserError
from linnet.core.files import check_file
from linnet.core.spec import read_yaml
from linnet.present.show import write, write_json, write_parts

if TYPE_CHECKING:
    from linnet.data.conversation_lengths import LongConversations
    from linnet.data.corpus_tokenizer import Trainer
    from linnet.data.fill_in_the_middle import FillInTheMiddle
    from linnet.data.shards import Manifest

SENTENCEPIECE = "sentencepiece"

_DESCRIBES_A_MIXTURE = re.compile(rb"(?m)^sources:")
"""The first level of a YAML file has the field that every mixture.yaml has, and other text hardly ever."""


def prepare(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT",
            help="Files, folders or patterns of text, code, .jsonl, .csv, .parquet, .html, .warc, each also .gz, .zst, "
            ".bz2, .xz; hf:NAME[:CONFIG][:SPLIT]; - for the standard input. Or a mixture.yaml alone. Or token files "
            "alone: .bin, .idx, .ds.",
        ),
    ] = None,
    *,
    out: Annotated[Path, option("DIR", "The data folder to make.")],
    mixture: Annotated[
        Path | None, option("FILE", "A mixture.yaml, whose named sources say what is read; instead of inputs.")
    ] = None,
    clean: Annotated[
        Path | None, option("FILE", "A clean.yaml, whose steps the documents go through first (linnet data clean).")
    ] = None,
    tokenizer: Annotated[
        str,
        option(
            "bytes|char|bpe|unigram|sentencepiece|PATH", "The kind of tokenizer to train, or a tokenizer.json to use."
        ),
    ] = "bpe",
    end: Annotated[
        list[str] | None,
        option("TOKEN", "An end token of a tokenizer.json, that between documents first. Default: as its folder says."),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Tokens, including 256 bytes and the end token. Default where trained: 2048."),
    ] = None,
    split_digits: SplitDigits = None,
    field: Annotated[
        str | None, typer.Option(help="Field or column with the text, or a path: meta.text. Default: text.")
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--document-separator",
            help=r"The separator between documents in a text file, as in '\n\n'. Default: <|endoftext|>. A file "
            "without separators is one document.",
        ),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Fraction of the bytes to hold out. Default: 0.05 of a text below 20 MB, else 0.01."),
    ] = None,
    fim_rate: Annotated[
        float | None,
        option(
            "SHARE",
            "The share of the documents to train on that become fill-in-the-middle examples. 0: the tokenizer gets "
            "control tokens alone, for training.fill_in_the_middle.",
        ),
    ] = None,
    fim_spm_rate: Annotated[
        float | None, option("SHARE", "Of these, the share with the suffix before the prefix. Default: 0.5.")
    ] = None,
    fim_tokens: Annotated[
        str | None,
        option(
            "P,S,M", "Control tokens of prefix, suffix, middle. Default: <|fim_prefix|>,<|fim_suffix|>,<|fim_middle|>."
        ),
    ] = None,
    fim_seed: Annotated[int | None, option("N", "The seed of what is rearranged, and where. Default: 0.")] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out documents that cannot be read, and count them.")
    ] = False,
    chat: Annotated[
        list[Path] | None,
        option("FILE", "A .jsonl file of conversations instead of inputs, to train on the answers (repeatable)."),
    ] = None,
    preferences: Annotated[
        list[Path] | None,
        option("FILE", "A .jsonl file of chosen and rejected answers instead of inputs (repeatable)."),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        option("FILE", "A .jsonl file of prompts whose answers a checker judges, instead of inputs (repeatable)."),
    ] = None,
    model: Annotated[
        Path | None,
        option("DIR", "With --chat, --preferences or --prompts: the model with tokenizer and chat template."),
    ] = None,
    chat_template: ChatTemplateFile = None,
    long_conversations: LongConversationsChoice = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing data folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Prepare text for training: split it, train a tokenizer, write token shards and a manifest.

    Example: linnet prepare stories.txt web.jsonl --tokenizer bpe --vocab-size 4096 --out data/stories

    Whole documents are held out, so that their share of the bytes is as near to the fraction as possible. The contents
    of all documents decide which ones are held out, not the order of the files.

    Token files of nanoGPT and llm.c (.bin), Megatron (.bin and .idx) and datatrove (.ds), or folders of them, become a
    data folder too, with the tokenizer that they were made with: --tokenizer PATH. They may be sources of a mixture,
    also beside sources of text.

    --chat, --preferences and --prompts make data folders of rows for `linnet train --from MODEL --data DIR`, with the
    tokenizer and the chat template of --model, whose runs are trained on answers, on pairs of answers, or by rewards.

    Example: linnet prepare --prompts prompts.jsonl --model runs/chat --out data/prompts
    """
    from linnet.data.mixture import MixtureSpec
    from linnet.data.prepare import prepare as prepare_data
    from linnet.data.prepare_tokens import has_token_files, prepare_token_files
    from linnet.data.token_files import expand_token_files, is_token_file
    from linnet.data.tokenizer_training import KINDS

    if mixture is None and (mixture := _mixture_among(files or [])) is not None:
        files = None
    kinds = {"chat": chat, "preferences": preferences, "prompts": prompts}
    reading = _ChatReading(kinds, model, chat_template, long_conversations)
    if reading.is_given:
        text_alone = {"mixture": mixture, "vocab_size": vocab_size, "field": field, "document-separator": separator}
        text_alone |= {"split-digits": split_digits, "clean": clean}
        others = {"INPUT": files or None, "end": end, "fim-rate": fim_rate, "skip-invalid": skip_invalid or None}
        for name, value in {**text_alone, **others, "tokenizer": None if tokenizer == "bpe" else tokenizer}.items():
            if value is not None:
                raise UserError("applies only to text, and not to conversations", field=name, value=value)
        _report(_prepare_chat(reading, out, validation, overwrite), out, as_json)
        return
    fill = _fill_in_the_middle(fim_rate, fim_spm_rate, fim_tokens, fim_seed)
    token_files = expand_token_files(files or [])
    mixed = None if mixture is None else MixtureSpec.parse(read_yaml(mixture), str(mixture))
    if any(map(is_token_file, token_files)) or (mixed is not None and has_token_files(mixed)):
        text_alone = {"vocab_size": vocab_size, "field": field, "document-separator": separator}
        text_alone |= {"split-digits": split_digits, "clean": clean}
        for name, value in {**text_alone, "fim-rate": fim_rate, "skip-invalid": skip_invalid or None}.items():
            if value is not None:
                raise UserError("applies only to text, and not to token files", field=name, value=value)
        manifest = prepare_token_files(token_files, out, tokenizer, validation, overwrite, end=end or (), mixture=mixed)
        _report(manifest, out, as_json, mixture)
        return
    if tokenizer not in (*KINDS, SENTENCEPIECE) and not Path(tokenizer).exists():
        accepted = f"one of {', '.join(KINDS)}, {SENTENCEPIECE}, or the path of a tokenizer.json"
        raise UserError(field="tokenizer", value=tokenizer, accepted=accepted)
    manifest = prepare_data(
        files or [],
        out,
        mixture=mixed,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        field=field,
        separator=separator,
        validation=validation,
        overwrite=overwrite,
        end=end or (),
        skip_invalid=skip_invalid,
        fill_in_the_middle=fill,
        split_digits=split_digits,
        clean=clean,
        train=_sentencepiece(end, vocab_size, split_digits) if tokenizer == SENTENCEPIECE else None,
    )
    _report(manifest, out, as_json, mixture)


def _mixture_among(inputs: list[str]) -> Path | None:
    """The mixture.yaml that the inputs are; None for inputs of text. `UserError` for a mixture beside other inputs."""
    from linnet.data.mixture import MIXTURE_SUFFIXES

    for file in map(Path, inputs):
        is_yaml = file.suffix.lower() in MIXTURE_SUFFIXES and file.is_file()
        if is_yaml and _DESCRIBES_A_MIXTURE.search(file.read_bytes()):
            if len(inputs) > 1:
                raise UserError(f"{file}: describes a mixture, which cannot be read beside other inputs")
            return file
    return None


def _sentencepiece(end: list[str] | None, vocab_size: int | None, split_digits: str | None) -> "Trainer":
    """What trains a tokenizer like that of PLDR-LLM; `UserError` for options that it does not have."""
    from linnet.interop.sentencepiece import sentencepiece_trainer

    if end:
        raise UserError(field="end", value=", ".join(end), accepted="the path of a tokenizer.json as `tokenizer`")
    return sentencepiece_trainer(vocab_size, split_digits)


def _fill_in_the_middle(
    rate: float | None, spm_rate: float | None, tokens: str | None, seed: int | None
) -> "FillInTheMiddle | None":
    """What the options `--fim-...` say; `UserError` for one without --fim-rate."""
    from linnet.data.fill_in_the_middle import FillInTheMiddle

    names = None if tokens is None else tokens.split(",")
    fields = {"spm_rate": spm_rate, "tokens": names, "seed": seed}
    given = {name: value for name, value in fields.items() if value is not None}
    if rate is None:
        for name in given:
            raise UserError(
                field=f"fim_{name}", value=tokens if name == "tokens" else given[name], accepted="--fim-rate beside it"
            )
        return None
    try:
        return FillInTheMiddle.parse({"rate": rate, **given}, "--fim", ["rate", *given], "--fim-")
    except UserError as error:
        raise UserError(str(error).replace("spm_rate", "spm-rate", 1)) from None


def _report(manifest: "Manifest", out: Path, as_json: bool, mixture: Path | None = None) -> None:
    _warn_of_share(manifest)
    if "mixture" in manifest.settings:
        _note_sources_not_held_out(out)
    if as_json:
        write_json(manifest.model_dump())
    else:
        _print_table(manifest, out)
        if mixture is not None:
            write(f"linnet train with --set training.mixture={mixture} reads the sources in its shares\n")


@dataclass(frozen=True)
class _ChatReading:
    """How conversations are read: the files by kind, the model, another template, and what becomes of long ones."""

    files: dict[str, list[Path] | None]
    model: Path | None
    template: Path | None
    long_conversations: "LongConversations | None"

    @property
    def is_given(self) -> bool:
        """True if any of the options is; `UserError` for one without the file that it belongs to."""
        kinds = [kind for kind, files in self.files.items() if files]
        for name, value, owners in (
            ("chat_template", self.template, ("chat", "preferences", "prompts")),
            ("long_conversations", self.long_conversations, ("chat", "preferences")),
        ):
            if value is not None and not set(kinds).intersection(owners):
                accepted = f"{' or '.join(f'--{each}' for each in owners)} beside it"
                raise UserError(field=name, value=value, accepted=accepted)
        return bool(kinds) or self.model is not None

    def chosen(self) -> tuple[str, list[Path], Path]:
        """The kind of the files, the files, and the model; `UserError` unless there is one of each."""
        given = {kind: files for kind, files in self.files.items() if files}
        for kind, files in list(given.items())[1:]:
            problem = f"cannot be combined with `{next(iter(given))}`; give one of the two"
            raise UserError(problem, field=kind, value=", ".join(map(str, files)))
        if not given:
            raise UserError(field="chat", accepted="it, --preferences or --prompts beside --model")
        ((kind, files),) = given.items()
        if self.model is None:
            raise UserError(field="model", accepted=f"it beside --{kind}")
        for file in files:
            check_file(file, kind, "a .jsonl file")
        return kind, files, self.model


def _prepare_chat(reading: _ChatReading, out: Path, validation: float | None, overwrite: bool) -> "Manifest":
    """Prepare conversations, pairs of answers or prompts with the chat template and the tokenizer of a model."""
    from linnet.data.chat_setup import chat_setup
    from linnet.data.conversation_lengths import LengthLimit
    from linnet.data.preferences import prepare_preferences
    from linnet.data.prepare_conversations import prepare_conversations
    from linnet.data.prepare_prompts import prepare_prompts
    from linnet.model.folder import CONFIG, PUBLISHED, model_folder
    from linnet.model.spec import ModelSpec

    kind, files, model = reading.chosen()
    folder = model_folder(model)
    setup = chat_setup((folder, folder / PUBLISHED), reading.template)
    if line := setup.describe():
        note(line)
    common = (files, out, setup.template, setup.tokenizer, validation, overwrite)
    if kind == "prompts":
        return prepare_prompts(*common, added=setup.added)
    limit = None
    if reading.long_conversations is not None:
        limit = LengthLimit(ModelSpec.load(folder / CONFIG).context_length, reading.long_conversations)
    if kind == "preferences":
        return prepare_preferences(*common, limit=limit, added=setup.added)
    return prepare_conversations(*common, added=setup.added, limit=limit)


def _print_table(manifest: "Manifest", out: Path) -> None:
    from linnet.present.table import Table

    rows = [
        (name, f"{split.documents:,}", f"{split.tokens:,}", f"{split.bytes:,}", f"{split.bytes / split.tokens:.2f}")
        for name, split in manifest.splits.items()
    ]
    write_parts(Table("", ("split", "documents", "tokens", "bytes", "bytes per token"), rows))
    write(f"tokenizer: {manifest.tokenizer.kind}, {manifest.tokenizer.vocab_size:,} tokens\n")
    requested, got = _requested_vocab_size(manifest), manifest.tokenizer.vocab_size
    if got < requested:
        write(f"note: the text is too small for {requested:,} tokens, the tokenizer has {got:,}\n")
    write(f"written to {out}\n")


def _warn_of_share(manifest: "Manifest") -> None:
    """Print a line if the held-out share is less than half or more than twice of the requested one."""
    train, validation = manifest.splits["train"].bytes, manifest.splits["validation"].bytes
    share, requested = validation / (train + validation), manifest.settings["validation"]
    if not requested / 2 <= share <= requested * 2:
        count = sum(source.documents for source in manifest.sources)
        why = "its one document is short" if count == 1 else f"its {count:,} documents are too few or too unequal"
        divided = "" if manifest.layout != "stream" else "a --document-separator that splits them further, "
        note(
            f"warning: {share:.2g} of the text's bytes are held out, not {requested:g}: {why}; {divided}more "
            "documents, or another --validation helps"
        )


def _note_sources_not_held_out(out: Path) -> None:
    """Print a line if a source of a mixture has no held-out document."""
    from linnet.data.token_data import TokenData

    data = TokenData.open(out)
    held_out_D = data.sources("validation")
    places = set() if held_out_D is None else set(held_out_D.tolist())
    if missing := [name for place, name in enumerate(data.source_names) if place not in places]:
        names = ", ".join(missing)
        note(
            f"note: no document of {names} is held out, so no evaluation has its bits per byte; more --validation helps"
        )


def _requested_vocab_size(manifest: "Manifest") -> int:
    from linnet.data.tokenizer_training import DEFAULT_VOCAB_SIZE

    if manifest.settings.get("tokenizer") not in ("bpe", "unigram", SENTENCEPIECE):
        return 0  # that of a file, or of a model
    return manifest.settings["vocab_size"] or DEFAULT_VOCAB_SIZE
