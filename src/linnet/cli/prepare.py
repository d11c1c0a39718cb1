"""`linnet prepare`: turn text into a data folder."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.cli.chat_files import ChatFileOptions
from linnet.cli.console import note
from linnet.cli.options import (
    AsJson,
    SplitDigits,
    option,
    refuse_options,
    with_option_groups,
)
from linnet.core.errors import UserError
from linnet.core.spec import read_yaml
from linnet.present.show import write, write_json, write_parts

if TYPE_CHECKING:
    from linnet.data.corpus_tokenizer import Trainer
    from linnet.data.fill_in_the_middle import FillInTheMiddle
    from linnet.data.mixture import MixtureSpec
    from linnet.data.shards import Manifest

USUAL = (
    "--out", "--tokenizer", "--vocab-size", "--field", "--document-separator",
    "--validation", "--mixture", "--clean", "--chat", "--overwrite",
)  # fmt: skip
"""The options that the short help shows."""

SENTENCEPIECE = "sentencepiece"

OF_TEXT = ("vocab_size", "field", "separator", "split_digits", "clean", "fim_rate", "skip_invalid")
"""Options that have an effect only where text is encoded."""

NOT_OF_CONVERSATIONS = "applies only to text, and not to conversations"

_DESCRIBES_A_MIXTURE = re.compile(rb"(?m)^sources:")
"""The first level of a YAML file has the field that every mixture.yaml has, and other text hardly ever."""


@dataclass(frozen=True)
class ReadingOptions:
    """How the documents of text are read."""

    clean: Annotated[
        Path | None, option("FILE", "A clean.yaml, whose steps the documents go through first (linnet data clean).")
    ] = None
    field: Annotated[
        str | None, typer.Option(help="Field or column with the text, or a path: meta.text. Default: text.")
    ] = None
    separator: Annotated[
        str | None,
        typer.Option(
            "--document-separator",
            help=r"The separator between documents in a text file, as in '\n\n'. Default: <|endoftext|>. A file "
            "without separators is one document.",
        ),
    ] = None
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out documents that cannot be read, and count them.")
    ] = False


@dataclass(frozen=True)
class TokenizerOptions:
    """The tokenizer that is trained or used."""

    tokenizer: Annotated[
        str,
        option(
            "bytes|char|bpe|unigram|sentencepiece|PATH", "The kind of tokenizer to train, or a tokenizer.json to use."
        ),
    ] = "bpe"
    end: Annotated[
        list[str] | None,
        option("TOKEN", "An end token of a tokenizer.json, that between documents first. Default: as its folder says."),
    ] = None
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Tokens, including 256 bytes and the end token. Default where trained: 2048."),
    ] = None
    split_digits: SplitDigits = None

    def trainer(self) -> "Trainer | None":
        """What trains a tokenizer like that of PLDR-LLM; None for other kinds.

        `UserError` for a tokenizer that is neither a kind nor a file, and for options that this one does not have.
        """
        from linnet.data.tokenizer_training import KINDS

        if self.tokenizer != SENTENCEPIECE:
            if self.tokenizer not in KINDS and not Path(self.tokenizer).exists():
                accepted = f"one of {', '.join(KINDS)}, {SENTENCEPIECE}, or the path of a tokenizer.json"
                raise UserError(field="tokenizer", value=self.tokenizer, accepted=accepted)
            return None
        from linnet.interop.sentencepiece import sentencepiece_trainer

        if self.end:
            accepted = "the path of a tokenizer.json as `tokenizer`"
            raise UserError(field="end", value=", ".join(self.end), accepted=accepted)
        return sentencepiece_trainer(self.vocab_size, self.split_digits)


@dataclass(frozen=True)
class MiddleOptions:
    """Which documents become fill-in-the-middle examples."""

    fim_rate: Annotated[
        float | None,
        option(
            "SHARE",
            "The share of the documents to train on that become fill-in-the-middle examples. 0: the tokenizer gets "
            "control tokens alone, for training.fill_in_the_middle.",
        ),
    ] = None
    fim_spm_rate: Annotated[
        float | None, option("SHARE", "Of these, the share with the suffix before the prefix. Default: 0.5.")
    ] = None
    fim_tokens: Annotated[
        str | None,
        option(
            "P,S,M", "Control tokens of prefix, suffix, middle. Default: <|fim_prefix|>,<|fim_suffix|>,<|fim_middle|>."
        ),
    ] = None
    fim_seed: Annotated[int | None, option("N", "The seed of what is rearranged, and where. Default: 0.")] = None

    def load(self) -> "FillInTheMiddle | None":
        """What the options say; `UserError` for one without --fim-rate."""
        from linnet.data.fill_in_the_middle import FillInTheMiddle

        names = None if self.fim_tokens is None else self.fim_tokens.split(",")
        fields = {"spm_rate": self.fim_spm_rate, "tokens": names, "seed": self.fim_seed}
        given = {name: value for name, value in fields.items() if value is not None}
        if self.fim_rate is None:
            for name in given:
                value = getattr(self, f"fim_{name}")
                raise UserError(field=f"fim_{name}", value=value, accepted="--fim-rate beside it")
            return None
        try:
            return FillInTheMiddle.parse({"rate": self.fim_rate, **given}, "--fim", ["rate", *given], "--fim-")
        except UserError as error:
            raise UserError(str(error).replace("spm_rate", "spm-rate", 1)) from None


@with_option_groups
def prepare(
    ctx: typer.Context,
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
    encoder: TokenizerOptions,
    reading: ReadingOptions,
    validation: Annotated[
        float | None,
        typer.Option(help="Fraction of the bytes to hold out. Default: 0.05 of a text below 20 MB, else 0.01."),
    ] = None,
    middle: MiddleOptions,
    rows: ChatFileOptions,
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
    from linnet.data.prepare_tokens import has_token_files, prepare_token_files
    from linnet.data.token_files import expand_token_files, is_token_file

    if rows.is_given:
        if files:
            raise UserError(NOT_OF_CONVERSATIONS, field="INPUT", value=" ".join(files))
        refuse_options(ctx, ("mixture", *OF_TEXT, "tokenizer", "end"), NOT_OF_CONVERSATIONS)
        _report(rows.prepare(out, validation, overwrite), out, as_json)
        return
    if mixture is None and (mixture := _mixture_among(files or [])) is not None:
        files = None
    fill, token_files = middle.load(), expand_token_files(files or [])
    mixed = None if mixture is None else MixtureSpec.parse(read_yaml(mixture), str(mixture))
    if any(map(is_token_file, token_files)) or (mixed is not None and has_token_files(mixed)):
        refuse_options(ctx, OF_TEXT, "applies only to text, and not to token files")
        manifest = prepare_token_files(
            token_files, out, encoder.tokenizer, validation, overwrite, end=encoder.end or (), mixture=mixed
        )
    else:
        manifest = _prepare_text(files or [], out, mixed, encoder, reading, validation, fill, overwrite)
    _report(manifest, out, as_json, mixture)


def _prepare_text(
    files: list[str],
    out: Path,
    mixture: "MixtureSpec | None",
    encoder: TokenizerOptions,
    reading: ReadingOptions,
    validation: float | None,
    fill: "FillInTheMiddle | None",
    overwrite: bool,
) -> "Manifest":
    """Prepare files of text, or the sources of a mixture."""
    from linnet.data.prepare import prepare as prepare_data

    return prepare_data(
        files,
        out,
        mixture=mixture,
        tokenizer=encoder.tokenizer,
        vocab_size=encoder.vocab_size,
        validation=validation,
        overwrite=overwrite,
        end=encoder.end or (),
        fill_in_the_middle=fill,
        split_digits=encoder.split_digits,
        train=encoder.trainer(),
        **vars(reading),
    )


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
