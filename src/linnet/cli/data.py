"""`linnet data`: text on its way to `linnet prepare`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from linnet.cli.console import interruptions_reported, invocation, note, show_result, stopped_tasks_reported
from linnet.cli.options import (
    AsJson,
    Changes,
    ChatTemplateFile,
    Device,
    ExecutorName,
    Separator,
    SlurmOptions,
    TextField,
    Workers,
    option,
    refuse_options,
)
from linnet.core.bounds import MAX_SYNTHESISED
from linnet.core.errors import UserError
from linnet.present import numbers
from linnet.present.show import write, write_json, write_parts

if TYPE_CHECKING:
    from linnet.data.comparison import DeduplicationReport, DeduplicationSpec
    from linnet.data.mixture import MixtureSpec

data = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""Work on text before it is prepared: clean it, leave out copies; look at conversations, or make them; find
    the shares of sources.

    Example: linnet data dedup web.jsonl --out data/unique
    """,
)


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files, folders or patterns, in every format of `linnet prepare`; - for the standard input.",
    ),
]
TextFolder = Annotated[Path, option("DIR", "The folder of .jsonl files to make.")]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Leave out documents that cannot be read, and count them.")
]
Processes = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        metavar="N",
        help="Processes, or tasks of Ray or Slurm at a time. Default: one a processor; one below 16 MB; all of Slurm.",
    ),
]
WorkPlace = Annotated[
    Literal["local", "ray", "slurm"],
    typer.Option("--executor", help="Where the work is done: on this machine, Ray, or Slurm (docs/cleaning.md)."),
]
Compress = Annotated[
    Literal["gz", "zst"] | None, typer.Option(help="Compress the files; linnet reads them all the same.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result.")]


@data.callback()
def _group() -> None:
    """Make a group even of a single command."""


@data.command()
def dedup(
    files: Inputs,
    *,
    out: TextFolder,
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
    field: TextField = None,
    separator: Separator = None,
    skip_invalid: SkipInvalid = False,
    executor: WorkPlace = "local",
    workers: Processes = None,
    slurm_options: SlurmOptions = None,
    compress: Compress = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Leave out exact copies and near-duplicates, and what a model is evaluated on.

    Example: linnet data dedup web.jsonl --against test.jsonl --out data/unique

    Of documents that are copies of each other the first in the order of the inputs stays. Exact copies differ in white
    space and case at most. Near-duplicates share n-grams of words (MinHash with locality-sensitive hashing): with 14
    bands of 8 rows a pair of Jaccard similarity 0.69 is found with probability 1/2, of 0.85 with 0.99. The result does
    not depend on the number of processes, nor on the executor; a call that was killed goes on when it is given again.

    On a cluster: linnet data dedup crawl/*.jsonl --executor ray --workers 16 --out data/unique
    """
    from linnet.core.executors import cluster_executor
    from linnet.data.deduplicate import deduplicate

    given: dict[str, dict[str, float | None]] = {
        "near": {"shingle_words": shingle_words, "bands": bands, "rows": rows},
        "overlap": {"ngram_words": ngram_words, "share": overlap},
    }
    spec = _spec(given, exact_only, bool(against))
    chosen = cluster_executor(executor, workers, slurm_options or ())
    processes = workers if chosen is None else None
    reading = field, separator, skip_invalid
    with stopped_tasks_reported():
        report = deduplicate(
            files, out, spec, against or (), *reading, processes, overwrite, executor=chosen, compress=compress
        )
    if as_json:
        write_json({"out": str(out), **report.to_dict()})
    else:
        _print(report, out)


@data.command()
def clean(
    files: Inputs,
    *,
    out: TextFolder,
    config: Annotated[Path | None, option("FILE", "The steps and their options (YAML). Default: FineWeb's.")] = None,
    page: Annotated[Path | None, option("DIR", "Also write report.html there: what each step removed, drawn.")] = None,
    field: TextField = None,
    separator: Separator = None,
    skip_invalid: SkipInvalid = False,
    executor: WorkPlace = "local",
    workers: Processes = None,
    slurm_options: SlurmOptions = None,
    compress: Compress = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Leave out documents and lines that are no good text, copies, and what a model is evaluated on.

    Example: linnet data clean web.jsonl --config clean.yaml --out data/clean

    The file lists steps in order, such as `steps: [{kind: gopher_quality, min_doc_words: 20}, {kind: c4}]`; without one
    they are those of FineWeb. Filters: url (lists of addresses), language (`keep: [en]`), gopher_repetition,
    gopher_quality, c4, fineweb_quality, pii. Comparisons: exact_duplicates, near_duplicates, decontamination (`against:
    [test.jsonl]`). The result does not depend on the number of processes, nor on the executor; a call that was killed
    goes on when it is given again.

    On a cluster: linnet data clean web/*.jsonl --executor slurm --workers 64 --slurm-option --time=4:00:00 --out clean
    """
    from linnet.core.executors import cluster_executor
    from linnet.data.clean import clean as clean_files
    from linnet.data.clean import read_cleaning
    from linnet.data.cleaning_report import CleaningResult
    from linnet.data.cleaning_steps import CleaningSpec
    from linnet.present.page import write_page

    spec = CleaningSpec() if config is None else read_cleaning(config)
    chosen = cluster_executor(executor, workers, slurm_options or ())
    processes = workers if chosen is None else None
    with stopped_tasks_reported():
        reading = field, separator, skip_invalid
        report = clean_files(files, out, spec, *reading, processes, overwrite, executor=chosen, compress=compress)
    result = CleaningResult(report)
    if page is not None:
        note(f"report: {write_page(result, page, invocation())}")
    if as_json:
        write_json({"out": str(out), **result.to_dict()})
    else:
        write_parts(*result.tables())
        write(f"written to {out}: {numbers.counted(len(report.files), 'file')}\n")


@data.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl file of conversations.")],
    *,
    model: Annotated[Path, option("DIR", "A model folder or a run, whose tokenizer and chat template are used.")],
    chat_template: ChatTemplateFile = None,
    number: Annotated[int, typer.Option(min=1, metavar="N", help="Which conversation of the file.")] = 1,
    out: Annotated[Path | None, option("PAGE.html", "Also write it as a page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a conversation as tokens, and which of them a model is trained to write.

    Example: linnet data show chat.jsonl --model runs/base --out page.html

    A line of the file has `messages`, or `instruction` and `output` (`input`, `system`), or `conversations` (ShareGPT).
    Trained tokens are green, in brackets [[...]] where there are no colours.
    """
    from collections import deque
    from itertools import islice

    from linnet.data.chat_setup import chat_setup
    from linnet.data.chat_tokens import ChatEncoder, token_view
    from linnet.data.conversations import read_conversations
    from linnet.model.folder import PUBLISHED, model_folder
    from linnet.present.token_view import write_terminal, write_token_page

    if out is not None and out.suffix != ".html":
        raise UserError(field="out", value=out, accepted="a file whose name ends in .html")
    count, conversation = deque(enumerate(islice(read_conversations(file), number), 1), maxlen=1).pop()
    if count < number:
        raise UserError(f"{file} has {count:,} conversations", field="number", value=number)
    folder = model_folder(model)
    setup = chat_setup((folder, folder / PUBLISHED), chat_template)
    found = ChatEncoder(setup.template, setup.tokenizer).encode(conversation)
    view = token_view(conversation, found, setup.tokenizer)
    if out is not None:
        write_token_page(view, out, f"linnet data show {file} --model {model} --number {number}")
    if as_json:
        write_json(view.to_dict())
    else:
        write_terminal(view)
        if out is not None:
            write(f"written to {out}\n")


@data.command()
def synthesise(
    ctx: typer.Context,
    *,
    out: Annotated[Path, option("FILE.jsonl", "The chat file to write.")],
    count: Annotated[int, typer.Option(min=1, max=MAX_SYNTHESISED, metavar="N", help="Examples to write.")] = 1000,
    world: Annotated[
        str, option("stories|FILE.py", "The built-in stories, or a Python file with a function examples(seed, split).")
    ] = "stories",
    seeds: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="SEEDS.jsonl",
            help="Instead of a world: conversations after whose pattern --model writes others (self-instruct).",
        ),
    ] = None,
    model: Annotated[Path | None, option("DIR", "With --from: the model folder or run that writes.")] = None,
    device: Device = "auto",
    kind: Annotated[
        list[str] | None,
        option("KIND", "Of the stories: a type of instruction (repeatable). Default: all (docs/instructions.md)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides the examples.")] = 0,
    split: Annotated[
        str, option("SPLIT", "train, validation, held-out-names or held-out-templates; an own world may have others.")
    ] = "train",
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Write pairs of the right and a wrong answer, for --preferences.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write instructions with reference answers and checkers, made by a world.

    Example: linnet data synthesise --count 2000 --out instructions.jsonl

    Example: linnet data synthesise --kind retell --kind order --split validation --seed 1 --out held-out.jsonl

    Each line has the messages of a conversation, which `linnet prepare --chat` reads, and the checker of its last
    answer. Settings of stories, names of people and ways to ask are kept apart by the splits. An own world runs as
    Python code.

    Example: linnet data synthesise --from chat.jsonl --model runs/chat --count 4 --out own.jsonl

    With --from a model writes questions and answers itself. Rules, overlap with what there is, and a second answer of
    the model leave out what is no good; the counts are printed.
    """
    if seeds is not None:
        from linnet.inference.language_model import load
        from linnet.inference.self_instruct import self_instruct

        refuse_options(ctx, ("world", "kind", "split", "pairs"), "is of a world; leave it out beside --from")
        if model is None:
            raise UserError("missing; --from needs a model that writes", field="model")
        show_result(self_instruct(load(model, device), seeds, out, count, seed, overwrite), None, as_json)
        return
    refuse_options(ctx, ("model", "device"), "goes with --from")
    from linnet.data.synthesise import synthesise as write_world

    show_result(write_world(world, out, count, seed, split, kind or (), overwrite, pairs), None, as_json)


def _spec(given: dict[str, dict[str, float | None]], exact_only: bool, is_against: bool) -> "DeduplicationSpec":
    """The settings; `UserError` for an option that has no effect beside the others."""
    from linnet.data.comparison import DeduplicationSpec

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
    from linnet.data.comparison import REASONS
    from linnet.present.table import Table

    amounts = {"read": report.read, **{reason.replace("_", " "): report.removed[reason] for reason in REASONS}}
    rows = [
        (name, f"{amount.documents:,}", f"{amount.bytes:,}", f"{amount.bytes / report.read.bytes:.1%}")
        for name, amount in {**amounts, "kept": report.kept}.items()
        if amount.documents
    ]
    write_parts(Table("", ("", "documents", "bytes", "of the bytes"), rows))
    if report.evaluation_documents:
        write(f"compared with {numbers.counted(report.evaluation_documents, 'evaluation document')}\n")
    for example in report.examples:
        measure = "n-grams" if example.reason == "evaluation_overlap" else "similarity"
        write(f"{example.reason.replace('_', ' ')}, {measure} {example.similarity:.2f}\n")
        write(f"  left out: {example.removed}\n  stays:    {example.stays}\n")
    write(f"written to {out}: {numbers.counted(len(report.files), 'file')}\n")


@data.command()
def mix(
    mixture: Annotated[Path, typer.Argument(metavar="FILE", help="A mixture.yaml.")],
    *,
    folder: Annotated[Path, typer.Option("--data", metavar="DIR", help="The data folder that was prepared with it.")],
    search: Annotated[
        bool, typer.Option("--search", help="Train small models on many mixtures, and find the best shares.")
    ] = False,
    out: Annotated[Path | None, option("DIR", "Of --search: the folder of the runs and of the mixture found.")] = None,
    model: Annotated[str, option("MODEL", "Of --search: the model to train, a preset or a file.")] = "tiny-attention",
    runs: Annotated[int, typer.Option(min=2, metavar="N", help="Of --search: mixtures to train on.")] = 12,
    target: Annotated[
        list[str] | None,
        option("SOURCE=WEIGHT", "Of --search: whose held-out text counts (repeatable). Default: all sources, equally."),
    ] = None,
    confirm: Annotated[bool, typer.Option("--confirm", help="Of --search: train on the mixture found, too.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of --search: decides mixtures and trainings.")] = 0,
    changes: Changes = None,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    slurm_options: SlurmOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show the sources of a mixture; with --search find the shares with the lowest held-out loss.

    Example: linnet data mix mixture.yaml --data data/mixed

    Example: linnet data mix mixture.yaml --data data/mixed --search --runs 16 --set training.steps=500 --out runs/mix

    A search trains a small model on each of several mixtures, drawn around the given one, and fits a law of the loss on
    each source's held-out text (arXiv 2403.16952). The mixture with the lowest predicted mean is written to
    DIR/mixture.yaml; its shares lie within those that were tried. The same command goes on where it was stopped; with
    more --runs it adds to them.
    """
    from linnet.core.spec import read_yaml
    from linnet.data.mixture import MixtureSpec

    spec = MixtureSpec.parse(read_yaml(mixture), str(mixture))
    if not search:
        given = {"out": out, "target": target, "confirm": confirm or None, "set": changes}
        for name, value in given.items():
            if value is not None:
                raise UserError("is of a search; add --search", field=name)
        _show_sources(spec, folder, as_json)
        return
    from linnet.core.system import keep_freed_memory
    from linnet.experiments.executors import make_executor
    from linnet.experiments.jobs import Runner
    from linnet.experiments.mixture_search import MixtureSearchSettings, search_mixture

    if out is None:
        raise UserError("missing; a search needs a folder for its runs", field="out")
    settings = MixtureSearchSettings(model, runs, seed, _targets(target or ()) or None, confirm)
    chosen = make_executor(executor, workers, slurm_options or ())
    keep_freed_memory()
    with interruptions_reported():
        found = search_mixture(spec, folder, out, settings, changes or (), Runner(note, invocation()), chosen)
    show_result(found, None, as_json)


def _targets(typed: Sequence[str]) -> dict[str, float]:
    """`code=2`: the weight of each target; without a number, 1."""
    weights: dict[str, float] = {}
    for text in typed:
        name, _, number = text.rpartition("=") if "=" in text else (text, "", "1")
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = -1
        if not 0 < weights[name] < float("inf"):
            raise UserError(field="target", value=text, accepted="SOURCE=WEIGHT with a weight above 0")
    return weights


def _show_sources(spec: "MixtureSpec", folder: Path, as_json: bool) -> None:
    from linnet.data.mixed_batches import describe_sources
    from linnet.data.token_data import TokenData
    from linnet.present.table import Table

    found = describe_sources(TokenData.open(folder), spec)
    if as_json:
        write_json([asdict(source) for source in found])
        return
    rows = [
        (
            one.source,
            f"{one.documents:,}",
            f"{one.tokens:,}",
            f"{one.share:.1%}",
            f"{one.given:.1%}",
            f"{one.held_out:,}",
        )
        for one in found
    ]
    columns = ("source", "documents", "tokens", "of the tokens", "mixture's share", "held-out documents")
    write_parts(Table("", columns, rows, f"the mixture's shares are of the {spec.by}"))
    for one in found:
        if not one.held_out:
            note(f"note: {one.source}: no held-out documents, so no evaluation has its bits per byte")
