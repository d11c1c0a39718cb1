"""`linnet inspect contexts`: quality against memory."""

from typing import Annotated

import typer

from linnet.cli.console import show_result
from linnet.cli.options import AsJson, CalibrateOn, ContextLength, Data, Device, Model, ReportFolder, SplitName, option


def contexts(
    model: Model,
    data: Data,
    split: SplitName = "validation",
    windows: Annotated[int, typer.Option(min=1, help="Windows of text to read, spread evenly.")] = 32,
    cache_policy: Annotated[
        list[str] | None, option("POLICY", "Compare this cache policy (repeatable; docs/inference.md).")
    ] = None,
    within: Annotated[float, typer.Option(min=0.0, help="Percent of bits per byte that count as no loss.")] = 0.1,
    context_length: ContextLength = None,
    calibrate_on: CalibrateOn = "train",
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure what a model loses when it keeps less of the text: bits per byte and memory for each cache policy.

    The same windows of text are read with the full cache and with other policies: those of --cache-policy, or those
    that the kind of layer suggests. Names the smallest state that loses nothing.

    Example: linnet inspect contexts runs/ted --data data/stories --out inspected

    Example: linnet inspect contexts runs/ted --data data/stories --cache-policy top_k=16 --cache-policy threshold=1e-4
    """
    from linnet.inspection.contexts import inspect_contexts

    found = inspect_contexts(
        model, data, split, windows, cache_policy or [], within, context_length, calibrate_on, device
    )
    show_result(found, out, as_json)
