"""`linnet tokenizer`: train, import, inspect and compare tokenizers; check the chat template beside one."""

from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.cli.console import interruptions_reported, show_result
from linnet.cli.options import AsJson, ChatTemplateFile, Separator, SplitDigits, TextField, option
from linnet.core.errors import UserError
from linnet.core.files import check_file
from linnet.present.show import write, write_json, write_parts

if TYPE_CHECKING:
    from linnet.data.tokenizer_report import PieceCount, TokenizerReport
    from linnet.interop.tokenizer_readers import LibraryReader, Proof

tokenizer = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""Train and import tokenizers, look inside them, compare what they cost; check chat templates.

    Example: linnet tokenizer inspect data/stories --text my.txt
    """,
)

Texts = Annotated[
    list[str],
    option("INPUT", "Text to encode, in every format of `linnet prepare` (repeatable)."),
]


@tokenizer.command()
def train(
    files: Annotated[
        list[str],
        typer.Argument(metavar="INPUT", help="Files, folders or patterns, in every format of `linnet prepare`."),
    ],
    *,
    out: Annotated[Path, option("FILE", "The tokenizer.json to write.")],
    kind: Annotated[str, option("bytes|char|bpe|unigram|sentencepiece", "The kind of tokenizer.")] = "bpe",
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Tokens, including 256 bytes and the end token. Default for bpe and unigram: 2048."),
    ] = None,
    split_digits: SplitDigits = None,
    field: TextField = None,
    separator: Separator = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a tokenizer on text, and write a tokenizer.json.

    Example: linnet tokenizer train my.txt --kind unigram --vocab-size 4096 --out tokenizer.json

    bpe merges bytes within words, as GPT-2 does; unigram is a language model over the pieces of such words, whose
    single bytes are pieces too. sentencepiece is a unigram of characters with byte fallback, as PLDR-LLM's, which
    normalizes a text; it needs pip install 'linnet[sentencepiece]'. All three keep runs of digits together where they
    are frequent, unless --split-digits says otherwise. `linnet prepare` trains all kinds in the same way, from the
    training side of its text alone.
    """
    from linnet.data.corpus_tokenizer import train_on_files, train_tokenizer
    from linnet.data.tokenizer_training import KINDS
    from linnet.interop.sentencepiece import sentencepiece_trainer

    if out.exists() and not overwrite:
        raise UserError("exists already; --overwrite replaces it", field="out", value=str(out))
    if kind == "sentencepiece":
        trained = train_on_files(files, sentencepiece_trainer(vocab_size, split_digits), field, separator)
    else:
        if kind not in KINDS:
            raise UserError(field="kind", value=kind, accepted=f"one of {', '.join(KINDS)}, sentencepiece")
        trained = train_tokenizer(files, kind, vocab_size, field, separator, split_digits)
    trained.save(out)
    if as_json:
        plain = {"file": str(out), "kind": trained.kind, "vocab_size": trained.vocab_size, "hash": trained.hash}
        write_json({**plain, "split_digits": split_digits})
        return
    digits = f", numbers split by {split_digits}" if split_digits else ""
    write(f"{trained.kind}, {trained.vocab_size:,} tokens{digits}\n")
    write(f"written to {out}\n")


@tokenizer.command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A SentencePiece model, a tokenizer.json, ranks of tiktoken, or a folder of Transformers.",
        ),
    ],
    *,
    out: Annotated[Path, option("FILE", "The tokenizer.json to write.")],
    pattern: Annotated[
        str | None,
        option(
            "NAME|REGEX",
            "How tiktoken's ranks split a text: gpt2, p50k, cl100k, o200k, llama3 (with the special tokens of that "
            "encoding), or an expression.",
        ),
    ] = None,
    end: Annotated[
        list[str] | None,
        option("TOKEN", "An end token, that between documents first (repeatable). Default: as the source says."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Import a tokenizer as a tokenizer.json, and hold its ids to those of the library that it comes from.

    Example: linnet tokenizer import pieces.model --out tokenizer.json

    What the source is, its content decides, not its name. The ids of hard texts, of pieces of the vocabulary and of
    random characters are compared with those of sentencepiece, tokenizers, transformers or tiktoken, where that is
    installed. The exit code is 1 if any differ.
    """
    from linnet.interop.tokenizer_import import import_tokenizer
    from linnet.interop.tokenizer_readers import prove
    from linnet.present.progress import progress

    if out.exists() and not overwrite:
        raise UserError("exists already; --overwrite replaces it", field="out", value=str(out))
    with progress("importing", 3, "steps") as advance:
        found = import_tokenizer(source, pattern, end or ())
        advance(1, "comparing")
        made = found.tokenizer
        proof = prove(made, source, pattern)
        advance(1, "writing")
        made.save(out)
        advance(1)
    ends = [made.token_name(token) for token in made.end_ids]
    if as_json:
        plain = {"file": str(out), "source": found.kind, "vocab_size": made.vocab_size, "end": ends}
        write_json({**plain, "hash": made.hash, "notes": found.notes, "compared": proof.to_dict()})
    else:
        write(f"{found.kind}: {made.vocab_size:,} tokens, end token {', '.join(ends)}\n")
        for line in found.notes:
            write(f"note: {line}\n")
        _print_proof(proof)
        write(f"written to {out}\n")
    if proof.differing:
        raise typer.Exit(1)


@tokenizer.command()
def inspect(
    path: Annotated[
        Path,
        typer.Argument(metavar="TOKENIZER", help="A tokenizer.json, or the folder of data, a model, a run."),
    ],
    *,
    text: Texts,
    against: Annotated[
        Path | None,
        option("OTHER", "A file or folder that its own library reads too (see `import`): where are its ids others?"),
    ] = None,
    pattern: Annotated[
        str | None, option("NAME|REGEX", "With --against: how tiktoken's ranks split a text, as of `import`.")
    ] = None,
    field: TextField = None,
    separator: Separator = None,
    as_json: AsJson = False,
) -> None:
    """Show what a tokenizer does to a text: bytes per token, unknown and unused tokens, hard texts that it changes.

    Example: linnet tokenizer inspect data/stories --text my.txt

    Hard texts are twenty short ones with composed characters, emoji, control characters, line ends and the like: a
    tokenizer that is lossless gives all of them back. --json lists all unused tokens. --against compares the ids of
    the text's documents and of hard texts with those of sentencepiece, tokenizers, transformers or tiktoken, and shows
    the first places where they differ; the exit code is then 1.
    """
    from linnet.interop.tokenizer_readers import open_reader

    if pattern is not None and against is None:
        raise UserError(field="pattern", value=pattern, accepted="--against beside it")
    reader = None if against is None else open_reader(against, pattern)
    (report,) = _reports([path], text, field, separator)
    proof = None if reader is None else _hold_to(reader, path, text, field, separator)
    if as_json:
        write_json({**report.to_dict(), **({} if proof is None else {"compared": proof.to_dict()})})
    else:
        _print_report(report)
        if proof is not None:
            _print_proof(proof)
    if proof is not None and proof.differing:
        raise typer.Exit(1)


def _print_report(report: "TokenizerReport") -> None:
    _print_counts(report)
    _print_pieces("tokens of most bytes", report.longest)
    _print_pieces("tokens used most", report.most_used)
    if report.unused_pieces:
        _print_pieces("tokens of most bytes that are not used", report.unused_pieces[: len(report.longest)])
    if not report.changed:
        write("all hard texts come back from their tokens\n")
    for changed in report.changed:
        write(f"changed: {changed.name}: {changed.text!r} becomes {changed.decoded!r}\n")


@tokenizer.command()
def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="TOKENIZER", help="tokenizer.json files, or folders of data, models, runs."),
    ],
    *,
    text: Texts,
    model: Annotated[
        str | None,
        option(
            "NAME|FILE", "The model that the vocabularies are for: a preset or a YAML file. Default: tiny-attention."
        ),
    ] = None,
    width: Annotated[
        int | None, option("D", "In place of --model: a decoder of attention, D wide, with a layer for each 64 of it.")
    ] = None,
    max_parameters: Annotated[
        str | None, option("N", "A budget of parameters, as in 60M: which share of it does a vocabulary take?")
    ] = None,
    flops: Annotated[
        str | None, option("N", "Train a model for each tokenizer with so many FLOPs, and measure bits per byte.")
    ] = None,
    out: Annotated[Path | None, option("DIR", "Of --flops: the folder of data and runs.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Of --flops: trainings for each tokenizer.")] = 1,
    field: TextField = None,
    separator: Separator = None,
    as_json: AsJson = False,
) -> None:
    """Compare tokenizers on one text, and what each vocabulary costs a model.

    Example: linnet tokenizer compare data/stories runs/ted --text my.txt --model tiny-attention

    A larger vocabulary makes fewer tokens of a text, but the model's embedding and head are larger. The FLOPs of a
    pass are those of the model with each vocabulary, over its whole context, for each byte of the text. These are
    exact. How well a model predicts the bytes is not foreseen: --flops trains one of each on the text, by the recipe
    `auto`, and measures bits per byte on the same held-out documents; the same command goes on where it was stopped.
    """
    from dataclasses import replace

    from linnet.core.system import keep_freed_memory
    from linnet.core.units import parse_amount
    from linnet.experiments.tokenizer_comparison import (
        TokenizerTraining,
        VocabularyComparison,
        plain_decoder,
        vocabulary_cost,
    )
    from linnet.model.folder import find_model_folder
    from linnet.model.spec import ModelSpec
    from linnet.training.reporter import terminal_reporter

    if len(paths) < 2:
        raise UserError("one tokenizer; expected two or more", field="TOKENIZER", value=str(paths[0]))
    if model is not None and width is not None:
        raise UserError("cannot be combined with --model; give one of the two", field="width", value=width)
    if (flops is None) != (out is None):
        name, other = ("out", "flops") if flops is None else ("flops", "out")
        raise UserError(field=name, value=flops or out, accepted=f"--{other} beside it")
    spec = ModelSpec.load(model or "tiny-attention") if width is None else plain_decoder(width)
    most = None if max_parameters is None else int(parse_amount(max_parameters, "--max-parameters"))
    amount = None if flops is None else parse_amount(flops, "--flops")
    reports = _reports(paths, text, field, separator)
    costs = [vocabulary_cost(str(path), report, spec, most) for path, report in zip(paths, reports, strict=True)]
    if amount is not None and out is not None:
        keep_freed_memory()
        training = TokenizerTraining(text, out, amount, seeds, field, separator)
        with interruptions_reported():
            for number, path in enumerate(paths):
                found = training.measure(number, find_model_folder(path) or path, spec, terminal_reporter)
                costs[number] = replace(costs[number], bits_per_byte=found)
    show_result(VocabularyComparison(spec, tuple(costs), most, amount), None, as_json)


@tokenizer.command()
def doctor(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl file of conversations.")],
    *,
    model: Annotated[Path, option("DIR", "A model folder or a run, whose tokenizer and chat template are checked.")],
    chat_template: ChatTemplateFile = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many conversations to read. Default: all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a chat template on conversations: what would go wrong in training without a word.

    Example: linnet tokenizer doctor chat.jsonl --model runs/base

    The exit code is 1 if a check fails.
    """
    from dataclasses import asdict
    from itertools import islice

    from linnet.data.chat_setup import chat_setup
    from linnet.data.conversations import read_conversations
    from linnet.data.template_doctor import CHECKS
    from linnet.data.template_doctor import doctor as check_template
    from linnet.model.folder import PUBLISHED, model_folder
    from linnet.present.progress import progress
    from linnet.present.table import Table

    check_file(file, "file", "a .jsonl file of conversations")
    folder = model_folder(model)
    setup = chat_setup((folder, folder / PUBLISHED), chat_template)
    with progress("checking", file.stat().st_size, "bytes") as advance:
        conversations = islice(read_conversations(file, advance), limit)
        findings = check_template(setup.template, setup.tokenizer, conversations)
    if as_json:
        write_json({"template": setup.template.origin, "findings": [asdict(finding) for finding in findings]})
    else:
        failed = {finding.check: finding for finding in findings}
        rows = [(check, f"{failed[check].conversations:,}" if check in failed else "0") for check in CHECKS]
        write(f"{setup.template.origin}\n")
        write_parts(Table("", ("check", "conversations that fail"), rows))
        for finding in findings:
            write(f"{finding.check}: {finding.place}: {finding.problem}\n")
    if findings:
        raise typer.Exit(1)


def _reports(paths: list[Path], inputs: list[str], field: str | None, separator: str | None) -> "list[TokenizerReport]":
    from linnet.core.errors import note
    from linnet.data.sources import describe_reading, open_sources
    from linnet.data.tokenizer import Tokenizer
    from linnet.data.tokenizer_report import report_on
    from linnet.model.folder import find_model_folder
    from linnet.present.progress import progress

    tokenizers: list[Tokenizer] = [Tokenizer.load(find_model_folder(path) or path) for path in paths]
    reports = []
    with ExitStack() as stack:
        sources = open_sources(stack, inputs, field, separator)
        size = len(paths) * sum(source.size_bytes for source in sources)
        with progress("tokens", size, "bytes") as advance:
            for each in tokenizers:
                reports.append(report_on(each, (text for source in sources for text in source.documents(advance))))
        for line in describe_reading(sources):
            note(line)
    return reports


def _hold_to(
    reader: "LibraryReader", path: Path, inputs: list[str], field: str | None, separator: str | None
) -> "Proof":
    """Compare a tokenizer with another reader on the documents of a text and on hard texts."""
    from linnet.data.sources import open_sources
    from linnet.data.tokenizer import Tokenizer
    from linnet.interop.tokenizer_readers import hold_to, proof_texts
    from linnet.model.folder import find_model_folder
    from linnet.present.progress import progress

    own = Tokenizer.load(find_model_folder(path) or path)
    with ExitStack() as stack:
        sources = open_sources(stack, inputs, field, separator)
        with progress("comparing", sum(source.size_bytes for source in sources), "bytes") as advance:
            texts = (
                (f"{source.name}, document {number:,}", text)
                for source in sources
                for number, text in enumerate(source.documents(advance), 1)
            )
            return hold_to(reader, own, chain(texts, proof_texts(own)))


def _print_proof(proof: "Proof") -> None:
    if proof.by is None:
        write(f"not compared with the original library: {proof.missing}\n")
        return
    write(f"{proof.texts - proof.differing:,} of {proof.texts:,} texts have the ids of {proof.by}\n")
    for difference in proof.differences:
        write(f"differs: {difference}\n")


def _print_counts(report: "TokenizerReport") -> None:
    from linnet.present.table import Table

    rows = [
        ("kind", report.kind),
        ("tokens of the vocabulary", f"{report.vocab_size:,}"),
        ("  not in this text", f"{report.unused:,} ({report.unused / report.vocab_size:.1%})"),
        ("documents", f"{report.documents:,}"),
        ("bytes", f"{report.bytes:,}"),
        ("tokens", f"{report.tokens:,}"),
        ("bytes per token", f"{report.bytes_per_token:.3f}"),
        ("unknown tokens", f"{report.unknown:,} ({report.unknown / max(1, report.tokens):.2%})"),
        ("bytes that tokens stand for", f"{report.token_bytes / max(1, report.bytes):.2%} of the text's"),
    ]
    write_parts(Table("", ("", ""), rows))


def _print_pieces(title: str, pieces: "tuple[PieceCount, ...]") -> None:
    from linnet.present.table import Table

    rows = [(piece.text, f"{piece.bytes:,}", f"{piece.uses:,}") for piece in pieces]
    write_parts(Table(title, ("token", "bytes", "uses"), rows))
