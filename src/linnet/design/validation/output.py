"""The worth of scores as figures, a table and a picture."""

from collections.abc import Mapping
from typing import Any

from linnet.design.scores import ScoreSettings, score
from linnet.design.validation.trained import TrainedSet
from linnet.design.validation.validate import Figure, Worth
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.report import Picture
from linnet.present.table import Table

COLUMNS = 3


def worth_figures(trained: TrainedSet, worth: Mapping[str, Worth], band: int) -> dict[str, Any]:
    """Ready for JSON."""
    return {
        "models": len(trained.models),
        "loss_unit": trained.unit,
        "noise_between_seeds": trained.noise,
        "band": band,
        "scores": {name: _plain(one._asdict()) for name, one in worth.items()},
    }


def _plain(figures: Mapping[str, Figure]) -> dict[str, Any]:
    intervals = {name: [figure.low, figure.high] for name, figure in figures.items()}
    return {**{name: figure.value for name, figure in figures.items()}, "intervals": intervals}


def worth_table(trained: TrainedSet, worth: Mapping[str, Worth], band: int) -> Table:
    """A row for each score."""
    band = min(band, len(trained.models))
    columns = ["score", "Spearman", "Kendall", f"within {band}", "regret", f"regret within {band}"]
    rows = [[name, *map(_said, one)] for name, one in worth.items()]
    noise = "" if trained.noise is None else f" Between seeds losses differ by {numbers.significant(trained.noise, 2)}."
    meaning = (
        f"Rank correlation with quality over all {len(trained.models)} models, and the mean over windows of {band} with"
        f" about as many decoder parameters. Regret: how much worse, in {trained.unit}, the model is that the score"
        f" likes best.{noise} In brackets: the middle 95 % when the models are drawn anew."
    )
    return Table("Scores against trained models", columns, rows, meaning)


def _said(figure: Figure) -> str:
    return f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"


def worth_pictures(trained: TrainedSet, worth: Mapping[str, Worth], settings: ScoreSettings) -> list[Picture]:
    """The loss over each score."""
    loss = [model.loss for model in trained.models]
    parameters = [model.decoder_parameters for model in trained.models]
    panels = []
    for name, one in worth.items():
        values = [score(model.parts, name, settings) for model in trained.models]
        x = Axis("", "log", numbers.metric) if min(values) > 0 else Axis()
        title = f"{name}: {one.spearman.value:.3f}, within bands {one.within_band.value:.3f}"
        dots = Series(values, loss, style="o", values=parameters)
        panels.append(Panel(x, Axis(f"measured loss, {trained.unit}"), [dots], title))
    caption = "Each dot a trained model, its colour the parameters of its decoder. A good score makes one falling line."
    plot = Plot(panels, (4.4, 3.2), min(COLUMNS, len(panels)), values="decoder parameters", shared="y")
    return [Picture("scores", "Measured loss over each score", plot, caption)]
