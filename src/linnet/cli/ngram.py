"""`linnet ngram`: a model of counts, measured as every other."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import check_out_folder, invocation, note, show
from linnet.cli.options import AsJson, Data, ReportFolder, SplitName, option
from linnet.present.show import write, write_json, write_parts

ngram = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""The n-gram model with modified Kneser-Ney smoothing: what counting alone reaches on the same tokens.

    Measured in the same bits per byte as every other model, with the share of n-grams that training never saw.

    Example: linnet ngram train --data data/stories --out runs/ngram
    """,
)

Folder = Annotated[Path, typer.Argument(metavar="MODEL", help="A folder made by `linnet ngram train`.")]


@ngram.command()
def train(
    data: Data,
    out: Annotated[Path, option("DIR", "The folder of the model, a new one.")],
    order: Annotated[int, typer.Option(min=1, max=40, help="Tokens of the longest n-grams.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Count the n-grams of the training split, up to an order.

    Documents are counted apart: no n-gram reaches over the end token between two. Of each order are told: how many
    n-grams the vocabulary allows, how many different ones there are, how many have count 1, and the three discounts.

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
    """Measure an n-gram model on text: bits per byte, perplexity, accuracy, and what it never saw.

    Each token but the first is predicted once, as by `linnet evaluate`, from the tokens before it in its document: the
    figures stand beside those of other models. --out draws the share of n-grams never seen, by order.

    Example: linnet ngram evaluate runs/ngram --data data/stories

    Example: linnet ngram evaluate runs/ngram --data data/stories --out inspected
    """
    check_out_folder(out, "--out")
    from linnet.training.ngram.evaluation import likelihood_table, seen_picture, seen_table
    from linnet.training.ngram.interface import evaluate_ngram

    found = evaluate_ngram(model, data, split)
    facts = {"model": str(model), "data": str(data), "split": split}
    parts = [likelihood_table(found), seen_table(found)]
    show("An n-gram model", facts, facts | found.figures(), parts, lambda: [seen_picture(found)], out, as_json)


@ngram.command()
def generate(
    model: Folder,
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "",
    max_tokens: Annotated[int, typer.Option(help="Stop after so many tokens, if the text has not ended.")] = 200,
    temperature: Annotated[float, typer.Option(help="Divides the logits; 0 takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest tokens; 0 for all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Choose among the fewest tokens that together have this probability; 1 for all.")
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text; if not given, a fresh one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print text and figures as JSON, all at the end.")] = False,
) -> None:
    """Continue a prompt. Without one, begin a new text.

    Temperature, top-k and top-p apply in this order and mean what they mean for `linnet generate`.

    Example: linnet ngram generate runs/ngram --prompt "Once upon a time" --temperature 0.7 --seed 1
    """
    from linnet.inference.sampling import Sampling, fresh_seed
    from linnet.training.ngram.interface import continue_ngram, load_ngram

    sampling = Sampling(temperature, top_k, top_p, fresh_seed() if seed is None else seed)
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
