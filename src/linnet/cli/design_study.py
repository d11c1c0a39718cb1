"""`linnet design study`: train a sample of shapes and see which score orders them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from linnet.cli.console import interruptions_reported, invocation, note, show
from linnet.cli.options import AsJson, Bootstrap, option
from linnet.core.errors import UserError


def study(
    out: Annotated[Path, option("DIR", "The folder to make, or one to go on with: runs, data, report.html.")],
    space: Annotated[str, option("NAME|FILE", "The space to sample from.")] = "study",
    shapes: Annotated[int, typer.Option(min=3, help="Models.")] = 24,
    bands: Annotated[int, typer.Option(min=1, help="Sizes, in equal ratios; each has as many of the models.")] = 4,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each model, which show the noise.")] = 2,
    steps: Annotated[
        int, typer.Option(min=1, help="Steps of each training, of 8 windows of the models' context length.")
    ] = 1000,
    stories: Annotated[int, typer.Option(min=100, help="Stories of the built-in corpus to train on.")] = 6000,
    text: Annotated[
        list[str] | None, option("FILE", "Text to train on instead, as linnet prepare takes it (repeatable).")
    ] = None,
    resamples: Bootstrap = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Decides which shapes are drawn.")] = 0,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A field of all runs, as training.optimizer.lr=1e-3."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a stratified sample of shapes on the same text, and compare every score with what came out.

    Half of the models share weights within their blocks, half do not; in each band of equal size they go from shallow
    and wide to deep and narrow. About an hour on two cores as it stands. Ctrl-C saves and stops; the same command goes
    on.

    Example: linnet design study --out runs/study

    Example: linnet design study --text my.txt --shapes 12 --bands 2 --steps 300 --seeds 3 --out runs/small-study --json
    """
    from linnet.design.space import load_space
    from linnet.experiments.runner import Runner
    from linnet.experiments.study import StudySettings, study_figures, study_pictures, study_tables
    from linnet.experiments.study import study as run_study

    fields = _fields(changes or [])
    asked: dict[str, Any] = {"shapes": shapes, "bands": bands, "seeds": seeds, "steps": steps, "stories": stories}
    asked |= {"files": tuple(text or ()), "seed": seed, "resamples": resamples}
    settings = StudySettings.parse(asked, "the study")
    with interruptions_reported():
        groups = run_study(load_space(space), settings, fields, out, Runner(note, invocation()))
    title, facts = "Study of shapes", {"space": f"{shapes} shapes of space {space}, {seeds} seeds"}
    figures, tables = study_figures(groups), study_tables(groups)
    show(title, facts, figures, tables, lambda: study_pictures(groups), out, as_json)


def _fields(changes: list[str]) -> dict[str, Any]:
    """What is set in all runs, by its path."""
    from linnet.core.spec import read_assignment

    for change in changes:
        if not change.strip().startswith("training.") or "=" not in change:
            raise UserError(f"--set {change}: expected training.KEY=VALUE")
    return dict(map(read_assignment, changes))
