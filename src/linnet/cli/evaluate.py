"""`linnet evaluate`: how good a model is on a text, in tasks, and in what can be asked of any mixer."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.evaluate_abilities import measure_abilities
from linnet.cli.evaluate_options import ABILITIES, CalibrationOptions, ComputeOptions, TaskOptions, TextOptions
from linnet.cli.evaluate_protocol import ProtocolFile, follow
from linnet.cli.evaluate_report import AskedReport
from linnet.cli.evaluate_tasks import ask, with_pairs
from linnet.cli.evaluate_text import RESAMPLES, measure_text
from linnet.cli.options import MOST_RESAMPLES, AsJson, with_option_groups


@with_option_groups
def evaluate(
    ctx: typer.Context,
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="A model folder, or the folder of a run; several to compare."),
    ],
    text: TextOptions,
    page: AskedReport,
    calibrated: CalibrationOptions,
    tasks: TaskOptions,
    protocol: ProtocolFile = None,
    *,
    compute: ComputeOptions,
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
    other text (--calibrate-on); what its own pass would have claimed stands beside it, and the difference is the leak.

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

    Example: linnet evaluate runs/ted --data data/stories --cache-policy bank --cache-policy top_k=16

    Example: linnet evaluate runs/ted runs/pldr --task-file questions.jsonl --train-text data/stories

    Example: linnet evaluate runs/ted --suite abilities --limit 50

    Example: linnet evaluate runs/ted --suite abilities --shots 0,1,2,4,8 --plot shots.png

    Example: linnet evaluate runs/pldr --protocol experiments/pldr-table.yaml --files data/tasks --limit 200

    Example: linnet evaluate runs/pldr --protocol experiments/caches.yaml

    Example: linnet evaluate runs/pldr --data data/stories --calibrate-on empty --limit-tokens 100000 --json

    Example: linnet evaluate runs/pldr --data data/stories --calibration random --seed 1
    """
    models, tasks = with_pairs(models, tasks)
    page.check(enough=len(models) > 1 or protocol is not None)
    if protocol is not None:
        follow(ctx, models, protocol, tasks, page, compute.device, as_json)
    elif tasks.suite == ABILITIES:
        measure_abilities(ctx, models, tasks, text, calibrated, compute, as_json)
    elif tasks.asked:
        ask(ctx, models, tasks, calibrated, compute, page, as_json)
    else:
        measure_text(ctx, models, text, calibrated, compute, resamples, page, as_json)
