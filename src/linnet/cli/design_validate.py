"""`linnet design validate`: what scores say about models that were trained."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import note, show
from linnet.cli.options import AsJson, Bootstrap, ReportFolder, option


def validate(
    runs: Annotated[Path, option("FILE.csv|DIR", "A table of trained models, or a folder with folders of runs.")],
    score: Annotated[list[str] | None, option("NAME", "Only this score (repeatable); all if not given.")] = None,
    band: Annotated[int, typer.Option(min=3, help="Models in a band of equal parameters.")] = 20,
    resamples: Bootstrap = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the scores, as sigma=0.5.")
    ] = None,
    report: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Compare every score with the measured loss of trained models: rank correlation, and the regret of its choice.

    A CSV file has the columns n_layer, d_model, d_inner (each layer's, with | between), params_attention, params_ffn,
    params_total, valid_ppl. Of folders of runs the finished ones count, by the bits per byte of their held-out text;
    those of equal models are seeds of one.

    Example: linnet design validate --runs trained.csv

    Example: linnet design validate --runs runs/study --band 10 --report validated
    """
    from linnet.core.spec import override
    from linnet.design.report import rank_figures, rank_plots, rank_table
    from linnet.design.scores import SCORES, ScoreSettings, find_score
    from linnet.design.validation import read_trained
    from linnet.design.validation import validate as measure

    names = score or list(SCORES)
    for name in names:
        find_score(name)
    settings = ScoreSettings.parse(override({}, changes or []), "`set`")
    trained = read_trained(runs)
    for line in trained.left_out:
        note(f"left out: {line}")
    worth = measure(trained, settings, names, band, resamples, seed)
    facts = {"trained models": f"{len(trained.models)} of {runs}"}
    figures, tables = rank_figures(trained, worth, band), [rank_table(trained, worth, band)]
    show("Scores of shapes", facts, figures, tables, lambda: rank_plots(trained, worth, settings), report, as_json)
