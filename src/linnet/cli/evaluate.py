"""`linnet evaluate`: how good a model is on a text, in tasks, and in what can be asked of any mixer."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from linnet.cli import evaluate_tasks as of_tasks
from linnet.cli.evaluate_abilities import ITEMS, SEED, measure_abilities
from linnet.cli.evaluate_in_context import measure_in_context
from linnet.cli.evaluate_protocol import ProtocolFile, follow
from linnet.cli.evaluate_report import AskedReport
from linnet.cli.evaluate_text import RESAMPLES, check_plot, drawn_from, measure_text
from linnet.cli.options import MOST_AMOUNT, MOST_RESAMPLES, AsJson, ContextLength, Device, Weights, option

TOKENS_AT_ONCE = 8192


def evaluate(
    ctx: typer.Context,
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="A model folder, or the folder of a run; several to compare."),
    ],
    data: Annotated[
        Path | None,
        option(
            "DIR|FILE",
            "A folder made by `linnet prepare`, or text to read with the model's own tokenizer: .txt, .md, .jsonl, "
            ".parquet, or - for the standard input. Not with tasks.",
        ),
    ] = None,
    split: Annotated[
        Literal["validation", "train"] | None,
        typer.Option(help="The side of a data folder to measure on.", show_default="validation"),
    ] = None,
    limit_tokens: Annotated[
        int | None, typer.Option(min=1, help="About this many tokens, spread evenly; all if not given.")
    ] = None,
    context_length: ContextLength = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_AMOUNT,
            help="Slide windows by so many tokens over each document: a token is predicted once, with at least the "
            "context less the stride before it.",
        ),
    ] = None,
    retentions: Annotated[
        list[str] | None,
        typer.Option(
            "--retention",
            metavar="KIND",
            help="Measure what TED layers lose when they keep less: all of the past (full), a bank, and a policy "
            "as top_k=16,threshold=1e-4 (repeatable).",
        ),
    ] = None,
    plot: Annotated[
        Path | None, option("FILE", "Draw the loss by position, or accuracy against --shots, into this .png file.")
    ] = None,
    report: Annotated[
        Path | None,
        option("DIR", "Several models, or a protocol: one page (report.html) and the same in Markdown (report.md)."),
    ] = None,
    also: Annotated[
        Path | None,
        option("FILE.yaml", "With --report: tasks, abilities, samples, speed to measure beside (docs/comparison.md)."),
    ] = None,
    operator_from: Annotated[
        Literal["train", "empty"] | None,
        typer.Option(
            help="The text that freezes the operator of a model that is not causal by itself: the start of the training"
            " split, or the empty prompt.",
            show_default="train; empty for a file",
        ),
    ] = None,
    operator: Annotated[
        str | None,
        option(
            "FILE|identity|random",
            "Measure a PLDR-LLM with other operators than its own: those of a .safetensors or .npz file (as "
            "`linnet inspect operator --save` writes it), the identity, or random numbers.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Draws the operators of --operator random, or a suite's items; 0 if not given.")
    ] = None,
    suite: of_tasks.SuiteName = None,
    files: of_tasks.Files = None,
    task_file: of_tasks.TaskFile = None,
    tasks: of_tasks.HarnessTasks = None,
    shots: of_tasks.Shots = None,
    limit: of_tasks.Limit = None,
    train_text: of_tasks.TrainText = None,
    protocol: ProtocolFile = None,
    device: Device = "auto",
    weights: Weights = None,
    tokens_at_once: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_AMOUNT, help="Tokens that are computed at once: time and memory, not the figures."
        ),
    ] = TOKENS_AT_ONCE,
    resamples: Annotated[
        int | None,
        typer.Option(
            "--bootstrap",
            min=20,
            max=MOST_RESAMPLES,
            metavar="N",
            help="Several models: resamples behind the bootstrap's intervals.",
            show_default=str(RESAMPLES),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model on text: bits per byte, perplexity per token, accuracy, loss by position; or ask it tasks.

    Three questions, one at a time: how likely is a text (--data), how many tasks are right (--suite, --task-file,
    --tasks), what can it do at all (--suite abilities).

    Bits per byte is the loss for each byte of text: lower is better, and models of different tokenizers can be compared
    by it. The evaluation is causal: no prediction depends on the text after it. Behind ± stands the standard error over
    the documents.

    Several models are compared on the same documents, each with its own tokenizer: the differences between them, with
    intervals.

    A PLDR-LLM's training pass sees the whole text, the future included. So it is read with an operator frozen from
    other text (--operator-from); what its own pass would have claimed stands beside it, and the difference is the leak.

    With --suite abilities nothing but the model is needed: copying, recall, counting, state tracking, facts to be put
    together, a needle in a long text and more, as far as the model knows the symbols (docs/abilities.md).

    Tasks are multiple choice from files of your own (docs/tasks.md): every score comes with its standard error, what
    guessing and plain ways of choosing reach, and a verdict. Of several models the others are compared with the first.
    --tasks asks those of the LM Evaluation Harness, which loads their data itself; the figures are told alike.

    --protocol repeats a paper's tables on any models, as a file describes them (docs/tasks.md).

    Example: linnet evaluate runs/ted --data data/stories

    Example: linnet evaluate runs/ted --data stories.txt --context-length 64 --stride 16 --plot positions.png

    Example: linnet evaluate runs/ted runs/pldr --data data/stories --limit-tokens 20000

    Example: linnet evaluate runs/ted runs/pldr --data data/stories --limit-tokens 20000 --report pages/ted-pldr

    Example: linnet evaluate runs/ted --data data/stories --retention bank --retention top_k=16

    Example: linnet evaluate runs/ted runs/pldr --task-file questions.jsonl --train-text data/stories

    Example: linnet evaluate runs/ted --suite abilities --limit 50

    Example: linnet evaluate runs/ted --suite abilities --shots 0,1,2,4,8 --plot shots.png

    Example: linnet evaluate runs/pldr --protocol experiments/pldr-table.yaml --files data/tasks --limit 200

    Example: linnet evaluate runs/pldr --protocol experiments/caches.yaml

    Example: linnet evaluate runs/pldr --data data/stories --operator-from empty --limit-tokens 100000 --json

    Example: linnet evaluate runs/pldr --data data/stories --operator random --seed 1
    """
    page = AskedReport(report, also)
    page.check(enough=len(models) > 1 or protocol is not None)
    if protocol is not None:
        follow(ctx, models, protocol, files, limit, page, device, as_json)
    elif suite == of_tasks.ABILITIES:
        of_tasks.check_abilities(ctx, models)
        check_plot(plot)
        if shots is not None:
            counts = of_tasks.shot_counts(shots, of_tasks.MOST_ABILITY_SHOTS)
            drawn = (limit or ITEMS, SEED if seed is None else seed)
            measure_in_context(models[0], files or [], counts, *drawn, device, weights, plot, as_json)
        else:
            measure_abilities(models[0], files or [], limit, seed, device, weights, as_json)
    elif suite is not None or task_file is not None or tasks is not None:
        of_tasks.check_no_text(ctx, operator_from)
        read = {"device": device, "weights": weights, "operator": operator, "seed": drawn_from(seed, operator) or 0}
        several = {"shots": of_tasks.task_shots(shots), "limit": limit}
        asked: dict[str, Any] = {"files": of_tasks.one_of(files), **several, **read}
        if tasks is not None:
            page.refuse_harness()
            of_tasks.ask_harness(ctx, models, as_json, tasks, **asked)
        else:
            found = of_tasks.ask(models, as_json, train_text, suite=suite, task_file=task_file, **asked)
            page.write_tasks(found, device, weights)
    else:
        data = of_tasks.text_alone(ctx, data)
        where = {
            "split": split,
            "limit_tokens": limit_tokens,
            "context_length": context_length,
            "operator_from": operator_from,
            "device": device,
            "weights": weights,
            "stride": stride,
            "tokens_at_once": tokens_at_once,
        }
        measure_text(models, data, where, operator, seed, retentions, resamples, plot, page, as_json)
