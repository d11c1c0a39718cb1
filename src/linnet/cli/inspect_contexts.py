"""`linnet inspect contexts`: quality against memory."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from linnet.cli.console import show
from linnet.cli.options import (
    AsJson,
    CalibrateOn,
    ContextLength,
    Data,
    Device,
    Model,
    ReportFolder,
    SplitName,
    option,
)
from linnet.core.errors import UserError

Number = TypeVar("Number", int, float)


def contexts(
    model: Model,
    data: Data,
    split: SplitName = "validation",
    windows: Annotated[int, typer.Option(min=1, help="Windows of text to read, spread evenly.")] = 32,
    top_k: Annotated[
        list[str] | None, option("K,...", "Keep the K most relevant tokens; 0 for all (repeatable).")
    ] = None,
    threshold: Annotated[
        list[str] | None, option("X,...", "Drop what is less relevant than X; negative for nothing (repeatable).")
    ] = None,
    min_tokens_to_keep: Annotated[int, typer.Option(min=0, help="Whatever these say, keep so many.")] = 1,
    within: Annotated[float, typer.Option(min=0.0, help="Percent of bits per byte that count as no loss.")] = 0.1,
    context_length: ContextLength = None,
    calibrate_on: CalibrateOn = "train",
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure what a TED model loses when it remembers less: bits per byte and memory for each context.

    The same windows of text are read with all tokens, with the bank, and with policies that drop tokens. Without
    --top-k and --threshold: top-k from 8 to 256 and thresholds from 1e-8 to 1, one at a time. With one of the two:
    those numbers, the other off. With both: every pair. Names the smallest state that loses nothing.

    Example: linnet inspect contexts runs/ted --data data/stories --out inspected

    Example: linnet inspect contexts runs/ted --data data/stories --top-k 16,32,64 --threshold 1e-4,1e-3 --windows 100
    """
    chosen_k = _numbers("--top-k", top_k, int, "whole numbers from 0, as in 8,16,32")
    chosen_x = _numbers("--threshold", threshold, float, "numbers, as in 1e-4,1e-3")
    from linnet.inspection.contexts.folder import inspect_contexts
    from linnet.inspection.contexts.pictures import contexts_pictures
    from linnet.inspection.contexts.tables import conclusion, contexts_tables

    found = inspect_contexts(
        model,
        data,
        split,
        windows,
        chosen_k,
        chosen_x,
        min_tokens_to_keep,
        within,
        context_length,
        calibrate_on,
        device,
    )
    facts = {"text": f"{split} split of {data}"}
    if min_tokens_to_keep != 1:
        facts["kept"] = f"at least {min_tokens_to_keep} tokens"
    told = {"model": model, "data": str(data), "split": split, "calibrate_on": calibrate_on, **found.figures()}
    tables, follows = contexts_tables(found), conclusion(found)
    show(f"Contexts of {model}", facts, told, tables, lambda: contexts_pictures(found), out, as_json, follows)


def _numbers(
    option: str, given: Sequence[str] | None, parse: Callable[[str], Number], expected: str
) -> tuple[Number, ...]:
    """What an option says that may be repeated, and lists numbers between commas; each once."""
    found = []
    for text in given or []:
        for part in text.split(","):
            try:
                number = parse(part)
                wrong = not math.isfinite(number) or (parse is int and number < 0)
            except (ValueError, OverflowError):
                wrong = True
            if wrong:
                raise UserError(f"{option} {text}: expected {expected}")
            found.append(number)
    return tuple(dict.fromkeys(found))
