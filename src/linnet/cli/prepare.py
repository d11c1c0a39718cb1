"""`linnet prepare`: text to a data folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.cli.console import note
from linnet.cli.options import AsJson, option
from linnet.present.show import write, write_json, write_parts

if TYPE_CHECKING:
    from linnet.data.shards import Manifest


def prepare(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Text (.txt, .text, .md), .jsonl, .parquet, or - for the standard input."
        ),
    ],
    out: Annotated[Path, option("DIR", "The data folder to make.")],
    tokenizer: Annotated[
        str, option("bytes|char|bpe|unigram|PATH", "Kind to train, or a tokenizer.json to use.")
    ] = "bpe",
    vocab_size: Annotated[
        int | None, typer.Option(help="Tokens, 256 bytes and the end included. 2048 for bpe and unigram.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="Field or column with the text; `text` if not given.")] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--document-separator",
            help=r"What stands between documents in a text file, e.g. '\n\n'; <|endoftext|> if not given. "
            "A file without any is one document.",
        ),
    ] = None,
    validation: Annotated[
        float | None, typer.Option(help="Fraction of the bytes to hold out; 0.05 of a text below 20 MB, else 0.01.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a data folder that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Prepare text for training: split it, train a tokenizer, write token shards and a manifest.

    Whole documents are held out, by their bytes as near to the fraction as they allow. Which ones depends on the
    contents of all of them, not on the order of the files.

    Example: linnet prepare stories.txt web.jsonl --tokenizer bpe --vocab-size 4096 --out data/stories
    """
    from linnet.data.prepare import prepare as prepare_data
    from linnet.data.prepare import single_document_note

    manifest = prepare_data(
        files,
        out,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        field=field,
        separator=separator,
        validation=validation,
        overwrite=overwrite,
    )
    _warn_of_share(manifest)
    if whole := single_document_note(manifest.sources):
        note(f"note: {whole}; or give --document-separator")
    if as_json:
        write_json(manifest.model_dump())
    else:
        _print_table(manifest, out)


def _print_table(manifest: "Manifest", out: Path) -> None:
    from linnet.present.table import Table

    rows = [
        (name, f"{split.documents:,}", f"{split.tokens:,}", f"{split.bytes:,}", f"{split.bytes / split.tokens:.2f}")
        for name, split in manifest.splits.items()
    ]
    write_parts(Table("", ("split", "documents", "tokens", "bytes", "bytes per token"), rows))
    write(f"tokenizer: {manifest.tokenizer.kind}, {manifest.tokenizer.vocab_size:,} tokens\n")
    wanted, got = _wanted_vocab_size(manifest), manifest.tokenizer.vocab_size
    if got < wanted:
        write(f"note: the text is too small for {wanted:,} tokens, the tokenizer has {got:,}\n")
    write(f"written to {out}\n")


def _warn_of_share(manifest: "Manifest") -> None:
    """One line where the held-out share is under half or over twice of what was asked for."""
    train, validation = manifest.splits["train"].bytes, manifest.splits["validation"].bytes
    share, asked = validation / (train + validation), manifest.settings["validation"]
    if not asked / 2 <= share <= asked * 2:
        count = sum(source.documents for source in manifest.sources)
        why = "its one document is short" if count == 1 else f"its {count:,} documents are too few or too unequal"
        note(
            f"warning: {share:.2g} of the text's bytes are held out, not {asked:g}: {why}; a --document-separator that"
            " splits them further, more documents, or another --validation helps"
        )


def _wanted_vocab_size(manifest: "Manifest") -> int:
    from linnet.data.tokenizer_training import DEFAULT_VOCAB_SIZE

    if manifest.tokenizer.kind not in ("bpe", "unigram") or manifest.settings["tokenizer"] not in ("bpe", "unigram"):
        return 0
    return manifest.settings["vocab_size"] or DEFAULT_VOCAB_SIZE
