"""The worth of scores as figures, a table and a picture."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from linnet.design.scores import ScoreSettings, score
from linnet.design.validation.trained import TrainedSet
from linnet.design.validation.validate import NAMES, Figure, Worth
from linnet.present import numbers
from linnet.present.drawing import new_figure, png_of
from linnet.present.report import Picture, Table

COLUMNS = 3


def worth_figures(trained: TrainedSet, worth: Mapping[str, Worth], band: int) -> dict[str, Any]:
    """Ready for JSON."""
    return {
        "models": len(trained.models),
        "loss_unit": trained.unit,
        "noise_between_seeds": trained.noise,
        "band": band,
        "scores": {name: _plain(one) for name, one in worth.items()},
    }


def _plain(worth: Worth) -> dict[str, Any]:
    figures: dict[str, Figure] = {name: getattr(worth, name) for name in NAMES}
    intervals = {name: [figure.low, figure.high] for name, figure in figures.items()}
    return {**{name: figure.value for name, figure in figures.items()}, "intervals": intervals}


def worth_table(trained: TrainedSet, worth: Mapping[str, Worth], band: int) -> Table:
    """A row for each score."""
    band = min(band, len(trained.models))
    columns = ["score", "Spearman", "Kendall", f"within {band}", "regret", f"regret within {band}"]
    rows = [[name, *(_said(getattr(one, figure)) for figure in NAMES)] for name, one in worth.items()]
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
    rows = math.ceil(len(worth) / COLUMNS)
    figure = new_figure(4.2 * COLUMNS, 3.2 * rows)
    axes = figure.subplots(rows, COLUMNS, squeeze=False, sharey=True).ravel()
    loss = np.array([model.loss for model in trained.models])
    parameters = np.array([model.decoder_parameters for model in trained.models])
    for place, (name, one) in zip(axes, worth.items(), strict=False):
        values = [score(model.parts, name, settings) for model in trained.models]
        place.scatter(values, loss, c=parameters, s=9, cmap="viridis")
        place.set_title(f"{name}: {one.spearman.value:.3f}, within bands {one.within_band.value:.3f}", fontsize=9)
        if min(values) > 0:
            place.set_xscale("log")
            place.minorticks_off()
            ticks = np.geomspace(min(values), max(values), 3)
            place.set_xticks(ticks, [numbers.metric(tick) for tick in ticks])
        place.grid(alpha=0.3)
    for place in axes[len(worth) :]:
        place.set_visible(False)
    figure.supylabel(f"measured loss, {trained.unit}")
    caption = (
        "Each dot a trained model; brighter ones have more decoder parameters. A good score makes one falling line."
    )
    return [Picture("scores", "Measured loss over each score", png_of(figure), caption)]
