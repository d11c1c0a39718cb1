"""`linnet inspect lifetimes`: for how many steps each token is remembered."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import show
from linnet.cli.options import AsJson, ContextLength, Device, Model, ReportFolder, SplitName, option
from linnet.present import numbers

MORE = "--entries shows more of the vocabulary, --token chooses whose relevance is shown over time, --out draws it."


def lifetimes(
    model: Model,
    threshold: Annotated[float, typer.Option(help="A token's life ends when its relevance is below this.")] = 1e-8,
    token: Annotated[
        list[str] | None,
        option(
            "TEXT",
            "Show the relevance of this text's tokens over time (repeatable); of six entries from the longest life"
            " to the shortest if not given.",
        ),
    ] = None,
    entries: Annotated[int, typer.Option(min=1, help="Print so many of the longest lives and of the shortest.")] = 20,
    data: Annotated[
        Path | None, option("DIR", "A folder made by `linnet prepare`: also measure every layer over its text.")
    ] = None,
    split: SplitName = "validation",
    windows: Annotated[int, typer.Option(min=1, help="Windows of text to read, spread evenly.")] = 8,
    context_length: ContextLength = None,
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show for how many steps a model with trainable exponential decays (ted) remembers each token.

    In the lowest layer a token's lifetime depends on its vocabulary entry alone: shown without any text, the longest
    and the shortest, and the relevance of some over time. With --data also, for every layer with ted: median and 90th
    percentile over the tokens of a text, and the context that a model needs which drops what is below the threshold.

    Example: linnet inspect lifetimes runs/ted

    Example: linnet inspect lifetimes runs/ted --data data/stories --threshold 1e-4 --out inspected

    Example: linnet inspect lifetimes runs/ted --token " the" --token " dragon" --entries 50
    """
    from linnet.inspection.lifetimes.folder import inspect_lifetimes
    from linnet.inspection.lifetimes.pictures import lifetimes_pictures
    from linnet.inspection.lifetimes.tables import lifetimes_tables

    found = inspect_lifetimes(model, threshold, token or [], data, split, windows, context_length, device)
    facts = {"threshold": f"until relevance is below {numbers.exact(threshold)}"}
    if found.unknown is not None:
        facts["vocabulary"] = f"{found.unknown}, so nothing is known without text"
    read = {} if data is None else {"data": str(data), "split": split}
    if data is not None:
        facts["text"] = f"{split} split of {data}"
    told, tables = {"model": model, **read, **found.figures()}, lifetimes_tables(found, entries)
    more = MORE if found.curves else ""
    show(f"Lifetimes of {model}", facts, told, tables, lambda: lifetimes_pictures(found), out, as_json, more)
