"""Options that the commands of `linnet inspect` share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a run.")]
Data = Annotated[Path, typer.Option(metavar="DIR", help="A folder made by `linnet prepare`.")]
SplitName = Annotated[Literal["validation", "train"], typer.Option(help="Which side of the data.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write pictures and report.html into this folder.", show_default=False),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
