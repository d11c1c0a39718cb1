"""`linnet plan task`: is a task's accuracy predictable from smaller models?"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from linnet.cli.console import check_out_folder, show
from linnet.cli.options import AsJson, Bootstrap, ReportFolder


def task(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="COMPARISON...|FILE.csv", help="Comparisons on one ability, or one CSV file."),
    ],
    hold_out: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Predict this share, the runs with the most FLOPs."),
    ] = 0.5,
    accuracy: Annotated[
        Literal["whole", "symbols", "final"],
        typer.Option(help="Of a comparison: whole answers, their symbols, or final answers behind written steps."),
    ] = "whole",
    resamples: Bootstrap = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    report: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Predict how often larger models are right at a task from the smaller ones of a ladder, and see what came.

    Accuracy is fitted as a sigmoid of the loss, from chance to all, or from 0 where runs lie below chance. The larger
    models are predicted from the loss that they came to, and, where the runs allow a scaling law, from their size and
    tokens alone. Intervals of 95 %.

    A CSV file has columns parameters, loss (nats per token), training_flops or tokens, right (a share), items, chance.
    At least 4 runs have to be left to fit; 6, of 3 sizes and 3 numbers of tokens, for the prediction by size.

    Example: linnet plan task runs/recall-ladder --hold-out 0.5 --report predicted

    Example: linnet plan task ladder.csv --hold-out 0.4 --json
    """
    from linnet.scaling.task_output import task_pictures, task_tables
    from linnet.scaling.task_points import read_task_points
    from linnet.scaling.task_prediction import predict_task

    check_out_folder(report, "--report")
    points = read_task_points(sources, accuracy)
    found = predict_task(points, hold_out, resamples, seed)
    facts = {"runs": f"{len(found.fitted)} fitted, {len(found.held)} predicted"}
    figures, tables = found.figures(), task_tables(found)
    show("Predictability of a task", facts, figures, tables, lambda: task_pictures(found), report, as_json)
