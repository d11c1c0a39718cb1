"""`linnet inspect positions`: the loss by position, beyond the trained length."""

from typing import Annotated

import typer

from linnet.cli.console import show_result
from linnet.cli.options import AsJson, CalibrateOn, Data, Device, Model, ReportFolder, SplitName


def positions(
    model: Model,
    data: Data,
    split: SplitName = "validation",
    windows: Annotated[int, typer.Option(min=1, help="Windows of text to read, spread evenly.")] = 16,
    times: Annotated[
        int | None,
        typer.Option(min=1, max=1 << 10, help="Their length, in trained lengths; 8, or 1 where positions are learned."),
    ] = None,
    calibrate_on: CalibrateOn = "train",
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how far beyond its trained length a model reads: bits per byte by position.

    Windows of text, longer than those of the training, are read as the model is; where it has rotary positions, also
    with each way of scaling them (interpolation, NTK, YaRN, and NTK with the factor of each length).

    Example: linnet inspect positions runs/ted --data data/stories

    Example: linnet inspect positions runs/ted --data data/stories --times 4 --windows 32 --out inspected
    """
    from linnet.inspection.positions import inspect_positions

    show_result(inspect_positions(model, data, split, windows, times, calibrate_on, device), out, as_json)
