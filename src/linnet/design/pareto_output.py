"""A front as a table, a picture, a CSV file and descriptions."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnet.core.files import write_text
from linnet.design.metrics import Metric
from linnet.design.pareto import Point
from linnet.design.search import write_description
from linnet.model.spec import ModelSpec
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.report import Picture
from linnet.present.table import Table

FRONT = "front.csv"


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
    values = list(zip(*(point.values for point in points), strict=True))
    second = values[1] if len(goals) > 1 else None
    drawn = Series(values[0], [point.score for point in points], style="o" if second else "o-", values=second)
    x = Axis(goals[0].name, "log", goals[0].said)  # the limits are in equal ratios
    caption = "Each dot a model: the highest score for what it costs."
    plot = Plot([Panel(x, Axis(score), [drawn])], values=_axis(goals[1]) if second else "")
    return [Picture("front", f"{score} over {goals[0].name}", plot, caption)]


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
