"""`linnet data`: text on its way to `linnet prepare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.cli.options import AsJson, option
from linnet.core.errors import UserError
from linnet.present.show import write, write_json, write_parts

if TYPE_CHECKING:
    from linnet.data.deduplicate import DeduplicationReport, DeduplicationSpec

data = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""Work on text before it is prepared: leave out what should not be trained on; look at conversations.

    Example: linnet data dedup web.jsonl --out data/unique
    """,
)


@data.callback()
def _group() -> None:
    """Make a group even of a single command."""


@data.command()
def dedup(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Files, folders or patterns, in every format of `linnet prepare`; - for the standard input.",
        ),
    ],
    *,
    out: Annotated[Path, option("DIR", "The folder of .jsonl files to make.")],
    against: Annotated[
        list[str] | None,
        option("FILE", "Evaluation files (repeatable): documents that are copies of theirs, or overlap them, go."),
    ] = None,
    exact_only: Annotated[
        bool, typer.Option("--exact-only", help="Look for exact copies alone, not for near-duplicates.")
    ] = False,
    shingle_words: Annotated[
        int | None,
        typer.Option(min=1, max=100, metavar="N", help="Words of an n-gram that near-duplicates share. Default: 5."),
    ] = None,
    bands: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, metavar="N", help="Bands of a MinHash signature: more find more pairs. Default: 14."
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, max=1000, metavar="N", help="Values of a band: more leave less similar pairs. Default: 8."),
    ] = None,
    ngram_words: Annotated[
        int | None,
        typer.Option(min=1, max=100, metavar="N", help="Words of an n-gram shared with --against. Default: 13."),
    ] = None,
    overlap: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of an evaluation document's n-grams that is too much; 0: one n-gram is. Default: 0.5.",
        ),
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="Field or column with the text, or a path: meta.text. Default: text.")
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option("--document-separator", help="The separator of documents in a text file. Default: <|endoftext|>."),
    ] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out documents that cannot be read, and count them.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, metavar="N", help="Processes. Default: one a processor; one below 16 MB."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result.")] = False,
    as_json: AsJson = False,
) -> None:
    """Leave out exact copies and near-duplicates, and what a model is evaluated on.

    Example: linnet data dedup web.jsonl --against test.jsonl --out data/unique

    Of documents that are copies of each other the first in the order of the inputs stays. Exact copies differ in white
    space and case at most. Near-duplicates share n-grams of words (MinHash with locality-sensitive hashing): with 14
    bands of 8 rows a pair of Jaccard similarity 0.69 is found with probability 1/2, of 0.85 with 0.99. The result does
    not depend on the number of processes.
    """
    from linnet.data.deduplicate import deduplicate

    given: dict[str, dict[str, float | None]] = {
        "near": {"shingle_words": shingle_words, "bands": bands, "rows": rows},
        "overlap": {"ngram_words": ngram_words, "share": overlap},
    }
    spec = _spec(given, exact_only, bool(against))
    report = deduplicate(files, out, spec, against or (), field, separator, skip_invalid, workers, overwrite)
    if as_json:
        write_json({"out": str(out), **report.to_dict()})
    else:
        _print(report, out)


@data.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl file of conversations.")],
    *,
    model: Annotated[Path, option("DIR", "A model folder or a run, whose tokenizer and chat template are used.")],
    number: Annotated[int, typer.Option(min=1, metavar="N", help="Which conversation of the file.")] = 1,
    out: Annotated[Path | None, option("PAGE.html", "Also write it as a page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a conversation as tokens, and which of them a model is trained to write.

    Example: linnet data show chat.jsonl --model runs/base --out page.html

    A line of the file has `messages`, or `instruction` and `output` (`input`, `system`), or `conversations` (ShareGPT).
    Trained tokens are green, in brackets [[...]] where there are no colours.
    """
    from itertools import islice

    from linnet.data.chat_template import ChatTemplate
    from linnet.data.chat_tokens import ChatEncoder, token_view
    from linnet.data.conversations import read_conversations
    from linnet.data.tokenizer import TOKENIZER, Tokenizer
    from linnet.model.folder import PUBLISHED, model_folder
    from linnet.present.token_view import write_terminal, write_token_page

    if out is not None and out.suffix != ".html":
        raise UserError(field="out", value=out, accepted="a file whose name ends in .html")
    conversation = next(islice(read_conversations(file), number - 1, None), None)
    if conversation is None:
        raise UserError(f"{file} has fewer conversations", field="number", value=number)
    folder = model_folder(model)
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    encoder = ChatEncoder(ChatTemplate.find(folder, folder / PUBLISHED), tokenizer)
    view = token_view(conversation, encoder.encode(conversation), tokenizer)
    if out is not None:
        write_token_page(view, out, f"linnet data show {file} --model {model} --number {number}")
    if as_json:
        write_json(view.to_dict())
    else:
        write_terminal(view)


def _spec(given: dict[str, dict[str, float | None]], exact_only: bool, is_against: bool) -> "DeduplicationSpec":
    """The settings; `UserError` for an option that has no effect beside the others."""
    from linnet.data.deduplicate import DeduplicationSpec

    changed = {part: {k: v for k, v in values.items() if v is not None} for part, values in given.items()}
    for part, has_effect, accepted in (
        ("near", not exact_only, "no --exact-only beside it"),
        ("overlap", is_against, "--against beside it"),
    ):
        if changed[part] and not has_effect:
            name, value = next(iter(changed[part].items()))
            raise UserError(field={"share": "overlap"}.get(name, name), value=value, accepted=accepted)
    plain = {**changed, "near": None} if exact_only else changed
    return DeduplicationSpec.parse(plain, "options")


def _print(report: "DeduplicationReport", out: Path) -> None:
    from linnet.data.deduplicate import REASONS
    from linnet.present.table import Table

    amounts = {"read": report.read, **{reason.replace("_", " "): report.removed[reason] for reason in REASONS}}
    rows = [
        (name, f"{amount.documents:,}", f"{amount.bytes:,}", f"{amount.bytes / report.read.bytes:.1%}")
        for name, amount in {**amounts, "kept": report.kept}.items()
        if amount.documents
    ]
    write_parts(Table("", ("", "documents", "bytes", "of the bytes"), rows))
    if report.evaluation_documents:
        write(f"compared with {report.evaluation_documents:,} evaluation documents\n")
    for example in report.examples:
        measure = "n-grams" if example.reason == "evaluation_overlap" else "similarity"
        write(f"{example.reason.replace('_', ' ')}, {measure} {example.similarity:.2f}\n")
        write(f"  left out: {example.removed}\n  stays:    {example.stays}\n")
    write(f"written to {out}: {len(report.files):,} files\n")
