"""`linnet inspect experts`: how often each expert is used."""

from typing import Annotated

import typer

from linnet.cli.console import show_result
from linnet.cli.options import AsJson, ContextLength, Data, Device, Model, ReportFolder, SplitName


def experts(
    model: Model,
    data: Data,
    split: SplitName = "validation",
    windows: Annotated[int, typer.Option(min=1, help="Windows of text to read, spread evenly.")] = 32,
    context_length: ContextLength = None,
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show how often each expert of a mixture of experts is used over a text, in every layer that has some.

    A router that sends nearly all tokens to a few experts wastes the others: the load-balancing loss is there to keep
    it from that.

    Example: linnet inspect experts runs/experts --data data/stories

    Example: linnet inspect experts runs/experts --data data/stories --windows 64 --out inspected
    """
    from linnet.inspection.experts import inspect_experts

    show_result(inspect_experts(model, data, split, windows, context_length, device), out, as_json)
