"""A front as a table, a picture, a CSV file and descriptions."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnet.core.files import write_text
from linnet.design.metrics import Metric
from linnet.design.pareto import Point
from linnet.design.search import write_description
from linnet.model.spec import ModelSpec
from linnet.present.drawing import new_figure, png_of
from linnet.present.report import Picture, Table

FRONT = "front.csv"
TICKS = 6


def front_figures(points: Sequence[Point], goals: Sequence[Metric], score: str) -> dict[str, Any]:
    """Ready for JSON."""
    return {
        "goals": [*(goal.name for goal in goals), "score"],
        "score": score,
        "front": [
            {
                **dict(zip((goal.name for goal in goals), point.values, strict=True)),
                "score": point.score,
                "proven": point.proven,
                "model": point.plain,
            }
            for point in points
        ],
    }


def front_table(points: Sequence[Point], goals: Sequence[Metric], score: str) -> Table:
    """A row for each model."""
    columns = ["model", *(goal.name for goal in goals), score, "layers x width", "mixers"]
    rows = [
        [
            str(point.plain["name"]),
            *(goal.said(value) for goal, value in zip(goals, point.values, strict=True)),
            f"{point.score:,.6g}",
            shape_said(point.model),
            ", ".join(dict.fromkeys(block.mixer.kind for block in point.model.blocks)),
        ]
        for point in points
    ]
    proven = sum(point.proven for point in points)
    meaning = (
        f"Each has the highest {score} for what it costs: for {proven} of {len(points)} that is proven."
        " Among them none is better than another in every goal."
    )
    return Table("Front", columns, rows, meaning)


def shape_said(model: ModelSpec) -> str:
    """`2x512 2x512 3x640`: layers and width of each block."""
    return " ".join(f"{block.repeat}x{block.width or model.d_model}" for block in model.blocks)


def front_pictures(points: Sequence[Point], goals: Sequence[Metric], score: str) -> list[Picture]:
    """The score over the first goal; a second one as colour."""
    figure = new_figure(7.5, 5)
    axes = figure.subplots()
    values = list(zip(*(point.values for point in points), strict=True))
    scores = [point.score for point in points]
    if len(goals) == 1:
        axes.plot(values[0], scores, "o-", markersize=4)
    else:
        dots = axes.scatter(values[0], scores, c=values[1], cmap="viridis")
        figure.colorbar(dots, label=_axis(goals[1]))
    axes.set_xscale("log")  # the limits are in equal ratios
    axes.minorticks_off()
    ticks = np.geomspace(min(values[0]), max(values[0]), TICKS)
    axes.set_xticks(ticks, [goals[0].said(tick) for tick in ticks])
    axes.set_xlabel(goals[0].name)
    axes.set_ylabel(score)
    axes.grid(alpha=0.3)
    caption = "Each dot a model: the highest score for what it costs."
    return [Picture("front", f"{score} over {goals[0].name}", png_of(figure), caption)]


def _axis(metric: Metric) -> str:
    return f"{metric.name}, {metric.unit}" if metric.unit else metric.name


def write_front(points: Sequence[Point], goals: Sequence[Metric], score: str, folder: Path, command: str) -> None:
    """`front.csv`, and each model's description under its name."""
    stream = io.StringIO()
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(["model", *(goal.name for goal in goals), score, "proven", "shape"])
    for point in points:
        rows.writerow([point.plain["name"], *point.values, point.score, point.proven, shape_said(point.model)])
        write_description(point.plain, folder / f"{point.plain['name']}.yaml", [command, f"{score} {point.score:,.7g}"])
    write_text(folder / FRONT, stream.getvalue())
