"""`linnet ngram`: n-gram models with modified Kneser-Ney smoothing, measured like every other model."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import invocation, note, show_result
from linnet.cli.options import AsJson, Data, ReportFolder, SplitName, option, with_option_groups
from linnet.cli.text_options import MaxTokens, SamplingOptions, TextAsJson
from linnet.core.bounds import MAX_NGRAM_ORDER
from linnet.present.show import write, write_json, write_parts

ngram = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""N-gram models with modified Kneser-Ney smoothing: the baseline that counting alone reaches.

    They are measured in bits per byte like every other model, with the share of n-grams that training never saw.

    Example: linnet ngram train --data data/stories --out runs/ngram
    """,
)

Folder = Annotated[Path, typer.Argument(metavar="MODEL", help="A folder made by `linnet ngram train`.")]


@ngram.command()
def train(
    data: Data,
    out: Annotated[Path, option("DIR", "The new folder of the model.")],
    order: Annotated[int, typer.Option(min=1, max=MAX_NGRAM_ORDER, help="Tokens of the longest n-grams.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Count the n-grams of the training split, up to an order.

    Documents are counted separately: no n-gram crosses the end token between two. For each order the table shows how
    many n-grams the vocabulary allows, how many different ones occur, how many occur once, and the three discounts.

    Example: linnet ngram train --data data/stories --order 4 --out runs/ngram
    """
    from linnet.training.ngram.evaluation import order_figures, order_table
    from linnet.training.ngram.interface import train_ngram

    stored = train_ngram(data, out, order, invocation())
    if as_json:
        write_json({"model": str(out), "data": str(data), "orders": order_figures(stored.model)})
    else:
        write_parts(order_table(stored.model))
        write(f"written to {out}\n")


@ngram.command()
def evaluate(
    model: Folder,
    data: Data,
    split: SplitName = "validation",
    out: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Measure an n-gram model on text: bits per byte, perplexity, accuracy, and the share of unseen n-grams.

    Each token but the first is predicted once from the tokens before it in its document, as by `linnet evaluate`: the
    figures can be compared with those of other models. --out plots the share of unseen n-grams by order.

    Example: linnet ngram evaluate runs/ngram --data data/stories

    Example: linnet ngram evaluate runs/ngram --data data/stories --out inspected
    """
    from linnet.training.ngram.interface import evaluate_ngram

    show_result(evaluate_ngram(model, data, split), out, as_json)


@ngram.command()
@with_option_groups
def generate(
    model: Folder,
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "",
    max_tokens: MaxTokens = 200,
    *,
    choice: SamplingOptions,
    as_json: TextAsJson = False,
) -> None:
    """Continue a prompt. Without a prompt, begin a new text.

    The options that choose the next token mean what they mean for `linnet generate`.

    Example: linnet ngram generate runs/ngram --prompt "Once upon a time" --temperature 0.7 --seed 1
    """
    from linnet.training.ngram.interface import continue_ngram, load_ngram

    sampling = choice.sampling()
    pieces = continue_ngram(load_ngram(model), prompt, max_tokens, sampling)
    if as_json:
        text = "".join(pieces)
        figures = {"tokens": pieces.figures.tokens, "tokens_per_second": pieces.figures.tokens_per_second}
        write_json({"prompt": prompt, "text": text, **figures, "seed": sampling.seed})
        return
    write(prompt)
    try:
        for piece in pieces:
            write(piece)
    finally:
        write("\n")
    note(f"{pieces.figures.tokens} tokens; seed {sampling.seed}")
